//! The application's side of the processor.

use std::future::Future;

use super::context::PartitionContext;
use super::stop::{HandlerError, StopReason};
use crate::error::Error;
use crate::model::PartitionId;

/// Processes the events of every partition that this instance owns.
///
/// One handler serves all partitions: per partition its calls come one after another, those of different partitions run
/// concurrently. A failing or panicking call stops its own partition only, and then [`OnFailure`](super::OnFailure)
/// counts.
///
/// Per start of a partition: `started` once, then `handle` for each batch, then `stopped` once; whatever happens, but
/// for the end of the process, of the runtime, or of the future of [`Processor::run`](super::Processor::run), and a
/// shutdown that is asked for a second time or finds a handler that blocks its thread.
///
/// Delivery is at least once: after a crash, a move or a failure the events behind the last checkpoint come again.
pub trait Handler<E>: Send + Sync + 'static {
    /// Processes a batch, which is never empty. Call [`PartitionContext::checkpoint`] for what is done.
    fn handle(
        &self,
        events: Vec<E>,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// A partition is about to deliver events. They wait until this has ended, however long it takes; when the
    /// partition is to stop meanwhile, it gets the drain time.
    fn started(&self, context: PartitionContext) -> impl Future<Output = ()> + Send {
        let _ = context;
        async {}
    }

    /// A partition failed: the handler returned an error, panicked or timed out, or its events cannot be read. The default
    /// does nothing; every failure is logged in any case.
    ///
    /// Called once per failure, before the processor retries or does what [`OnFailure`](super::OnFailure) says. It must
    /// not block: to report the failure somewhere, spawn a task.
    #[doc(alias = "process_error")]
    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        let _ = (partition_id, error);
    }

    /// No more events of the partition will come, unless it is started again. It gets the drain time. What it marks is
    /// still written down, unless the partition belongs to somebody else.
    fn stopped(&self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = (context, reason);
        async {}
    }
}

/// Makes a handler from a closure over a batch and its context.
///
/// ```
/// use eventhubs_checkpoint::processor::{PartitionContext, Positioned, handler_fn};
///
/// fn handler<E: Positioned + Send + 'static>() -> impl eventhubs_checkpoint::processor::Handler<E> {
///     handler_fn(|events: Vec<E>, context: PartitionContext| async move {
///         for event in &events {
///             println!("partition {}: {:?}", context.partition(), event.sequence_number());
///             context.checkpoint(event);
///         }
///         Ok(())
///     })
/// }
/// ```
pub fn handler_fn<E, F, Fut>(handle: F) -> impl Handler<E>
where
    E: Send,
    F: Fn(Vec<E>, PartitionContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    HandlerFn(handle)
}

struct HandlerFn<F>(F);

impl<E, F, Fut> Handler<E> for HandlerFn<F>
where
    E: Send,
    F: Fn(Vec<E>, PartitionContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    fn handle(
        &self,
        events: Vec<E>,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        (self.0)(events, context)
    }
}
