//! Dead letters: events that cannot be processed are moved out of the way of the others.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::handler_errors::HandlerError;
pub use super::policies::DeadLetterPolicy;
use crate::error::Error;
use crate::model::{ConsumerGroup, PartitionId};

/// An event that the handler could not process, for a [`DeadLetterSink`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter<E: ?Sized> {
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

/// An event that the source cannot decode, and that is about to be skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UndecodableEvent {
    /// The consumer group that reads it.
    pub group: Arc<ConsumerGroup>,
    /// The partition of the event.
    pub partition_id: PartitionId,
    /// The epoch in which this instance owns the partition; see
    /// [`PartitionContext::epoch`](crate::processor::PartitionContext::epoch).
    pub epoch: i64,
    /// The sequence number.
    pub sequence_number: i64,
    /// Why the source cannot decode it, with its causes.
    pub error: Arc<Error>,
}

/// Stores dead letters; see [`ProcessorBuilder::with_dead_letters`](super::ProcessorBuilder::with_dead_letters). A
/// closure that takes a [`DeadLetter`] and returns a future is a sink, and so is
/// [`EventHubDeadLetterSink`](crate::EventHubDeadLetterSink).
pub trait DeadLetterSink<E>: Send + Sync + 'static {
    /// Stores an event. Returns once it is durable: from then on the event counts as processed. If the instance crashes
    /// before the checkpoint passes the event, it may be stored again; its partition and sequence number identify it.
    ///
    /// # Errors
    ///
    /// Return an error if the event was not stored. Then the partition fails, as after an error of the handler, and the
    /// event is redelivered; with [`each_event`](crate::processor::each_event) after some more calls.
    fn store(&self, letter: DeadLetter<E>) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Stores what is known of an event that the source cannot decode: where it is, and the error. Returns once it is
    /// durable: from then on the event counts as processed. Called only with
    /// [`OnUndecodable::Skip`](crate::processor::OnUndecodable), before
    /// [`Handler::undecodable`](crate::processor::Handler::undecodable). Default: stores nothing; the processor logs
    /// and counts the event in any case.
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

/// A dead letter with an event of any type.
type AnyLetter = DeadLetter<dyn Any + Send + Sync>;

/// A sink for events of one type, which the types of contexts do not name.
trait AnySink: Send + Sync {
    fn takes(&self, event: &dyn Any) -> bool;
    fn store_letter(&self, letter: AnyLetter) -> BoxFuture<'_, Result<(), HandlerError>>;
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

    fn store_letter(&self, letter: AnyLetter) -> BoxFuture<'_, Result<(), HandlerError>> {
        let DeadLetter { event, group, partition_id, epoch, attempts, error } = letter;
        match event.downcast() {
            Ok(event) => Box::pin(self.sink.store(DeadLetter { event, group, partition_id, epoch, attempts, error })),
            Err(_) => Box::pin(std::future::ready(Err("internal error: the event is of another type".into()))),
        }
    }

    fn store_undecodable(&self, event: UndecodableEvent) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(self.sink.store_undecodable(event))
    }
}

impl DeadLetters {
    pub(crate) fn new<E, K>(sink: K, policy: DeadLetterPolicy) -> Self
    where
        E: Send + Sync + 'static,
        K: DeadLetterSink<E>,
    {
        Self { sink: Box::new(SinkOf { sink, events: PhantomData }), policy }
    }

    /// Returns whether the event is of the type of the event source.
    pub(super) fn accepts_type_of(&self, event: &dyn Any) -> bool {
        self.sink.takes(event)
    }

    /// Stores an event. The caller first confirms that this instance owns the partition, and then records the move.
    pub(super) async fn store_event<E: Send + Sync + 'static>(
        &self,
        letter: &DeadLetter<E>,
    ) -> Result<(), HandlerError> {
        self.sink
            .store_letter(DeadLetter {
                event: Arc::<E>::clone(&letter.event),
                group: Arc::clone(&letter.group),
                partition_id: letter.partition_id.clone(),
                epoch: letter.epoch,
                attempts: letter.attempts,
                error: Arc::clone(&letter.error),
            })
            .await
    }

    /// Stores what is known of an event that the source cannot decode, after the same confirmation.
    pub(super) async fn store_undecodable(&self, event: UndecodableEvent) -> Result<(), HandlerError> {
        self.sink.store_undecodable(event).await
    }
}
