//! Handlers that are shared, and handlers whose type is not named.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::context::PartitionContext;
use super::dead_letters::UndecodableEvent;
use super::events::{EventContext, EventHandler};
use super::handler::{Handler, OwnPosition, PartitionStart};
use super::handler_errors::HandlerError;
use super::shutdown::StopReason;
use crate::error::Error;
use crate::model::PartitionId;

/// A handler whose type is not named: for an application that chooses among several handlers, or keeps its processor in
/// a struct. Clones share the handler. A call costs one allocation.
///
/// ```
/// use eventhubs_checkpoint::processor::{BoxHandler, PartitionContext, Processor, handler_fn};
/// use eventhubs_checkpoint::source::{EventSource, Positioned};
///
/// struct Worker<S: EventSource> {
///     processor: Processor<S, BoxHandler<S::Event>>,
/// }
///
/// fn handler<E: Positioned + Send + 'static>(dry_run: bool) -> BoxHandler<E> {
///     if dry_run {
///         return BoxHandler::new(handler_fn(|_: Vec<E>, _: PartitionContext| async { Ok(()) }));
///     }
///     BoxHandler::new(handler_fn(|events: Vec<E>, context: PartitionContext| async move {
///         events.iter().for_each(|event| context.checkpoint(event));
///         Ok(())
///     }))
/// }
/// ```
pub struct BoxHandler<E>(Arc<dyn DynHandler<E>>);

impl<E: Send + 'static> BoxHandler<E> {
    /// Boxes a handler.
    pub fn new(handler: impl Handler<E>) -> Self {
        Self(Arc::new(handler))
    }
}

impl<E> Clone for BoxHandler<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for BoxHandler<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxHandler").finish_non_exhaustive()
    }
}

/// [`Handler`] with boxed futures.
trait DynHandler<E>: Send + Sync {
    fn handle(&self, events: Vec<E>, context: PartitionContext) -> BoxFuture<'_, Result<(), HandlerError>>;
    fn start_position(&self, start: PartitionStart) -> BoxFuture<'_, Result<OwnPosition, HandlerError>>;
    fn started(&self, context: PartitionContext) -> BoxFuture<'_, Result<(), HandlerError>>;
    fn failed(&self, partition_id: &PartitionId, error: &Error);
    fn undecodable(
        &self,
        event: UndecodableEvent,
        context: PartitionContext,
    ) -> BoxFuture<'_, Result<(), HandlerError>>;
    fn stopped(&self, context: PartitionContext, reason: StopReason) -> BoxFuture<'_, ()>;
}

impl<E: Send + 'static, H: Handler<E>> DynHandler<E> for H {
    fn handle(&self, events: Vec<E>, context: PartitionContext) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(Handler::handle(self, events, context))
    }

    fn start_position(&self, start: PartitionStart) -> BoxFuture<'_, Result<OwnPosition, HandlerError>> {
        Box::pin(Handler::start_position(self, start))
    }

    fn started(&self, context: PartitionContext) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(Handler::started(self, context))
    }

    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        Handler::failed(self, partition_id, error);
    }

    fn undecodable(
        &self,
        event: UndecodableEvent,
        context: PartitionContext,
    ) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(Handler::undecodable(self, event, context))
    }

    fn stopped(&self, context: PartitionContext, reason: StopReason) -> BoxFuture<'_, ()> {
        Box::pin(Handler::stopped(self, context, reason))
    }
}

/// Implements the methods of a handler by those of the handler inside.
macro_rules! call_inner {
    ($trait:ident, $self:ident, $inner:expr, $events:ty, $context:ty) => {
        async fn handle(&$self, events: $events, context: $context) -> Result<(), HandlerError> {
            $trait::handle($inner, events, context).await
        }

        async fn start_position(&$self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
            $trait::start_position($inner, start).await
        }

        async fn started(&$self, context: PartitionContext) -> Result<(), HandlerError> {
            $trait::started($inner, context).await
        }

        fn failed(&$self, partition_id: &PartitionId, error: &Error) {
            $trait::failed($inner, partition_id, error);
        }

        async fn undecodable(
            &$self,
            event: UndecodableEvent,
            context: PartitionContext,
        ) -> Result<(), HandlerError> {
            $trait::undecodable($inner, event, context).await
        }

        async fn stopped(&$self, context: PartitionContext, reason: StopReason) {
            $trait::stopped($inner, context, reason).await;
        }
    };
}

impl<E: Send + 'static> Handler<E> for BoxHandler<E> {
    call_inner!(DynHandler, self, &*self.0, Vec<E>, PartitionContext);
}

/// A handler that is shared, for example with the routes of an HTTP server.
impl<E: Send + 'static, H: Handler<E>> Handler<E> for Arc<H> {
    call_inner!(Handler, self, &**self, Vec<E>, PartitionContext);
}

/// A handler that is shared, for example with the routes of an HTTP server.
impl<E: Send + Sync + 'static, H: EventHandler<E>> EventHandler<E> for Arc<H> {
    call_inner!(EventHandler, self, &**self, Arc<E>, EventContext);
}
