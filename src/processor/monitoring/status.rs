//! The status that a partition's task reports.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::ErrorSummary;
use crate::balancer::LivenessTracker;
use crate::error::Error;
use crate::model::PartitionId;
use crate::processor::checkpoints::HeldCheckpoint;
use crate::processor::checkpoints::requests::{CheckpointRequester, CheckpointView};
use crate::source::Lag;
use crate::source::properties::{PartitionProperties, Undelivered};
use crate::util::lock;

/// What the processor does with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum PartitionState {
    /// It takes over the checkpoint.
    Adopting,
    /// The handler's `started` is running.
    Starting,
    /// It opens the receiver.
    Opening,
    /// It waits for events, and has received all events of the event hub that it knows of.
    Idle,
    /// It waits for events, although the event hub has newer ones. It reopens the receiver if this continues.
    LinkStalled,
    /// The handler has a batch, or is asked about an event that cannot be decoded.
    Handling,
    /// A call of the handler has taken longer than [`stall_timeout`](crate::balancer::BalancerConfig::stall_timeout).
    HandlerStalled,
    /// [`max_in_flight`](crate::processor::ProcessorConfig::max_in_flight) events are in flight, and none was finished for longer
    /// than `stall_timeout`.
    InFlightFull,
    /// The application paused it.
    Paused,
    /// It failed, and waits before the next attempt.
    Failing,
    /// The handler failed, and the partition stays stopped until the application resumes it.
    Parked,
    /// It is stopping.
    Stopping,
}

impl PartitionState {
    /// All states, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::Adopting,
        Self::Starting,
        Self::Opening,
        Self::Idle,
        Self::LinkStalled,
        Self::Handling,
        Self::HandlerStalled,
        Self::InFlightFull,
        Self::Paused,
        Self::Failing,
        Self::Parked,
        Self::Stopping,
    ];

    /// Returns the name in metrics and in serialized form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adopting => "adopting",
            Self::Starting => "starting",
            Self::Opening => "opening",
            Self::Idle => "idle",
            Self::LinkStalled => "link_stalled",
            Self::Handling => "handling",
            Self::HandlerStalled => "handler_stalled",
            Self::InFlightFull => "in_flight_full",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Parked => "parked",
            Self::Stopping => "stopping",
        }
    }
}

impl From<PartitionState> for &'static str {
    fn from(state: PartitionState) -> Self {
        state.as_str()
    }
}

/// The status of one partition that this instance owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The partition.
    pub partition: PartitionId,
    /// What the processor does with it.
    pub state: PartitionState,
    /// How long it has been in this state. If the handler is stalled: how long the call has taken.
    #[serde(serialize_with = "crate::util::serialize_seconds")]
    pub state_for: Duration,
    /// The sequence number of the last event that the handler has processed: of the last batch that it accepted, or in the
    /// current or a failed batch the one up to which it has requested a checkpoint or finished all tracked events.
    pub handled: Option<i64>,
    /// The sequence number of the last durable checkpoint.
    pub checkpoint: Option<i64>,
    /// The sequence number of the last event in the event hub, as of the last lag check.
    pub last_enqueued: Option<i64>,
    /// How many events wait to be processed.
    pub lag: Lag,
    /// By how much the handler lags behind the event hub, as of the last lag check: 0 if no event waits. Otherwise the
    /// time since the last processed event was enqueued, or since the last lag check that found no event waiting,
    /// whichever is shorter; before both, the time since this instance won the partition, or since it started elsewhere
    /// because the checkpoint was invalid. Within a batch of which some events are processed, the first event of the batch
    /// counts. While lag checks fail, it grows. `None` without lag checks, and before the first one.
    #[serde(rename = "seconds_behind", serialize_with = "crate::util::serialize_optional_seconds")]
    pub behind: Option<Duration>,
    /// How many events are tracked and not finished.
    pub in_flight: usize,
    /// How many failures it has had since this instance won it: of the handler, of the receiver, or of taking over the
    /// checkpoint.
    pub failures: u64,
    /// How many events it moved to the [dead letters](crate::processor::DeadLetters) since this instance won it.
    pub dead_letters: u64,
    /// How many events it skipped since this instance won it, because the source cannot decode them; see
    /// [`OnUndecodable::Skip`](crate::processor::OnUndecodable).
    pub undecodable: u64,
    /// The last error; `None` once a batch was handled after it.
    pub last_error: Option<ErrorSummary>,
}

/// The current step of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartitionPhase {
    Adopting,
    Starting,
    Opening,
    Idle,
    Handling,
    Full,
    Paused,
    Failing,
    Parked,
    Stopping,
}

#[derive(Debug)]
struct ProgressState {
    phase: PartitionPhase,
    since: Instant,
    /// When this instance won the partition, or started elsewhere.
    began: Instant,
    /// The first and the last event of the batch that the handler has, or with which it failed.
    batch: Option<(i64, i64)>,
    /// When the handler got that batch, and how old its first event was then.
    batch_age: Option<(Instant, Duration)>,
    handled: Option<i64>,
    /// When the last event was processed, and how old it was then.
    handled_age: Option<(Instant, Duration)>,
    /// The time of the last lag check that found no event waiting.
    caught_up: Option<Instant>,
    dead_letters: u64,
    undecodable: u64,
    link_stalled: bool,
    failures: u64,
    last_error: Option<Arc<Error>>,
    properties: Option<(PartitionProperties, Instant)>,
    /// The events at the end of the partition that no link delivers.
    undelivered: Option<Undelivered>,
    writer: Option<CheckpointRequester>,
    end: End,
}

/// What is known of a partition at one time.
#[derive(Debug)]
pub(crate) struct ObservedPartition {
    pub(crate) status: PartitionStatus,
    /// Why the last checkpoint could not be written, if none was since.
    pub(crate) checkpoint_failure: Option<ErrorSummary>,
    /// The checkpoint that a dropped token holds back.
    pub(crate) held: Option<HeldCheckpoint>,
}

impl ProgressState {
    fn view_checkpoints(&self) -> CheckpointView {
        self.writer.as_ref().map(CheckpointRequester::checkpoint_view).unwrap_or_default()
    }

    fn has_processed_all(&self, checkpoints: &CheckpointView, properties: &PartitionProperties) -> bool {
        let last = properties.last_enqueued().filter(|_| !properties.is_empty());
        last.is_none_or(|last| self.last_processed(checkpoints).max(checkpoints.written) >= Some(last.sequence_number))
    }

    /// Returns the last event that was processed, in the current or the failed batch or before.
    fn last_processed(&self, checkpoints: &CheckpointView) -> Option<i64> {
        self.handled.max(self.last_processed_in_batch(checkpoints))
    }

    /// Returns the last event of the batch up to which all its events are finished.
    fn last_processed_in_batch(&self, checkpoints: &CheckpointView) -> Option<i64> {
        let (first, last) = self.batch?;
        checkpoints.reached.filter(|reached| *reached >= first).map(|reached| reached.min(last))
    }

    /// Events may wait that stale properties do not show.
    fn time_behind(&self, checkpoints: &CheckpointView, properties: &PartitionProperties, is_stale: bool) -> Duration {
        if self.has_processed_all(checkpoints, properties) && !is_stale {
            return Duration::ZERO;
        }
        let batch_age = self.batch_age.filter(|_| self.last_processed_in_batch(checkpoints).is_some());
        let by_event = self.handled_age.into_iter().chain(batch_age).map(|(at, age)| age + at.elapsed());
        by_event.chain(self.caught_up.map(|at| at.elapsed())).min().unwrap_or_else(|| self.began.elapsed())
    }
}

/// How the partition last stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    /// The handler, or an event in flight, did not finish in time.
    pub(crate) aborted: bool,
    /// The last requested position is not durable.
    pub(crate) uncheckpointed: bool,
    /// A dropped token holds the checkpoint back.
    pub(crate) held_back: bool,
    /// The handler failed, and has not accepted all events again that it had got by then.
    failed: Option<HandlerFailure>,
}

/// A failure of the handler. The events before it may have been processed in part.
#[derive(Clone, Copy, Debug)]
struct HandlerFailure {
    /// The last event that the handler had got, if events have numbers.
    last: Option<i64>,
}

impl End {
    /// Returns whether no processed event will be processed again.
    pub(crate) fn is_settled(self) -> bool {
        !(self.aborted || self.uncheckpointed || self.held_back || self.failed.is_some())
    }
}

/// The state that the task writes and handles read. The errors of the application are formatted and dropped while it is
/// not locked: they may own a [`TrackedEvent`](crate::processor::TrackedEvent), or ask for the status.
#[derive(Debug)]
pub(crate) struct PartitionProgress(Mutex<ProgressState>);

impl PartitionProgress {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(ProgressState {
            phase: PartitionPhase::Adopting,
            since: Instant::now(),
            began: Instant::now(),
            batch: None,
            batch_age: None,
            handled: None,
            handled_age: None,
            caught_up: None,
            dead_letters: 0,
            undecodable: 0,
            link_stalled: false,
            failures: 0,
            last_error: None,
            properties: None,
            undelivered: None,
            writer: None,
            end: End::default(),
        }))
    }

    fn lock_state(&self) -> MutexGuard<'_, ProgressState> {
        lock(&self.0)
    }

    pub(crate) fn enter_phase(&self, phase: PartitionPhase) {
        let mut state = self.lock_state();
        if state.phase != phase {
            state.phase = phase;
            state.since = Instant::now();
        }
    }

    /// Records that the handler gets a batch from the first to the last event, if they have numbers. The first one was
    /// enqueued `age` ago, if that is known.
    pub(crate) fn record_batch(&self, batch: Option<(i64, i64)>, age: Option<Duration>) {
        self.enter_phase(PartitionPhase::Handling);
        let mut state = self.lock_state();
        state.batch = batch;
        state.batch_age = age.map(|age| (Instant::now(), age));
    }

    /// Records that the handler failed after it had got the events up to `last`. What was processed of the batch counts.
    pub(crate) fn record_batch_failure(&self, last: Option<i64>) {
        let mut state = self.lock_state();
        let before = state.end.failed.and_then(|failed| failed.last);
        state.end.failed = Some(HandlerFailure { last: last.max(before) });
        let Some(processed) = state.last_processed_in_batch(&state.view_checkpoints()) else { return };
        state.handled = state.handled.max(Some(processed));
        state.handled_age = state.batch_age.or(state.handled_age);
    }

    /// Returns the first and the last event of the batch with which the handler failed, unless it failed without one.
    pub(crate) fn take_batch(&self) -> Option<(i64, i64)> {
        self.lock_state().batch.take()
    }

    pub(crate) fn count_dead_letter(&self) {
        self.lock_state().dead_letters += 1;
    }

    pub(crate) fn count_undecodable(&self) {
        let mut state = self.lock_state();
        state.undecodable += 1;
        let fixed = state.last_error.take();
        drop(state);
        drop(fixed);
    }

    /// Records that the handler accepted a batch up to `last`, which was enqueued `age` ago, if that is known.
    pub(crate) fn record_handled(&self, last: Option<i64>, age: Option<Duration>) {
        let mut state = self.lock_state();
        state.handled_age = age.map(|age| (Instant::now(), age));
        state.handled = last.max(state.handled);
        state.batch = None;
        state.link_stalled = false;
        state.end.failed.take_if(|failed| last.is_none() || last >= failed.last);
        let fixed = state.last_error.take();
        drop(state);
        drop(fixed);
    }

    pub(crate) fn set_link_stalled(&self, link_stalled: bool) {
        self.lock_state().link_stalled = link_stalled;
    }

    /// Records which events at the end of the partition no link delivers. Returns whether that is news.
    pub(crate) fn set_undelivered(&self, undelivered: Option<Undelivered>) -> bool {
        std::mem::replace(&mut self.lock_state().undelivered, undelivered) != undelivered
    }

    pub(crate) fn record_failure(&self, error: &Arc<Error>) {
        let mut state = self.lock_state();
        state.failures += 1;
        let before = state.last_error.replace(Arc::clone(error));
        drop(state);
        drop(before);
    }

    pub(crate) fn record_lag_check(&self, properties: PartitionProperties) {
        let mut state = self.lock_state();
        let now = Instant::now();
        if state.has_processed_all(&state.view_checkpoints(), &properties.without_undelivered(state.undelivered)) {
            state.caught_up = Some(now);
        }
        state.properties = Some((properties, now));
    }

    /// Records that the partition starts, with this writer. If it starts `elsewhere`, the event hub may be another one, so
    /// that nothing is known about its events.
    pub(crate) fn record_start(&self, writer: CheckpointRequester, elsewhere: bool) {
        let mut state = self.lock_state();
        let former_writer = state.writer.replace(writer);
        state.undelivered = None;
        if elsewhere {
            state.began = Instant::now();
            state.handled = None;
            state.handled_age = None;
            state.batch = None;
            state.batch_age = None;
            state.caught_up = None;
            state.end.failed = None;
        }
        drop(state);
        drop(former_writer);
    }

    pub(crate) fn record_abort(&self) {
        self.lock_state().end.aborted = true;
    }

    /// Records whether the last requested position is not durable, and whether a dropped token holds the checkpoint back.
    pub(crate) fn record_stop(&self, uncheckpointed: bool, held_back: bool) {
        let mut state = self.lock_state();
        state.end.uncheckpointed = uncheckpointed;
        state.end.held_back = held_back;
    }

    pub(crate) fn last_end(&self) -> End {
        self.lock_state().end
    }

    /// Returns whether a requested position is not durable.
    pub(crate) fn is_behind(&self) -> bool {
        self.lock_state().writer.as_ref().is_some_and(CheckpointRequester::is_behind)
    }

    /// Observes the partition. Properties older than `lag_checks_due` are stale.
    pub(crate) fn observe_partition(
        &self,
        partition: &PartitionId,
        liveness: &LivenessTracker,
        lag_checks_due: Duration,
    ) -> ObservedPartition {
        let state = self.lock_state();
        let called = liveness.batch_since(partition).filter(|_| state.phase == PartitionPhase::Handling);
        let stalled_for = called.map(|since| since.elapsed()).filter(|age| liveness.is_too_long(*age));
        let state_for = stalled_for.unwrap_or_else(|| state.since.elapsed());
        let checkpoints = state.view_checkpoints();
        let known = state.properties.as_ref().map(|(properties, at)| (properties, at.elapsed()));
        let (properties, age) = known.unzip();
        let readable = properties.map(|properties| properties.without_undelivered(state.undelivered));
        let is_stale = age.is_some_and(|age| age > lag_checks_due);
        let mut status = PartitionStatus {
            partition: partition.clone(),
            state: state_of(state.phase, state.link_stalled, stalled_for.is_some(), liveness.is_too_long(state_for)),
            state_for,
            handled: state.last_processed(&checkpoints),
            checkpoint: checkpoints.written,
            last_enqueued: properties.and_then(PartitionProperties::last_enqueued).map(|last| last.sequence_number),
            lag: Lag::between(checkpoints.written, readable.as_ref(), age.unwrap_or_default(), lag_checks_due),
            behind: readable.map(|readable| state.time_behind(&checkpoints, &readable, is_stale)),
            in_flight: checkpoints.in_flight,
            failures: state.failures,
            dead_letters: state.dead_letters,
            undecodable: state.undecodable,
            last_error: None,
        };
        let last_error = state.last_error.clone();
        drop(state);
        status.last_error = last_error.as_deref().map(ErrorSummary::from_error);
        ObservedPartition { status, checkpoint_failure: checkpoints.failure, held: checkpoints.held }
    }
}

fn state_of(phase: PartitionPhase, link_stalled: bool, stalled: bool, for_long: bool) -> PartitionState {
    match phase {
        PartitionPhase::Adopting => PartitionState::Adopting,
        PartitionPhase::Starting => PartitionState::Starting,
        PartitionPhase::Opening => PartitionState::Opening,
        PartitionPhase::Idle if link_stalled => PartitionState::LinkStalled,
        PartitionPhase::Idle => PartitionState::Idle,
        PartitionPhase::Handling if stalled => PartitionState::HandlerStalled,
        PartitionPhase::Full if for_long => PartitionState::InFlightFull,
        PartitionPhase::Handling | PartitionPhase::Full => PartitionState::Handling,
        PartitionPhase::Paused => PartitionState::Paused,
        PartitionPhase::Failing => PartitionState::Failing,
        PartitionPhase::Parked => PartitionState::Parked,
        PartitionPhase::Stopping => PartitionState::Stopping,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::error::ErrorKind;
    use crate::model::Position;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn progress_inside_a_batch_shortens_the_lag() {
        let progress = PartitionProgress::new();
        let writer = CheckpointRequester::new_detached();
        progress.record_start(writer.clone(), false);
        let waiting = PartitionProperties::new(0, Some(Position::new(99, "99")), false);
        let processed = || progress.lock_state().last_processed(&writer.checkpoint_view());
        let behind = || progress.lock_state().time_behind(&writer.checkpoint_view(), &waiting, false);
        advance(300 * SECOND).await;
        progress.record_batch(Some((0, 9)), Some(20 * SECOND));
        writer.begin_batch(0..10, Vec::new());
        assert_eq!((processed(), behind()), (None, 300 * SECOND));

        writer.request_position(4, "4");
        assert_eq!((processed(), behind()), (Some(4), 20 * SECOND));
        progress.record_batch_failure(Some(9));
        progress.take_batch();
        advance(10 * SECOND).await;
        assert_eq!((processed(), behind()), (Some(4), 30 * SECOND));
    }

    /// Until then, an event that was processed before the failure may be processed again.
    #[tokio::test]
    async fn a_failure_is_settled_by_all_events_of_its_batch() {
        for (accepted, settled) in [(Some(4), false), (Some(9), true), (Some(12), true), (None, true)] {
            let progress = PartitionProgress::new();
            progress.record_batch_failure(Some(9));
            progress.record_batch_failure(Some(6));
            progress.record_handled(accepted, None);
            assert_eq!(progress.last_end().is_settled(), settled, "{accepted:?}");
        }
        let progress = PartitionProgress::new();
        progress.record_batch_failure(None);
        progress.record_handled(Some(0), None);
        assert!(progress.last_end().is_settled(), "the failed events have no numbers");
        for elsewhere in [false, true] {
            progress.record_batch_failure(Some(9));
            progress.record_start(CheckpointRequester::new_detached(), elsewhere);
            assert_eq!(progress.last_end().is_settled(), elsewhere);
        }
    }

    /// An error of an application that looks whether the progress is locked: when it is formatted, and when it is dropped.
    #[derive(Debug)]
    struct Looking(Arc<PartitionProgress>, Arc<Mutex<Vec<&'static str>>>);

    impl Looking {
        fn look(&self, when: &'static str) {
            let locked = self.0.0.try_lock().is_err();
            self.1.lock().unwrap().push(if locked { "locked" } else { when });
        }
    }

    impl std::fmt::Display for Looking {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.look("formatted");
            Ok(())
        }
    }

    impl std::error::Error for Looking {}

    impl Drop for Looking {
        fn drop(&mut self) {
            self.look("dropped");
        }
    }

    #[tokio::test]
    async fn errors_are_not_used_while_progress_is_locked() {
        let progress = Arc::new(PartitionProgress::new());
        let seen = Arc::default();
        let fail = || {
            let cause = Looking(Arc::clone(&progress), Arc::clone(&seen));
            progress.record_failure(&Arc::new(Error::new(ErrorKind::Handler, "failed").with_source(cause)));
        };
        fail();
        let liveness = LivenessTracker::new(SECOND);
        progress.observe_partition(&PartitionId::from(0), &liveness, SECOND);
        fail();
        progress.record_handled(None, None);
        fail();
        progress.count_undecodable();
        assert_eq!(*seen.lock().unwrap(), ["formatted", "dropped", "dropped", "dropped"]);
    }
}
