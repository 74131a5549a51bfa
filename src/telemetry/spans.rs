//! The spans, and the targets of events.
//!
//! Spans have the level `error`, so that a filter at `warn` or `error` does not remove them: an event without its span
//! does not name the event hub, the consumer group and the instance. One span is created per store, and one per
//! partition task.
//!
//! The spans of batches and checkpoints are for tracing systems. Their level is `debug`, so that log lines do not carry
//! their fields.

use std::sync::Arc;

use tracing::field::Empty;
use tracing::{Span, debug_span, error_span};

use crate::error::ErrorKind;
use crate::model::{ConsumerGroup, OwnerId, PartitionId};

/// The target of the spans.
const SPANS: &str = "eventhubs_checkpoint";

/// The target of the spans of batches and checkpoints.
const TRACES: &str = "eventhubs_checkpoint::spans";

/// Ownership of partitions: claims, renewals, handoffs, releases, heartbeats.
pub(super) const BALANCER: &str = "eventhubs_checkpoint::balancer";
/// Processing of partitions: handlers, checkpoints, start and end of a processor.
pub(super) const PROCESSOR: &str = "eventhubs_checkpoint::processor";
/// The records of the group.
pub(super) const STORE: &str = "eventhubs_checkpoint::store";
/// Requests to Azure Blob Storage: signatures, tokens, listings.
pub(super) const BLOB: &str = "eventhubs_checkpoint::blob";
/// Connections to the event hub, and the store for the official `EventProcessor`.
pub(super) const EVENTHUBS: &str = "eventhubs_checkpoint::eventhubs";

/// Creates the span of one instance, as a child of the current span. Everything that the instance does is inside it.
pub(crate) fn processor_span(group: &ConsumerGroup, owner: &OwnerId) -> Span {
    error_span!(
        target: SPANS,
        "processor",
        event_hub = group.event_hub(),
        consumer_group = group.name(),
        owner_id = owner.as_str()
    )
}

/// Creates the span of a partition task and of the handler's callbacks.
pub(crate) fn partition_span(processor: &Span, partition: &PartitionId) -> Span {
    error_span!(target: SPANS, parent: processor, "partition", partition_id = %partition)
}

/// Creates the spans of batches and checkpoints, with the names and fields of OpenTelemetry's semantic conventions for
/// messaging, version 1.44: `docs/messaging/azure-messaging.md` of open-telemetry/semantic-conventions.
#[derive(Clone, Debug)]
pub(crate) struct Spans(Arc<Names>);

#[derive(Debug)]
struct Names {
    namespace: String,
    event_hub: String,
    consumer_group: String,
    process: String,
    receive: String,
    checkpoint: String,
}

/// Creates a span with the fields of all of them.
macro_rules! messaging_span {
    ($names:expr, $partition:expr, $name:ident, $kind:literal, $type:literal, $count:expr) => {
        debug_span!(
            target: TRACES,
            stringify!($name),
            otel.name = $names.$name,
            otel.kind = $kind,
            otel.status_code = Empty,
            error.type = Empty,
            messaging.system = "eventhubs",
            messaging.operation.name = stringify!($name),
            messaging.operation.type = $type,
            messaging.destination.name = $names.event_hub,
            messaging.destination.partition.id = $partition.as_str(),
            messaging.consumer.group.name = $names.consumer_group,
            messaging.batch.message_count = $count,
            server.address = $names.namespace,
        )
    };
}

impl Spans {
    pub(crate) fn new(group: &ConsumerGroup) -> Self {
        Self(Arc::new(Names {
            namespace: group.namespace().to_owned(),
            event_hub: group.event_hub().to_owned(),
            consumer_group: group.name().to_owned(),
            process: span_name("process", group),
            receive: span_name("receive", group),
            checkpoint: span_name("checkpoint", group),
        }))
    }

    /// Creates the span of a call of the handler.
    pub(crate) fn process_span(&self, partition: &PartitionId, events: usize) -> Span {
        messaging_span!(self.0, partition, process, "consumer", "process", events)
    }

    /// Creates the span of a batch that a stream delivers.
    pub(crate) fn receive_span(&self, partition: &PartitionId, events: usize) -> Span {
        messaging_span!(self.0, partition, receive, "client", "receive", events)
    }

    /// Creates the span of the write of a checkpoint.
    pub(crate) fn checkpoint_span(&self, partition: &PartitionId) -> Span {
        messaging_span!(self.0, partition, checkpoint, "client", "settle", Empty)
    }
}

fn span_name(operation: &str, group: &ConsumerGroup) -> String {
    format!("{operation} {}", group.event_hub())
}

/// Records that the operation of a span failed.
pub(crate) fn span_failed(span: &Span, kind: ErrorKind) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", kind.as_str());
}
