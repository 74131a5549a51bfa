//! One partition from its win to its loss, in one task.
//!
//! ```text
//! Adopting -> Opening -> Running -> Draining -> Stopped
//!     ^          ^----------'           |
//!     '------- after a failure ---------'
//! ```
//!
//! *Adopting* takes over the checkpoint, which fences the previous owner. *Opening* starts to read behind it. *Running*
//! hands batches to the handler. *Draining* lets the handler finish its batch and settles the last checkpoint. A link that
//! breaks goes back to opening, behind the last event that was handled; a failing handler goes back to adopting, and gets
//! everything behind the checkpoint again.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::checkpointing::{CheckpointWriter, Checkpointer, Ended};
use super::config::ProcessorConfig;
use super::handler::{Handler, HandlerError, PartitionContext, StopReason};
use super::source::{EventReceiver, EventSource, Positioned, StartPosition};
use crate::balancer::{Loads, Vitals};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, ConsumerGroup, OwnerId, PartitionId, Relation};
use crate::store::{AdoptOutcome, Adoption, GroupStore};
use crate::telemetry;

/// The wait before the first restart; it doubles up to [`LONGEST_PAUSE`] until a batch is handled.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a link may take to close. Closing late harms nobody: the broker gives the partition to the next reader.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// How long a partition may take to stop: its batch, or the call of `started`; its link; the call of `stopped`.
pub(super) fn stopping_time(drain: Duration) -> Duration {
    2 * drain + CLOSE_LIMIT
}

/// What all partitions of a processor have in common.
#[derive(Debug)]
pub(super) struct Shared<S, H> {
    pub(super) source: S,
    pub(super) handler: H,
    pub(super) store: GroupStore,
    pub(super) group: Arc<ConsumerGroup>,
    pub(super) config: ProcessorConfig,
    pub(super) drain: Duration,
    pub(super) vitals: Vitals,
    pub(super) loads: Loads,
}

/// One partition's task.
#[derive(Debug)]
pub(super) struct PartitionTask<S, H> {
    pub(super) shared: Arc<Shared<S, H>>,
    pub(super) partition: PartitionId,
    /// Set once to stop; by the supervisor, or by the task itself when it finds that the partition is lost.
    pub(super) stop: watch::Sender<Option<StopReason>>,
}

/// How reading through one link ended.
enum Reading {
    Stopped(StopReason),
    LinkFailed(Error),
    HandlerFailed(Error),
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Runs until stopped, restarting after failures.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`], which no restart can mend, and [`ErrorKind::Contended`] if the partition cannot be adopted:
    /// it should go to somebody else, or be left alone for a while.
    pub(super) async fn run(self) -> Result<StopReason, Arc<Error>> {
        let reason = self.until_stopped().await?;
        telemetry::partition_stopped(&self.partition, &reason);
        Ok(reason)
    }

    async fn until_stopped(&self) -> Result<StopReason, Arc<Error>> {
        let mut pauses = Pauses::default();
        loop {
            let error = match self.attempt(&mut pauses).await {
                Ok(reason) => return Ok(reason),
                Err(error) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Contended) => return Err(error),
                Err(error) => error,
            };
            let pause = pauses.next();
            telemetry::partition_failed(&self.partition, &error, pause);
            if let Some(reason) = self.stopped_within(pause).await {
                return Ok(reason);
            }
        }
    }

    /// From adopting to stopped, once.
    async fn attempt(&self, pauses: &mut Pauses) -> Result<StopReason, Arc<Error>> {
        let adoption = tokio::select! {
            biased;
            reason = self.stopping() => return Ok(reason),
            adopted = self.adopt() => match adopted.map_err(Arc::new)? {
                AdoptOutcome::Adopted(adoption) => adoption,
                AdoptOutcome::Lost { by } => return Ok(self.lost(by)),
            },
        };
        let from = resume(adoption.record(), &self.shared.config.start);
        let (checkpointer, writer) =
            Checkpointer::new(self.shared.store.clone(), adoption, self.shared.config.checkpoints.clone());
        let mut writing = JoinSet::new();
        writing.spawn(checkpointer.run());
        let context = self.context(writer.clone());

        telemetry::partition_started(&self.partition, &from);
        self.call_started(context.clone()).await?;
        let ended = self.read(from, &context, &mut writing, pauses).await.map_err(Arc::new);
        let reason = match &ended {
            Ok(reason) => reason.clone(),
            Err(error) => StopReason::Failed { error: Arc::clone(error) },
        };
        self.call_stopped(context, reason.clone()).await;
        writer.close(!matches!(reason, StopReason::Lost { .. } | StopReason::Replaced | StopReason::Rewound));
        writing.join_all().await;
        ended
    }

    async fn adopt(&self) -> Result<AdoptOutcome> {
        let Shared { store, source, config, .. } = &*self.shared;
        let adopted = store.adopt(&self.partition, None).await?;
        match &adopted {
            AdoptOutcome::Adopted(adoption) if needs_pin(adoption) => {
                let pinned = source.partition(&self.partition).await?.pin(&config.start);
                store.adopt(&self.partition, pinned.as_ref()).await
            }
            _ => Ok(adopted),
        }
    }

    fn context(&self, checkpoints: CheckpointWriter) -> PartitionContext {
        PartitionContext {
            partition: self.partition.clone(),
            group: Arc::clone(&self.shared.group),
            checkpoints,
            stopping: self.stop.subscribe(),
        }
    }

    /// Opens the link, and again whenever it breaks, until the partition stops or the handler fails.
    async fn read(
        &self,
        mut from: StartPosition,
        context: &PartitionContext,
        writing: &mut JoinSet<Ended>,
        pauses: &mut Pauses,
    ) -> Result<StopReason> {
        let Shared { source, config, .. } = &*self.shared;
        loop {
            let opened = tokio::select! {
                biased;
                reason = self.stopping() => return Ok(reason),
                opened = source.open(&self.partition, from.clone(), config.prefetch) => opened,
            };
            let ended = match opened {
                Ok(mut receiver) => {
                    let opened_at = Instant::now();
                    let ended = self.pump(&mut receiver, &mut from, context, writing, pauses).await;
                    receiver.close(CLOSE_LIMIT).await;
                    if opened_at.elapsed() > LONGEST_PAUSE {
                        pauses.reset();
                    }
                    ended
                }
                Err(error) => Reading::LinkFailed(error),
            };
            let error = match ended {
                Reading::Stopped(reason) => return Ok(reason),
                Reading::HandlerFailed(error) => return Err(error),
                Reading::LinkFailed(error) if error.kind() == ErrorKind::Config => return Err(error),
                Reading::LinkFailed(error) => error,
            };
            if let Some(reason) = self.lost_to_reader(&error).await {
                return Ok(reason);
            }
            let pause = pauses.next();
            telemetry::link_failed(&self.partition, &error, pause);
            if let Some(reason) = self.stopped_within(pause).await {
                return Ok(reason);
            }
        }
    }

    /// Hands batches to the handler. Keeps `from` behind the last event that was handled.
    async fn pump(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        from: &mut StartPosition,
        context: &PartitionContext,
        writing: &mut JoinSet<Ended>,
        pauses: &mut Pauses,
    ) -> Reading {
        loop {
            let batch = tokio::select! {
                biased;
                reason = self.stopping_or_fenced(writing) => return Reading::Stopped(reason),
                batch = receiver.next_batch(self.shared.config.batch) => batch,
            };
            let batch = match batch {
                Ok(batch) => unseen(batch, from),
                Err(error) => return Reading::LinkFailed(error),
            };
            let Some(last) = batch.last().map(S::Event::sequence_number) else { continue };
            let events = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            if let Some(ended) = self.handle(batch, context, writing).await {
                return ended;
            }
            self.shared.loads.count(&self.partition, events);
            pauses.handled(last);
            if let Some(sequence_number) = last {
                *from = StartPosition::AfterSequenceNumber(sequence_number);
            }
        }
    }

    /// One call of the handler. When the partition stops meanwhile, the handler gets the drain time to finish.
    async fn handle(
        &self,
        batch: Vec<S::Event>,
        context: &PartitionContext,
        writing: &mut JoinSet<Ended>,
    ) -> Option<Reading> {
        let _working = self.shared.vitals.working(&self.partition);
        // The call itself is inside, too: a closure may panic before it returns its future.
        let handling = async { self.shared.handler.handle(batch, context.clone()).await };
        let handling = AssertUnwindSafe(handling).catch_unwind();
        tokio::pin!(handling);
        let reason = tokio::select! {
            biased;
            handled = &mut handling => {
                let failure = handler_failure(handled)?;
                // A handler that waits for a checkpoint fails when that is refused: then the partition is lost.
                let fenced = writing.try_join_next().map(|ended| self.fenced(ended));
                return Some(fenced.map_or(Reading::HandlerFailed(failure), Reading::Stopped));
            }
            reason = self.stopping_or_fenced(writing) => reason,
        };
        match timeout(self.shared.drain, handling).await {
            Ok(handled) => {
                if let Some(error) = handler_failure(handled) {
                    telemetry::handler_failed_while_draining(&self.partition, &error);
                }
            }
            Err(_) => telemetry::drain_timed_out(&self.partition, self.shared.drain),
        }
        Some(Reading::Stopped(reason))
    }

    /// A reader that was displaced at the broker asks the records who owns the partition: giving it up is right only if
    /// they say so, and taking it back would only start a fight otherwise.
    async fn lost_to_reader(&self, error: &Error) -> Option<StopReason> {
        if error.kind() != ErrorKind::Fenced {
            return None;
        }
        match self.shared.store.owner_of(&self.partition).await {
            Ok((Relation::Mine, _)) | Err(_) => None,
            Ok((_, by)) => Some(self.lost(by)),
        }
    }

    /// Waits before a restart, unless asked to stop.
    async fn stopped_within(&self, pause: Duration) -> Option<StopReason> {
        tokio::select! {
            biased;
            reason = self.stopping() => Some(reason),
            () = sleep(pause) => None,
        }
    }

    async fn stopping(&self) -> StopReason {
        let mut stop = self.stop.subscribe();
        match stop.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(reason)) => reason.clone(),
            _ => StopReason::Shutdown,
        }
    }

    /// The same, and also when a checkpoint was refused. The handler is told, too.
    async fn stopping_or_fenced(&self, writing: &mut JoinSet<Ended>) -> StopReason {
        tokio::select! {
            biased;
            reason = self.stopping() => reason,
            Some(ended) = writing.join_next() => self.fenced(ended),
        }
    }

    fn fenced(&self, ended: Result<Ended, JoinError>) -> StopReason {
        let reason = match ended {
            Ok(Ended::Rewound) => StopReason::Rewound,
            Ok(Ended::Fenced { by }) => self.lost(by),
            _ => self.lost(None),
        };
        self.stop.send_replace(Some(reason.clone()));
        reason
    }

    /// Under my own name it can only be another incarnation.
    fn lost(&self, by: Option<OwnerId>) -> StopReason {
        if by.as_ref() == Some(&self.shared.store.identity().owner) {
            return StopReason::Replaced;
        }
        StopReason::Lost { by }
    }

    /// Waits as long as it takes; once the partition is to stop, for the drain time.
    async fn call_started(&self, context: PartitionContext) -> Result<(), Arc<Error>> {
        let starting = AssertUnwindSafe(async { self.shared.handler.started(context).await }).catch_unwind();
        tokio::pin!(starting);
        let started = tokio::select! {
            biased;
            started = &mut starting => Some(started),
            _ = self.stopping() => timeout(self.shared.drain, starting).await.ok(),
        };
        match started {
            Some(Ok(())) => Ok(()),
            Some(Err(panic)) => Err(Arc::new(panicked(&*panic))),
            None => {
                telemetry::callback_cut_short(&self.partition, "started", self.shared.drain);
                Ok(())
            }
        }
    }

    /// A panic here changes nothing: the partition has stopped.
    async fn call_stopped(&self, context: PartitionContext, reason: StopReason) {
        let stopping = AssertUnwindSafe(async { self.shared.handler.stopped(context, reason).await }).catch_unwind();
        match timeout(self.shared.drain, stopping).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => telemetry::callback_panicked(&self.partition, "stopped", &panicked(&*panic)),
            Err(_) => telemetry::callback_cut_short(&self.partition, "stopped", self.shared.drain),
        }
    }
}

/// Where to go on. A recorded offset of `-1` is the place before everything.
fn resume(record: &CheckpointRecord, start: &StartPosition) -> StartPosition {
    match (record.sequence_number, &record.offset) {
        (_, Some(offset)) if offset == "-1" => StartPosition::Earliest,
        (Some(sequence_number), _) => StartPosition::AfterSequenceNumber(sequence_number),
        (None, Some(offset)) => StartPosition::AfterOffset(offset.clone()),
        (None, None) => start.clone(),
    }
}

fn needs_pin(adoption: &Adoption) -> bool {
    !adoption.record().has_position()
}

/// Leaves out what was handled already: a link that re-attaches by itself starts at its original place again. What is
/// left only grows.
fn unseen<E: Positioned>(mut batch: Vec<E>, from: &StartPosition) -> Vec<E> {
    let mut seen = match from {
        StartPosition::AfterSequenceNumber(seen) => Some(*seen),
        _ => None,
    };
    batch.retain(|event| {
        let number = event.sequence_number();
        let new = number.is_none() || number > seen;
        if new {
            seen = number.or(seen);
        }
        new
    });
    batch
}

type Panic = Box<dyn Any + Send>;

fn handler_failure(handled: Result<Result<(), HandlerError>, Panic>) -> Option<Error> {
    match handled {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Error::new(ErrorKind::Handler, "the handler failed").with_source(error)),
        Err(panic) => Some(panicked(&*panic)),
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(ErrorKind::Handler, format!("the handler panicked: {}", message.unwrap_or("no message")))
}

/// The waits between restarts.
#[derive(Debug, Default)]
struct Pauses {
    failures: u32,
    /// The furthest event that was ever handled. What comes again after a failure is no progress.
    furthest: Option<i64>,
}

impl Pauses {
    fn next(&mut self) -> Duration {
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        pause.min(LONGEST_PAUSE)
    }

    fn handled(&mut self, last: Option<i64>) {
        if last.is_none() || last > self.furthest {
            self.furthest = last.or(self.furthest);
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence_number: Option<i64>, offset: Option<&str>) -> CheckpointRecord {
        CheckpointRecord { sequence_number, offset: offset.map(str::to_owned), ..Default::default() }
    }

    #[test]
    fn processing_goes_on_behind_the_checkpoint() {
        let start = StartPosition::Latest;
        assert_eq!(resume(&record(None, None), &start), start);
        assert_eq!(resume(&record(Some(7), Some("o")), &start), StartPosition::AfterSequenceNumber(7));
        assert_eq!(resume(&record(None, Some("o")), &start), StartPosition::AfterOffset("o".into()));
        assert_eq!(resume(&record(Some(-1), Some("-1")), &start), StartPosition::Earliest);
    }

    #[derive(Debug, PartialEq)]
    struct Numbered(i64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    #[test]
    fn what_was_handled_before_the_link_broke_is_left_out() {
        let batch = || (5..9).map(Numbered).collect::<Vec<_>>();
        assert_eq!(unseen(batch(), &StartPosition::AfterSequenceNumber(6)), [Numbered(7), Numbered(8)]);
        assert_eq!(unseen(batch(), &StartPosition::Earliest), batch());
        let again = [0, 1, 2, 0, 1, 2, 3].map(Numbered).into();
        assert_eq!(unseen(again, &StartPosition::Earliest), [0, 1, 2, 3].map(Numbered));
    }

    #[test]
    fn restarts_wait_longer_each_time_up_to_a_limit() {
        let mut pauses = Pauses::default();
        let waits: Vec<_> = (0..10).map(|_| pauses.next()).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], FIRST_PAUSE);
        assert_eq!(waits[9], LONGEST_PAUSE);
        pauses.handled(Some(5));
        assert_eq!(pauses.next(), FIRST_PAUSE);
        pauses.handled(Some(5));
        assert_eq!(pauses.next(), FIRST_PAUSE * 2, "the same event again is no progress");
    }
}
