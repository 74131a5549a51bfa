//! Dead letters: events that fail again and again are moved out of the way of the others.

mod isolation;
mod policy;

use std::sync::Arc;

use super::clone_event::CloneEvent;
use super::context::PartitionContext;
use super::handler::Handler;
use super::partition_start::PartitionStart;
use super::positioned::Positioned;
use super::source::StartPosition;
use super::stop::{EventError, HandlerError, StopReason};
use crate::error::{Error, ErrorKind};
use crate::model::{ConsumerGroup, PartitionId};
use crate::telemetry;
use isolation::{Failed, Failure, Isolation, NamedBy, give_up};
pub use policy::DeadLetterPolicy;

/// An event that the handler could not process, for a [`DeadLetterSink`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter<E> {
    /// The event.
    pub event: E,
    /// The consumer group that could not process it.
    pub group: Arc<ConsumerGroup>,
    /// The partition of the event.
    pub partition_id: PartitionId,
    /// The epoch in which this instance owns the partition; see [`PartitionContext::epoch`].
    pub epoch: i64,
    /// How many times in a row the handler has failed at the event, as [`PartitionContext::attempt`] counts.
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
    /// event is redelivered.
    fn store(&self, letter: DeadLetter<E>) -> impl Future<Output = Result<(), HandlerError>> + Send;
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

/// A handler that moves events which fail again and again to a [`DeadLetterSink`], so that the partition continues. See
/// [`HandlerExt::with_dead_letters`].
///
/// As long as the policy does not [apply](DeadLetterPolicy), batches go to the handler unchanged. Then the handler gets
/// a batch as a whole once more. If it fails, the failing event is isolated: the handler gets the halves of the batch,
/// and of the half that fails the halves again, until a single event fails. All other events are processed, in order.
/// Then the sink stores the failed event, and only then the checkpoint may pass it.
///
/// Two kinds of failures name their event, so that no isolation is needed: an [`EventError`] that the handler returns,
/// and an event that is tracked and [fails](crate::processor::TrackedEvent::fail). An event that fails as a tracked event does not go to
/// the handler again.
///
/// Nothing is moved, and the partition fails as without dead letters, if the [policy](DeadLetterPolicy) finds that the
/// events are probably not the reason, if the partition is to stop, if the checkpoint before the failed event cannot be
/// written, or if the sink fails.
///
/// Within an isolation the handler timeout applies to each call of the handler and of the sink.
#[derive(Debug)]
pub struct DeadLetters<H, K> {
    handler: H,
    sink: K,
    policy: DeadLetterPolicy,
}

/// Wraps handlers in others. Every [`Handler`] implements it.
pub trait HandlerExt<E>: Handler<E> {
    /// Returns a handler that moves events which fail again and again to a sink, so that the partition continues; see
    /// [`DeadLetters`]. Without it, such an event stops its partition until the handler can process it.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::{
    ///     CloneEvent, DeadLetter, DeadLetterPolicy, Handler, HandlerExt, PartitionContext, Positioned, handler_fn,
    /// };
    ///
    /// fn handler<E: CloneEvent + Positioned + Send + 'static>() -> impl Handler<E> {
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
        E: CloneEvent + Positioned + Send + 'static,
        K: DeadLetterSink<E>,
    {
        DeadLetters { handler: self, sink, policy }
    }
}

impl<E, H: Handler<E>> HandlerExt<E> for H {}

impl<H, K> DeadLetters<H, K> {
    /// Stores the failed events, in order. Those after an event that is not stored stay unfinished.
    async fn store_all<E>(&self, failed: Vec<Failed<E>>, context: &PartitionContext) -> Result<(), HandlerError>
    where
        K: DeadLetterSink<E>,
        E: Positioned,
    {
        let mut failed = failed.into_iter();
        for Failed { event, token, failure } in failed.by_ref() {
            let number = event.sequence_number();
            let letter = letter(event, &failure, context);
            // The call is inside the future because it may panic before it returns one.
            let storing = async { self.sink.store(letter).await };
            if let Err(error) = context.control.call_limit.call("the dead-letter sink", storing).await {
                token.give_up();
                give_up(failed);
                return Err(not_stored(number, &failure, error));
            }
            token.finish();
            context.control.progress.dead_lettered();
            context.control.metrics.dead_lettered();
            telemetry::dead_lettered(context.partition_id(), number, failure.attempts, &failure.error);
        }
        Ok(())
    }
}

fn letter<E>(event: E, failure: &Failure, context: &PartitionContext) -> DeadLetter<E> {
    DeadLetter {
        event,
        group: Arc::clone(&context.group),
        partition_id: context.partition_id().clone(),
        epoch: context.epoch(),
        attempts: failure.attempts,
        error: Arc::clone(&failure.error),
    }
}

/// Names the event only if it must not go to the handler again. Any other event gets another chance.
fn not_stored(event: Option<i64>, failure: &Failure, error: Error) -> HandlerError {
    let name = event.map_or("an event".to_owned(), |number| format!("event {number}"));
    let message = format!("{name} failed, and the dead-letter sink did not store it");
    let error = Error::new(ErrorKind::Handler, message).with_source(error);
    if failure.by == NamedBy::Token { EventError::of_tracked(event, error).into() } else { error.into() }
}

impl<E, H, K> Handler<E> for DeadLetters<H, K>
where
    E: CloneEvent + Positioned + Send + 'static,
    H: Handler<E>,
    K: DeadLetterSink<E>,
{
    async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        let failing = context.control.attempts.failing();
        let Some(failing) = failing.filter(|failing| self.policy.applies(failing.failures, failing.failing_for()))
        else {
            return self.handler.handle(events, context).await;
        };
        let failed = Isolation::new(&self.handler, &context, &self.policy, &failing, events).run().await?;
        if failed.is_empty() {
            return Ok(());
        }
        // A previous owner that does not know yet that it lost the partition must move nothing.
        if let Err(error) = context.control.call_limit.call("a checkpoint", async { Ok(context.flush().await?) }).await
        {
            give_up(failed);
            return Err(error.into());
        }
        self.store_all(failed, &context).await
    }

    fn start_position(
        &self,
        start: PartitionStart,
    ) -> impl Future<Output = Result<Option<StartPosition>, HandlerError>> + Send {
        self.handler.start_position(start)
    }

    fn started(&self, context: PartitionContext) -> impl Future<Output = ()> + Send {
        self.handler.started(context)
    }

    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        self.handler.failed(partition_id, error);
    }

    fn stopped(&self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send {
        self.handler.stopped(context, reason)
    }
}
