//! Dead letters: events that fail again and again are moved out of the way of the others.

mod isolation;
mod policy;
mod sink;

use super::clone_event::CloneEvent;
use super::context::PartitionContext;
use super::handler::Handler;
use super::partition_start::PartitionStart;
use super::positioned::Positioned;
use super::source::StartPosition;
use super::stop::{HandlerError, StopReason};
use crate::error::Error;
use crate::model::PartitionId;
use isolation::Isolation;
pub use policy::DeadLetterPolicy;
pub use sink::{DeadLetter, DeadLetterSink};

/// A handler that moves events which fail again and again to a [`DeadLetterSink`], so that the partition continues. See
/// [`HandlerExt::with_dead_letters`].
///
/// As long as the policy does not [apply](DeadLetterPolicy), batches go to the handler unchanged. Then the handler gets
/// the batch as a whole once more. If it fails again, what follows depends on the failure:
///
/// - *The failure names the event*: the handler returned an [`EventError`](super::EventError), or a
///   [tracked event failed](super::TrackedEvent::fail). The events before it are processed, the sink stores the event,
///   and the events after it are processed. An event that failed as a tracked event does not go to the handler again.
/// - *It does not*: the event is isolated. The handler gets the halves of the batch, and of the half that fails the halves
///   again, until a single event fails. Once all other events of the batch are processed, in order, the sink stores the
///   failed one. Their results show that the handler works.
///
/// The checkpoint never passes a failed event before the sink has stored it. For an application that keeps its [own
/// position](Handler::start_position), only named events have this guarantee, because the application itself advances
/// the position when it processes the events after the failed one. Such an application must name its events: once
/// `start_position` has returned a position, events of the partition are not isolated.
///
/// Nothing is moved, and the partition fails as without dead letters, if the [policy](DeadLetterPolicy) finds that the
/// events are probably not the reason, if the partition is to stop, if the checkpoint before the failed event cannot be
/// written, or if the sink fails.
///
/// In an isolation the handler timeout applies to each call of the handler and of the sink.
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
        Isolation::new(&self.handler, &self.sink, &self.policy, &context, &failing, events).run().await
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
