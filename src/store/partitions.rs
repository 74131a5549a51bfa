//! What a store remembers about each partition between its operations, and the order of these operations.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, SemaphorePermit};

use crate::codec::RecordKind;
use crate::lock::lock;
use crate::model::PartitionId;

#[derive(Debug, Default)]
pub(super) struct Partitions(Mutex<HashMap<PartitionId, Arc<PartitionState>>>);

impl Partitions {
    pub(super) fn state(&self, partition: &PartitionId) -> Arc<PartitionState> {
        let mut states = lock(&self.0);
        Arc::clone(states.entry(partition.clone()).or_default())
    }
}

#[derive(Debug)]
pub(super) struct PartitionState {
    /// Operations on one record of one partition run one after another. Operations that hang on the checkpoint must not
    /// delay a renewal.
    alone: [Arc<AsyncMutex<()>>; 2],
    /// The epoch that this store won last.
    won: AtomicI64,
    /// The greatest epoch that this store has sent. An epoch of this owner may have begun with it, even if the write
    /// failed.
    begun: AtomicI64,
}

/// No epoch is less than this.
const NONE: i64 = i64::MIN;

impl Default for PartitionState {
    fn default() -> Self {
        let none = || AtomicI64::new(NONE);
        Self { alone: Default::default(), won: none(), begun: none() }
    }
}

impl PartitionState {
    pub(super) async fn alone(&self, kind: RecordKind) -> OwnedMutexGuard<()> {
        Arc::clone(&self.alone[kind as usize]).lock_owned().await
    }

    pub(super) fn has_won(&self, epoch: i64) {
        self.won.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Returns whether this store has won a later epoch: a lease of an earlier one must not renew or release anything.
    pub(super) fn has_won_after(&self, epoch: i64) -> bool {
        epoch < self.won.load(Ordering::Relaxed)
    }

    /// Records that an epoch may begin. Call it before the write is sent, not when its response has arrived: operations
    /// of the previous epoch must not continue next to the new one.
    pub(super) fn may_begin(&self, epoch: i64) {
        self.begun.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Returns the greatest epoch that this store has sent, if it has sent any.
    pub(super) fn latest_sent(&self) -> Option<i64> {
        Some(self.begun.load(Ordering::Relaxed)).filter(|begun| *begun != NONE)
    }

    /// Returns whether a later epoch of this owner may have begun.
    pub(super) fn may_be_superseded(&self, epoch: i64) -> bool {
        epoch < self.begun.load(Ordering::Relaxed)
    }
}

/// The exclusive right to work on one record of one partition.
pub(super) struct OperationGuard<'a> {
    pub(super) state: Arc<PartitionState>,
    pub(super) _alone: OwnedMutexGuard<()>,
    pub(super) _permit: Option<SemaphorePermit<'a>>,
}
