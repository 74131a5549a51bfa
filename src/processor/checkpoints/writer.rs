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
                    "partition {} is no longer owned by this instance (current owner: {}); stop processing it",
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

#[cfg(test)]
mod tests {
    use time::macros::datetime;
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::super::pending::TestStart;
    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::ConsumerGroup;
    use crate::store::{AdoptOutcome, Claim, ClaimOutcome, StoreConfig};
    use crate::telemetry::Spans;
    use crate::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer};

    const SECOND: Duration = Duration::from_secs(1);

    /// A partition of `a` with a checkpoint at 9, and the task that writes its checkpoints.
    struct Writing {
        container: FaultyContainer,
        store: GroupStore,
        requester: CheckpointRequester,
        task: JoinHandle<WritingEnd>,
        _running: TestStart,
    }

    async fn connect(container: &FaultyContainer, owner: &str) -> GroupStore {
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let builder = GroupStore::builder(Arc::new(container.clone()), group, OwnerId::new(owner).unwrap());
        let config = StoreConfig::default().with_verify_storage(false);
        builder.with_config(config).with_seed(3).connect().await.unwrap()
    }

    /// Claims the partition and takes its checkpoint over.
    async fn take_over(store: &GroupStore) -> Adoption {
        let seen = store.read_ownership(&0.into()).await.unwrap();
        let claim = seen.map_or_else(|| Claim::unowned(0.into()), |seen| Claim::over(&seen));
        let ClaimOutcome::Won(lease) = store.claim(&claim).await else { panic!("the claim is lost") };
        let start = Position::new(9, "90");
        match store.adopt(&0.into(), lease.epoch(), Some(&start)).await.unwrap() {
            AdoptOutcome::Adopted(adoption) => adoption,
            other => panic!("{other:?}"),
        }
    }

    impl Writing {
        async fn start(policy: CheckpointPolicy) -> Self {
            let container = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
            let store = connect(&container, "a").await;
            let adoption = take_over(&store).await;
            let (running, start) = TestStart::new();
            let metrics = PartitionMetrics::new(store.telemetry().metrics(), &0.into());
            let spans = BatchSpans::new(Spans::new(store.group()), None, false);
            let (writer, requester) = CheckpointWriter::new(store.clone(), adoption, policy, metrics, spans, start);
            Self { container, store, requester, task: tokio::spawn(writer.run()), _running: running }
        }

        fn request(&self, number: i64) {
            self.requester.request_position(number, &(10 * number).to_string());
        }

        /// Returns the checkpoint after so much time.
        async fn written_after(&self, wait: Duration) -> Option<i64> {
            sleep(wait).await;
            let plan = self.store.checkpoint_of(&0.into()).await.unwrap();
            plan.and_then(|checkpoint| checkpoint.record.sequence_number)
        }

        /// Sets whether no write is possible.
        fn set_failing(&self, is_failing: bool) {
            let fails = FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::Unreachable);
            self.container.set_plan(if is_failing { fails } else { FaultPlan::default() });
        }
    }

    fn policy(max_events: Option<u32>, interval: Option<Duration>) -> CheckpointPolicy {
        CheckpointPolicy { max_events, interval }
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_is_written_one_interval_later() {
        let writing = Writing::start(policy(None, Some(5 * SECOND))).await;
        writing.request(10);
        assert_eq!(writing.written_after(3 * SECOND).await, Some(9));
        writing.request(11);
        assert_eq!(writing.written_after(SECOND).await, Some(9));
        assert_eq!(writing.written_after(2 * SECOND).await, Some(11), "both with one write");
        assert!(!writing.requester.is_behind() && writing.requester.checkpoint_view().written == Some(11));
        writing.request(12);
        assert_eq!(writing.written_after(4 * SECOND).await, Some(11));
        assert_eq!(writing.written_after(2 * SECOND).await, Some(12));
    }

    #[tokio::test(start_paused = true)]
    async fn enough_events_are_written_at_once() {
        let writing = Writing::start(policy(Some(3), Some(3600 * SECOND))).await;
        writing.request(11);
        assert_eq!(writing.written_after(SECOND).await, Some(9));
        writing.request(12);
        assert_eq!(writing.written_after(SECOND).await, Some(12));
        writing.request(13);
        assert_eq!(writing.written_after(SECOND).await, Some(12));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_repeated_after_a_wait() {
        let writing = Writing::start(policy(Some(1), Some(10 * SECOND))).await;
        writing.set_failing(true);
        writing.request(10);
        assert_eq!(writing.written_after(SECOND).await, Some(9));
        assert!(writing.requester.checkpoint_view().failure.is_some());
        writing.set_failing(false);
        writing.request(11);
        assert_eq!(writing.written_after(8 * SECOND).await, Some(9), "although there are enough events");
        assert_eq!(writing.written_after(8 * SECOND).await, Some(11));
        assert!(writing.requester.checkpoint_view().failure.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_writes_at_once_and_reports_failures() {
        let writing = Writing::start(policy(None, None)).await;
        writing.request(10);
        assert_eq!(writing.written_after(100 * SECOND).await, Some(9), "nothing else writes it");
        writing.requester.flush().await.unwrap();
        assert_eq!(writing.written_after(Duration::ZERO).await, Some(10));
        writing.requester.flush().await.unwrap();
        writing.set_failing(true);
        writing.request(11);
        assert_eq!(writing.requester.flush().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(!writing.requester.is_fenced() && writing.requester.is_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_at_once_learn_who_owns_the_partition() {
        let writing = Writing::start(policy(None, None)).await;
        writing.request(10);
        let Writing { requester, .. } = &writing;
        let (one, other, flushed) =
            futures::join!(requester.confirm_owner(), requester.confirm_owner(), requester.flush());
        assert!(one.is_ok() && other.is_ok() && flushed.is_ok());
        take_over(&connect(&writing.container, "b").await).await;
        let (one, other) = futures::join!(requester.confirm_owner(), requester.confirm_owner());
        for lost in [one, other] {
            let error = lost.unwrap_err();
            assert!(error.kind() == ErrorKind::Fenced && error.to_string().contains("current owner: b"), "{error}");
        }
        assert!(requester.is_fenced());
        assert_eq!(writing.task.await.unwrap(), WritingEnd::Fenced { by: OwnerId::new("b").ok() });
    }

    #[tokio::test(start_paused = true)]
    async fn no_checkpoint_is_written_for_a_former_owner() {
        let writing = Writing::start(policy(None, None)).await;
        take_over(&connect(&writing.container, "b").await).await;
        writing.request(10);
        assert_eq!(writing.requester.flush().await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(writing.written_after(Duration::ZERO).await, Some(9));
        assert!(writing.requester.is_fenced());
        assert!(matches!(writing.task.await.unwrap(), WritingEnd::Fenced { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_checkpoint_is_tried_until_its_time() {
        for (until, written) in [(30, Some(10)), (5, Some(9))] {
            let writing = Writing::start(policy(None, None)).await;
            writing.request(10);
            writing.set_failing(true);
            writing.requester.close(Some(Instant::now() + until * SECOND));
            assert_eq!(writing.written_after(20 * SECOND).await, Some(9));
            writing.set_failing(false);
            assert_eq!(writing.written_after(20 * SECOND).await, written, "until {until} s");
            assert_eq!(writing.task.await.unwrap(), WritingEnd::Closed);
        }
    }

    /// The last attempt may take two request timeouts.
    #[tokio::test(start_paused = true)]
    async fn a_slow_last_checkpoint_is_awaited() {
        let writing = Writing::start(policy(None, None)).await;
        let timeout = writing.store.request_timeout();
        writing.container.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::Hang));
        writing.request(10);
        let begin = Instant::now();
        writing.requester.close(Some(begin + SECOND));
        assert_eq!(writing.task.await.unwrap(), WritingEnd::Closed);
        assert!((timeout..=2 * timeout + SECOND).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_partition_writes_nothing_more() {
        let writing = Writing::start(policy(None, None)).await;
        writing.request(10);
        writing.requester.close(None);
        assert_eq!(writing.written_after(SECOND).await, Some(9));
        assert_eq!(writing.task.await.unwrap(), WritingEnd::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn the_event_hub_of_the_position_is_recorded() {
        let writing = Writing::start(policy(None, None)).await;
        let created_at = datetime!(2026-01-01 08:00:00 UTC);
        writing.requester.record_hub(Some(created_at)).await.unwrap();
        let checkpoint = writing.store.checkpoint_of(&0.into()).await.unwrap().unwrap();
        assert_eq!(checkpoint.record.hub_created_at, Some(created_at));
        assert_eq!(checkpoint.record.position(), Some(Position::new(9, "90")));
    }

    #[test]
    fn outcomes_have_their_documented_names() {
        for (outcome, name) in [
            (Ok(CheckpointOutcome::Written), "written"),
            (Ok(CheckpointOutcome::Superseded), "superseded"),
            (Ok(CheckpointOutcome::Fenced { by: None }), "fenced"),
            (Err(Error::new(ErrorKind::Unavailable, "down")), "failed"),
        ] {
            assert_eq!(outcome_name(&outcome), name);
        }
    }
}
