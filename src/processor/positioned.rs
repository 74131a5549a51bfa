//! The position of an event.

use time::OffsetDateTime;

use super::trace_context::TraceContext;
use crate::model::Position;

/// An event with a position in its partition.
pub trait Positioned {
    /// Returns the sequence number, which increases with every event of the partition.
    fn sequence_number(&self) -> Option<i64>;

    /// Returns the offset, a text that only the service interprets.
    fn offset(&self) -> Option<&str>;

    /// Returns the sequence number and the offset, if the event has both.
    fn position(&self) -> Option<Position> {
        Some(Position { sequence_number: self.sequence_number()?, offset: self.offset()?.to_owned() })
    }

    /// Returns when the event hub enqueued the event, if that is known. The processor uses it to verify the position
    /// that it found for [`EnqueuedAfter`](super::StartPosition::EnqueuedAfter). Default: unknown.
    fn enqueued_at(&self) -> Option<OffsetDateTime> {
        None
    }

    /// Returns the trace context that the producer sent with the event, for the
    /// [hook of spans](super::ProcessorBuilder::with_span_hook). Default: none.
    fn trace_context(&self) -> Option<TraceContext> {
        None
    }
}
