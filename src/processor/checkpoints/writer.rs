//! Writes the checkpoints of one partition in the background. Requests are many and cheap, writes are few.
//!
//! One task per partition owns the [`Adoption`], so at most one write is in flight. Positions that are requested during
//! a write go into the next write.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::requests::{CheckpointWriter, Command, Pending, Shared, Start};
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Position};
use crate::processor::config::CheckpointPolicy;
use crate::processor::monitoring::error_summary::ErrorSummary;
use crate::processor::monitoring::spans::BatchSpans;
use crate::store::{Adoption, BackOff, CheckpointOutcome, GroupStore};
use crate::telemetry::{PartitionMetrics, span_failed};

/// The shortest wait before the task repeats a write that failed.
const RETRY: Duration = Duration::from_secs(1);

/// How many request timeouts after the last moment for an attempt at the last checkpoint the attempt ends.
const LAST_ATTEMPT: u32 = 2;
/// The longest first wait before the task repeats a write that failed. With a longer interval, one failed write would
/// double the events that a crash repeats.
const LONGEST_FIRST_RETRY: Duration = Duration::from_secs(30);

/// Why the writing task ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was closed.
    Closed,
    /// Another instance owns the partition, or none does.
    Fenced { by: Option<OwnerId> },
}

/// Writes the checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    store: GroupStore,
    adoption: Adoption,
    policy: CheckpointPolicy,
    metrics: PartitionMetrics,
    spans: BatchSpans,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// After a failed write, the time before which the policy starts no other write.
    not_before: Option<Instant>,
    back_off: BackOff,
}

impl Checkpointer {
    pub(crate) fn new(
        store: GroupStore,
        adoption: Adoption,
        policy: CheckpointPolicy,
        (metrics, spans): (PartitionMetrics, BatchSpans),
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
        let checkpointer =
            Self { store, adoption, policy, metrics, spans, shared, commands: receiver, not_before: None, back_off };
        (checkpointer, writer)
    }

    /// Writes the requested positions when the policy says so, until the task is closed or the partition is fenced.
    pub(crate) async fn run(mut self) -> Ended {
        let mut due: Option<Instant> = None;
        loop {
            let wake = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Flush(reply)) => Wake::Write(Some(reply)),
                    Some(Command::ConfirmOwner(reply)) => {
                        let outcome = self.confirm_owner().await;
                        match self.report(outcome, Some(reply)) {
                            Some(ended) => return ended,
                            None => continue,
                        }
                    }
                    Some(Command::RecordHub { created_at, reply }) => {
                        // An error means that the caller no longer waits.
                        let _ = reply.send(self.record_hub(created_at).await);
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
            let outcome = self.write(None).await;
            self.not_before = self.next_after(&outcome);
            due = self.not_before.or_else(|| self.next_due());
            if let Some(ended) = self.report(outcome, reply) {
                return ended;
            }
        }
    }

    async fn close(mut self, last_by: Option<Instant>) -> Ended {
        let Some(last_by) = last_by else { return Ended::Closed };
        let mut attempts = self.store.attempts(Some(last_by));
        let deadline = last_by + LAST_ATTEMPT * self.store.request_timeout();
        loop {
            let outcome = self.write(Some(deadline)).await;
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

    /// Writes the greatest requested position, unless it is written already. Ends by the deadline if there is one.
    async fn write(&mut self, deadline: Option<Instant>) -> Result<CheckpointOutcome> {
        let requested = |pending: &mut Pending| {
            let position = pending.unwritten()?.clone();
            let contexts = pending.traced.until(position.sequence_number);
            Some((position, contexts, pending.distance()))
        };
        let Some((position, contexts, distance)) = self.shared.with(requested) else {
            return Ok(CheckpointOutcome::Superseded);
        };
        let events = usize::try_from(distance).unwrap_or_default();
        let span = self.spans.checkpoint(self.adoption.partition(), events, &contexts);
        let timer = self.metrics.writing();
        let writing = self.store.checkpoint_by(&mut self.adoption, &position, deadline);
        let outcome = writing.instrument(span.clone()).await;
        timer.end();
        match &outcome {
            Ok(CheckpointOutcome::Fenced { .. }) => span_failed(&span, ErrorKind::Fenced),
            Ok(_) => {}
            Err(error) => span_failed(&span, error.kind()),
        }
        self.metrics.checkpoint(name(&outcome));
        match &outcome {
            Ok(CheckpointOutcome::Fenced { .. }) => {}
            Ok(_) => self.shared.with(|pending| {
                (pending.written, pending.failure) = (self.adoption.record().sequence_number, None);
                pending.traced.forget_until(position.sequence_number);
            }),
            Err(error) => {
                self.store.telemetry().checkpoint_failed(self.adoption.partition(), error);
                self.shared.with(|pending| pending.failure = Some(ErrorSummary::of(error)));
            }
        }
        outcome
    }

    /// Reads who owns the partition. Writes nothing.
    async fn confirm_owner(&self) -> Result<CheckpointOutcome> {
        let seen = self.store.read_ownership(self.adoption.partition()).await?;
        let (this, epoch) = (self.store.identity(), self.adoption.epoch());
        if seen.as_ref().is_some_and(|seen| seen.record.is_mine_in(this, epoch)) {
            return Ok(CheckpointOutcome::Superseded);
        }
        Ok(CheckpointOutcome::Fenced { by: seen.and_then(|seen| seen.record.owner) })
    }

    async fn record_hub(&mut self, created_at: Option<OffsetDateTime>) -> Result<()> {
        self.adoption.set_hub_created_at(created_at);
        let CheckpointRecord { sequence_number: Some(number), offset, .. } = self.adoption.record().clone() else {
            return Ok(());
        };
        let position = Position::new(number, offset.unwrap_or_default());
        self.store.replace_checkpoint(&mut self.adoption, &position).await
    }

    /// Reports the outcome to the caller, if there is one, and returns why the task ends, if it does. A caller that
    /// learns that the partition is lost can rely on [`is_fenced`](CheckpointWriter::is_fenced): it may be a handler,
    /// whose error would otherwise count as its own failure.
    fn report(&self, outcome: Result<CheckpointOutcome>, reply: Option<oneshot::Sender<Result<()>>>) -> Option<Ended> {
        let ended = end_after(&outcome);
        self.shared.with(|pending| pending.fenced = ended.is_some());
        if let Some(reply) = reply {
            let partition = self.adoption.partition();
            let result = outcome.and_then(|outcome| match outcome {
                CheckpointOutcome::Fenced { by } => Err(fenced(partition, by.as_ref())),
                CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
            });
            // An error means that the caller no longer waits.
            let _ = reply.send(result);
        }
        ended
    }
}

fn fenced(partition: &PartitionId, by: Option<&OwnerId>) -> Error {
    let by = by.map_or("none", OwnerId::as_str);
    let message = format!("partition {partition} is no longer owned by this instance (current owner: {by})");
    Error::new(ErrorKind::Fenced, message)
}

/// Failed writes are repeated no more often than successful ones, so that a storage that throttles does not receive
/// more requests, unless the policy writes rarely.
fn back_off(policy: &CheckpointPolicy, lease_duration: Duration) -> BackOff {
    let first = policy.interval.unwrap_or_default().clamp(RETRY, LONGEST_FIRST_RETRY);
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
