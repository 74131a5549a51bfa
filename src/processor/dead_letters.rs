//! Dead letters: events that cannot be processed are moved out of the way of the others.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Deserialize;

use super::context::PartitionContext;
use super::handler::UndecodableEvent;
use super::handler_errors::HandlerError;
use crate::error::Error;
use crate::model::{ConsumerGroup, PartitionId};
use crate::source::Positioned;
use crate::telemetry;

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
    /// How many times in a row the event, or the partition at the event, has failed. At least 1.
    pub attempts: u32,
    /// The last failure, with its causes.
    pub error: Arc<Error>,
}

/// Stores dead letters; see [`ProcessorBuilder::with_dead_letters`](super::ProcessorBuilder::with_dead_letters). A closure
/// that takes a [`DeadLetter`] and returns a future is a sink, and so is
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
    /// [`OnUndecodable::Skip`](crate::processor::OnUndecodable), before
    /// [`Handler::undecodable`](crate::processor::Handler::undecodable). Default: stores nothing; the processor logs and
    /// counts the event in any case.
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
/// of a database, in which no event can be processed. They count for one event: the next failing event needs its own.
///
/// A [permanent](crate::processor::EventError::permanent) error is certain: its event is moved at once.
///
/// Attempts are counted in the memory of the owner. After the partition moved to another instance, the count starts
/// again, so with [`OnFailure::Release`](crate::processor::OnFailure::Release) a policy of several attempts is never met.
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
    /// Whether [`each_event`](crate::processor::each_event) moves only events that an
    /// [`EventError`](crate::processor::EventError) names. Default false. Handlers of batches always have to name the
    /// event.
    pub named_only: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, min_failing_time: Duration::from_secs(60), named_only: false }
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

    /// Sets whether [`each_event`](crate::processor::each_event) moves only events that an
    /// [`EventError`](crate::processor::EventError) names.
    ///
    /// Otherwise, it moves at most one of the others within each `min_failing_time`: in an outage that is longer, each
    /// partition moves one event in each such period. Choose the time longer than the outages that the handler should
    /// survive, or let the handler name the events.
    #[must_use]
    pub fn with_named_only(mut self, named_only: bool) -> Self {
        self.named_only = named_only;
        self
    }

    /// Returns whether an event that has failed so often and so long is moved.
    pub(super) fn is_met(&self, attempts: u32, failing_for: Duration, permanent: bool) -> bool {
        permanent || (attempts >= self.max_attempts && failing_for >= self.min_failing_time)
    }
}

/// The dead letters of a processor: the sink, of any type, and the policy.
pub(crate) struct DeadLetters {
    sink: Box<dyn AnySink>,
    pub(crate) policy: DeadLetterPolicy,
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The failure because of which an event is moved.
#[derive(Clone, Debug)]
pub(super) struct LetterFailure {
    pub(super) attempts: u32,
    pub(super) error: Arc<Error>,
}

/// A sink for events of one type, which the types of contexts do not name.
trait AnySink: Send + Sync {
    fn takes(&self, event: &dyn Any) -> bool;

    fn store_letter(
        &self,
        event: Arc<dyn Any + Send + Sync>,
        failure: LetterFailure,
        context: &PartitionContext,
    ) -> BoxFuture<'_, Result<(), HandlerError>>;

    fn store_undecodable(&self, event: UndecodableEvent) -> BoxFuture<'_, Result<(), HandlerError>>;
}

struct SinkOf<E, K> {
    sink: K,
    events: PhantomData<fn(E)>,
}

impl<E: Send + Sync + 'static, K: DeadLetterSink<E>> AnySink for SinkOf<E, K> {
    fn takes(&self, event: &dyn Any) -> bool {
        event.is::<E>()
    }

    fn store_letter(
        &self,
        event: Arc<dyn Any + Send + Sync>,
        LetterFailure { attempts, error }: LetterFailure,
        context: &PartitionContext,
    ) -> BoxFuture<'_, Result<(), HandlerError>> {
        let Ok(event) = event.downcast() else {
            return Box::pin(std::future::ready(Err("internal error: the event is of another type".into())));
        };
        Box::pin(self.sink.store(DeadLetter {
            event,
            group: Arc::clone(&context.group),
            partition_id: context.partition_id().clone(),
            epoch: context.epoch(),
            attempts,
            error,
        }))
    }

    fn store_undecodable(&self, event: UndecodableEvent) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(self.sink.store_undecodable(event))
    }
}

impl DeadLetters {
    pub(super) fn new<E, K>(sink: K, policy: DeadLetterPolicy) -> Self
    where
        E: Send + Sync + 'static,
        K: DeadLetterSink<E>,
    {
        Self { sink: Box::new(SinkOf { sink, events: PhantomData }), policy }
    }

    /// Returns whether the event is of the type of the event source.
    pub(super) fn take_events_like(&self, event: &dyn Any) -> bool {
        self.sink.takes(event)
    }

    /// Stores an event. The caller first [confirms](PartitionContext::confirm_owner) that this instance owns the
    /// partition, and then [records](record_move) the move.
    pub(super) async fn store_event<E: Send + Sync + 'static>(
        &self,
        event: Arc<E>,
        failure: LetterFailure,
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        self.sink.store_letter(event, failure, context).await
    }

    /// Stores what is known of an event that the source cannot decode.
    pub(super) async fn store_undecodable(
        &self,
        event: UndecodableEvent,
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        context.confirm_owner().await?;
        self.sink.store_undecodable(event).await
    }
}

/// Records that an event is stored.
pub(super) fn record_move(event: &impl Positioned, failure: &LetterFailure, context: &PartitionContext) {
    let control = &context.control;
    if let Some(position) = event.position() {
        let checkpoint = context.checkpoints.checkpoint_view().written;
        control.failures.record_move(position.sequence_number, &position.offset, checkpoint);
        control.failures.forget_event(position.sequence_number);
    }
    control.progress.count_dead_letter();
    control.metrics.count_dead_letter();
    let LetterFailure { attempts, error } = failure;
    telemetry::event_dead_lettered(context.partition_id(), event.sequence_number(), *attempts, error);
}
