//! The links over which events are published, so that a test can detach them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fe2o3_amqp_types::definitions::Error;
use tokio::sync::oneshot;

use crate::lock::lock;

/// The open links.
#[derive(Debug, Default)]
pub(super) struct Links {
    open: Mutex<HashMap<u64, oneshot::Sender<Error>>>,
    next_id: AtomicU64,
}

/// An open link, until it is dropped.
#[derive(Debug)]
pub(super) struct OpenLink {
    links: Arc<Links>,
    id: u64,
    /// Resolves to the error with which the link must be closed.
    pub(super) ending: oneshot::Receiver<Error>,
}

impl Links {
    pub(super) fn open(self: &Arc<Self>) -> OpenLink {
        let (sender, ending) = oneshot::channel();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&self.open).insert(id, sender);
        OpenLink { links: self.clone(), id, ending }
    }

    /// Detaches all open links, and returns their number.
    pub(super) fn detach(&self, reason: &Error) -> usize {
        let open = std::mem::take(&mut *lock(&self.open));
        // The task of a link may be ending on its own.
        open.into_values().filter_map(|link| link.send(reason.clone()).ok()).count()
    }
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        lock(&self.links.open).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::AmqpError;

    use super::*;

    #[test]
    fn only_open_links_are_detached() {
        let links = Arc::new(Links::default());
        let mut open = links.open();
        let closed = links.open();
        drop(closed);
        let reason = Error::new(AmqpError::NotFound, None, None);
        assert_eq!(links.detach(&reason), 1);
        assert_eq!(open.ending.try_recv(), Ok(reason.clone()));
        assert_eq!(links.detach(&reason), 0);
    }
}
