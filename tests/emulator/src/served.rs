//! The links of a connection over which events are sent.
//!
//! The AMQP library responds to a client's detach at once, and gives the handle of the link to the next one. The task
//! that sends the events of the former link does not know this yet: an event, or the notice that another receiver
//! displaces it, would reach the client as one of the next link. The service does not confuse its links. Therefore a
//! link is attached only after the tasks of all links that the client has detached have ended, and the events that such
//! a task has sent are counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// The links of a connection: see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Served {
    links: watch::Sender<Links>,
}

#[derive(Debug, Default)]
struct Links {
    next_id: u64,
    /// The last link of each name, or `None` if two sessions use the name at once.
    ids: HashMap<String, Option<u64>>,
    by_id: HashMap<u64, Link>,
}

#[derive(Debug)]
struct Link {
    sent: Arc<AtomicU64>,
    detached: bool,
    ended: bool,
}

/// The task that serves a link keeps this until the task ends.
#[derive(Debug)]
pub(super) struct Serving {
    served: Arc<Served>,
    id: u64,
    sent: Arc<AtomicU64>,
}

impl Served {
    /// Registers a link with this name before it is attached.
    pub(super) fn begin(self: &Arc<Self>, name: &str) -> Serving {
        let sent = Arc::new(AtomicU64::new(0));
        let mut id = 0;
        self.links.send_modify(|links| {
            id = links.next_id;
            links.next_id += 1;
            let is_used = links.id_of(name).is_some_and(|id| links.by_id.get(&id).is_some_and(|link| !link.ended));
            links.ids.insert(name.to_owned(), (!is_used).then_some(id));
            links.by_id.insert(id, Link { sent: Arc::clone(&sent), detached: false, ended: false });
        });
        Serving { served: Arc::clone(self), id, sent }
    }

    pub(super) fn id_of(&self, name: &str) -> Option<u64> {
        self.links.borrow().id_of(name)
    }

    /// Records that the client has detached the link with this name.
    pub(super) fn detached(&self, name: &str) {
        self.links.send_modify(|links| {
            if let Some(link) = links.id_of(name).and_then(|id| links.by_id.get_mut(&id)) {
                link.detached = true;
            }
        });
    }

    /// Returns the number of events that the task of the link has sent. Removes the link if its task has ended.
    pub(super) fn sent(&self, id: u64) -> u64 {
        let mut sent = 0;
        self.links.send_modify(|links| {
            sent = links.by_id.get(&id).map_or(0, |link| link.sent.load(Ordering::Relaxed));
            if links.by_id.get(&id).is_some_and(|link| link.ended) {
                links.by_id.remove(&id);
            }
        });
        sent
    }

    /// Waits until no task sends events over a link that the client has detached.
    pub(super) async fn all_detached_ended(&self) {
        let none = |links: &Links| !links.by_id.values().any(|link| link.detached && !link.ended);
        // This cannot fail, because the sender is in `self`.
        let _ = self.links.subscribe().wait_for(none).await;
    }
}

impl Links {
    fn id_of(&self, name: &str) -> Option<u64> {
        self.ids.get(name).copied().flatten()
    }
}

impl Serving {
    /// Counts a sent event.
    pub(super) fn count(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.served.links.send_modify(|links| {
            if let Some(link) = links.by_id.get_mut(&self.id) {
                link.ended = true;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_tasks_of_detached_links_are_awaited() {
        let served = Arc::new(Served::default());
        let (one, other) = (served.begin("one"), served.begin("other"));
        assert!(served.all_detached_ended().now_or_never().is_some());
        served.detached("one");
        served.detached("unknown");
        assert!(served.all_detached_ended().now_or_never().is_none());
        drop(one);
        assert!(served.all_detached_ended().now_or_never().is_some());
        drop(other);
    }

    #[test]
    fn sent_events_are_counted_per_link() {
        let served = Arc::new(Served::default());
        let first = served.begin("name");
        first.count();
        first.count();
        let id = served.id_of("name").expect("one link has the name");
        drop(first);
        let second = served.begin("name");
        assert_eq!(served.sent(id), 2);
        let id = served.id_of("name").expect("one link has the name");
        let _third = served.begin("name");
        assert_eq!(served.id_of("name"), None, "two links have the name");
        second.count();
        assert_eq!(served.sent(id), 1);
    }
}
