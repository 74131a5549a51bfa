//! What the application knows when it chooses the start of a partition.

use std::sync::Arc;

use crate::model::{CheckpointRecord, ConsumerGroup, PartitionId};

/// A partition that is about to start; see [`Handler::start_position`](crate::processor::Handler::start_position).
#[derive(Clone, Debug)]
pub struct PartitionStart {
    pub(crate) partition: PartitionId,
    pub(crate) group: Arc<ConsumerGroup>,
    pub(crate) epoch: i64,
    pub(crate) checkpoint: CheckpointRecord,
}

impl PartitionStart {
    /// Returns the partition.
    #[must_use]
    pub fn partition_id(&self) -> &PartitionId {
        &self.partition
    }

    /// Returns the consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// Returns the epoch in which this instance owns the partition; see
    /// [`PartitionContext::epoch`](crate::processor::PartitionContext::epoch).
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Returns the checkpoint of the group, if there is one. Without a choice of the application, the partition starts
    /// after it.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&CheckpointRecord> {
        self.checkpoint.has_position().then_some(&self.checkpoint)
    }
}
