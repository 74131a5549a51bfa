//! Writes the checkpoints of one partition in the background. Requests are many and cheap, writes are few.
//!
//! One task per partition owns the [`Adoption`], so at most one write is in flight. Positions that are requested during
//! a write go into the next write.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

use super::pending::{CheckpointState, Start};
use super::requests::{CheckpointRequester, WriterCommand};
use crate::backoff::CountingBackoff;
use crate::clock::wait_until;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, Position};
use crate::processor::monitoring::ErrorSummary;
use crate::processor::monitoring::spans::BatchSpans;
use crate::processor::policies::CheckpointPolicy;
use crate::store::{Adoption, CheckpointOutcome, GroupStore};
use crate::telemetry::{Causes, PartitionMetrics, span_failed};

/// The shortest first wait before the task repeats a write that failed.
const SHORTEST_FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest first wait before the task repeats a write that failed. With a longer interval, one failed write would
/// double the events that a crash repeats.
const LONGEST_FIRST_RETRY: Duration = Duration::from_secs(30);

/// How many request timeouts the last attempt at the last checkpoint may take.
const LAST_ATTEMPT: u32 = 2;

/// Why the writing task ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WritingEnd {
    /// It was closed.
    Closed,
    /// Another instance owns the partition, or none does.
    Fenced { by: Option<OwnerId> },
}

/// The task that writes the checkpoints.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    store: GroupStore,
    adoption: Adoption,
    policy: CheckpointPolicy,
    metrics: PartitionMetrics,
    spans: BatchSpans,
    shared: Arc<CheckpointState>,
    commands: mpsc::UnboundedReceiver<WriterCommand>,
    /// A command that was received, and comes next.
    held_command: Option<WriterCommand>,
    /// After a failed write, the time before which the policy starts no other write.
    not_before: Option<Instant>,
    backoff: CountingBackoff,
}

impl CheckpointWriter {
    pub(crate) fn new(
        store: GroupStore,
        adoption: Adoption,
        policy: CheckpointPolicy,
        metrics: PartitionMetrics,
        spans: BatchSpans,
        start: Start,
    ) -> (Self, CheckpointRequester) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(CheckpointState::new(adoption.record().sequence_number, policy.max_events, start));
        let requester = CheckpointRequester { shared: Arc::clone(&shared), commands };
        // Failed writes are repeated no more often than successful ones, so that a blob service that throttles does not
        // receive more requests, unless the policy writes rarely.
        let first_wait = policy.interval.unwrap_or_default().clamp(SHORTEST_FIRST_RETRY, LONGEST_FIRST_RETRY);
        let backoff = CountingBackoff::new(first_wait, first_wait.max(store.lease_durations().own / 2));
        let writer = Self {
            store,
            adoption,
            policy,
            metrics,
            spans,
            shared,
            commands: receiver,
            held_command: None,
            not_before: None,
            backoff,
        };
        (writer, requester)
    }

    /// Writes the requested positions when the policy says so, until the task is closed or the partition is fenced.
    pub(crate) async fn run(mut self) -> WritingEnd {
        let mut due: Option<Instant> = None;
        loop {
            let reply = tokio::select! {
                biased;
                // First, so that no number of commands keeps a position from being written.
                () = wait_until(due) => None,
                command = next_command(&mut self.held_command, &mut self.commands) => match command {
                    Some(WriterCommand::Flush(reply)) => Some(reply),
                    Some(WriterCommand::ConfirmOwner(reply)) => {
                        if let Some(ended) = self.confirm_to_all(reply).await {
                            return ended;
                        }
                        due = if self.may_write_now() { Some(Instant::now()) } else { due.or_else(|| self.next_due()) };
                        continue;
                    }
                    Some(WriterCommand::RecordHub { created_at, reply }) => {
                        // An error means that the caller no longer waits.
                        let _ = reply.send(self.record_hub(created_at).await);
                        continue;
                    }
                    Some(WriterCommand::Close { last_by }) => return self.write_last_checkpoint(last_by).await,
                    None => return WritingEnd::Closed,
                },
                () = self.shared.advanced.notified() => {
                    if !self.may_write_now() {
                        due = due.or_else(|| self.next_due());
                        continue;
                    }
                    None
                }
            };
            let outcome = self.write_requested(None).await;
            self.not_before = self.retry_at(&outcome);
            due = self.not_before.or_else(|| self.next_due());
            if let Some(ended) = self.report_outcome(outcome, reply) {
                return ended;
            }
        }
    }

    /// Returns whether enough events have passed for the policy, and no failed write must be waited for.
    fn may_write_now(&self) -> bool {
        let enough = self.shared.with_pending(|pending| self.shared.has_enough(pending));
        enough && self.not_before.is_none_or(|not_before| Instant::now() >= not_before)
    }

    /// Answers this caller and the callers queued directly after it with one request. Sends no request if all of them
    /// have given up. Returns why the task ends, if it does.
    async fn confirm_to_all(&mut self, reply: oneshot::Sender<Result<()>>) -> Option<WritingEnd> {
        let mut replies = vec![reply];
        while let Ok(command) = self.commands.try_recv() {
            match command {
                WriterCommand::ConfirmOwner(reply) => replies.push(reply),
                other => {
                    self.held_command = Some(other);
                    break;
                }
            }
        }
        replies.retain(|reply| !reply.is_closed());
        if replies.is_empty() {
            return None;
        }
        let outcome = self.confirm_owner().await;
        self.report_outcome(outcome, replies)
    }

    async fn write_last_checkpoint(mut self, last_by: Option<Instant>) -> WritingEnd {
        let Some(last_by) = last_by else { return WritingEnd::Closed };
        let mut attempts = self.store.retry_schedule(Some(last_by));
        let deadline = last_by + LAST_ATTEMPT * self.store.request_timeout();
        loop {
            let outcome = self.write_requested(Some(deadline)).await;
            match &outcome {
                Err(error) if attempts.wait_for_next_attempt(error).await => {}
                _ => return end_after(&outcome).unwrap_or(WritingEnd::Closed),
            }
        }
    }

    /// Returns when the policy may write again, if the write failed.
    fn retry_at(&mut self, outcome: &Result<CheckpointOutcome>) -> Option<Instant> {
        match outcome {
            Ok(_) => {
                self.backoff.reset();
                None
            }
            Err(error) => Some(Instant::now() + self.store.wait_after_error(error, &mut self.backoff)),
        }
    }

    /// Returns when the policy wants the position that is requested now to be written.
    fn next_due(&self) -> Option<Instant> {
        let interval = self.policy.interval?;
        self.shared.with_pending(|pending| pending.unwritten_position().is_some()).then(|| Instant::now() + interval)
    }

    /// Writes the greatest requested position, unless it is written already. Ends by the deadline if there is one.
    async fn write_requested(&mut self, deadline: Option<Instant>) -> Result<CheckpointOutcome> {
        let requested = self.shared.with_pending(|pending| {
            let position = pending.unwritten_position()?.clone();
            let contexts = pending.traced.contexts_until(position.sequence_number);
            Some((position, contexts, usize::try_from(pending.distance_to_written()).unwrap_or_default()))
        });
        let Some((position, contexts, events)) = requested else { return Ok(CheckpointOutcome::Superseded) };
        let span = self.spans.checkpoint_span(self.adoption.partition(), events, &contexts);
        let timer = self.metrics.time_checkpoint_write();
        let outcome = self.store.checkpoint_by(&mut self.adoption, &position, deadline).instrument(span.clone()).await;
        timer.end();
        self.metrics.count_checkpoint_write(outcome_name(&outcome));
        match &outcome {
            Ok(CheckpointOutcome::Fenced { .. }) => span_failed(&span, ErrorKind::Fenced),
            Ok(_) => self.shared.with_pending(|pending| {
                pending.written = self.adoption.record().sequence_number;
                pending.failure = None;
                pending.traced.forget_until(position.sequence_number);
            }),
            Err(error) => {
                span_failed(&span, error.kind());
                self.store.telemetry().checkpoint_failed(self.adoption.partition(), error);
                self.shared.with_pending(|pending| pending.failure = Some(ErrorSummary::from_error(error)));
            }
        }
        outcome
    }

    /// Reads who owns the partition. Writes nothing.
    async fn confirm_owner(&self) -> Result<CheckpointOutcome> {
        match self.store.read_ownership(self.adoption.partition()).await? {
            Some(seen) if seen.record.is_mine_in(self.store.identity(), self.adoption.epoch()) => {
                Ok(CheckpointOutcome::Superseded)
            }
            seen => Ok(CheckpointOutcome::Fenced { by: seen.and_then(|seen| seen.record.owner) }),
        }
    }

    async fn record_hub(&mut self, created_at: Option<OffsetDateTime>) -> Result<()> {
        self.adoption.set_hub_created_at(created_at);
        let CheckpointRecord { sequence_number: Some(number), offset, .. } = self.adoption.record().clone() else {
            return Ok(());
        };
        self.store.replace_checkpoint(&mut self.adoption, &Position::new(number, offset.unwrap_or_default())).await
    }

    /// Reports the outcome to the callers, if there are any, and returns why the task ends, if it does. A caller that
    /// learns that the partition is lost can rely on [`is_fenced`](CheckpointRequester::is_fenced): it may be a
    /// handler, whose error would otherwise count as its own failure.
    fn report_outcome(
        &self,
        outcome: Result<CheckpointOutcome>,
        replies: impl IntoIterator<Item = oneshot::Sender<Result<()>>>,
    ) -> Option<WritingEnd> {
        let ended = end_after(&outcome);
        self.shared.with_pending(|pending| pending.fenced = ended.is_some());
        let result = outcome.and_then(|outcome| match outcome {
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
            CheckpointOutcome::Fenced { by } => Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "partition {} is no longer owned by this instance (current owner: {})",
                    self.adoption.partition(),
                    by.as_ref().map_or("none", OwnerId::as_str)
                ),
            )),
        });
        let mut replies: Vec<_> = replies.into_iter().collect();
        let last = replies.pop();
        // An error of `send` means that the caller no longer waits.
        for reply in replies {
            let _ = reply.send(match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(Error::new(error.kind(), Causes(error).to_string())),
            });
        }
        if let Some(last) = last {
            let _ = last.send(result);
        }
        ended
    }
}

/// Waits for the next command. Cancel-safe.
async fn next_command(
    held: &mut Option<WriterCommand>,
    commands: &mut mpsc::UnboundedReceiver<WriterCommand>,
) -> Option<WriterCommand> {
    match held.take() {
        Some(command) => Some(command),
        None => commands.recv().await,
    }
}

/// Returns the name of the outcome in metrics.
fn outcome_name(outcome: &Result<CheckpointOutcome>) -> &'static str {
    match outcome {
        Ok(CheckpointOutcome::Written) => "written",
        Ok(CheckpointOutcome::Superseded) => "superseded",
        Ok(CheckpointOutcome::Fenced { .. }) => "fenced",
        Err(_) => "failed",
    }
}

/// Returns why the task ends after this outcome, if it does: no checkpoint is accepted anymore.
fn end_after(outcome: &Result<CheckpointOutcome>) -> Option<WritingEnd> {
    match outcome {
        Ok(CheckpointOutcome::Fenced { by }) => Some(WritingEnd::Fenced { by: by.clone() }),
        _ => None,
    }
}
