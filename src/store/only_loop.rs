//! At most one load-balancing loop at a time per store: two would claim each other's partitions forever, because both
//! are the same owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{GroupStore, Inner};
use crate::error::{Error, Result};

/// The permit to run a load-balancing loop with a store. It ends when the first of its clones is dropped, so that it
/// also ends if the rest of a loop is dropped later, on its dedicated thread.
#[derive(Clone, Debug)]
pub(crate) struct LoopPermit(Arc<Permit>);

#[derive(Debug)]
struct Permit {
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
        Ok(LoopPermit(Arc::new(Permit { inner: Arc::clone(&self.inner), ended: AtomicBool::new(false) })))
    }
}
