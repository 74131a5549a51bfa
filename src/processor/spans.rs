//! The spans of batches and checkpoints, and the hook that links them to the traces of the producers.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::Span;

use super::handler_call::{HANDLER, panicked};
use super::positioned::Positioned;
use super::trace_context::TraceContext;
use crate::model::PartitionId;
use crate::telemetry::{self, Spans};

/// How many distinct trace contexts a span gets: the default limit of links in OpenTelemetry.
const MAX_CONTEXTS: usize = 128;

pub(super) type SpanHook = dyn Fn(&Span, &[TraceContext]) + Send + Sync;

/// Creates the spans of a processor.
#[derive(Clone)]
pub(super) struct BatchSpans {
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
    pub(super) fn new(spans: Spans, hook: Option<Arc<SpanHook>>, streams: bool) -> Self {
        Self { spans, hook, streams }
    }

    /// Returns the trace contexts of a batch, with the numbers of their events. Without a hook nothing needs them.
    pub(super) fn contexts<E: Positioned>(&self, batch: &[E]) -> Vec<(i64, TraceContext)> {
        if self.hook.is_none() {
            return Vec::new();
        }
        let context = |event: &E| {
            let context = event.trace_context()?.with_enqueued_at(event.enqueued_at());
            Some((event.sequence_number()?, context))
        };
        batch.iter().filter_map(context).collect()
    }

    /// Creates the span of a batch for its handler. A stream has no handler: its span ends at once.
    pub(super) fn batch(&self, partition: &PartitionId, events: usize, contexts: &[(i64, TraceContext)]) -> Span {
        let span =
            if self.streams { self.spans.receive(partition, events) } else { self.spans.process(partition, events) };
        self.link(&span, partition, contexts.iter().map(|(_, context)| context.clone()));
        if self.streams { Span::none() } else { span }
    }

    /// Creates the span of the write of a checkpoint after these events.
    pub(super) fn checkpoint(&self, partition: &PartitionId, events: Vec<TraceContext>) -> Span {
        let span = self.spans.checkpoint(partition);
        self.link(&span, partition, events.into_iter());
        span
    }

    fn link(&self, span: &Span, partition: &PartitionId, contexts: impl Iterator<Item = TraceContext>) {
        let Some(hook) = self.hook.as_ref().filter(|_| !span.is_disabled()) else { return };
        let mut seen = HashSet::new();
        let contexts = contexts.filter(|context| seen.insert(context.traceparent.clone()));
        let contexts: Vec<_> = contexts.take(MAX_CONTEXTS).collect();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| hook(span, &contexts))) {
            telemetry::callback_panicked(partition, "span hook", &panicked(HANDLER, &*panic));
        }
    }
}

/// The trace contexts of delivered events until the checkpoint passes them.
#[derive(Debug, Default)]
pub(super) struct TracedEvents(VecDeque<(i64, TraceContext)>);

impl TracedEvents {
    /// Adds an event. The oldest one is forgotten if there are too many for one span.
    pub(super) fn add(&mut self, sequence_number: i64, context: TraceContext) {
        if self.0.len() >= MAX_CONTEXTS {
            self.0.pop_front();
        }
        self.0.push_back((sequence_number, context));
    }

    /// Returns the contexts of the events up to this one.
    pub(super) fn until(&self, sequence_number: i64) -> Vec<TraceContext> {
        let passed = self.0.iter().take_while(|(number, _)| *number <= sequence_number);
        passed.map(|(_, context)| context.clone()).collect()
    }

    /// Removes the events up to this one.
    pub(super) fn forget_until(&mut self, sequence_number: i64) {
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
            delivered.add(number, context(number));
        }
        assert_eq!(delivered.until(3), [context(1), context(2), context(3)]);
        delivered.forget_until(3);
        assert_eq!(delivered.until(9), [context(4), context(5)]);
    }

    #[test]
    fn the_oldest_events_are_forgotten() {
        let mut delivered = TracedEvents::default();
        for number in 0..200 {
            delivered.add(number, context(number));
        }
        let known = delivered.until(500);
        assert_eq!((known.len(), known.first()), (MAX_CONTEXTS, Some(&context(72))));
    }
}
