//! Finds the events of a batch that the handler cannot process, and processes all others.

use std::sync::Arc;

use super::policy::DeadLetterPolicy;
use crate::error::Error;
use crate::processor::attempts::{Failing, failed_event};
use crate::processor::clone_event::CloneEvent;
use crate::processor::context::{PartitionContext, TrackedEvent};
use crate::processor::handler::Handler;
use crate::processor::handler_call::HANDLER;
use crate::processor::positioned::Positioned;
use crate::processor::stop::HandlerError;

/// Why an event counts as failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: Arc<Error>,
    pub(super) attempts: u32,
    pub(super) by: NamedBy,
}

/// What named the failed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedBy {
    /// An [`EventError`](super::EventError) that the handler returned.
    Handler,
    /// It failed as a tracked event, after the handler had returned.
    Token,
    /// The isolation.
    Isolation,
}

/// An event that the handler cannot process.
pub(super) struct Failed<E> {
    pub(super) event: E,
    /// Holds the checkpoint back until the sink has stored the event.
    pub(super) token: TrackedEvent,
    pub(super) failure: Failure,
}

/// A part of the batch.
enum Part<E> {
    /// The handler gets these events together.
    Events(Vec<E>),
    Failed(E, Failure),
}

/// Processes one batch. The parts that are left are in `rest`, the last part first.
pub(super) struct Isolation<'a, E, H> {
    handler: &'a H,
    context: &'a PartitionContext,
    policy: &'a DeadLetterPolicy,
    rest: Vec<Part<E>>,
    failed: Vec<Failed<E>>,
    /// The handler has processed a part of the batch.
    succeeded: bool,
}

impl<'a, E: CloneEvent + Positioned, H: Handler<E>> Isolation<'a, E, H> {
    pub(super) fn new(
        handler: &'a H,
        context: &'a PartitionContext,
        policy: &'a DeadLetterPolicy,
        failing: &Failing,
        events: Vec<E>,
    ) -> Self {
        // The handler would only track the event again, and return.
        let tracked = failing.tracked_event().and_then(|event| index_of(&events, event));
        let rest = match tracked {
            Some(index) => {
                let error = Arc::clone(&failing.error);
                split_at(events, index, Failure { error, attempts: failing.failures, by: NamedBy::Token })
            }
            None => vec![Part::Events(events)],
        };
        Self { handler, context, policy, rest, failed: Vec::new(), succeeded: false }
    }

    /// Returns the failed events after the handler has processed all others.
    ///
    /// # Errors
    ///
    /// The error of the handler if the events are probably not the reason, or if the partition is to stop.
    pub(super) async fn run(mut self) -> Result<Vec<Failed<E>>, HandlerError> {
        while let Some(part) = self.rest.pop() {
            let outcome = match part {
                Part::Events(events) => self.handle(events).await,
                Part::Failed(event, failure) => self.set_aside(event, failure),
            };
            if let Err(error) = outcome {
                give_up(self.failed);
                return Err(error);
            }
        }
        match self.failed.last().map(|last| Arc::clone(&last.failure.error)) {
            Some(error) if !self.succeeded && self.unnamed() > 1 => {
                give_up(self.failed);
                Err(error.into())
            }
            _ => Ok(self.failed),
        }
    }

    async fn handle(&mut self, events: Vec<E>) -> Result<(), HandlerError> {
        if events.is_empty() {
            return Ok(());
        }
        let (copies, context) = (events.iter().map(E::clone_event).collect(), self.context.clone());
        // The call is inside the future because it may panic before it returns one.
        let handling = async { self.handler.handle(copies, context).await };
        let Err(error) = self.context.control.call_limit.call(HANDLER, handling).await else {
            self.succeeded = true;
            return Ok(());
        };
        // A handler of a partition that stops, or is lost, is expected to fail.
        if self.context.is_stopping() {
            return Err(error.into());
        }
        let named = failed_event(&error).and_then(|event| index_of(&events, event));
        let single = (self.policy.isolate && events.len() == 1).then_some(0);
        let by = if named.is_some() { NamedBy::Handler } else { NamedBy::Isolation };
        match named.or(single) {
            Some(index) => {
                let failure = Failure { error: Arc::new(error), attempts: self.context.attempt(), by };
                self.rest.extend(split_at(events, index, failure));
            }
            None if self.policy.isolate => self.rest.extend(halves(events)),
            None => return Err(error.into()),
        }
        Ok(())
    }

    /// Fails if too many events have failed.
    fn set_aside(&mut self, event: E, failure: Failure) -> Result<(), HandlerError> {
        let error = Arc::clone(&failure.error);
        // The checkpoint must not pass the event, although later events are processed.
        let token = self.context.track(&event);
        self.failed.push(Failed { event, token, failure });
        if self.policy.allows(self.unnamed()) { Ok(()) } else { Err(error.into()) }
    }

    fn unnamed(&self) -> usize {
        self.failed.iter().filter(|failed| failed.failure.by == NamedBy::Isolation).count()
    }
}

/// Gives up events that are not moved, before the partition fails.
pub(super) fn give_up<E>(failed: impl IntoIterator<Item = Failed<E>>) {
    failed.into_iter().for_each(|failed| failed.token.give_up());
}

fn index_of<E: Positioned>(events: &[E], sequence_number: i64) -> Option<usize> {
    events.iter().position(|event| event.sequence_number() == Some(sequence_number))
}

fn split_at<E>(mut events: Vec<E>, failed: usize, failure: Failure) -> Vec<Part<E>> {
    let after = events.split_off(failed + 1);
    let failed = events.pop().map(|event| Part::Failed(event, failure));
    [Some(Part::Events(after)), failed, Some(Part::Events(events))].into_iter().flatten().collect()
}

fn halves<E>(mut first: Vec<E>) -> [Part<E>; 2] {
    let second = first.split_off(first.len() / 2);
    [Part::Events(second), Part::Events(first)]
}
