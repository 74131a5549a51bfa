//! One partition without a processor, for tests that call a handler.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Span;

use crate::balancer::{BalancerConfig, LivenessTracker};
use crate::blob::memory::MemoryContainer;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, ConsumerGroup, OwnerId, PartitionId, Position};
use crate::processor::dead_letters::{DeadLetter, DeadLetterPolicy};
use crate::processor::internal::{
    BatchSpans, CallLimit, CheckpointWriter, Control, DeadLetters, HANDLER, SessionEnd, Start, WritingEnd,
    handler_error,
};
use crate::processor::{CheckpointPolicy, EventContext, Handler, PartitionContext, PartitionStart, StopReason};
use crate::source::{CLOSE_LIMIT, Positioned};
use crate::store::{AdoptOutcome, Claim, ClaimOutcome, GroupStore, StoreConfig};
use crate::telemetry::{PartitionMetrics, Spans};
use crate::util::lock;

/// One partition without a processor and without an event hub, to call a handler in a test and to see what it asks for:
/// checkpoints and dead letters.
///
/// It creates the same contexts as a processor. Checkpoints are written to a container in memory, so all methods of a
/// context behave as in production. What a processor does in addition needs a processor, with a
/// [`MemoryHub`](super::memory_hub::MemoryHub): waits after failures, retries of a handler of batches, handoffs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use eventhubs_checkpoint::processor::{PartitionContext, handler_fn};
/// use eventhubs_checkpoint::testing::TestPartition;
/// use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
///
/// let handler = handler_fn(|events: Vec<MemoryEvent>, partition: PartitionContext| async move {
///     for event in events {
///         match event.text() {
///             Ok(_) => partition.checkpoint(&event),
///             Err(error) => partition.dead_letter(event.clone(), error).await?,
///         }
///     }
///     Ok(())
/// });
/// let mut partition = TestPartition::start(0).await?;
/// partition.deliver(&handler, vec![MemoryEvent::new(0, "text"), MemoryEvent::new(1, [0xff])]).await?;
/// assert_eq!(partition.checkpoint(), Some(1));
/// assert_eq!(partition.take_dead_letters()[0].event.sequence_number, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestPartition<E> {
    store: GroupStore,
    control: Arc<Control>,
    dead_letters: Arc<DeadLetters>,
    moved: Arc<Mutex<Vec<DeadLetter<E>>>>,
    session: TestSession,
}

/// One start of the partition.
#[derive(Debug)]
struct TestSession {
    context: PartitionContext,
    checkpoint: CheckpointRecord,
    over: watch::Sender<bool>,
    writing: JoinSet<WritingEnd>,
}

impl<E: Positioned + Send + Sync + 'static> TestPartition<E> {
    /// Starts a partition without a checkpoint.
    ///
    /// # Errors
    ///
    /// None that a test can cause: the storage is in memory.
    pub async fn start(partition_id: impl Into<PartitionId>) -> Result<Self> {
        Self::start_at(partition_id.into(), None).await
    }

    /// Starts a partition with a checkpoint.
    ///
    /// # Errors
    ///
    /// None that a test can cause: the storage is in memory.
    pub async fn start_after(partition_id: impl Into<PartitionId>, checkpoint: Position) -> Result<Self> {
        Self::start_at(partition_id.into(), Some(checkpoint)).await
    }

    async fn start_at(partition: PartitionId, checkpoint: Option<Position>) -> Result<Self> {
        let group = ConsumerGroup::new("example.servicebus.windows.net", "example", "$Default")?;
        let store = GroupStore::builder(MemoryContainer::new(), group, OwnerId::new("test")?)
            .with_config(StoreConfig::default().with_verify_storage(false))
            .connect()
            .await?;
        let epoch = match store.claim(&Claim::unowned(partition.clone())).await {
            ClaimOutcome::Won(lease) => lease.epoch(),
            other => return Err(Error::new(ErrorKind::Internal, format!("internal error: {other:?}"))),
        };
        let liveness = LivenessTracker::new(BalancerConfig::default().stall_timeout);
        let control = Arc::new(Control::new(
            partition.clone(),
            epoch,
            CallLimit::new(partition.clone(), liveness, None),
            PartitionMetrics::new(store.telemetry().metrics(), &partition),
            Span::none(),
        ));
        let moved = Arc::new(Mutex::new(Vec::new()));
        let stored = Arc::clone(&moved);
        let sink = move |letter: DeadLetter<E>| {
            lock(&stored).push(letter);
            async { Ok(()) }
        };
        let dead_letters = Arc::new(DeadLetters::new(sink, DeadLetterPolicy::default()));
        let session = TestSession::start(&store, &control, &dead_letters, checkpoint.as_ref()).await?;
        Ok(Self { store, control, dead_letters, moved, session })
    }

    /// Returns the context of the current start, for calls other than [`deliver`](Self::deliver): `started`, `stopped`,
    /// or the handler of the application's own functions.
    #[must_use]
    pub fn context(&self) -> PartitionContext {
        self.session.context.clone()
    }

    /// Returns a context to call an [`EventHandler`](crate::processor::EventHandler) with, at this attempt. The first
    /// one is 1.
    #[must_use]
    pub fn event_context(&self, attempt: u32) -> EventContext {
        EventContext { partition: Arc::new(self.context()), attempt }
    }

    /// Returns what to call `start_position` with, or the function of
    /// [`per_partition`](crate::processor::per_partition).
    #[must_use]
    pub fn partition_start(&self) -> PartitionStart {
        PartitionStart {
            partition: self.control.partition.clone(),
            group: Arc::clone(&self.session.context.group),
            epoch: self.control.epoch,
            checkpoint: self.session.checkpoint.clone(),
        }
    }

    /// Calls [`Handler::handle`] with a batch. If it fails, the partition [restarts](Self::restart), as a processor
    /// restarts it by default but without a wait, and [`PartitionContext::attempt`] counts the failure.
    ///
    /// Within one start, the sequence numbers of the events must increase, as at an event hub. A panic of the handler
    /// is not caught. No other method of the handler is called. Handlers from `per_partition` need `start_position` and
    /// `started` first, and those from `each_event` need `started`, unless they use `EventOrder::Partition`; after a
    /// restart they need them again.
    ///
    /// # Errors
    ///
    /// The error of the handler, as the processor reports it: with the original one as its source.
    pub async fn deliver(&mut self, handler: &impl Handler<E>, events: Vec<E>) -> Result<(), Arc<Error>> {
        let failures = &self.control.failures;
        let checkpoints = &self.session.context.checkpoints;
        let last = events.last().and_then(E::sequence_number);
        let has_events = !events.is_empty();
        if let Some(reached) = checkpoints.last_reached() {
            failures.forget_up_to(Some(reached));
        }
        failures.record_call(events.first().and_then(E::sequence_number));
        checkpoints.begin_batch(events.iter().filter_map(E::sequence_number), Vec::new());
        match handler.handle(events, self.context()).await {
            Ok(()) => {
                checkpoints.end_batch();
                let open = failures.current_failure().and_then(|failing| failing.place.first_event());
                if has_events && open.and_then(|event| checkpoints.waits_for(event)).is_none() {
                    failures.forget_up_to(last);
                }
                Ok(())
            }
            Err(error) => {
                let error = Arc::new(handler_error(HANDLER, error));
                failures.record_failure(&error);
                self.restart().await?;
                Err(error)
            }
        }
    }

    /// Writes the requested checkpoint and starts the partition again after it. Contexts of the previous start are
    /// stopping from then on, and events that they track stay unfinished.
    ///
    /// # Errors
    ///
    /// None that a test can cause: the storage is in memory.
    pub async fn restart(&mut self) -> Result<()> {
        let TestSession { context, over, writing, .. } = &mut self.session;
        over.send_replace(true);
        context.checkpoints.close(Some(Instant::now() + self.store.request_timeout()));
        while writing.join_next().await.is_some() {}
        self.session = TestSession::start(&self.store, &self.control, &self.dead_letters, None).await?;
        Ok(())
    }

    /// Lets the contexts show that the partition is stopping, as at a shutdown.
    pub fn request_stop(&self) {
        self.control.request_stop(StopReason::Shutdown);
    }

    /// Returns the sequence number of the last checkpoint: the greatest position that was requested and that no earlier
    /// [tracked](PartitionContext::track) event holds back.
    #[must_use]
    pub fn checkpoint(&self) -> Option<i64> {
        self.session.context.checkpoints.last_reached()
    }

    /// Returns the first failure that a [tracked event](crate::processor::TrackedEvent::fail) or the
    /// [context](PartitionContext::fail) of this start has reported. A processor restarts the partition then.
    #[must_use]
    pub fn reported_failure(&self) -> Option<Arc<Error>> {
        self.session.context.checkpoints.wait_for_failure().now_or_never()
    }

    /// Returns the events that were moved to the dead letters since the last call.
    #[must_use]
    pub fn take_dead_letters(&self) -> Vec<DeadLetter<E>> {
        std::mem::take(&mut lock(&self.moved))
    }
}

impl TestSession {
    async fn start(
        store: &GroupStore,
        control: &Arc<Control>,
        dead_letters: &Arc<DeadLetters>,
        checkpoint: Option<&Position>,
    ) -> Result<Self> {
        let adoption = match store.adopt(&control.partition, control.epoch, checkpoint).await? {
            AdoptOutcome::Adopted(adoption) => adoption,
            other => return Err(Error::new(ErrorKind::Internal, format!("internal error: {other:?}"))),
        };
        let checkpoint = adoption.record().clone();
        control.failures.record_start(checkpoint.sequence_number, false);
        let over = watch::Sender::new(false);
        let (writer, checkpoints) = CheckpointWriter::new(
            store.clone(),
            adoption,
            CheckpointPolicy::default(),
            control.metrics.clone(),
            BatchSpans::new(Spans::new(store.group()), None, false),
            Start {
                partition: control.partition.clone(),
                stopping: control.watch_stopping(),
                over: SessionEnd::new(over.subscribe()),
                span: control.span.clone(),
            },
        );
        let mut writing = JoinSet::new();
        writing.spawn(writer.run());
        let context = PartitionContext {
            group: Arc::new(store.group().clone()),
            store: store.clone(),
            drain_timeout: BalancerConfig::default().default_drain_timeout(store.lease_times(), CLOSE_LIMIT),
            dead_letters: Some(Arc::clone(dead_letters)),
            checkpoints,
            control: Arc::clone(control),
            over: SessionEnd::new(over.subscribe()),
            started_elsewhere: None,
        };
        Ok(Self { context, checkpoint, over, writing })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::processor::{EventError, HandlerError, each_event, event_handler_fn, handler_fn};
    use crate::testing::memory_hub::MemoryEvent;

    fn batch(numbers: std::ops::Range<i64>) -> Vec<MemoryEvent> {
        numbers.map(|number| MemoryEvent::new(number, number.to_string())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_batch_restarts_after_its_checkpoint() {
        let mut partition = TestPartition::start(0).await.unwrap();
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&attempts);
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            seen.lock().unwrap().push(context.attempt());
            async move {
                if events[0].sequence_number == 0 {
                    context.checkpoint(&events[0]);
                }
                if context.attempt() == 2 { Ok(()) } else { Err("failed on request".into()) }
            }
        });
        let before = partition.context();
        let error = partition.deliver(&handler, batch(0..3)).await.unwrap_err();
        assert_eq!(std::error::Error::source(&*error).unwrap().to_string(), "failed on request");
        assert_eq!(partition.checkpoint(), Some(0));
        assert!(before.is_stopping() && !partition.context().is_stopping());
        assert!(partition.deliver(&handler, batch(1..3)).await.is_err());
        assert_eq!(partition.partition_start().checkpoint().unwrap().sequence_number, Some(0));
        partition.deliver(&handler, batch(1..3)).await.unwrap();
        assert_eq!(*attempts.lock().unwrap(), [1, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_checkpoint_waits_as_in_a_processor() {
        let mut partition = TestPartition::start_after(0, Position::new(9, "90")).await.unwrap();
        assert_eq!(partition.checkpoint(), Some(9));
        let open = Arc::new(Mutex::new(Vec::new()));
        let tracked = Arc::clone(&open);
        let handler = handler_fn(move |mut events: Vec<MemoryEvent>, context: PartitionContext| {
            tracked.lock().unwrap().push(context.track(&events[0]));
            async move { Ok::<_, HandlerError>(context.dead_letter(events.remove(1), "bad").await?) }
        });
        partition.deliver(&handler, batch(10..12)).await.unwrap();
        let moved: Vec<_> = partition.take_dead_letters().iter().map(|letter| letter.event.sequence_number).collect();
        assert_eq!((moved, partition.checkpoint()), (vec![11], Some(9)));
        open.lock().unwrap().remove(0).finish();
        assert_eq!(partition.checkpoint(), Some(11));
        partition.context().track(&MemoryEvent::new(12, "x")).fail("later");
        assert!(partition.reported_failure().unwrap().to_string().contains("tracked event"));
    }

    #[tokio::test(start_paused = true)]
    async fn single_events_are_retried_and_moved() {
        let mut partition = TestPartition::start(0).await.unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let handler = each_event(event_handler_fn(move |event: Arc<MemoryEvent>, context: EventContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                match event.sequence_number {
                    0 if context.attempt() == 1 => Err("once".into()),
                    1 => Err(EventError::permanent(&*event, "bad").into()),
                    _ => Ok(()),
                }
            }
        }));
        partition.deliver(&handler, batch(0..3)).await.unwrap();
        assert_eq!((calls.load(Ordering::Relaxed), partition.checkpoint()), (4, Some(2)));
        assert_eq!(partition.take_dead_letters()[0].event.sequence_number, 1);
        assert_eq!(partition.event_context(3).attempt(), 3);
        partition.request_stop();
        assert!(partition.event_context(1).is_stopping());
    }
}
