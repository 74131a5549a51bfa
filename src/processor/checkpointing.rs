//! Writes one partition's checkpoints in the background: marks are many and cheap, writes are few.
//!
//! One task per partition owns the [`Adoption`], so at most one write is in flight; what is marked meanwhile goes into
//! the next one, of which only the greatest position counts. What may be marked, the [`Tracker`] says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;

use super::config::CheckpointPolicy;
use super::dropped::{Dropped, HeldCheckpoint};
use super::orders::Stopping;
use super::stop::HandlerError;
use super::tracker::{Reached, Tracker};
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{OwnerId, PartitionId, Position};
use crate::store::{Adoption, BackOff, CheckpointOutcome, GroupStore};
use crate::telemetry::{self, PartitionMetrics};

/// The least wait before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What is marked and not yet written.
#[derive(Debug)]
struct Pending {
    tracker: Tracker,
    /// The greatest position that may be written. Kept when written, so that its text is reused.
    marked: Option<Position>,
    /// The sequence number that is known to be durable.
    written: Option<i64>,
    /// Why the last write failed, until one succeeds.
    failure: Option<String>,
    dropped: Dropped,
}

impl Pending {
    fn new(written: Option<i64>) -> Self {
        Self { tracker: Tracker::new(written), marked: None, written, failure: None, dropped: Dropped::default() }
    }

    /// The tracker only ever goes on.
    fn reach(marked: &mut Option<Position>, reached: &Reached<'_>) {
        if let Some(marked) = marked {
            marked.sequence_number = reached.sequence_number;
            marked.offset.clear();
            marked.offset.push_str(&reached.offset);
        } else {
            let offset = reached.offset.clone().into_owned();
            *marked = Some(Position { sequence_number: reached.sequence_number, offset });
        }
    }

    fn unwritten(&self) -> Option<&Position> {
        self.marked.as_ref().filter(|marked| self.written.is_none_or(|written| written < marked.sequence_number))
    }

    /// How many events lie between the durable position and the marked one.
    fn distance(&self) -> i64 {
        self.unwritten().map_or(0, |marked| marked.sequence_number.saturating_sub(self.written.unwrap_or(-1)))
    }
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    /// Something may be written that might not before, or enough for a write.
    marked: Notify,
    /// A token was finished, or never will be.
    finished: watch::Sender<()>,
    /// The error of the first token that failed.
    failed: watch::Sender<Option<Arc<Error>>>,
    every_events: Option<i64>,
    start: Start,
}

/// The start of the partition that the checkpoints belong to.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) partition: PartitionId,
    pub(super) stopping: Stopping,
    /// True once this start comes to its end.
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
        self.every_events.is_some_and(|events| pending.distance() >= events)
    }

    /// Moves what may be written on, and wakes the writing task if that changes what it has to do.
    fn advance<'a>(&self, step: impl FnOnce(&mut Tracker) -> Option<Reached<'a>>) {
        let wake = self.with(|pending| {
            let idle = pending.unwritten().is_none();
            let Pending { tracker, marked, .. } = pending;
            let Some(reached) = step(tracker) else { return false };
            Pending::reach(marked, &reached);
            idle || self.has_enough(pending)
        });
        if wake {
            self.marked.notify_one();
        }
    }
}

#[derive(Debug)]
enum Command {
    Flush(oneshot::Sender<Result<()>>),
    Close { last_by: Option<Instant> },
}

/// The marking end, one for all clones of a partition's context.
#[derive(Clone, Debug)]
pub(super) struct CheckpointWriter {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

impl CheckpointWriter {
    pub(super) fn request(&self, sequence_number: i64, offset: &str) {
        self.shared.advance(|tracker| tracker.request(sequence_number, offset));
    }

    /// A batch goes to the handler.
    pub(super) fn delivered(&self, numbers: impl Iterator<Item = i64>) {
        self.shared.with(|pending| pending.tracker.delivered(numbers));
    }

    /// The handler returned from it.
    pub(super) fn handled(&self) {
        self.shared.advance(Tracker::handled);
    }

    /// Answers whether the checkpoint waits for it: not, if it has passed the event already.
    pub(super) fn track(&self, sequence_number: i64) -> bool {
        self.shared.with(|pending| pending.tracker.track(sequence_number))
    }

    pub(super) fn finish(&self, sequence_number: i64, offset: &str) {
        self.shared.advance(|tracker| tracker.finish(sequence_number, offset));
        self.shared.finished.send_replace(());
    }

    /// A token was dropped without being finished. Work that is given up because the partition stops is no fault.
    pub(super) fn abandon(&self, sequence_number: i64) {
        let at_work = !self.shared.start.is_stopping();
        let (holds, is_first, checkpoint) = self.shared.with(|pending| {
            if !pending.tracker.is_open(sequence_number) {
                // The checkpoint has passed the event: nothing waits for the token.
                pending.tracker.finish(sequence_number, "");
                return (false, false, pending.written);
            }
            let holds = at_work;
            (holds, pending.dropped.add(holds.then_some(sequence_number)), pending.written)
        });
        self.shared.finished.send_replace(());
        if holds {
            let start = &self.shared.start;
            telemetry::token_dropped(&start.span, &start.partition, sequence_number, checkpoint, is_first);
        }
    }

    /// The event of a token cannot be processed. The first such error counts.
    pub(super) fn fail(&self, sequence_number: Option<i64>, error: HandlerError) {
        if sequence_number.is_some() {
            self.shared.with(|pending| pending.dropped.add(None));
            self.shared.finished.send_replace(());
        }
        let event = sequence_number.map_or("an event".to_owned(), |number| format!("event {number}"));
        let error = Error::new(ErrorKind::Handler, format!("{event} could not be processed")).with_source(error);
        self.shared.failed.send_if_modified(|failed| failed.is_none() && failed.replace(Arc::new(error)).is_none());
    }

    /// Ready when a token has failed.
    pub(super) async fn failed(&self) -> Arc<Error> {
        let mut failed = self.shared.failed.subscribe();
        let error = failed.wait_for(Option::is_some).await.ok().and_then(|failed| failed.clone());
        match error {
            Some(error) => error,
            // The sender is `self`: it does not go away.
            None => std::future::pending().await,
        }
    }

    /// How many tokens are not finished.
    pub(super) fn in_flight(&self) -> usize {
        self.shared.with(|pending| pending.tracker.in_flight())
    }

    /// How many of these may be finished yet: those that were neither dropped nor failed.
    pub(super) fn unfinished(&self) -> usize {
        self.shared.with(|pending| pending.tracker.in_flight().saturating_sub(pending.dropped.tokens()))
    }

    /// The checkpoint stays where it is because of a token that was dropped.
    pub(super) fn held(&self) -> Option<HeldCheckpoint> {
        self.shared.with(|pending| {
            let (event, since) = pending.dropped.first()?;
            let last = pending.tracker.last_waiting().unwrap_or(event);
            let finished_after = last.saturating_sub(event).max(0).unsigned_abs();
            Some(HeldCheckpoint { event, held_for: since.elapsed(), checkpoint: pending.written, finished_after })
        })
    }

    /// Whether finished events are processed again because a token was dropped, or one was dropped while the partition
    /// was at work.
    pub(super) fn is_held_back(&self) -> bool {
        self.shared.with(|pending| {
            let waits = pending.dropped.tokens() > 0 && pending.tracker.last_waiting().is_some();
            waits || pending.dropped.first().is_some()
        })
    }

    pub(super) async fn until_fewer_in_flight(&self, than: usize) {
        let mut finished = self.shared.finished.subscribe();
        // The sender is `self`: it does not go away.
        let _ = finished.wait_for(|()| self.in_flight() < than).await;
    }

    /// But for those that never will be.
    pub(super) async fn until_all_finished(&self) {
        let mut finished = self.shared.finished.subscribe();
        let _ = finished.wait_for(|()| self.unfinished() == 0).await;
    }

    /// The event that the checkpoint waits for, if it is this one or one before it.
    pub(super) fn waits_for(&self, sequence_number: i64) -> Option<i64> {
        let open = self.shared.with(|pending| pending.tracker.oldest_open());
        open.filter(|open| *open <= sequence_number)
    }

    /// The sequence number that is known to be durable.
    pub(super) fn written(&self) -> Option<i64> {
        self.shared.with(|pending| pending.written)
    }

    /// Why the last write failed, if nothing was written since.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.with(|pending| pending.failure.clone())
    }

    /// Whether something is marked that is not durable.
    pub(super) fn is_behind(&self) -> bool {
        self.shared.with(|pending| pending.unwritten().is_some())
    }

    pub(super) async fn flush(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the partition has stopped; nothing was written");
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Flush(reply)).map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Ends the writing task. What is marked is written first if there is a time for it: attempts
    /// begin up to this moment.
    pub(super) fn close(&self, last_by: Option<Instant>) {
        // An error means that the task has ended already.
        let _ = self.commands.send(Command::Close { last_by });
    }
}

/// How the writing task ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As asked.
    Closed,
    /// The partition belongs to somebody else, or to nobody.
    Fenced { by: Option<OwnerId> },
}

/// The writing task's end.
#[derive(Debug)]
pub(super) struct Checkpointer {
    store: GroupStore,
    adoption: Adoption,
    policy: CheckpointPolicy,
    metrics: PartitionMetrics,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// No write by policy before, after one that failed.
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
        let every_events = policy.max_events.map(|events| i64::from(events));
        let shared = Arc::new(Shared {
            pending: Mutex::new(pending),
            marked: Notify::new(),
            finished: watch::Sender::default(),
            failed: watch::Sender::default(),
            every_events,
            start,
        });
        let writer = CheckpointWriter { shared: Arc::clone(&shared), commands };
        let back_off = back_off(&policy, store.lease_durations().own);
        (Self { store, adoption, policy, metrics, shared, commands: receiver, not_before: None, back_off }, writer)
    }

    /// Writes what is marked, when the policy says so, until closed or refused.
    pub(super) async fn run(mut self) -> Ended {
        let mut due: Option<Instant> = None;
        loop {
            let wake = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Flush(reply)) => Wake::Write(Some(reply)),
                    Some(Command::Close { last_by }) => return self.close(last_by).await,
                    None => return Ended::Closed,
                },
                () = self.shared.marked.notified() => self.woken_by_mark(),
                () = at(due) => Wake::Write(None),
            };
            let Wake::Write(reply) = wake else {
                due = due.or_else(|| self.next_due());
                continue;
            };
            let outcome = self.write().await;
            self.not_before = self.next_after(&outcome);
            due = self.not_before.or_else(|| self.next_due());
            let ended = refusal(&outcome);
            if let Some(reply) = reply {
                // An error means that nobody waits any more.
                let _ = reply.send(self.answer(outcome));
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
                _ => return refusal(&outcome).unwrap_or(Ended::Closed),
            }
        }
    }

    fn woken_by_mark(&self) -> Wake {
        let enough = self.shared.with(|pending| self.shared.has_enough(pending));
        let waiting = self.not_before.is_some_and(|not_before| Instant::now() < not_before);
        if enough && !waiting { Wake::Write(None) } else { Wake::Later }
    }

    /// When the policy may write again after a failure.
    fn next_after(&mut self, outcome: &Result<CheckpointOutcome>) -> Option<Instant> {
        match outcome {
            Ok(_) => {
                self.back_off.succeeded();
                None
            }
            Err(error) => Some(Instant::now() + self.store.pause_after(error, &mut self.back_off)),
        }
    }

    /// When the policy wants what is marked now to be written.
    fn next_due(&self) -> Option<Instant> {
        self.shared.with(|pending| pending.unwritten().is_some()).then_some(())?;
        self.policy.interval.map(|every| Instant::now() + every)
    }

    /// Writes the greatest position, if it is not written yet.
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
                self.shared.with(|pending| pending.failure = Some(telemetry::Causes(error).to_string()));
            }
        }
        outcome
    }

    /// What the one who asked for a flush is told.
    fn answer(&self, outcome: Result<CheckpointOutcome>) -> Result<()> {
        let partition = self.adoption.partition();
        match outcome? {
            CheckpointOutcome::Fenced { by } => {
                let by = by.as_ref().map_or("none", OwnerId::as_str);
                let message =
                    format!("partition {partition} is no longer owned by this instance (current owner: {by})");
                Err(Error::new(ErrorKind::Fenced, message))
            }
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
        }
    }
}

/// A write that fails is repeated no more often than those that succeed, so that a storage that asks for fewer requests
/// gets no more of them.
fn back_off(policy: &CheckpointPolicy, expiry: Duration) -> BackOff {
    let first = policy.interval.unwrap_or_default().max(RETRY);
    BackOff::new(first, first.max(expiry / 2))
}

enum Wake {
    /// Something is marked, but the policy does not want it written yet.
    Later,
    /// Write, and tell the one who asked for it.
    Write(Option<oneshot::Sender<Result<()>>>),
}

/// In metrics.
fn name(outcome: &Result<CheckpointOutcome>) -> &'static str {
    match outcome {
        Ok(CheckpointOutcome::Written) => "written",
        Ok(CheckpointOutcome::Superseded) => "superseded",
        Ok(CheckpointOutcome::Fenced { .. }) => "fenced",
        Err(_) => "failed",
    }
}

/// After these no checkpoint is accepted any more.
fn refusal(outcome: &Result<CheckpointOutcome>) -> Option<Ended> {
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
            marked: Notify::new(),
            finished: watch::Sender::default(),
            failed: watch::Sender::default(),
            every_events: None,
            start: Start {
                partition: PartitionId::from(0),
                stopping: Stopping::new(watch::channel(Orders::default()).1),
                over: watch::channel(false).1,
                span: Span::none(),
            },
        };
        CheckpointWriter { shared: Arc::new(shared), commands: mpsc::unbounded_channel().0 }
    }

    #[test]
    fn b22_tokens_that_are_taken_and_dropped_while_they_are_counted() {
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
    fn of_several_marks_the_greatest_counts_whatever_their_order() {
        let mut pending = Pending::new(Some(3));
        assert_eq!(pending.unwritten(), None);
        for (number, offset) in [(5, "five"), (9, "nine"), (7, "seven")] {
            let Pending { tracker, marked, .. } = &mut pending;
            if let Some(reached) = tracker.request(number, offset) {
                Pending::reach(marked, &reached);
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
