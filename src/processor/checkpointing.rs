//! Writes one partition's checkpoints in the background: marks are many and cheap, writes are few.
//!
//! One task per partition owns the [`Adoption`], so at most one write is in flight; what is marked meanwhile goes into the
//! next one, of which only the greatest position counts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::config::CheckpointPolicy;
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{OwnerId, Position};
use crate::store::{Adoption, CheckpointOutcome, GroupStore};
use crate::telemetry;

/// The wait before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What is marked and not yet written.
#[derive(Debug, Default)]
struct Pending {
    /// The greatest position marked so far. Kept when written, so that its text is reused.
    marked: Option<Position>,
    /// The sequence number that is known to be durable.
    written: Option<i64>,
}

impl Pending {
    fn mark(&mut self, sequence_number: i64, offset: &str) {
        match &mut self.marked {
            Some(marked) if marked.sequence_number >= sequence_number => {}
            Some(marked) => {
                marked.sequence_number = sequence_number;
                marked.offset.clear();
                marked.offset.push_str(offset);
            }
            None => self.marked = Some(Position { sequence_number, offset: offset.to_owned() }),
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
    /// Something is marked that was not before, or enough for a write.
    marked: Notify,
    every_events: Option<i64>,
}

impl Shared {
    fn with<T>(&self, access: impl FnOnce(&mut Pending) -> T) -> T {
        access(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn has_enough(&self, pending: &Pending) -> bool {
        self.every_events.is_some_and(|events| pending.distance() >= events)
    }
}

#[derive(Debug)]
enum Command {
    Flush(oneshot::Sender<Result<()>>),
    Close { write: bool },
}

/// The marking end, one for all clones of a partition's context.
#[derive(Clone, Debug)]
pub(super) struct CheckpointWriter {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

impl CheckpointWriter {
    pub(super) fn mark(&self, sequence_number: i64, offset: &str) {
        let wake = self.shared.with(|pending| {
            let idle = pending.unwritten().is_none();
            pending.mark(sequence_number, offset);
            idle || self.shared.has_enough(pending)
        });
        if wake {
            self.shared.marked.notify_one();
        }
    }

    pub(super) async fn flush(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the partition has been stopped");
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Flush(reply)).map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Ends the writing task; what is marked is written first if `write` says so and the policy agrees.
    pub(super) fn close(&self, write: bool) {
        // An error means that the task has ended already.
        let _ = self.commands.send(Command::Close { write });
    }
}

/// How the writing task ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As asked.
    Closed,
    /// The partition belongs to somebody else, or to nobody.
    Fenced { by: Option<OwnerId> },
    /// Somebody put the checkpoint back.
    Rewound,
}

/// The writing task's end.
#[derive(Debug)]
pub(super) struct Checkpointer {
    store: GroupStore,
    adoption: Adoption,
    policy: CheckpointPolicy,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// No write by policy before, after one that failed.
    not_before: Option<Instant>,
}

impl Checkpointer {
    pub(super) fn new(store: GroupStore, adoption: Adoption, policy: CheckpointPolicy) -> (Self, CheckpointWriter) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let pending = Pending { marked: None, written: adoption.record().sequence_number };
        let every_events = policy.every_events.map(|events| i64::from(events.get()));
        let shared = Arc::new(Shared { pending: Mutex::new(pending), marked: Notify::new(), every_events });
        let writer = CheckpointWriter { shared: Arc::clone(&shared), commands };
        (Self { store, adoption, policy, shared, commands: receiver, not_before: None }, writer)
    }

    /// Writes what is marked, when the policy says so, until closed or refused.
    pub(super) async fn run(mut self) -> Ended {
        let mut due: Option<Instant> = None;
        loop {
            let wake = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Flush(reply)) => Wake::Write(Some(reply)),
                    Some(Command::Close { write }) => return self.close(write).await,
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
            self.not_before = outcome.as_ref().err().map(|error| Instant::now() + self.wait_after(error));
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

    async fn close(mut self, write: bool) -> Ended {
        if !(write && self.policy.on_close) {
            return Ended::Closed;
        }
        refusal(&self.write().await).unwrap_or(Ended::Closed)
    }

    fn woken_by_mark(&self) -> Wake {
        let enough = self.shared.with(|pending| self.shared.has_enough(pending));
        let waiting = self.not_before.is_some_and(|not_before| Instant::now() < not_before);
        if enough && !waiting { Wake::Write(None) } else { Wake::Later }
    }

    /// As long as the server asks for, within reason.
    fn wait_after(&self, error: &Error) -> Duration {
        match error.kind() {
            ErrorKind::Throttled { retry_after: Some(asked) } => asked.clamp(RETRY, self.store.terms().expiry),
            _ => RETRY,
        }
    }

    /// When the policy wants what is marked now to be written.
    fn next_due(&self) -> Option<Instant> {
        self.shared.with(|pending| pending.unwritten().is_some()).then_some(())?;
        self.policy.every.map(|every| Instant::now() + every)
    }

    /// Writes the greatest position, if it is not written yet; for two request deadlines at the most.
    async fn write(&mut self) -> Result<CheckpointOutcome> {
        let Some(position) = self.shared.with(|pending| pending.unwritten().cloned()) else {
            return Ok(CheckpointOutcome::Superseded);
        };
        let limit = 2 * self.store.request_deadline();
        let writing = self.store.checkpoint(&mut self.adoption, &position);
        let outcome = timeout(limit, writing).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unknown, format!("the checkpoint was not settled within {limit:?}")))
        });
        match &outcome {
            Ok(CheckpointOutcome::Fenced { .. } | CheckpointOutcome::Rewound) => {}
            Ok(_) => self.shared.with(|pending| pending.written = self.adoption.record().sequence_number),
            Err(error) => telemetry::checkpoint_failed(self.adoption.partition(), error),
        }
        outcome
    }

    /// What the one who asked for a flush is told.
    fn answer(&self, outcome: Result<CheckpointOutcome>) -> Result<()> {
        let partition = self.adoption.partition();
        match outcome? {
            CheckpointOutcome::Fenced { by } => {
                let by = by.as_ref().map_or("nobody", OwnerId::as_str);
                let message = format!("partition {partition} is not mine any more: it belongs to {by}");
                Err(Error::new(ErrorKind::Fenced, message))
            }
            CheckpointOutcome::Rewound => {
                let message =
                    format!("the checkpoint of partition {partition} was put back; it starts again from there");
                Err(Error::new(ErrorKind::Rewound, message))
            }
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
        }
    }
}

enum Wake {
    /// Something is marked, but the policy does not want it written yet.
    Later,
    /// Write, and tell the one who asked for it.
    Write(Option<oneshot::Sender<Result<()>>>),
}

/// After these no checkpoint is accepted any more.
fn refusal(outcome: &Result<CheckpointOutcome>) -> Option<Ended> {
    match outcome {
        Ok(CheckpointOutcome::Rewound) => Some(Ended::Rewound),
        Ok(CheckpointOutcome::Fenced { by }) => Some(Ended::Fenced { by: by.clone() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_marks_the_greatest_counts_whatever_their_order() {
        let mut pending = Pending { marked: None, written: Some(3) };
        assert_eq!(pending.unwritten(), None);
        for (number, offset) in [(5, "five"), (9, "nine"), (7, "seven")] {
            pending.mark(number, offset);
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
