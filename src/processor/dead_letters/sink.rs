//! Where dead letters go.

use std::sync::Arc;

use crate::error::Error;
use crate::model::{ConsumerGroup, PartitionId};
use crate::processor::shutdown::stop::HandlerError;
use crate::processor::undecodable::UndecodableEvent;

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
    /// The epoch in which this instance owns the partition; see
    /// [`PartitionContext::epoch`](crate::processor::PartitionContext::epoch).
    pub epoch: i64,
    /// How many times in a row the partition has failed at the event.
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
