//! What a store remembers of each partition between its operations, and whose turn it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

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

#[derive(Debug, Default)]
pub(super) struct PartitionState {
    /// Operations on one record of one partition come one after another; those that hang on the checkpoint must not
    /// hold up a renewal.
    alone: [Arc<AsyncMutex<()>>; 2],
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The tenure that was won last; 0 before the first.
    tenure: u64,
    /// The last tenure that may have begun: a write that brings it was sent, whatever became of it.
    begun: u64,
}

impl PartitionState {
    pub(super) async fn alone(&self, kind: RecordKind) -> OwnedMutexGuard<()> {
        Arc::clone(&self.alone[kind as usize]).lock_owned().await
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    pub(super) fn tenure(&self) -> u64 {
        self.known().tenure
    }

    pub(super) fn begin_tenure(&self, tenure: u64) {
        let mut known = self.known();
        known.tenure = tenure;
        known.begun = known.begun.max(tenure);
    }

    /// To be called before the write is sent, not when its answer is here: what the tenure before still has under way
    /// must not take the record that it finds for its own.
    pub(super) fn may_begin_tenure(&self, tenure: u64) {
        let mut known = self.known();
        known.begun = known.begun.max(tenure);
    }

    pub(super) fn begun(&self) -> u64 {
        self.known().begun
    }
}

/// The right to work on one record of one partition, as long as it is held.
pub(super) struct Turn<'a> {
    pub(super) state: Arc<PartitionState>,
    pub(super) _alone: OwnedMutexGuard<()>,
    pub(super) _permit: Option<SemaphorePermit<'a>>,
}
