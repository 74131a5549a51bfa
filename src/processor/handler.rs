//! The application's side of the processor.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::checkpointing::CheckpointWriter;
use super::source::Positioned;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, OwnerId, PartitionId};
use crate::telemetry;

/// Whatever a handler fails with.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// Why the processing of a partition stops.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// The partition belongs to somebody else now, or to nobody.
    Lost {
        /// The new owner, where it is known.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is at work. Checkpoints are not accepted any more.
    Replaced,
    /// Somebody put the checkpoint back by name. Checkpoints are not accepted any more; processing starts again from there.
    Rewound,
    /// The lease could not be renewed in time, and the policy is to stop then:
    /// [`LeasePolicy::Strict`](crate::balancer::LeasePolicy::Strict).
    Outlived,
    /// This instance gives the partition back: it is above its limit, not assigned to it, gone from the hub, or stalled.
    /// Checkpoints are still accepted.
    Released,
    /// The processor shuts down. Checkpoints are still accepted.
    Shutdown,
    /// The handler or the event source failed. The partition is started again from its checkpoint.
    Failed {
        /// What went wrong, with its causes.
        error: Arc<Error>,
    },
}

/// Processes the events of every partition that this instance owns.
///
/// One handler serves all partitions: per partition its calls come one after another, those of different partitions run
/// concurrently. A failing or panicking call stops its own partition only, which starts again from its last checkpoint.
///
/// Delivery is at least once: after a crash, a move or a failure the events behind the last checkpoint come again.
pub trait Handler<E>: Send + Sync + 'static {
    /// Processes a batch, which is never empty. Call [`PartitionContext::checkpoint`] for what is done.
    fn handle(
        &self,
        events: Vec<E>,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// A partition is about to deliver events. They wait until this has ended, however long it takes; when the partition
    /// is to stop meanwhile, it gets the drain time.
    fn started(&self, context: PartitionContext) -> impl Future<Output = ()> + Send {
        let _ = context;
        async {}
    }

    /// No more events of the partition will come, unless it is started again. It gets the drain time. What it marks is
    /// still written down, unless the partition belongs to somebody else.
    fn stopped(&self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = (context, reason);
        async {}
    }
}

/// A [`Handler`] made from a closure: see [`handler_fn`].
#[derive(Clone, Debug)]
pub struct HandlerFn<F>(F);

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
pub fn handler_fn<F>(handle: F) -> HandlerFn<F> {
    HandlerFn(handle)
}

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

/// What a handler can do with its partition. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PartitionContext {
    pub(super) partition: PartitionId,
    pub(super) group: Arc<ConsumerGroup>,
    pub(super) checkpoints: CheckpointWriter,
    pub(super) stopping: watch::Receiver<Option<StopReason>>,
}

impl PartitionContext {
    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// The consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// Says that this event and all before it are processed. It is written down in the background, as the
    /// [`CheckpointPolicy`](super::CheckpointPolicy) says; of several the greatest counts. Never blocks, never fails.
    pub fn checkpoint(&self, event: &impl Positioned) {
        match (event.sequence_number(), event.offset()) {
            (Some(sequence_number), Some(offset)) => self.checkpoints.mark(sequence_number, offset),
            _ => telemetry::unpositioned_event(&self.partition),
        }
    }

    /// The same, and returns when it is durable.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Fenced`] if the partition belongs to somebody else now; [`ErrorKind::Rewound`] if its checkpoint was put
    /// back; [`ErrorKind::Closed`] if it has been stopped;
    /// otherwise what the storage answered: the position stays pending and is written later.
    pub async fn checkpoint_now(&self, event: &impl Positioned) -> Result<()> {
        let Some(position) = event.position() else {
            return Err(Error::new(ErrorKind::Rejected, "the event carries no position, so it cannot be checkpointed"));
        };
        self.checkpoints.mark(position.sequence_number, &position.offset);
        self.checkpoints.flush().await
    }

    /// Whether the partition is asked to stop. A handler that takes long should look, and return early.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.borrow().is_some()
    }

    /// Ready when the partition is asked to stop.
    pub async fn stopping(&self) {
        let mut stopping = self.stopping.clone();
        // An error means that the partition's task is gone: it has stopped.
        let _ = stopping.wait_for(Option::is_some).await;
    }
}
