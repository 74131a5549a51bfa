//! What is done with each event: a call of the handler, and what follows a failure.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::context::EventContext;
use super::retries::{AfterFailure, Failures, RetryPolicy};
use super::{EventHandler, EventOrder, KeyOf};
use crate::error::{Error, ErrorKind, cause_of};
use crate::processor::context::{PartitionContext, TrackedEvent};
use crate::processor::handler_errors::{DEAD_LETTER_SINK, DeadLetterError, EventError, HandlerError, timeout_error};
use crate::processor::partition::handler_call::{Call, CallOutcome};
use crate::source::Positioned;

/// What is done with each event. Cheap to clone.
pub(super) struct EventWork<E, H> {
    pub(super) handler: Arc<H>,
    /// At least 1.
    pub(super) concurrency: usize,
    pub(super) order: EventOrder<E>,
    pub(super) retries: RetryPolicy,
    pub(super) event_timeout: Option<Duration>,
}

/// Derived, it would require that events and handlers can be cloned.
impl<E, H> Clone for EventWork<E, H> {
    fn clone(&self) -> Self {
        Self {
            handler: Arc::clone(&self.handler),
            concurrency: self.concurrency,
            order: self.order.clone(),
            retries: self.retries.clone(),
            event_timeout: self.event_timeout,
        }
    }
}

impl<E, H> EventWork<E, H> {
    /// Returns whether events are processed one after another, as they come.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self.order, EventOrder::Partition)
    }

    pub(super) fn key_of(&self, event: &E) -> Option<u64> {
        match &self.order {
            EventOrder::Partition => Some(0),
            EventOrder::Key(KeyOf(key)) => Some(key(event)),
            EventOrder::None => None,
        }
    }
}

/// An event that was delivered and is not finished.
pub(super) struct OpenEvent<E> {
    pub(super) event: Arc<E>,
    /// Holds the checkpoint back, if events are processed concurrently.
    pub(super) token: Option<TrackedEvent>,
    attempts: u32,
    first_failed_at: Option<Instant>,
    /// The last failure of an event that is to be moved, until the sink has stored it.
    unstored: Option<Arc<Error>>,
    sink_failures: u32,
}

impl<E> OpenEvent<E> {
    pub(super) fn new(event: E) -> Self {
        let event = Arc::new(event);
        Self { event, token: None, attempts: 0, first_failed_at: None, unstored: None, sink_failures: 0 }
    }

    pub(super) fn new_tracked(event: E, context: &PartitionContext) -> Self
    where
        E: Positioned,
    {
        let token = context.track(&event);
        Self { token: Some(token), ..Self::new(event) }
    }

    /// Counts a failure.
    fn record_failure(&mut self, error: &Error) -> Failures {
        let now = Instant::now();
        let named = cause_of::<EventError>(error);
        Failures {
            attempts: self.attempts,
            failing_for: now - *self.first_failed_at.get_or_insert(now),
            named: named.is_some(),
            permanent: named.is_some_and(EventError::is_permanent),
        }
    }
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Attempted {
    /// The event is processed, or stored as a dead letter.
    Finished,
    RetryIn(Duration),
    /// The partition must fail.
    Failed(Error),
}

impl<E, H> EventWork<E, H>
where
    E: Positioned + Send + Sync + 'static,
    H: EventHandler<E>,
{
    pub(super) async fn attempt_event(&self, open: &mut OpenEvent<E>, context: &Arc<PartitionContext>) -> Attempted {
        if let Some(error) = open.unstored.take() {
            return self.move_event(open, error, context).await;
        }
        open.attempts += 1;
        let event_context = EventContext { partition: Arc::clone(context), attempt: open.attempts };
        // The call is inside the future because it may panic before it returns one.
        let call = async { self.handler.handle(Arc::clone(&open.event), event_context).await };
        match self.call_in_time(call, || format!("attempt {}", open.attempts)).await {
            Ok(()) => {
                if open.attempts > 1 {
                    context.control.progress.forget_failure();
                }
                Attempted::Finished
            }
            Err(error) => self.after_failure(open, error, context).await,
        }
    }

    async fn after_failure(&self, open: &mut OpenEvent<E>, error: Error, context: &PartitionContext) -> Attempted {
        let failures = open.record_failure(&error);
        let policy = context.dead_letters.as_ref().map(|dead_letters| &dead_letters.policy);
        match failures.next_step(&self.retries, policy, context.store.next_random()) {
            AfterFailure::MoveToDeadLetters => {
                // In an outage all events fail, so one that the failure does not name shows little.
                if let Some(policy) = policy.filter(|_| !failures.named)
                    && let Err(wait) = context.control.failures.begin_unnamed_move(policy.min_failing_time)
                {
                    // The handler may recover before that.
                    let usual = self.retries.wait_after(failures.attempts, context.store.next_random());
                    return retry_event(open, error, wait.min(usual), context);
                }
                let error = Arc::new(error);
                count_failure(&error, context);
                self.move_event(open, error, context).await
            }
            AfterFailure::RetryIn(wait) => retry_event(open, error, wait, context),
            AfterFailure::FailPartition => Attempted::Failed(error),
        }
    }

    /// Waits for a call, at most as long as it may take. A panic is its failure.
    async fn call_in_time(
        &self,
        call: impl Future<Output = Result<(), HandlerError>>,
        name: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let call = Call::new(call);
        let outcome = match self.event_timeout {
            Some(limit) => match timeout(limit, call).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(timeout_error(&name(), "event", limit)),
            },
            None => call.await,
        };
        match outcome {
            CallOutcome::Returned(Ok(())) => Ok(()),
            failure => failure.into_result(&name()),
        }
    }

    /// Moves an event to the dead letters. A sink that fails is asked again, as often as an event is tried.
    async fn move_event(&self, open: &mut OpenEvent<E>, error: Arc<Error>, context: &PartitionContext) -> Attempted {
        let Err(failure) = self.store_letter(open, &error, context).await else { return Attempted::Finished };
        let failure = Error::new(ErrorKind::Handler, "the event stays where it is")
            .with_source(DeadLetterError::new(open.event.sequence_number(), failure));
        open.unstored = Some(error);
        open.sink_failures += 1;
        if open.sink_failures >= self.retries.max_attempts {
            return Attempted::Failed(failure);
        }
        retry_event(open, failure, self.retries.wait_after(open.sink_failures, context.store.next_random()), context)
    }

    async fn store_letter(
        &self,
        open: &OpenEvent<E>,
        error: &Arc<Error>,
        context: &PartitionContext,
    ) -> Result<(), Error> {
        let Some(dead_letters) = &context.dead_letters else {
            return Err(Error::new(ErrorKind::Internal, "internal error: there are no dead letters"));
        };
        context.confirm_owner().await?;
        // The sink has the time of a call.
        let _working = context.control.call_limit.begin_call();
        let letter = context.new_letter(Arc::clone(&open.event), open.attempts, Arc::clone(error));
        // The call is inside the future because it may panic before it returns one.
        self.call_in_time(async { dead_letters.store_event(&letter).await }, || DEAD_LETTER_SINK.to_owned()).await?;
        context.record_move(&letter);
        context.control.progress.forget_failure();
        Ok(())
    }
}

/// Lets an event be tried again, unless the partition is stopping: then its next owner does.
fn retry_event<E: Positioned>(
    open: &OpenEvent<E>,
    error: Error,
    wait: Duration,
    context: &PartitionContext,
) -> Attempted {
    if context.is_stopping() {
        return Attempted::Failed(error);
    }
    context.store.telemetry().event_failed(
        context.partition_id(),
        open.event.sequence_number(),
        open.attempts,
        &error,
        wait,
    );
    count_failure(&Arc::new(error), context);
    Attempted::RetryIn(wait)
}

/// Counts a failure that does not fail the partition. Others are counted with that.
fn count_failure(error: &Arc<Error>, context: &PartitionContext) {
    context.control.metrics.count_handler_failure();
    context.control.progress.record_failure(error);
}
