//! What the processor needs to know of an event: its position, and the trace that it belongs to. And how a source
//! reports an event that it cannot decode.

use std::error::Error as StdError;
use std::fmt;

use time::OffsetDateTime;

use crate::error::{Error, ErrorKind, cause_of};
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

    /// Returns about how much memory the event takes, in bytes. The processor limits the sum over the events
    /// [in flight](crate::processor::ProcessorConfig::with_max_in_flight_bytes). Default 0: unknown, and not limited.
    fn byte_size(&self) -> usize {
        0
    }

    /// Returns the trace context that the producer sent with the event, for the
    /// [hook of spans](crate::processor::ProcessorBuilder::with_span_hook). Default: none.
    fn trace_context(&self) -> Option<TraceContext> {
        None
    }
}

/// A position that is kept instead of its event, for example to checkpoint it later.
impl Positioned for Position {
    fn sequence_number(&self) -> Option<i64> {
        Some(self.sequence_number)
    }

    fn offset(&self) -> Option<&str> {
        Some(&self.offset)
    }
}

/// The trace context that a producer sent with an event, as [W3C Trace Context](https://www.w3.org/TR/trace-context/)
/// defines it.
///
/// Pass both texts to the propagator of your tracing library.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TraceContext {
    /// The ids of the trace and of the span in which the event was created.
    pub traceparent: String,
    /// What tracing systems added.
    pub tracestate: Option<String>,
    /// When the event hub enqueued the event, for the attribute `messaging.eventhubs.message.enqueued_time` of a link.
    pub enqueued_at: Option<OffsetDateTime>,
}

impl TraceContext {
    /// Creates a trace context.
    pub fn new(traceparent: impl Into<String>, tracestate: Option<String>) -> Self {
        Self { traceparent: traceparent.into(), tracestate, enqueued_at: None }
    }

    /// Sets when the event was enqueued.
    #[must_use]
    pub fn with_enqueued_at(mut self, enqueued_at: Option<OffsetDateTime>) -> Self {
        self.enqueued_at = enqueued_at;
        self
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent)
    }
}

/// What a source reports with [`undecodable`].
#[derive(Debug)]
struct UndecodableReport {
    sequence_number: Option<i64>,
    cause: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for UndecodableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sequence_number {
            Some(number) => write!(f, "event {number}"),
            None => f.write_str("the next event"),
        }
    }
}

impl StdError for UndecodableReport {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.cause)
    }
}

/// Returns the error with which a receiver reports, in place of an event, that it cannot decode the event. Like every
/// error it ends the receiver.
///
/// Pass the sequence number if it is known. Otherwise the processor takes the event for the first one that exists after
/// the last event that the receiver has returned, or after its start.
///
/// ```
/// use eventhubs_checkpoint::ErrorKind;
/// use eventhubs_checkpoint::source::undecodable;
///
/// let error = undecodable(Some(42), "a list in the application properties");
/// assert_eq!(error.kind(), ErrorKind::Undecodable);
/// ```
pub fn undecodable(sequence_number: Option<i64>, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Undecodable, "the event source cannot decode an event")
        .with_source(UndecodableReport { sequence_number, cause: cause.into() })
}

/// Returns the sequence number that the source has reported.
pub(crate) fn undecodable_number(error: &Error) -> Option<i64> {
    cause_of::<UndecodableReport>(error)?.sequence_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_number_is_found_below_other_errors() {
        let error = undecodable(Some(42), "a list");
        assert_eq!(undecodable_number(&error), Some(42));
        let named = Error::new(ErrorKind::Undecodable, "event 42 of partition 3").with_source(error);
        assert_eq!(undecodable_number(&named), Some(42));
        assert_eq!(undecodable_number(&undecodable(None, "a list")), None);
        assert_eq!(undecodable_number(&Error::new(ErrorKind::EventSource, "broken")), None);
    }
}
