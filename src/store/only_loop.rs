//! At most one balancing loop at a time on one store: two would claim the partitions of each other for ever, because
//! both are the same owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{GroupStore, Inner};
use crate::error::{Error, Result};

/// The permit to balance with a store. It ends with the first of its clones that is dropped, so that it also ends where
/// the rest of a loop goes away later, on a thread of its own.
#[derive(Clone, Debug)]
pub(crate) struct LoopPermit(Arc<Held>);

#[derive(Debug)]
struct Held {
    inner: Arc<Inner>,
    ended: AtomicBool,
}

impl LoopPermit {
    pub(crate) fn end(&self) {
        if !self.0.ended.swap(true, Ordering::AcqRel) {
            self.0.inner.balanced.store(false, Ordering::Release);
        }
    }
}

impl Drop for LoopPermit {
    fn drop(&mut self) {
        self.end();
    }
}

impl GroupStore {
    pub(crate) fn loop_permit(&self) -> Result<LoopPermit> {
        if self.inner.balanced.swap(true, Ordering::AcqRel) {
            return Err(Error::config(format!(
                "another load-balancing loop or processor uses this store or a clone of it, as owner {}: the two would take \
                 partitions from each other. Connect a store for each, with its own owner id, or stop the other one first",
                self.identity().owner
            )));
        }
        Ok(LoopPermit(Arc::new(Held { inner: Arc::clone(&self.inner), ended: AtomicBool::new(false) })))
    }
}
