//! Processes a batch of which an event cannot be processed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::policy::DeadLetterPolicy;
use super::sink::{DeadLetter, DeadLetterSink};
use crate::error::{Error, ErrorKind};
use crate::processor::attempts::{Failing, failed_event};
use crate::processor::clone_event::CloneEvent;
use crate::processor::context::{PartitionContext, TrackedEvent};
use crate::processor::handler::Handler;
use crate::processor::handler_call::HANDLER;
use crate::processor::positioned::Positioned;
use crate::processor::stop::{EventError, HandlerError};
use crate::telemetry;

/// What named a failed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedBy {
    /// An [`EventError`] that the handler returned.
    Handler,
    /// It failed as a tracked event, after the handler had returned.
    Token,
    /// It failed alone.
    Isolation,
}

/// Why an event counts as failed.
#[derive(Clone, Debug)]
struct Failure {
    error: Arc<Error>,
    attempts: u32,
    by: NamedBy,
}

/// A part of the batch.
enum Part<E> {
    /// The handler gets these events together.
    Events(Vec<E>),
    Failed(E, Failure),
}

/// A failed event that the sink gets later. Until then the token holds the checkpoint back.
struct SetAside<E> {
    event: E,
    token: TrackedEvent,
    failure: Failure,
}

/// Processes one batch. The parts that are left are in `rest`, the last part first.
pub(super) struct Isolation<'a, E, H, K> {
    handler: &'a H,
    sink: &'a K,
    policy: &'a DeadLetterPolicy,
    context: &'a PartitionContext,
    rest: Vec<Part<E>>,
    set_aside: VecDeque<SetAside<E>>,
    /// The handler has processed a part of the batch.
    succeeded: bool,
}

impl<'a, E, H, K> Isolation<'a, E, H, K>
where
    E: CloneEvent + Positioned,
    H: Handler<E>,
    K: DeadLetterSink<E>,
{
    pub(super) fn new(
        handler: &'a H,
        sink: &'a K,
        policy: &'a DeadLetterPolicy,
        context: &'a PartitionContext,
        failing: &Failing,
        events: Vec<E>,
    ) -> Self {
        // The handler would only track the event again, and return.
        let rest = match failing.tracked_event().and_then(|event| index_of(&events, event)) {
            Some(index) => {
                let error = Arc::clone(&failing.error);
                split_at(events, index, Failure { error, attempts: failing.failures, by: NamedBy::Token })
            }
            None => vec![Part::Events(events)],
        };
        Self { handler, sink, policy, context, rest, set_aside: VecDeque::new(), succeeded: false }
    }

    /// Returns once each event is processed or stored.
    ///
    /// # Errors
    ///
    /// The error of the handler if the events are probably not the reason or the partition is to stop. The error of the
    /// sink, or of the checkpoint before the failed event.
    pub(super) async fn run(mut self) -> Result<(), HandlerError> {
        let outcome = self.process().await;
        self.set_aside.into_iter().for_each(|left| left.token.give_up());
        outcome
    }

    async fn process(&mut self) -> Result<(), HandlerError> {
        while let Some(part) = self.rest.pop() {
            match part {
                Part::Events(events) => self.handle(events).await?,
                Part::Failed(event, failure) => self.failed(event, failure).await?,
            }
        }
        if let Some(last) = self.set_aside.back()
            && self.set_aside.len() > 1
            && !self.succeeded
        {
            return Err(Arc::clone(&last.failure.error).into());
        }
        while let Some(next) = self.set_aside.pop_front() {
            store(self.sink, self.context, next).await?;
        }
        Ok(())
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
        let isolates = self.policy.isolate && !self.context.control.keeps_positions.load(Ordering::Relaxed);
        let named = failed_event(&error).and_then(|event| index_of(&events, event));
        let by = if named.is_some() { NamedBy::Handler } else { NamedBy::Isolation };
        match named.or((isolates && events.len() == 1).then_some(0)) {
            Some(index) => {
                let failure = Failure { error: Arc::new(error), attempts: self.context.attempt(), by };
                self.rest.extend(split_at(events, index, failure));
            }
            None if isolates => self.rest.extend(halves(events)),
            None => return Err(error.into()),
        }
        Ok(())
    }

    /// Stores an event that was named. Sets any other one aside, until the other events of the batch have shown that the
    /// handler works. Fails if too many are set aside.
    async fn failed(&mut self, event: E, failure: Failure) -> Result<(), HandlerError> {
        let (by, error) = (failure.by, Arc::clone(&failure.error));
        let failed = SetAside { token: self.context.track(&event), event, failure };
        if by != NamedBy::Isolation {
            return store(self.sink, self.context, failed).await;
        }
        self.set_aside.push_back(failed);
        if self.policy.allows(self.set_aside.len()) { Ok(()) } else { Err(error.into()) }
    }
}

/// Not a method, because the parts of the batch need not be shareable between threads.
async fn store<E: Positioned>(
    sink: &impl DeadLetterSink<E>,
    context: &PartitionContext,
    failed: SetAside<E>,
) -> Result<(), HandlerError> {
    let SetAside { event, token, failure } = failed;
    let number = event.sequence_number();
    let letter = DeadLetter {
        event,
        group: Arc::clone(&context.group),
        partition_id: context.partition_id().clone(),
        epoch: context.epoch(),
        attempts: failure.attempts,
        error: Arc::clone(&failure.error),
    };
    let storing = async {
        // A previous owner that does not know yet that it lost the partition must store nothing.
        context.flush().await?;
        sink.store(letter).await
    };
    if let Err(error) = context.control.call_limit.call("the dead-letter sink", storing).await {
        token.give_up();
        return Err(not_stored(number, failure.by, error));
    }
    token.finish();
    context.control.progress.dead_lettered();
    context.control.metrics.dead_lettered();
    telemetry::dead_lettered(context.partition_id(), number, failure.attempts, &failure.error);
    Ok(())
}

/// Names a tracked event, which must not go to the handler again. Any other event gets another chance.
fn not_stored(event: Option<i64>, by: NamedBy, error: Error) -> HandlerError {
    let name = event.map_or("an event".to_owned(), |number| format!("event {number}"));
    let message = format!("{name} failed, and was not moved to the dead letters");
    let error = Error::new(ErrorKind::Handler, message).with_source(error);
    if by == NamedBy::Token { EventError::of_tracked(event, error).into() } else { error.into() }
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
