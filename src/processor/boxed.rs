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

/// Implements a handler by calling the handler inside.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::error::ErrorKind;
    use crate::testing::TestPartition;
    use crate::testing::memory_hub::MemoryEvent;
    use crate::util::lock;

    /// Records the names of the calls, and overrides every method.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<&'static str>>);

    impl Recorder {
        fn record(&self, call: &'static str) {
            lock(&self.0).push(call);
        }
    }

    macro_rules! record_calls {
        ($events:ty, $context:ty) => {
            async fn handle(&self, _: $events, _: $context) -> Result<(), HandlerError> {
                self.record("handle");
                Ok(())
            }

            async fn start_position(&self, _: PartitionStart) -> Result<OwnPosition, HandlerError> {
                self.record("start_position");
                Ok(OwnPosition::after(Some(7)))
            }

            async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
                self.record("started");
                Ok(())
            }

            fn failed(&self, _: &PartitionId, _: &Error) {
                self.record("failed");
            }

            async fn undecodable(&self, _: UndecodableEvent, _: PartitionContext) -> Result<(), HandlerError> {
                self.record("undecodable");
                Ok(())
            }

            async fn stopped(&self, _: PartitionContext, _: StopReason) {
                self.record("stopped");
            }
        };
    }

    impl Handler<MemoryEvent> for Recorder {
        record_calls!(Vec<MemoryEvent>, PartitionContext);
    }

    impl EventHandler<MemoryEvent> for Recorder {
        record_calls!(Arc<MemoryEvent>, EventContext);
    }

    const CALLS: [&str; 6] = ["start_position", "started", "handle", "undecodable", "failed", "stopped"];

    fn undecodable_event(partition: &TestPartition<MemoryEvent>, error: &Arc<Error>) -> UndecodableEvent {
        UndecodableEvent {
            group: Arc::new(partition.context().group().clone()),
            partition_id: 0.into(),
            epoch: 1,
            sequence_number: 3,
            error: Arc::clone(error),
        }
    }

    macro_rules! call_all {
        ($trait:ident, $handler:expr, $partition:expr, $events:expr, $context:expr) => {
            let error = Arc::new(Error::new(ErrorKind::Handler, "broken"));
            let own = $trait::start_position($handler, $partition.partition_start()).await.unwrap();
            assert_eq!(own, OwnPosition::after(Some(7)));
            $trait::started($handler, $partition.context()).await.unwrap();
            $trait::handle($handler, $events, $context).await.unwrap();
            let event = undecodable_event(&$partition, &error);
            $trait::undecodable($handler, event, $partition.context()).await.unwrap();
            $trait::failed($handler, &0.into(), &error);
            $trait::stopped($handler, $partition.context(), StopReason::Shutdown).await;
        };
    }

    #[tokio::test(start_paused = true)]
    async fn shared_and_boxed_handlers_get_every_call() {
        let partition = TestPartition::<MemoryEvent>::start(0).await.unwrap();
        let events = || vec![MemoryEvent::new(0, "x")];
        let shared = Arc::new(Recorder::default());
        call_all!(Handler, &shared, partition, events(), partition.context());
        assert_eq!(*lock(&shared.0), CALLS);
        call_all!(Handler, &BoxHandler::new(Arc::clone(&shared)), partition, events(), partition.context());
        assert_eq!(*lock(&shared.0), [CALLS, CALLS].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn shared_handlers_of_events_get_every_call() {
        let partition = TestPartition::<MemoryEvent>::start(0).await.unwrap();
        let shared = Arc::new(Recorder::default());
        let event = Arc::new(MemoryEvent::new(0, "x"));
        call_all!(EventHandler, &shared, partition, event, partition.event_context(1));
        assert_eq!(*lock(&shared.0), CALLS);
    }
}
