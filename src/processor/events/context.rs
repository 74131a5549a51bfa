//! What a handler of single events is called with, besides the event.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ConsumerGroup, PartitionId};
use crate::processor::context::PartitionContext;

/// What an [`EventHandler`](super::EventHandler) is called with, besides the event. Cheap to clone.
///
/// It has no checkpoints: the processor requests them when events are processed.
#[derive(Clone, Debug)]
pub struct EventContext {
    /// Shared by the events of a batch: a reference is cheaper to copy for each of them.
    pub(crate) partition: Arc<PartitionContext>,
    pub(crate) attempt: u32,
}

impl EventContext {
    /// Returns the partition.
    #[must_use]
    pub fn partition_id(&self) -> &PartitionId {
        self.partition.partition_id()
    }

    /// Returns the consumer group.
    #[must_use]
    pub fn group(&self) -> &Arc<ConsumerGroup> {
        &self.partition.group
    }

    /// Returns the epoch in which this instance owns the partition; see [`PartitionContext::epoch`].
    #[doc(alias = "fencing_token")]
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.partition.epoch()
    }

    /// Returns how many attempts at this event there have been since the partition started, this one included: 1, or
    /// more after failures.
    #[doc(alias = "delivery_count")]
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns whether the partition is stopping; see [`PartitionContext::is_stopping`].
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.partition.is_stopping()
    }

    /// Waits until the partition is stopping.
    pub async fn stopping(&self) {
        self.partition.stopping().await;
    }

    /// Runs a future until it completes, or until the partition is stopping; see
    /// [`PartitionContext::run_until_stopping`].
    #[doc(alias = "run_until_cancelled")]
    pub async fn run_until_stopping<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.partition.run_until_stopping(work).await
    }

    /// Releases the partition, and does not claim it again within `cooldown`; see [`PartitionContext::release`].
    pub fn release(&self, cooldown: Duration) {
        self.partition.release(cooldown);
    }
}
