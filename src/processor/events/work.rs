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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::balancer::LivenessTracker;
    use crate::processor::PartitionStatus;
    use crate::processor::dead_letters::DeadLetterPolicy;
    use crate::processor::dead_letters::{DeadLetter, DeadLetters};
    use crate::processor::events::event_handler_fn;
    use crate::testing::TestPartition;
    use crate::testing::memory_hub::MemoryEvent;

    const SECOND: Duration = Duration::from_secs(1);

    fn event(number: i64) -> MemoryEvent {
        MemoryEvent::new(number, "x")
    }

    fn open(number: i64) -> OpenEvent<MemoryEvent> {
        OpenEvent::new(event(number))
    }

    /// Returns work with this handler. The sink of dead letters is asked as often as an event is tried.
    fn work<H>(handler: H, max_attempts: u32) -> EventWork<MemoryEvent, H> {
        EventWork {
            handler: Arc::new(handler),
            concurrency: 1,
            order: EventOrder::Partition,
            retries: RetryPolicy::default().with_max_attempts(max_attempts),
            event_timeout: Some(60 * SECOND),
        }
    }

    /// Creates a handler that fails at the first attempts of each event.
    fn failing_at_first(attempts: u32) -> impl EventHandler<MemoryEvent> {
        event_handler_fn(move |_, context: EventContext| async move {
            if context.attempt() > attempts { Ok(()) } else { Err("broken".into()) }
        })
    }

    async fn new_partition() -> TestPartition<MemoryEvent> {
        TestPartition::start(0).await.unwrap()
    }

    fn without_dead_letters(partition: &TestPartition<MemoryEvent>) -> Arc<PartitionContext> {
        Arc::new(PartitionContext { dead_letters: None, ..partition.context() })
    }

    /// Adds dead letters whose sink fails so often.
    fn with_dead_letters(
        partition: &TestPartition<MemoryEvent>,
        failures: u32,
        policy: DeadLetterPolicy,
    ) -> Arc<PartitionContext> {
        let calls = AtomicU32::new(0);
        let sink = move |_: DeadLetter<MemoryEvent>| {
            let fails = calls.fetch_add(1, Ordering::Relaxed) < failures;
            async move { if fails { Err("the sink is full".into()) } else { Ok(()) } }
        };
        let dead_letters = Some(Arc::new(DeadLetters::new(sink, policy)));
        Arc::new(PartitionContext { dead_letters, ..partition.context() })
    }

    fn status(context: &PartitionContext) -> PartitionStatus {
        let liveness = LivenessTracker::new(300 * SECOND);
        context.control.progress.observe_partition(&0.into(), &liveness, SECOND).status
    }

    /// Returns in short how attempts ended.
    fn short(attempted: &Attempted) -> &'static str {
        match attempted {
            Attempted::Finished => "finished",
            Attempted::RetryIn(_) => "retry",
            Attempted::Failed(_) => "failed",
        }
    }

    #[test]
    fn events_wait_for_those_of_their_key() {
        let by_number: EventOrder<MemoryEvent> =
            EventOrder::Key(KeyOf(Arc::new(|event: &MemoryEvent| event.sequence_number.unsigned_abs() + 3)));
        for (order, keys, is_in_order) in [
            (EventOrder::Partition, [Some(0), Some(0)], true),
            (by_number, [Some(7), Some(8)], false),
            (EventOrder::None, [None, None], false),
        ] {
            let work = EventWork { order, ..work(failing_at_first(0), 1) };
            assert_eq!([event(4), event(5)].map(|event| work.key_of(&event)), keys, "{:?}", work.order);
            assert_eq!(work.is_in_order(), is_in_order, "{:?}", work.order);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_shown_until_a_retry_succeeds() {
        let partition = new_partition().await;
        let context = without_dead_letters(&partition);
        let work = work(failing_at_first(1), 3);
        let mut failing = open(0);
        assert_eq!(short(&work.attempt_event(&mut failing, &context).await), "retry");
        assert_eq!((status(&context).failures, status(&context).last_error.is_some()), (1, true));
        let healthy = super::tests::work(failing_at_first(0), 3);
        assert_eq!(short(&healthy.attempt_event(&mut open(1), &context).await), "finished");
        assert!(status(&context).last_error.is_some(), "that was another event");
        assert_eq!(short(&work.attempt_event(&mut failing, &context).await), "finished");
        assert_eq!((status(&context).failures, status(&context).last_error.is_some()), (1, false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_partition_fails_after_the_last_attempt() {
        let partition = new_partition().await;
        let context = without_dead_letters(&partition);
        let work = work(failing_at_first(9), 3);
        let mut failing = open(0);
        for expected in ["retry", "retry", "failed"] {
            assert_eq!(short(&work.attempt_event(&mut failing, &context).await), expected);
        }
        assert_eq!(status(&context).failures, 2, "the last one counts with the failure of the partition");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_takes_no_longer_than_it_may() {
        let partition = new_partition().await;
        let context = without_dead_letters(&partition);
        let hanging = event_handler_fn(|_: Arc<MemoryEvent>, _| std::future::pending());
        let begin = Instant::now();
        assert_eq!(short(&work(hanging, 3).attempt_event(&mut open(0), &context).await), "retry");
        assert_eq!(begin.elapsed(), 60 * SECOND);
    }

    /// Its next owner does.
    #[tokio::test(start_paused = true)]
    async fn a_stopping_partition_repeats_nothing() {
        let partition = new_partition().await;
        let context = without_dead_letters(&partition);
        partition.request_stop();
        assert_eq!(short(&work(failing_at_first(1), 3).attempt_event(&mut open(0), &context).await), "failed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sink_is_asked_as_often_as_an_event_is_tried() {
        let at_once = DeadLetterPolicy::default().with_max_attempts(1).with_min_failing_time(Duration::ZERO);
        for (failures, expected) in [(1, ["retry", "finished"]), (2, ["retry", "failed"])] {
            let partition = new_partition().await;
            let context = with_dead_letters(&partition, failures, at_once.clone());
            let work = work(failing_at_first(1), 2);
            let mut failing = open(0);
            for expected in expected {
                let attempted = work.attempt_event(&mut failing, &context).await;
                assert_eq!(short(&attempted), expected);
                if let Attempted::Failed(error) = attempted {
                    assert!(cause_of::<DeadLetterError>(&error).is_some(), "{error:?}");
                }
            }
            let moved = u64::from(failures == 1);
            assert_eq!((status(&context).dead_letters, status(&context).failures), (moved, 2));
            assert_eq!(status(&context).last_error.is_none(), failures == 1);
        }
    }

    /// In an outage all events fail.
    #[tokio::test(start_paused = true)]
    async fn only_named_events_are_moved_one_after_the_other() {
        for (named, expected) in [(true, ["finished", "finished"]), (false, ["finished", "retry"])] {
            let partition = new_partition().await;
            let policy = DeadLetterPolicy::default().with_max_attempts(2).with_min_failing_time(30 * SECOND);
            let context = with_dead_letters(&partition, 0, policy);
            let handler = event_handler_fn(move |event: Arc<MemoryEvent>, _| async move {
                Err(if named { EventError::new(&*event, "broken").into() } else { "broken".into() })
            });
            let work = work(handler, 5);
            let mut failing = [open(0), open(1)];
            for event in &mut failing {
                assert_eq!(short(&work.attempt_event(event, &context).await), "retry");
            }
            tokio::time::advance(30 * SECOND).await;
            for (event, expected) in failing.iter_mut().zip(expected) {
                assert_eq!(short(&work.attempt_event(event, &context).await), expected, "named: {named}");
            }
        }
    }
}
