//! What must not happen at the same time: two load-balancing loops of one store, two operations on one record, and
//! operations of a former epoch next to a later one.
//!
//! Two loops of one store would claim each other's partitions forever, because both are the same owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, SemaphorePermit};

use super::rules::next_epoch;

/// The permit to run a load-balancing loop with a store. It ends when the first of its clones is dropped, so that it
/// also ends if the rest of a loop is dropped later, on its dedicated thread.
#[derive(Clone, Debug)]
pub(crate) struct LoopPermit(Arc<Permit>);

#[derive(Debug)]
struct Permit {
    /// Whether a loop uses the store.
    balanced: Arc<AtomicBool>,
    ended: AtomicBool,
}

impl LoopPermit {
    /// Takes the permit. Returns `None` if another loop has it.
    pub(super) fn take(balanced: &Arc<AtomicBool>) -> Option<Self> {
        if balanced.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Self(Arc::new(Permit { balanced: Arc::clone(balanced), ended: AtomicBool::new(false) })))
    }

    pub(crate) fn end(&self) {
        if !self.0.ended.swap(true, Ordering::AcqRel) {
            self.0.balanced.store(false, Ordering::Release);
        }
    }
}

impl Drop for LoopPermit {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a store remembers about a partition between its operations, and the order of these operations.
#[derive(Debug)]
pub(super) struct KnownPartition {
    /// Operations on one record of one partition run one after another. Operations that hang on the checkpoint must not
    /// delay a renewal.
    pub(super) alone: [Arc<AsyncMutex<()>>; 2],
    /// The epoch that this store won last.
    won: AtomicI64,
    /// The greatest epoch that this store has sent. An epoch of this owner may have begun with it, even if the write
    /// failed.
    begun: AtomicI64,
}

/// No epoch is less than this.
const NONE: i64 = i64::MIN;

impl Default for KnownPartition {
    fn default() -> Self {
        Self { alone: Default::default(), won: AtomicI64::new(NONE), begun: AtomicI64::new(NONE) }
    }
}

impl KnownPartition {
    pub(super) fn record_won_epoch(&self, epoch: i64) {
        self.won.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Returns whether this store has won a later epoch: a lease of an earlier one must not renew or release anything.
    pub(super) fn has_won_after(&self, epoch: i64) -> bool {
        epoch < self.won.load(Ordering::Relaxed)
    }

    /// Begins an epoch over a record with the epoch `before`, if it had one, and returns it: greater than every epoch
    /// that this store has sent. Call it before the write is sent, not when its response has arrived: operations of the
    /// previous epoch must not continue next to the new one.
    pub(super) fn begin_epoch(&self, before: Option<i64>, server_time: i64) -> i64 {
        let epoch = next_epoch(before.max(Some(self.begun.load(Ordering::Relaxed))), server_time);
        self.begun.fetch_max(epoch, Ordering::Relaxed);
        epoch
    }

    /// Returns whether a later epoch of this owner may have begun.
    pub(super) fn may_be_superseded(&self, epoch: i64) -> bool {
        epoch < self.begun.load(Ordering::Relaxed)
    }
}

/// The exclusive right to work on one record of one partition.
pub(super) struct OperationGuard<'a> {
    pub(super) state: Arc<KnownPartition>,
    pub(super) _alone: OwnedMutexGuard<()>,
    pub(super) _permit: Option<SemaphorePermit<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a lease was lost, although its holder may not know that yet.
    #[test]
    fn an_earlier_epoch_renews_and_releases_nothing() {
        let known = KnownPartition::default();
        assert!(!known.has_won_after(6), "nothing is known");
        known.record_won_epoch(7);
        known.record_won_epoch(5);
        assert_eq!([6, 7, 8].map(|epoch| known.has_won_after(epoch)), [true, false, false]);
    }
}
