//! The interface that the application implements, and what it is called with.

use std::future::Future;
use std::sync::Arc;

use super::context::PartitionContext;
use super::dead_letters::UndecodableEvent;
use super::handler_errors::HandlerError;
use super::shutdown::StopReason;
use crate::error::Error;
use crate::model::{CheckpointRecord, ConsumerGroup, PartitionId};
use crate::source::StartPosition;

/// Processes the events of every partition that this instance owns.
///
/// A closure becomes a handler by [`handler_fn`]. For state per partition, with `&mut self`, see
/// [`per_partition`](super::per_partition); for a handler whose type is not named, see
/// [`BoxHandler`](super::BoxHandler). An [`Arc`] of a handler is also a handler.
///
/// One handler serves all partitions: the calls for one partition run one after another, those for different partitions
/// run concurrently. A call that fails or panics stops its own partition only, and [`OnFailure`](super::OnFailure)
/// determines what follows.
///
/// Each start of a partition calls `start_position` and `started` once, then `handle` for each batch, then `stopped`
/// once. `started` and `stopped` are always paired, unless the process or the runtime ends, the future of
/// [`Processor::run`](super::Processor::run) is dropped, a shutdown is requested a second time, or a handler blocks its
/// thread at shutdown.
///
/// Delivery is at least once: after a crash, a failure, or a handoff that did not complete, events after the last
/// checkpoint are redelivered.
///
/// ```
/// use eventhubs_checkpoint::source::Positioned;
/// use eventhubs_checkpoint::{Handler, HandlerError, PartitionContext, StopReason};
///
/// struct Printing;
///
/// impl<E: Positioned + Send + 'static> Handler<E> for Printing {
///     async fn started(&self, partition: PartitionContext) -> Result<(), HandlerError> {
///         println!("partition {} starts", partition.partition_id());
///         Ok(())
///     }
///
///     async fn handle(&self, events: Vec<E>, partition: PartitionContext) -> Result<(), HandlerError> {
///         for event in &events {
///             println!("partition {}: {:?}", partition.partition_id(), event.sequence_number());
///             partition.checkpoint(event);
///         }
///         Ok(())
///     }
///
///     async fn stopped(&self, partition: PartitionContext, reason: StopReason) {
///         println!("partition {} stopped: {reason:?}", partition.partition_id());
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler of batches",
    note = "wrap a closure in `handler_fn`, a handler of single events in `each_event`, and one with `&mut self` per partition \
            in `per_partition`"
)]
pub trait Handler<E>: Send + Sync + 'static {
    /// Processes a batch, which is never empty unless
    /// [`with_idle_interval`](super::ProcessorConfig::with_idle_interval) is set. Call [`PartitionContext::checkpoint`]
    /// for processed events.
    ///
    /// # Errors
    ///
    /// Return an error if the batch could not be processed. [`OnFailure`](super::OnFailure) determines what follows; by
    /// default the partition restarts from its checkpoint.
    fn handle(
        &self,
        events: Vec<E>,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns the position at which to start the partition, for an application that stores its position together with
    /// its results. Default: [`OwnPosition::NotKept`], which starts the partition after the checkpoint.
    ///
    /// Called at every start of the partition, before [`started`](Self::started). At that time the checkpoint has been
    /// taken over: a previous owner can no longer write it. A previous owner can still write to the storage of the
    /// application. To reject these writes, store the [epoch](PartitionStart::epoch) and read the position in one
    /// transaction, and commit results only while the stored epoch is their own. [Exactly-once
    /// effects](crate::guide::effects) has an example.
    ///
    /// A returned position replaces the checkpoint, also a later one unless
    /// [`OnEarlierStart::Fail`](super::OnEarlierStart::Fail) is set, so that lag, scalers and tools agree with the
    /// application. A checkpoint at the same sequence number stays. If the partition cannot be read from the position,
    /// for example because the following events have expired, [`OnInvalidCheckpoint`](super::OnInvalidCheckpoint)
    /// determines where to start, and [`PartitionContext::started_elsewhere`] returns the position.
    ///
    /// Return [`StartPosition::AfterSequenceNumber`]. If every start returns [`StartPosition::Latest`] or a new
    /// [`StartPosition::EnqueuedAfter`], each restart skips events. Because the position of the application takes
    /// precedence, resetting the checkpoint with a tool does not move the partition. The checkpoint shows that, and
    /// operators refuse such a reset.
    ///
    /// The call may be dropped at any `await` if the partition is requested to stop, and
    /// [`handler_timeout`](super::ProcessorConfig::handler_timeout) limits it.
    ///
    /// # Errors
    ///
    /// Return an error if the position cannot be read. [`OnFailure`](super::OnFailure) determines what follows; by
    /// default the partition starts again after a wait.
    #[doc(alias = "seek")]
    fn start_position(&self, start: PartitionStart) -> impl Future<Output = Result<OwnPosition, HandlerError>> + Send {
        let _ = start;
        async { Ok(OwnPosition::NotKept) }
    }

    /// Prepares for the events of a partition. The first batch waits until this call returns. If the partition stops
    /// meanwhile, the call has the drain timeout to finish. Default: does nothing.
    ///
    /// # Errors
    ///
    /// Return an error if the partition cannot start, for example because its state cannot be loaded.
    /// [`stopped`](Self::stopped) is called, and [`OnFailure`](super::OnFailure) determines what follows.
    #[doc(alias = "partition_initialize")]
    #[doc(alias = "on_partitions_assigned")]
    fn started(&self, context: PartitionContext) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = context;
        async { Ok(()) }
    }

    /// Reports a failure of a partition: a call of the handler returned an error, panicked or timed out, a tracked
    /// event [failed](super::TrackedEvent::fail), or the checkpoint or the events cannot be read. The default does
    /// nothing; every failure is logged in any case.
    ///
    /// Called once per failure, before the processor retries or does what [`OnFailure`](super::OnFailure) says, also
    /// while the partition stops. Not called for an error of a handler that has lost its partition, because such a
    /// handler is expected to fail. It must not block: to report the failure somewhere, spawn a task.
    #[doc(alias = "process_error")]
    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        let _ = (partition_id, error);
    }

    /// Called with an event that the source cannot decode, before the processor skips it:
    /// [`OnUndecodable::Skip`](super::OnUndecodable). The events before it were handled, but some of them may be in
    /// flight. [Dead letters](super::ProcessorBuilder::with_dead_letters) have stored it. Default: does nothing; such
    /// an event is logged and counted in any case.
    ///
    /// If the partition starts again before the checkpoint has passed the event, it is reported again. The call may be
    /// dropped at any `await` if the partition is requested to stop, and
    /// [`handler_timeout`](super::ProcessorConfig::handler_timeout) limits it.
    ///
    /// # Errors
    ///
    /// Return an error if the event must not be skipped yet. [`OnFailure`](super::OnFailure) determines what follows.
    fn undecodable(
        &self,
        event: UndecodableEvent,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        let _ = (event, context);
        async { Ok(()) }
    }

    /// Cleans up after a partition, which receives no more events unless it starts again. The drain timeout limits the
    /// call. Checkpoints that it requests are still written, unless another instance owns the partition. Default: does
    /// nothing.
    #[doc(alias = "partition_close")]
    #[doc(alias = "on_partitions_revoked")]
    fn stopped(&self, context: PartitionContext, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = (context, reason);
        async {}
    }
}

/// Whether the application keeps its own position of a partition: the result of [`Handler::start_position`].
///
/// ```
/// use eventhubs_checkpoint::processor::OwnPosition;
/// use eventhubs_checkpoint::source::StartPosition;
///
/// let last_stored = Some(41); // as a database returns it
/// assert_eq!(OwnPosition::after(last_stored), OwnPosition::Kept(Some(StartPosition::AfterSequenceNumber(41))));
/// assert_eq!(OwnPosition::after(None), OwnPosition::Kept(None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnPosition {
    /// It keeps none: the partition starts after the checkpoint. The default.
    #[default]
    NotKept,
    /// It keeps one, in the place of its results, and starts there. Without one for this partition yet, the partition
    /// starts after the checkpoint.
    Kept(Option<StartPosition>),
}

impl OwnPosition {
    /// Returns a position that is kept: the start after this sequence number, if there is one yet.
    #[must_use]
    pub fn after(sequence_number: Option<i64>) -> Self {
        Self::Kept(sequence_number.map(StartPosition::AfterSequenceNumber))
    }

    /// Returns whether the application keeps its own position.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    /// Returns where the application starts, if it has a position.
    pub(super) fn start(&self) -> Option<&StartPosition> {
        match self {
            Self::Kept(start) => start.as_ref(),
            Self::NotKept => None,
        }
    }
}

/// A partition that is about to start; see [`Handler::start_position`](crate::processor::Handler::start_position).
#[derive(Clone, Debug)]
pub struct PartitionStart {
    pub(crate) partition: PartitionId,
    pub(crate) group: Arc<ConsumerGroup>,
    pub(crate) epoch: i64,
    pub(crate) checkpoint: CheckpointRecord,
}

impl PartitionStart {
    /// Returns the partition.
    #[must_use]
    pub fn partition_id(&self) -> &PartitionId {
        &self.partition
    }

    /// Returns the consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// Returns the epoch in which this instance owns the partition; see
    /// [`PartitionContext::epoch`](crate::processor::PartitionContext::epoch).
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Returns the checkpoint of the group, if there is one. Without a choice of the application, the partition starts
    /// after it.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&CheckpointRecord> {
        self.checkpoint.has_position().then_some(&self.checkpoint)
    }
}

/// Creates a handler from a closure that takes a batch and its context.
///
/// ```
/// use eventhubs_checkpoint::processor::{PartitionContext, handler_fn};
/// use eventhubs_checkpoint::source::Positioned;
///
/// fn handler<E: Positioned + Send + 'static>() -> impl eventhubs_checkpoint::processor::Handler<E> {
///     handler_fn(|events: Vec<E>, context: PartitionContext| async move {
///         for event in &events {
///             println!("partition {}: {:?}", context.partition_id(), event.sequence_number());
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
