//! The spans of batches and checkpoints, and the hook that links them to the traces of the producers.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::Span;

use crate::model::PartitionId;
use crate::processor::handler_errors::panic_error;
use crate::source::{Positioned, TraceContext};
use crate::telemetry::{self, Spans};

/// How many distinct trace contexts a span gets: the default limit of links in OpenTelemetry.
const MAX_CONTEXTS: usize = 128;

pub(crate) type SpanHook = dyn Fn(&Span, SpanEvents<'_>) + Send + Sync;

/// The events of a span, for [`with_span_hook`](crate::processor::ProcessorBuilder::with_span_hook).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SpanEvents<'a> {
    /// How many events the batch has. For a checkpoint: by how much its sequence number grew.
    pub count: usize,
    /// The distinct trace contexts of these events, at most the first 128.
    pub contexts: &'a [TraceContext],
}

/// Creates the spans of a processor.
#[derive(Clone)]
pub(crate) struct BatchSpans {
    spans: Spans,
    hook: Option<Arc<SpanHook>>,
    /// Whether the application takes the batches from streams, instead of a handler that processes them.
    streams: bool,
}

impl fmt::Debug for BatchSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spans, hook, streams } = self;
        f.debug_struct("BatchSpans")
            .field("spans", spans)
            .field("hook", &hook.is_some())
            .field("streams", streams)
            .finish()
    }
}

impl BatchSpans {
    pub(crate) fn new(spans: Spans, hook: Option<Arc<SpanHook>>, streams: bool) -> Self {
        Self { spans, hook, streams }
    }

    /// Creates the span of a batch for its handler, and returns the trace contexts with the numbers of their events,
    /// for the checkpoint. A stream has no handler: its span ends at once.
    pub(crate) fn batch_span<E: Positioned>(
        &self,
        partition: &PartitionId,
        batch: &[E],
    ) -> (Span, Vec<(i64, TraceContext)>) {
        let span = if self.streams {
            self.spans.receive_span(partition, batch.len())
        } else {
            self.spans.process_span(partition, batch.len())
        };
        let Some(hook) = self.hook_of(&span) else { return (span, Vec::new()) };
        let contexts: Vec<_> = batch
            .iter()
            .filter_map(|event| {
                let context = event.trace_context()?.with_enqueued_at(event.enqueued_at());
                Some((event.sequence_number()?, context))
            })
            .collect();
        call_hook(hook, &span, partition, batch.len(), contexts.iter().map(|(_, context)| context));
        (if self.streams { Span::none() } else { span }, contexts)
    }

    /// Creates the span of the write of a checkpoint after these events.
    pub(crate) fn checkpoint_span(&self, partition: &PartitionId, count: usize, events: &[TraceContext]) -> Span {
        let span = self.spans.checkpoint_span(partition);
        if let Some(hook) = self.hook_of(&span) {
            call_hook(hook, &span, partition, count, events.iter());
        }
        span
    }

    /// Returns the hook, if there is one and the span is enabled.
    fn hook_of(&self, span: &Span) -> Option<&SpanHook> {
        self.hook.as_deref().filter(|_| !span.is_disabled())
    }
}

fn call_hook<'a>(
    hook: &SpanHook,
    span: &Span,
    partition: &PartitionId,
    count: usize,
    contexts: impl Iterator<Item = &'a TraceContext>,
) {
    let mut seen = HashSet::new();
    let contexts: Vec<_> =
        contexts.filter(|context| seen.insert(&context.traceparent)).take(MAX_CONTEXTS).cloned().collect();
    let events = SpanEvents { count, contexts: &contexts };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| hook(span, events))) {
        telemetry::callback_failed(partition, "span hook", &panic_error("the span hook", &*panic));
    }
}

/// The trace contexts of delivered events until the checkpoint passes them.
#[derive(Debug, Default)]
pub(crate) struct TracedEvents(VecDeque<(i64, TraceContext)>);

impl TracedEvents {
    /// Adds an event, unless there are enough for one span: the next checkpoint passes the first ones.
    pub(crate) fn add_event(&mut self, sequence_number: i64, context: TraceContext) {
        let is_repeated = self.0.back().is_some_and(|(_, last)| last.traceparent == context.traceparent);
        if self.0.len() < MAX_CONTEXTS && !is_repeated {
            self.0.push_back((sequence_number, context));
        }
    }

    /// Returns the contexts of the events up to this one.
    pub(crate) fn contexts_until(&self, sequence_number: i64) -> Vec<TraceContext> {
        self.0.iter().take_while(|(number, _)| *number <= sequence_number).map(|(_, context)| context.clone()).collect()
    }

    /// Removes the events up to this one.
    pub(crate) fn forget_until(&mut self, sequence_number: i64) {
        while self.0.front().is_some_and(|(number, _)| *number <= sequence_number) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: i64) -> TraceContext {
        TraceContext::new(number.to_string(), None)
    }

    #[test]
    fn a_checkpoint_takes_the_events_before_it() {
        let mut delivered = TracedEvents::default();
        for number in 1..=5 {
            delivered.add_event(number, context(number));
        }
        assert_eq!(delivered.contexts_until(3), [context(1), context(2), context(3)]);
        delivered.forget_until(3);
        assert_eq!(delivered.contexts_until(9), [context(4), context(5)]);
    }

    #[test]
    fn the_first_events_are_kept() {
        let mut delivered = TracedEvents::default();
        for number in 0..200 {
            delivered.add_event(number, context(number));
        }
        assert_eq!(delivered.contexts_until(99).len(), 100, "the contexts of the next checkpoint");
        let known = delivered.contexts_until(500);
        assert_eq!((known.len(), known.last()), (MAX_CONTEXTS, Some(&context(127))));
        delivered.forget_until(500);
        delivered.add_event(501, context(7));
        delivered.add_event(502, context(7));
        assert_eq!(delivered.contexts_until(502), [context(7)], "each context once");
    }
}
