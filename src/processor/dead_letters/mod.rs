//! Dead letters: events that fail again and again are moved out of the way of the others.

mod parts;
mod policy;
mod sink;

use std::sync::Arc;

use super::context::PartitionContext;
use super::handler::Handler;
use super::partition::attempts::Failing;
use super::shutdown::stop::{DeadLetterError, HandlerError, StopReason};
use super::start::partition_start::PartitionStart;
use super::undecodable::UndecodableEvent;
use crate::error::{Error, ErrorKind};
use crate::model::PartitionId;
use crate::source::Positioned;
use crate::source::StartPosition;
use crate::telemetry;
use parts::{Part, split};
pub use policy::DeadLetterPolicy;
pub use sink::{DeadLetter, DeadLetterSink};

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
/// Each failure restarts the partition, as [`OnFailure`](super::OnFailure) says. Once the event alone has failed as often
/// and as long as the [policy](DeadLetterPolicy) requires, it is not given to the handler again. The sink stores it after
/// the events before it were processed, and before the events after it are. So the order of the events is kept, and
/// neither the checkpoint nor an application's [own position](Handler::start_position) passes an event that is neither
/// processed nor stored. Tracked events may still be in flight meanwhile.
///
/// It must be the outermost handler: a handler around it must not pass it parts of a batch.
///
/// The owner remembers in memory which events it has moved. If one is redelivered, it is neither given to the handler nor
/// stored again.
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
    /// fn handler<E: Positioned + Send + 'static>() -> impl Handler<E> {
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
        E: Positioned + Send + 'static,
        K: DeadLetterSink<E>,
    {
        DeadLetters { handler: self, sink, policy }
    }
}

impl<E, H: Handler<E>> HandlerExt<E> for H {}

impl<H, K> DeadLetters<H, K> {
    async fn call<E>(&self, events: Vec<E>, context: &PartitionContext) -> Result<(), HandlerError>
    where
        H: Handler<E>,
        E: Positioned,
    {
        let _working = context.control.call_limit.begin();
        context.control.attempts.calling(events.first().and_then(E::sequence_number), events.len());
        self.handler.handle(events, context.clone()).await
    }

    async fn store<E>(&self, event: E, failing: Failing, context: &PartitionContext) -> Result<(), HandlerError>
    where
        K: DeadLetterSink<E>,
        E: Positioned,
    {
        let (number, position, control) = (event.sequence_number(), event.position(), &context.control);
        let letter = DeadLetter {
            event,
            group: Arc::clone(&context.group),
            partition_id: context.partition_id().clone(),
            epoch: context.epoch(),
            attempts: failing.failures,
            error: Arc::clone(&failing.error),
        };
        let storing = async {
            confirm_owner(context).await?;
            self.sink.store(letter).await
        };
        if let Err(error) = control.call_limit.call("the dead-letter sink", storing).await {
            return Err(DeadLetterError::new(number, error).into());
        }
        if let Some(position) = position {
            control.attempts.moved(position.sequence_number, &position.offset);
            context.checkpoints.pass_over(position.sequence_number, &position.offset);
        }
        control.progress.dead_lettered();
        control.metrics.dead_lettered();
        telemetry::dead_lettered(context.partition_id(), number, failing.failures, &failing.error);
        Ok(())
    }
}

/// An event that was moved is not given to the handler again, and not stored again.
fn skip_if_moved(event: &impl Positioned, context: &PartitionContext) -> bool {
    let moved = context.control.attempts.was_moved(event);
    if let (true, Some(position)) = (moved, event.position()) {
        context.checkpoints.pass_over(position.sequence_number, &position.offset);
    }
    moved
}

/// A previous owner that does not know yet that it lost the partition must store nothing.
async fn confirm_owner(context: &PartitionContext) -> Result<(), Error> {
    if context.is_stopping() {
        return Err(Error::new(ErrorKind::Closed, "the partition is stopping"));
    }
    context.checkpoints.confirm_owner().await
}

impl<E, H, K> Handler<E> for DeadLetters<H, K>
where
    E: Positioned + Send + 'static,
    H: Handler<E>,
    K: DeadLetterSink<E>,
{
    async fn handle(&self, mut events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        let attempts = &context.control.attempts;
        if attempts.has_moved() {
            events.retain(|event| !skip_if_moved(event, &context));
        }
        let failing = attempts.failing().filter(|failing| self.policy.isolation || failing.is_named());
        let Some(failing) = failing else {
            return if events.is_empty() { Ok(()) } else { self.call(events, &context).await };
        };
        for part in split(events, failing.place) {
            match part {
                Part::Suspect(event) if self.policy.applies(&failing) => {
                    self.store(event, failing.clone(), &context).await?;
                }
                Part::Suspect(event) => self.call(vec![event], &context).await?,
                Part::Events(events) => self.call(events, &context).await?,
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

    fn started(&self, context: PartitionContext) -> impl Future<Output = ()> + Send {
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
