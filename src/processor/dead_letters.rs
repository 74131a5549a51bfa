//! Dead letters: events that fail again and again are moved out of the way of the others.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::context::PartitionContext;
use super::handler::{Handler, PartitionStart, UndecodableEvent};
use super::handler_errors::{DeadLetterError, HandlerError};
use super::partition::handler_failures::{FailurePlace, FailureRun};
use super::shutdown::StopReason;
use crate::error::{Error, ErrorKind};
use crate::model::{ConsumerGroup, PartitionId};
use crate::source::{Positioned, StartPosition};
use crate::telemetry;

/// By how much a call with the failing event becomes smaller with each failure.
const NARROWING: usize = 10;

/// An event that the handler could not process, for a [`DeadLetterSink`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter<E> {
    /// The event.
    pub event: Arc<E>,
    /// The consumer group that could not process it.
    pub group: Arc<ConsumerGroup>,
    /// The partition of the event.
    pub partition_id: PartitionId,
    /// The epoch in which this instance owns the partition; see
    /// [`PartitionContext::epoch`](crate::processor::PartitionContext::epoch).
    pub epoch: i64,
    /// How many times in a row the event, or the partition at the event, has failed.
    pub attempts: u32,
    /// The last failure, with its causes.
    pub error: Arc<Error>,
}

/// Stores dead letters. A closure that takes a [`DeadLetter`] and returns a future is a sink, and so is
/// [`EventHubDeadLetters`](crate::EventHubDeadLetters).
pub trait DeadLetterSink<E>: Send + Sync + 'static {
    /// Stores an event. Returns once it is durable: from then on the event counts as processed. After a crash between
    /// the two, the same event may be stored again. Its partition and sequence number identify it.
    ///
    /// # Errors
    ///
    /// Return an error if the event was not stored. Then the partition fails, as after an error of the handler, and the
    /// event is redelivered; with [`each_event`](crate::processor::each_event) after some more calls.
    fn store(&self, letter: DeadLetter<E>) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Stores what is known of an event that the source cannot decode: where it is, and the error. Returns once it is
    /// durable: from then on the event counts as processed. Called only with
    /// [`OnUndecodable::Skip`](crate::processor::OnUndecodable). Default: stores nothing; the processor logs and counts
    /// the event in any case.
    ///
    /// # Errors
    ///
    /// Return an error if it was not stored. Then the partition fails, as after an error of the handler, and reads the
    /// event again.
    fn store_undecodable(&self, event: UndecodableEvent) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = event;
        async { Ok(()) }
    }
}

impl<E, F, Fut> DeadLetterSink<E> for F
where
    F: Fn(DeadLetter<E>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    fn store(&self, letter: DeadLetter<E>) -> impl Future<Output = Result<(), HandlerError>> + Send {
        self(letter)
    }
}

/// When a failing event is moved to the dead letters.
///
/// The attempts and the time distinguish an event that can never be processed from an outage, for example
/// of a database, in which no event can be processed. They count for one event: the next failing event needs its own. In an
/// outage that is longer than `min_failing_time`, each partition therefore moves one event in each such period. Choose
/// it longer than the outages that the handler should survive, or turn `isolation` off, so that only events that the
/// handler names with an [`EventError`](crate::processor::EventError) are moved.
///
/// A [permanent](crate::processor::EventError::permanent) error is certain. Its event is moved at the next delivery, or at
/// once by [`each_event`](crate::processor::each_event).
///
/// Attempts are counted in the memory of the owner. After the partition moved to another instance, the count starts
/// again, so with [`OnFailure::Release`](crate::processor::OnFailure::Release) the policy may never apply.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadLetterPolicy {
    /// How many attempts must have failed at the event. Default 5. 0 counts as 1.
    #[doc(alias = "max_delivery_count")]
    pub max_attempts: u32,
    /// How long the attempts must have failed at the event, from the first failure to the last one. Default 60 s, so
    /// that a restart of a database moves nothing.
    #[serde(with = "humantime_serde")]
    pub min_failing_time: Duration,
    /// Whether to find the failing event if the failure does not name it. Default true.
    pub isolation: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, min_failing_time: Duration::from_secs(60), isolation: true }
    }
}

impl DeadLetterPolicy {
    /// Sets how many attempts must have failed.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets how long the attempts must have failed.
    #[must_use]
    pub fn with_min_failing_time(mut self, time: Duration) -> Self {
        self.min_failing_time = time;
        self
    }

    /// Sets whether to find the failing event if the failure does not name it.
    #[must_use]
    pub fn with_isolation(mut self, isolation: bool) -> Self {
        self.isolation = isolation;
        self
    }

    /// Returns whether an event that has failed so often and so long is moved.
    pub(super) fn is_met(&self, attempts: u32, failing_for: Duration, permanent: bool) -> bool {
        permanent || (attempts >= self.max_attempts && failing_for >= self.min_failing_time)
    }

    fn applies_to(&self, failing: &FailureRun) -> bool {
        self.is_met(failing.failures, failing.failing_for(), failing.is_permanent())
    }
}

/// Wraps handlers in others. Every [`Handler`] implements it.
pub trait HandlerExt<E>: Handler<E> {
    /// Returns a handler that moves events which fail again and again to a sink, so that the partition continues; see
    /// [`DeadLetters`]. Without it, such an event stops its partition until the handler can process it.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::{
    ///     DeadLetter, DeadLetterPolicy, Handler, HandlerExt, PartitionContext, handler_fn,
    /// };
    /// use eventhubs_checkpoint::source::Positioned;
    ///
    /// fn handler<E: Positioned + Send + Sync + 'static>() -> impl Handler<E> {
    ///     let handler = handler_fn(|events: Vec<E>, context: PartitionContext| async move {
    ///         events.iter().for_each(|event| context.checkpoint(event));
    ///         Ok(())
    ///     });
    ///     let sink = |letter: DeadLetter<E>| async move {
    ///         println!("{:?} of {}: {}", letter.event.sequence_number(), letter.partition_id, letter.error);
    ///         Ok(())
    ///     };
    ///     handler.with_dead_letters(sink, DeadLetterPolicy::default())
    /// }
    /// ```
    #[doc(alias = "poison")]
    fn with_dead_letters<K>(self, sink: K, policy: DeadLetterPolicy) -> DeadLetters<Self, K>
    where
        Self: Sized,
        E: Positioned + Send + Sync + 'static,
        K: DeadLetterSink<E>,
    {
        DeadLetters { handler: self, sink, policy }
    }
}

impl<E, H: Handler<E>> HandlerExt<E> for H {}

/// A handler that moves events which fail again and again to a [`DeadLetterSink`], so that the partition continues. See
/// [`HandlerExt::with_dead_letters`].
///
/// Without failures, batches go to the handler unchanged. What follows a failure depends on what it shows:
///
/// - *It names the event*: the handler returned an [`EventError`](super::EventError), or a
///   [tracked event failed](super::TrackedEvent::fail). From then on the handler gets this event alone.
/// - *It does not*: the handler gets the events that failed together in smaller calls, with a tenth of the events after
///   each failure, until the failing event is alone.
///
/// Each failure restarts the partition, as [`OnFailure`](super::OnFailure) says. Once the event alone has failed as
/// often and as long as the [policy](DeadLetterPolicy) requires, it is not given to the handler again. The sink stores
/// it after the events before it were processed, and before the events after it are. So the order of the events is
/// kept, and neither the checkpoint nor an application's [own position](Handler::start_position) passes an event that
/// is neither processed nor stored. Tracked events may still be in flight meanwhile.
///
/// It must be the outermost handler: a handler around it must not pass it parts of a batch.
///
/// The owner remembers in memory which events it has moved. If one is redelivered, it is neither given to the handler
/// nor stored again.
///
/// With [`OnUndecodable::Skip`](super::OnUndecodable) the sink also gets what is known of each event that the source
/// cannot decode, before the event is skipped.
///
/// Nothing is moved, and the partition fails as without dead letters, if the partition is to stop, if the ownership
/// record does not show that this instance owns the partition, or if the sink fails.
///
/// The handler timeout applies to each call of the handler and of the sink. Without a
/// [handler timeout](super::ProcessorConfig::handler_timeout), which is the default, a call that hangs never fails, so
/// its event is never moved.
#[derive(Debug)]
pub struct DeadLetters<H, K> {
    handler: H,
    sink: K,
    policy: DeadLetterPolicy,
}

impl<H, K> DeadLetters<H, K> {
    async fn call_handler<E>(&self, events: Vec<E>, context: &PartitionContext) -> Result<(), HandlerError>
    where
        H: Handler<E>,
        E: Positioned,
    {
        let _working = context.control.call_limit.begin_call();
        context.control.failures.record_call(events.first().and_then(E::sequence_number), events.len());
        self.handler.handle(events, context.clone()).await
    }

    async fn store_letter<E>(
        &self,
        event: E,
        failing: FailureRun,
        context: &PartitionContext,
    ) -> Result<(), HandlerError>
    where
        K: DeadLetterSink<E>,
        E: Positioned,
    {
        let event = Arc::new(event);
        let letter = new_letter(Arc::clone(&event), failing.failures, &failing.error, context);
        let storing = async {
            confirm_owner(context).await?;
            self.sink.store(letter).await
        };
        if let Err(error) = context.control.call_limit.run_call("the dead-letter sink", storing).await {
            return Err(DeadLetterError::new(event.sequence_number(), error).into());
        }
        record_dead_letter(&*event, failing.failures, &failing.error, context);
        if let Some(position) = event.position() {
            context.checkpoints.pass_over(position.sequence_number, &position.offset);
        }
        Ok(())
    }
}

pub(super) fn new_letter<E>(
    event: Arc<E>,
    attempts: u32,
    error: &Arc<Error>,
    context: &PartitionContext,
) -> DeadLetter<E> {
    DeadLetter {
        event,
        group: Arc::clone(&context.group),
        partition_id: context.partition_id().clone(),
        epoch: context.epoch(),
        attempts,
        error: Arc::clone(error),
    }
}

/// Records that an event is stored as a dead letter.
pub(super) fn record_dead_letter(event: &impl Positioned, attempts: u32, error: &Error, context: &PartitionContext) {
    let control = &context.control;
    if let Some(position) = event.position() {
        control.failures.record_move(
            position.sequence_number,
            &position.offset,
            context.checkpoints.checkpoint_view().written,
        );
    }
    control.progress.count_dead_letter();
    control.metrics.count_dead_letter();
    telemetry::event_dead_lettered(context.partition_id(), event.sequence_number(), attempts, error);
}

/// Removes the events that this owner has moved to the dead letters before.
pub(super) fn pass_over_moved_events<E: Positioned>(events: &mut Vec<E>, context: &PartitionContext) {
    let failures = &context.control.failures;
    if !failures.has_moved() {
        return;
    }
    events.retain(|event| {
        if !failures.was_moved(event) {
            return true;
        }
        if let Some(position) = event.position() {
            context.checkpoints.pass_over(position.sequence_number, &position.offset);
        }
        false
    });
}

/// A previous owner that does not know yet that it lost the partition must store nothing.
pub(super) async fn confirm_owner(context: &PartitionContext) -> Result<(), Error> {
    if context.is_stopping() {
        return Err(Error::new(ErrorKind::Closed, "the partition is stopping"));
    }
    context.checkpoints.confirm_owner().await
}

impl<E, H, K> Handler<E> for DeadLetters<H, K>
where
    E: Positioned + Send + Sync + 'static,
    H: Handler<E>,
    K: DeadLetterSink<E>,
{
    async fn handle(&self, mut events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        pass_over_moved_events(&mut events, &context);
        let failing =
            context.control.failures.current_failure().filter(|failing| self.policy.isolation || failing.is_named());
        let Some(failing) = failing else {
            return if events.is_empty() { Ok(()) } else { self.call_handler(events, &context).await };
        };
        for part in split_batch(events, failing.place) {
            match part {
                Part::Suspect(event) if self.policy.applies_to(&failing) => {
                    self.store_letter(event, failing.clone(), &context).await?;
                }
                Part::Suspect(event) => self.call_handler(vec![event], &context).await?,
                Part::Events(events) => self.call_handler(events, &context).await?,
            }
        }
        Ok(())
    }

    fn start_position(
        &self,
        start: PartitionStart,
    ) -> impl Future<Output = Result<Option<StartPosition>, HandlerError>> + Send {
        self.handler.start_position(start)
    }

    fn started(&self, context: PartitionContext) -> impl Future<Output = Result<(), HandlerError>> + Send {
        self.handler.started(context)
    }

    async fn undecodable(&self, event: UndecodableEvent, context: PartitionContext) -> Result<(), HandlerError> {
        confirm_owner(&context).await?;
        self.sink.store_undecodable(event.clone()).await?;
        self.handler.undecodable(event, context).await
    }

    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        self.handler.failed(partition_id, error);
    }

    fn stopped(&self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send {
        self.handler.stopped(context, reason)
    }
}

/// A part of a batch. The parts keep the order of the events.
#[derive(Debug, PartialEq, Eq)]
enum Part<E> {
    /// The handler gets these events together. Never empty.
    Events(Vec<E>),
    /// The event at which the partition failed, alone.
    Suspect(E),
}

/// Splits a batch so that the next failure shows more: the failing event alone, if it is known; otherwise, from the
/// first event that it may be, calls with a tenth of the events.
fn split_batch<E: Positioned>(mut events: Vec<E>, place: FailurePlace) -> Vec<Part<E>> {
    let mut parts = Vec::new();
    match place {
        FailurePlace::Event(event) => {
            if let Some(index) = events.iter().position(|each| each.sequence_number() == Some(event)) {
                let after = events.split_off(index + 1);
                let suspect = events.pop();
                push_events(&mut parts, events);
                parts.extend(suspect.map(Part::Suspect));
                events = after;
            }
        }
        FailurePlace::From { first, events: failed } => {
            let start = events.iter().position(|each| each.sequence_number() >= Some(first)).unwrap_or(events.len());
            let mut suspects = events.split_off(start);
            push_events(&mut parts, events);
            let size = failed.div_ceil(NARROWING);
            while suspects.len() > size {
                let rest = suspects.split_off(size);
                push_events(&mut parts, suspects);
                suspects = rest;
            }
            events = suspects;
        }
        FailurePlace::Unknown => {}
    }
    push_events(&mut parts, events);
    parts
}

fn push_events<E>(parts: &mut Vec<Part<E>>, events: Vec<E>) {
    if !events.is_empty() {
        parts.push(Part::Events(events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Numbered(i64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    /// Returns the parts as numbers; the suspect is negative.
    fn parts(events: std::ops::Range<i64>, place: FailurePlace) -> Vec<Vec<i64>> {
        let parts = split_batch(events.map(Numbered).collect(), place);
        let numbers = parts.into_iter().map(|part| match part {
            Part::Events(events) => events.into_iter().map(|event| event.0).collect(),
            Part::Suspect(event) => vec![-event.0],
        });
        numbers.collect()
    }

    #[test]
    fn a_known_event_is_alone() {
        assert_eq!(parts(1..6, FailurePlace::Event(3)), [vec![1, 2], vec![-3], vec![4, 5]]);
        assert_eq!(parts(1..3, FailurePlace::Event(1)), [vec![-1], vec![2]]);
        assert_eq!(parts(1..3, FailurePlace::Event(2)), [vec![1], vec![-2]]);
        assert_eq!(parts(1..3, FailurePlace::Event(7)), [vec![1, 2]], "another batch");
    }

    #[test]
    fn an_unknown_event_is_narrowed_down() {
        let from = |first, events| FailurePlace::From { first, events };
        assert_eq!(parts(1..8, from(3, 20)), [vec![1, 2], vec![3, 4], vec![5, 6], vec![7]]);
        assert_eq!(parts(3..6, from(3, 2)), [vec![3], vec![4], vec![5]]);
        assert_eq!(parts(1..3, from(7, 20)), [vec![1, 2]], "an earlier batch");
        assert_eq!(parts(8..10, from(7, 100)), [vec![8, 9]]);
        assert_eq!(parts(1..3, FailurePlace::Unknown), [vec![1, 2]]);
    }
}
