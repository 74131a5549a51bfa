//! Events one by one: an [`EventHandler`] processes single events, with concurrency, order, retries and dead letters
//! within a partition.
//!
//! # Guarantees
//!
//! - Every event is delivered at least once. One start of a partition delivers it once, and once more for each retry.
//! - The checkpoint never passes an event that is neither processed nor stored as a dead letter.
//! - Events that [`EventOrder`] puts in an order are processed in that order, one after another, also if one of them
//!   is tried again. Between two starts of a partition, later events may be redelivered after earlier ones.
//! - A retry or a dead letter restarts nothing. Events of other keys continue.
//! - Once the partition is to stop, an event begins only if a later one has begun, because the checkpoint waits for it.
//!   These have the drain timeout to finish, and those that still run then half of it more; after a loss or a failure
//!   of the partition, only that half. The next owner gets the others.

mod concurrent;
mod context;
mod each_event;
mod queue;
mod retries;
#[cfg(test)]
mod tests;
mod work;

use std::fmt;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

pub use self::context::EventContext;
pub use self::each_event::{EachEvent, each_event};
pub use self::retries::RetryPolicy;
use super::context::PartitionContext;
use super::dead_letters::UndecodableEvent;
use super::handler::{OwnPosition, PartitionStart};
use super::handler_errors::HandlerError;
use super::shutdown::StopReason;
use crate::error::Error;
use crate::model::PartitionId;

/// Processes single events. [`each_event`] turns it into a [`Handler`](super::Handler) for a
/// [`Processor`](super::Processor), with settings for concurrency, order, retries and dead letters.
///
/// One handler serves all partitions. An event whose call returned `Ok` is processed: the processor requests the
/// checkpoint. A call that fails or panics is repeated as the [`RetryPolicy`] says.
///
/// ```
/// use std::sync::Arc;
/// use eventhubs_checkpoint::processor::{EventContext, EventHandler, HandlerError};
/// use eventhubs_checkpoint::source::Positioned;
///
/// struct Printing;
///
/// impl<E: Positioned + Send + Sync + 'static> EventHandler<E> for Printing {
///     async fn handle(&self, event: Arc<E>, context: EventContext) -> Result<(), HandlerError> {
///         println!("partition {}: {:?}", context.partition_id(), event.sequence_number());
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler of single events",
    note = "wrap a closure in `event_handler_fn`; its parameters are an `Arc` of the event and an `EventContext`"
)]
pub trait EventHandler<E>: Send + Sync + 'static {
    /// Processes one event. It comes in an [`Arc`], because it may be tried again.
    ///
    /// # Errors
    ///
    /// Return an error if the event could not be processed. It is tried again; an [`EventError`](super::EventError)
    /// that is [permanent](super::EventError::permanent) is not.
    fn handle(&self, event: Arc<E>, context: EventContext) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// See [`Handler::start_position`](super::Handler::start_position). An application that stores its position
    /// together with its results must process events in the [order of the partition](EventOrder::Partition): otherwise
    /// they are not finished in the order of their positions.
    ///
    /// # Errors
    ///
    /// As for [`Handler::start_position`](super::Handler::start_position).
    fn start_position(&self, start: PartitionStart) -> impl Future<Output = Result<OwnPosition, HandlerError>> + Send {
        let _ = start;
        async { Ok(OwnPosition::NotKept) }
    }

    /// Prepares for the events of a partition; see [`Handler::started`](super::Handler::started).
    ///
    /// # Errors
    ///
    /// As for [`Handler::started`](super::Handler::started).
    fn started(&self, context: PartitionContext) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = context;
        async { Ok(()) }
    }

    /// Reports a failure of a partition; see [`Handler::failed`](super::Handler::failed). Not called for an event that
    /// is tried again.
    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        let _ = (partition_id, error);
    }

    /// Called with an event that the source cannot decode; see [`Handler::undecodable`](super::Handler::undecodable).
    ///
    /// # Errors
    ///
    /// As for [`Handler::undecodable`](super::Handler::undecodable).
    fn undecodable(
        &self,
        event: UndecodableEvent,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = (event, context);
        async { Ok(()) }
    }

    /// Cleans up after a partition, after the last call of [`handle`](Self::handle) has ended; see
    /// [`Handler::stopped`](super::Handler::stopped).
    fn stopped(&self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = (context, reason);
        async {}
    }
}

/// Creates an event handler from a closure that takes an event and its context.
///
/// ```
/// use std::sync::Arc;
/// use eventhubs_checkpoint::processor::{EventContext, Handler, each_event, event_handler_fn};
/// use eventhubs_checkpoint::source::Positioned;
///
/// fn handler<E: Positioned + Send + Sync + 'static>() -> impl Handler<E> {
///     each_event(event_handler_fn(|event: Arc<E>, context: EventContext| async move {
///         println!("partition {}: {:?}", context.partition_id(), event.sequence_number());
///         Ok(())
///     }))
/// }
/// ```
pub fn event_handler_fn<E, F, Fut>(handle: F) -> impl EventHandler<E>
where
    E: Send + Sync + 'static,
    F: Fn(Arc<E>, EventContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    EventHandlerFn(handle)
}

struct EventHandlerFn<F>(F);

impl<E, F, Fut> EventHandler<E> for EventHandlerFn<F>
where
    E: Send + Sync + 'static,
    F: Fn(Arc<E>, EventContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    fn handle(&self, event: Arc<E>, context: EventContext) -> impl Future<Output = Result<(), HandlerError>> + Send {
        (self.0)(event, context)
    }
}

/// Which events of a partition are processed one after another, in the order in which they were sent.
///
/// ```
/// use eventhubs_checkpoint::processor::{EventHandler, EventOrder, Handler, each_event};
/// use eventhubs_checkpoint::source::Positioned;
///
/// /// Eight events at once, and the events of one device in order.
/// fn by_device<E: Device + Positioned + Send + Sync + 'static>(handler: impl EventHandler<E>) -> impl Handler<E> {
///     each_event(handler).with_concurrency(8).with_order(EventOrder::by_key(|event: &E| event.device_id()))
/// }
///
/// trait Device {
///     fn device_id(&self) -> String;
/// }
/// ```
#[derive(Default)]
#[non_exhaustive]
pub enum EventOrder<E> {
    /// All of them, so that a concurrency above 1 has no effect. The default.
    #[default]
    Partition,
    /// Those with the same key. Create it with [`by_key`](Self::by_key).
    Key(KeyOf<E>),
    /// None of them: every event may begin before, or end after, any other one.
    None,
}

impl<E> EventOrder<E> {
    /// Returns the order by a key of the event, such as the id of a device. Events with the same key are processed in
    /// order, one at a time. Events with different keys are processed concurrently.
    ///
    /// Keys are compared by a hash of 64 bits. Two keys with the same hash wait for each other, which does no harm. The
    /// function must not panic: the partition would fail at the event each time.
    pub fn by_key<K: Hash>(key: impl Fn(&E) -> K + Send + Sync + 'static) -> Self {
        Self::Key(KeyOf(Arc::new(move |event: &E| {
            let mut hasher = DefaultHasher::new();
            key(event).hash(&mut hasher);
            hasher.finish()
        })))
    }
}

impl<E> Clone for EventOrder<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Partition => Self::Partition,
            Self::Key(KeyOf(key)) => Self::Key(KeyOf(Arc::clone(key))),
            Self::None => Self::None,
        }
    }
}

impl<E> fmt::Debug for EventOrder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Partition => "Partition",
            Self::Key(_) => "Key",
            Self::None => "None",
        })
    }
}

/// The key of an event; see [`EventOrder::by_key`].
pub struct KeyOf<E>(Arc<dyn Fn(&E) -> u64 + Send + Sync>);

impl<E> fmt::Debug for KeyOf<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyOf")
    }
}
