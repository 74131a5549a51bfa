//! A handler with state for each partition.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use super::context::PartitionContext;
use super::dead_letters::UndecodableEvent;
use super::handler::{Handler, OwnPosition, PartitionStart};
use super::handler_errors::HandlerError;
use super::shutdown::StopReason;
use crate::model::PartitionId;
use crate::util::lock;

/// Processes the events of one partition, from one start to its stop, with state of its own. [`per_partition`] creates
/// one for each start.
///
/// Its calls run one after another. If a call takes too long and is dropped, the state stays as that call left it until
/// [`stopped`](Self::stopped) is called.
pub trait PartitionHandler<E>: Send + 'static {
    /// Processes a batch; see [`Handler::handle`].
    ///
    /// # Errors
    ///
    /// As for [`Handler::handle`].
    fn handle(
        &mut self,
        events: Vec<E>,
        context: &PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns the position at which to start, for an application that stores its position together with its results;
    /// see [`Handler::start_position`]. Called once, before [`started`](Self::started). Default:
    /// [`OwnPosition::NotKept`], which starts the partition after the checkpoint.
    fn start_position(&self) -> OwnPosition {
        OwnPosition::NotKept
    }

    /// Prepares for the events; see [`Handler::started`]. Default: does nothing.
    ///
    /// # Errors
    ///
    /// As for [`Handler::started`].
    fn started(&mut self, context: &PartitionContext) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = context;
        async { Ok(()) }
    }

    /// Called with an event that the source cannot decode; see [`Handler::undecodable`].
    ///
    /// # Errors
    ///
    /// As for [`Handler::undecodable`].
    fn undecodable(
        &mut self,
        event: UndecodableEvent,
        context: &PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = (event, context);
        async { Ok(()) }
    }

    /// Cleans up; see [`Handler::stopped`]. Default: does nothing.
    fn stopped(self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        let _ = (context, reason);
        async {}
    }
}

/// Creates a handler from a function that creates a [`PartitionHandler`] for each start of a partition: for example one
/// that loads the state of the partition. No map and no lock of the application is needed.
///
/// The function is called at every start, after the checkpoint was taken over, as
/// [`Handler::start_position`](super::Handler::start_position) is: the call may be dropped at any `await`, and has the
/// handler timeout. If it fails, [`OnFailure`](super::OnFailure) determines what follows; by default the partition
/// starts again after a wait.
///
/// If the partition is lost before the start is complete, nothing calls [`stopped`](PartitionHandler::stopped): the new
/// handler is dropped at the next start of the partition, or with the processor. So do not acquire anything that others
/// wait for, such as a lock, before [`started`](PartitionHandler::started).
///
/// ```
/// use eventhubs_checkpoint::processor::{
///     Handler, HandlerError, PartitionContext, PartitionHandler, PartitionStart, per_partition,
/// };
/// use eventhubs_checkpoint::source::Positioned;
///
/// struct Counter {
///     events: usize,
/// }
///
/// impl<E: Positioned + Send + 'static> PartitionHandler<E> for Counter {
///     async fn handle(&mut self, events: Vec<E>, context: &PartitionContext) -> Result<(), HandlerError> {
///         self.events += events.len();
///         events.iter().for_each(|event| context.checkpoint(event));
///         Ok(())
///     }
/// }
///
/// fn handler<E: Positioned + Send + 'static>() -> impl Handler<E> {
///     per_partition(|_: PartitionStart| async { Ok(Counter { events: 0 }) })
/// }
/// ```
pub fn per_partition<E, P, F, Fut>(create: F) -> impl Handler<E>
where
    E: Send + 'static,
    P: PartitionHandler<E>,
    F: Fn(PartitionStart) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, HandlerError>> + Send,
{
    PerPartition { create, running: Mutex::default() }
}

struct PerPartition<F, P> {
    create: F,
    /// The handlers of the current starts. A call locks its own one. It never waits, because the calls of one partition
    /// run one after another.
    running: Mutex<HashMap<PartitionId, Arc<tokio::sync::Mutex<P>>>>,
}

impl<F, P> PerPartition<F, P> {
    fn find_handler(&self, partition: &PartitionId) -> Result<Arc<tokio::sync::Mutex<P>>, HandlerError> {
        lock(&self.running)
            .get(partition)
            .cloned()
            .ok_or_else(|| format!("internal error: partition {partition} has no handler").into())
    }
}

impl<E, P, F, Fut> Handler<E> for PerPartition<F, P>
where
    E: Send + 'static,
    P: PartitionHandler<E>,
    F: Fn(PartitionStart) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, HandlerError>> + Send,
{
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        let partition = start.partition_id().clone();
        let handler = (self.create)(start).await?;
        let position = handler.start_position();
        let before = lock(&self.running).insert(partition, Arc::new(tokio::sync::Mutex::new(handler)));
        // The application's code may run here, so nothing is locked.
        drop(before);
        Ok(position)
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        let handler = self.find_handler(context.partition_id())?;
        handler.lock_owned().await.started(&context).await
    }

    async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        let handler = self.find_handler(context.partition_id())?;
        handler.lock_owned().await.handle(events, &context).await
    }

    async fn undecodable(&self, event: UndecodableEvent, context: PartitionContext) -> Result<(), HandlerError> {
        let handler = self.find_handler(context.partition_id())?;
        handler.lock_owned().await.undecodable(event, &context).await
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        let handler = lock(&self.running).remove(context.partition_id());
        if let Some(handler) = handler.and_then(Arc::into_inner) {
            handler.into_inner().stopped(context, reason).await;
        }
    }
}
