//! The trace context that a producer sent with an event.

use std::fmt;

use time::OffsetDateTime;

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
