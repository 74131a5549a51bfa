//! Writes the checkpoints of one partition in the background. Requests are many and cheap, writes are few.
//!
//! One task per partition owns the [`Adoption`], so at most one write is in flight. Positions that are requested during
//! a write go into the next write; only the greatest one counts. The [`Tracker`] determines which position may be
//! written.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;

use super::config::CheckpointPolicy;
use super::dropped::{Dropped, HeldCheckpoint};
use super::error_summary::ErrorSummary;
use super::orders::Stopping;
use super::stop::EventError;
use super::tracker::{Reached, Tracker};
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{OwnerId, PartitionId, Position};
use crate::store::{Adoption, BackOff, CheckpointOutcome, GroupStore};
use crate::telemetry::{self, PartitionMetrics};

/// The shortest wait before the task repeats a write that failed.
const RETRY: Duration = Duration::from_secs(1);

/// The state of requested positions.
#[derive(Debug)]
struct Pending {
    tracker: Tracker,
    /// The greatest position that may be written. Kept after the write, so that its text is reused.
    requested: Option<Position>,
    /// The sequence number of the durable checkpoint.
    written: Option<i64>,
    /// Why the last write failed, until a write succeeds.
    failure: Option<ErrorSummary>,
    dropped: Dropped,
}

impl Pending {
    fn new(written: Option<i64>) -> Self {
        Self { tracker: Tracker::new(written), requested: None, written, failure: None, dropped: Dropped::default() }
    }

    /// Replaces the position. The tracker returns increasing positions only.
    fn reach(requested: &mut Option<Position>, reached: &Reached<'_>) {
        if let Some(requested) = requested {
            requested.sequence_number = reached.sequence_number;
            requested.offset.clear();
            requested.offset.push_str(&reached.offset);
        } else {
            let offset = reached.offset.clone().into_owned();
            *requested = Some(Position { sequence_number: reached.sequence_number, offset });
        }
    }

    fn unwritten(&self) -> Option<&Position> {
        self.requested
            .as_ref()
            .filter(|requested| self.written.is_none_or(|written| written < requested.sequence_number))
    }

    /// Returns how many events lie between the durable position and the requested one.
    fn distance(&self) -> i64 {
        self.unwritten().map_or(0, |requested| requested.sequence_number.saturating_sub(self.written.unwrap_or(-1)))
    }
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    /// Wakes the writing task if it has something new to write, or enough for a write.
    advanced: Notify,
    /// Changes when a token is finished, dropped or failed. A token is one [`TrackedEvent`](super::TrackedEvent).
    finished: watch::Sender<()>,
    /// The error of the first token that failed.
    failed: watch::Sender<Option<Arc<Error>>>,
    max_events: Option<i64>,
    start: Start,
}

/// The start of the partition that the checkpoints belong to.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) partition: PartitionId,
    pub(super) stopping: Stopping,
    /// True once this start is ending.
    pub(super) over: watch::Receiver<bool>,
    /// Tokens may be dropped outside of the partition's task.
    pub(super) span: Span,
}

impl Start {
    fn is_stopping(&self) -> bool {
        *self.over.borrow() || self.stopping.is_requested()
    }
}

impl Shared {
    fn with<T>(&self, access: impl FnOnce(&mut Pending) -> T) -> T {
        access(&mut lock(&self.pending))
    }

    fn has_enough(&self, pending: &Pending) -> bool {
        self.max_events.is_some_and(|events| pending.distance() >= events)
    }

    /// Advances the position that may be written, and wakes the writing task if that changes what the task has to do.
    fn advance<'a>(&self, step: impl FnOnce(&mut Tracker) -> Option<Reached<'a>>) {
        let wake = self.with(|pending| {
            let idle = pending.unwritten().is_none();
            let Pending { tracker, requested, .. } = pending;
            let reached = step(tracker);
            let mut advanced = reached.is_some();
            if let Some(reached) = &reached {
                Pending::reach(requested, reached);
            }
            while let Some(passed) = tracker.next_passed() {
                Pending::reach(requested, &passed);
                advanced = true;
            }
            advanced && (idle || self.has_enough(pending))
        });
        if wake {
            self.advanced.notify_one();
        }
    }
}

#[derive(Debug)]
enum Command {
    Flush(oneshot::Sender<Result<()>>),
    ConfirmOwner(oneshot::Sender<Result<()>>),
    Close { last_by: Option<Instant> },
}

/// Requests checkpoints, for all clones of a partition's context.
#[derive(Clone, Debug)]
pub(super) struct CheckpointWriter {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

impl CheckpointWriter {
    pub(super) fn request(&self, sequence_number: i64, offset: &str) {
        self.shared.advance(|tracker| tracker.request(sequence_number, offset));
    }

    /// Records a batch that goes to the handler.
    pub(super) fn delivered(&self, numbers: impl Iterator<Item = i64>) {
        self.shared.with(|pending| pending.tracker.delivered(numbers));
    }

    /// Records that the handler returned.
    pub(super) fn handled(&self) {
        self.shared.advance(Tracker::handled);
    }

    /// Returns whether the checkpoint waits for the event: false if it has passed the event already.
    pub(super) fn track(&self, sequence_number: i64) -> bool {
        self.shared.with(|pending| pending.tracker.track(sequence_number))
    }

    pub(super) fn finish(&self, sequence_number: i64, offset: &str) {
        self.shared.advance(|tracker| tracker.finish(sequence_number, offset));
        self.shared.finished.send_replace(());
    }

    /// Records a token that was dropped unfinished. Reports it, unless the partition is stopping: the application may
    /// then give up work.
    pub(super) fn abandon(&self, sequence_number: i64) {
        let running = !self.shared.start.is_stopping();
        let (holds, is_first, checkpoint) = self.shared.with(|pending| {
            if !pending.tracker.is_open(sequence_number) {
                // The checkpoint has passed the event, so nothing waits for the token.
                pending.tracker.finish(sequence_number, "");
                return (false, false, pending.written);
            }
            let holds = running;
            (holds, pending.dropped.add(holds.then_some(sequence_number)), pending.written)
        });
        self.shared.finished.send_replace(());
        if holds {
            let start = &self.shared.start;
            telemetry::tracked_event_dropped(&start.span, &start.partition, sequence_number, checkpoint, is_first);
        }
    }

    /// Records that the event of a token cannot be processed. The first such error counts.
    pub(super) fn fail(&self, error: EventError) {
        if error.sequence_number().is_some() {
            self.shared.with(|pending| pending.dropped.add(None));
            self.shared.finished.send_replace(());
        }
        let error = Error::new(ErrorKind::Handler, "a tracked event failed").with_source(error);
        self.shared.failed.send_if_modified(|failed| failed.is_none() && failed.replace(Arc::new(error)).is_none());
    }

    /// Lets the checkpoint advance over an event that the handler does not process, once it covers all events before.
    pub(super) fn pass_over(&self, sequence_number: i64, offset: &str) {
        self.shared.advance(|tracker| {
            tracker.pass_over(sequence_number, offset);
            None
        });
    }

    /// Returns the last event up to which all events are finished.
    pub(super) fn reached(&self) -> Option<i64> {
        self.shared.with(|pending| pending.tracker.reached())
    }

    /// Checks by the ownership record that this instance still owns the partition.
    pub(super) async fn confirm_owner(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the partition has stopped");
        let (reply, response) = oneshot::channel();
        self.commands.send(Command::ConfirmOwner(reply)).map_err(|_| closed())?;
        response.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Waits until a token has failed.
    pub(super) async fn failed(&self) -> Arc<Error> {
        let mut failed = self.shared.failed.subscribe();
        let error = failed.wait_for(Option::is_some).await.ok().and_then(|failed| failed.clone());
        match error {
            Some(error) => error,
            // The sender belongs to `self`, so it is not dropped.
            None => std::future::pending().await,
        }
    }

    /// Returns how many tokens are not finished.
    pub(super) fn in_flight(&self) -> usize {
        self.shared.with(|pending| pending.tracker.in_flight())
    }

    /// Returns how many tokens may still be finished: neither dropped nor failed.
    pub(super) fn unfinished(&self) -> usize {
        self.shared.with(|pending| pending.tracker.in_flight().saturating_sub(pending.dropped.tokens()))
    }

    /// Returns why the checkpoint cannot advance, if a dropped token holds it back.
    pub(super) fn held(&self) -> Option<HeldCheckpoint> {
        self.shared.with(|pending| {
            let (event, since) = pending.dropped.first()?;
            let last = pending.tracker.last_waiting().unwrap_or(event);
            let finished_after = last.saturating_sub(event).max(0).unsigned_abs();
            Some(HeldCheckpoint { event, held_for: since.elapsed(), checkpoint: pending.written, finished_after })
        })
    }

    /// Returns whether finished events will be redelivered because of a dropped token, or a token was dropped while the
    /// partition was running.
    pub(super) fn is_held_back(&self) -> bool {
        self.shared.with(|pending| {
            let waits = pending.dropped.tokens() > 0 && pending.tracker.last_waiting().is_some();
            waits || pending.dropped.first().is_some()
        })
    }

    pub(super) async fn until_fewer_in_flight(&self, than: usize) {
        let mut finished = self.shared.finished.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = finished.wait_for(|()| self.in_flight() < than).await;
    }

    /// Waits until all tokens are finished, except those that cannot be any more.
    pub(super) async fn until_all_finished(&self) {
        let mut finished = self.shared.finished.subscribe();
        let _ = finished.wait_for(|()| self.unfinished() == 0).await;
    }

    /// Returns the first open event, if the checkpoint at this event waits for it.
    pub(super) fn waits_for(&self, sequence_number: i64) -> Option<i64> {
        let open = self.shared.with(|pending| pending.tracker.oldest_open());
        open.filter(|open| *open <= sequence_number)
    }

    /// Returns the sequence number of the durable checkpoint.
    pub(super) fn written(&self) -> Option<i64> {
        self.shared.with(|pending| pending.written)
    }

    /// Returns why the last write failed, if none has succeeded since.
    pub(super) fn failure(&self) -> Option<ErrorSummary> {
        self.shared.with(|pending| pending.failure.clone())
    }

    /// Returns whether a requested position is not durable.
    pub(super) fn is_behind(&self) -> bool {
        self.shared.with(|pending| pending.unwritten().is_some())
    }

    pub(super) async fn flush(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the partition has stopped; nothing was written");
        let (reply, response) = oneshot::channel();
        self.commands.send(Command::Flush(reply)).map_err(|_| closed())?;
        response.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Ends the writing task. With `last_by`, the task first writes the requested position; it begins attempts until
    /// that time.
    pub(super) fn close(&self, last_by: Option<Instant>) {
        // An error means that the task has already ended.
        let _ = self.commands.send(Command::Close { last_by });
    }
}

/// Why the writing task ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was closed.
    Closed,
    /// Another instance owns the partition, or none does.
    Fenced { by: Option<OwnerId> },
}

/// Writes the checkpoints.
#[derive(Debug)]
pub(super) struct Checkpointer {
    store: GroupStore,
    adoption: Adoption,
    policy: CheckpointPolicy,
    metrics: PartitionMetrics,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// After a failed write, the time before which the policy starts no other write.
    not_before: Option<Instant>,
    back_off: BackOff,
}

impl Checkpointer {
    pub(super) fn new(
        store: GroupStore,
        adoption: Adoption,
        policy: CheckpointPolicy,
        metrics: PartitionMetrics,
        start: Start,
    ) -> (Self, CheckpointWriter) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let pending = Pending::new(adoption.record().sequence_number);
        let max_events = policy.max_events.map(i64::from);
        let shared = Arc::new(Shared {
            pending: Mutex::new(pending),
            advanced: Notify::new(),
            finished: watch::Sender::default(),
            failed: watch::Sender::default(),
            max_events,
            start,
        });
        let writer = CheckpointWriter { shared: Arc::clone(&shared), commands };
        let back_off = back_off(&policy, store.lease_durations().own);
        (Self { store, adoption, policy, metrics, shared, commands: receiver, not_before: None, back_off }, writer)
    }

    /// Writes the requested positions when the policy says so, until the task is closed or the partition is fenced.
    pub(super) async fn run(mut self) -> Ended {
        let mut due: Option<Instant> = None;
        loop {
            let wake = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Flush(reply)) => Wake::Write(Some(reply)),
                    Some(Command::ConfirmOwner(reply)) => {
                        // An error means that the caller no longer waits.
                        let _ = reply.send(self.confirm_owner().await);
                        continue;
                    }
                    Some(Command::Close { last_by }) => return self.close(last_by).await,
                    None => return Ended::Closed,
                },
                () = self.shared.advanced.notified() => self.woken_by_request(),
                () = at(due) => Wake::Write(None),
            };
            let Wake::Write(reply) = wake else {
                due = due.or_else(|| self.next_due());
                continue;
            };
            let outcome = self.write().await;
            self.not_before = self.next_after(&outcome);
            due = self.not_before.or_else(|| self.next_due());
            let ended = end_after(&outcome);
            if let Some(reply) = reply {
                // An error means that the caller no longer waits.
                let _ = reply.send(self.flush_result(outcome));
            }
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    async fn close(mut self, last_by: Option<Instant>) -> Ended {
        let Some(last_by) = last_by else { return Ended::Closed };
        let mut attempts = self.store.attempts(Some(last_by));
        loop {
            let outcome = self.write().await;
            match &outcome {
                Err(error) if attempts.again_after(error).await => {}
                _ => return end_after(&outcome).unwrap_or(Ended::Closed),
            }
        }
    }

    fn woken_by_request(&self) -> Wake {
        let enough = self.shared.with(|pending| self.shared.has_enough(pending));
        let waiting = self.not_before.is_some_and(|not_before| Instant::now() < not_before);
        if enough && !waiting { Wake::Write(None) } else { Wake::Later }
    }

    /// Returns when the policy may write again, if the write failed.
    fn next_after(&mut self, outcome: &Result<CheckpointOutcome>) -> Option<Instant> {
        match outcome {
            Ok(_) => {
                self.back_off.succeeded();
                None
            }
            Err(error) => Some(Instant::now() + self.store.pause_after(error, &mut self.back_off)),
        }
    }

    /// Returns when the policy wants the position that is requested now to be written.
    fn next_due(&self) -> Option<Instant> {
        self.shared.with(|pending| pending.unwritten().is_some()).then_some(())?;
        self.policy.interval.map(|every| Instant::now() + every)
    }

    /// Writes the greatest requested position, unless it is written already.
    async fn write(&mut self) -> Result<CheckpointOutcome> {
        let Some(position) = self.shared.with(|pending| pending.unwritten().cloned()) else {
            return Ok(CheckpointOutcome::Superseded);
        };
        let timer = self.metrics.writing();
        let outcome = self.store.checkpoint(&mut self.adoption, &position).await;
        timer.end();
        self.metrics.checkpoint(name(&outcome));
        match &outcome {
            Ok(CheckpointOutcome::Fenced { .. }) => {}
            Ok(_) => self.shared.with(|pending| {
                (pending.written, pending.failure) = (self.adoption.record().sequence_number, None);
            }),
            Err(error) => {
                self.store.telemetry().checkpoint_failed(self.adoption.partition(), error);
                self.shared.with(|pending| pending.failure = Some(ErrorSummary::of(error)));
            }
        }
        outcome
    }

    async fn confirm_owner(&self) -> Result<()> {
        let partition = self.adoption.partition();
        let seen = self.store.read_ownership(partition).await?;
        let (this, epoch) = (self.store.identity(), self.adoption.epoch());
        if seen.as_ref().is_some_and(|seen| seen.record.is_mine_in(this, epoch)) {
            return Ok(());
        }
        Err(fenced(partition, seen.and_then(|seen| seen.record.owner).as_ref()))
    }

    /// Returns the outcome of a flush for the caller.
    fn flush_result(&self, outcome: Result<CheckpointOutcome>) -> Result<()> {
        let partition = self.adoption.partition();
        match outcome? {
            CheckpointOutcome::Fenced { by } => Err(fenced(partition, by.as_ref())),
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
        }
    }
}

fn fenced(partition: &PartitionId, by: Option<&OwnerId>) -> Error {
    let by = by.map_or("none", OwnerId::as_str);
    let message = format!("partition {partition} is no longer owned by this instance (current owner: {by})");
    Error::new(ErrorKind::Fenced, message)
}

/// Failed writes are repeated no more often than successful ones, so that a storage that throttles does not receive
/// more requests.
fn back_off(policy: &CheckpointPolicy, lease_duration: Duration) -> BackOff {
    let first = policy.interval.unwrap_or_default().max(RETRY);
    BackOff::new(first, first.max(lease_duration / 2))
}

enum Wake {
    /// A position is requested, but the policy does not write it yet.
    Later,
    /// Write now, and return the outcome to the caller of `flush`, if there is one.
    Write(Option<oneshot::Sender<Result<()>>>),
}

/// Returns the name of the outcome in metrics.
fn name(outcome: &Result<CheckpointOutcome>) -> &'static str {
    match outcome {
        Ok(CheckpointOutcome::Written) => "written",
        Ok(CheckpointOutcome::Superseded) => "superseded",
        Ok(CheckpointOutcome::Fenced { .. }) => "fenced",
        Err(_) => "failed",
    }
}

/// Returns why the task ends after this outcome, if it does: no checkpoint is accepted any more.
fn end_after(outcome: &Result<CheckpointOutcome>) -> Option<Ended> {
    match outcome {
        Ok(CheckpointOutcome::Fenced { by }) => Some(Ended::Fenced { by: by.clone() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::processor::orders::Orders;

    fn writer() -> CheckpointWriter {
        let shared = Shared {
            pending: Mutex::new(Pending::new(None)),
            advanced: Notify::new(),
            finished: watch::Sender::default(),
            failed: watch::Sender::default(),
            max_events: None,
            start: Start {
                partition: PartitionId::from(0),
                stopping: Stopping::new(watch::channel(Orders::default()).1),
                over: watch::channel(false).1,
                span: Span::none(),
            },
        };
        CheckpointWriter { shared: Arc::new(shared), commands: mpsc::unbounded_channel().0 }
    }

    /// Tokens are taken and dropped on another thread while they are counted.
    #[test]
    fn b22_counting_tokens_is_consistent() {
        let writer = writer();
        let other = writer.clone();
        let dropping = thread::spawn(move || {
            for number in 0..100_000 {
                other.track(number);
                other.abandon(number);
            }
        });
        while !dropping.is_finished() {
            assert!(writer.unfinished() <= 1);
        }
        dropping.join().unwrap();
    }

    #[test]
    fn the_greatest_requested_position_counts() {
        let mut pending = Pending::new(Some(3));
        assert_eq!(pending.unwritten(), None);
        for (number, offset) in [(5, "five"), (9, "nine"), (7, "seven")] {
            let Pending { tracker, requested, .. } = &mut pending;
            if let Some(reached) = tracker.request(number, offset) {
                Pending::reach(requested, &reached);
            }
        }
        assert_eq!(pending.unwritten(), Some(&Position { sequence_number: 9, offset: "nine".into() }));
        assert_eq!(pending.distance(), 6);
        pending.written = Some(i64::MIN + 1);
        assert_eq!(pending.distance(), i64::MAX);
        pending.written = Some(9);
        assert_eq!(pending.unwritten(), None);
        assert_eq!(pending.distance(), 0);
    }
}
