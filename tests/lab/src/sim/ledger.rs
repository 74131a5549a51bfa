//! The database of an application that keeps its own positions. All instances of a run share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::internal::lock::lock;

/// One row per partition. Each method is one transaction. Clones are the same database.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<BTreeMap<PartitionId, Row>>>);

#[derive(Debug, Default)]
struct Row {
    /// The greatest epoch that has begun.
    epoch: i64,
    /// The last event that was counted; `None` if none was.
    position: Option<i64>,
}

impl Ledger {
    /// Begins an epoch, which rejects the commits of all earlier ones. Returns the position.
    pub(super) fn begin(&self, partition: &PartitionId, epoch: i64) -> Option<i64> {
        let mut rows = lock(&self.0);
        let row = rows.entry(partition.clone()).or_default();
        row.epoch = row.epoch.max(epoch);
        row.position
    }

    /// Counts the events from the first to the last one. Returns false, and changes nothing, if a later epoch has begun
    /// or the position is not before the first event, unless that is not checked.
    pub(super) fn commit(&self, partition: &PartitionId, epoch: Option<i64>, (first, last): (i64, i64)) -> bool {
        let mut rows = lock(&self.0);
        let row = rows.entry(partition.clone()).or_default();
        let accepted = epoch.is_none_or(|epoch| row.epoch <= epoch && row.position < Some(first));
        if accepted {
            row.position = Some(last);
        }
        accepted
    }

    /// Moves the position without any event, unless a later epoch has begun. Returns whether it moved.
    pub(super) fn move_to(&self, partition: &PartitionId, epoch: i64, position: i64) -> bool {
        let mut rows = lock(&self.0);
        let row = rows.entry(partition.clone()).or_default();
        let accepted = row.epoch <= epoch;
        if accepted {
            row.position = Some(position);
        }
        accepted
    }
}
