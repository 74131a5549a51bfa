//! The spans, and the targets of events.
//!
//! Spans have the level `error`, so that a filter at `warn` or `error` does not remove them: an event without its span
//! does not name the event hub, the consumer group and the instance. One span is created per store, one per partition
//! task, and none per request, batch or event.

use tracing::{Span, error_span};

use crate::model::{ConsumerGroup, OwnerId, PartitionId};

/// The target of the spans.
const SPANS: &str = "eventhubs_checkpoint";

/// Ownership of partitions: claims, renewals, handoffs, releases, heartbeats.
pub(super) const BALANCER: &str = "eventhubs_checkpoint::balancer";
/// Processing of partitions: handlers, checkpoints, start and end of a processor.
pub(super) const PROCESSOR: &str = "eventhubs_checkpoint::processor";
/// The records of the group.
pub(super) const STORE: &str = "eventhubs_checkpoint::store";
/// Requests to Azure Blob Storage: signatures, tokens, listings.
#[cfg(feature = "azure")]
pub(super) const BLOB: &str = "eventhubs_checkpoint::blob";
/// Connections to the event hub, and the store for the official `EventProcessor`.
#[cfg(feature = "eventhubs")]
pub(super) const EVENTHUBS: &str = "eventhubs_checkpoint::eventhubs";

/// Creates the span of one instance, as a child of the current span. Everything that the instance does is inside it.
pub(crate) fn processor(group: &ConsumerGroup, owner: &OwnerId) -> Span {
    error_span!(
        target: SPANS,
        "processor",
        event_hub = group.event_hub(),
        consumer_group = group.name(),
        owner_id = owner.as_str()
    )
}

/// Creates the span of a partition task and of the handler's callbacks.
pub(crate) fn partition(processor: &Span, partition: &PartitionId) -> Span {
    error_span!(target: SPANS, parent: processor, "partition", partition_id = %partition)
}
