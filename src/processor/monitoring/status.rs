//! The status that a partition's task reports.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::error_summary::ErrorSummary;
use crate::balancer::LivenessTracker;
use crate::error::Error;
use crate::lock::lock;
use crate::model::PartitionId;
use crate::processor::checkpoints::dropped::HeldCheckpoint;
use crate::processor::checkpoints::requests::{CheckpointView, CheckpointWriter};
use crate::seconds;
use crate::source::Lag;
use crate::source::properties::{PartitionProperties, Undelivered};

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
    #[serde(serialize_with = "seconds::serialize")]
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
    #[serde(rename = "seconds_behind", serialize_with = "seconds::serialize_optional")]
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
pub(crate) enum Phase {
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
struct Inner {
    phase: Phase,
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
    writer: Option<CheckpointWriter>,
    end: End,
}

/// What is known of a partition at one time.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) status: PartitionStatus,
    /// Why the last checkpoint could not be written, if none was since.
    pub(crate) checkpoint_failure: Option<ErrorSummary>,
    /// The checkpoint that a dropped token holds back.
    pub(crate) held: Option<HeldCheckpoint>,
}

impl Inner {
    fn checkpoints(&self) -> CheckpointView {
        self.writer.as_ref().map(CheckpointWriter::view).unwrap_or_default()
    }

    fn has_processed_all(&self, checkpoints: &CheckpointView, properties: &PartitionProperties) -> bool {
        let last = properties.last_enqueued().filter(|_| !properties.is_empty());
        last.is_none_or(|last| self.processed(checkpoints).max(checkpoints.written) >= Some(last.sequence_number))
    }

    /// Returns the last event that was processed, in the current or the failed batch or before.
    fn processed(&self, checkpoints: &CheckpointView) -> Option<i64> {
        self.handled.max(self.processed_in_batch(checkpoints))
    }

    /// Returns the last event of the batch up to which all its events are finished.
    fn processed_in_batch(&self, checkpoints: &CheckpointView) -> Option<i64> {
        let (first, last) = self.batch?;
        checkpoints.reached.filter(|reached| *reached >= first).map(|reached| reached.min(last))
    }

    /// Events may wait that stale properties do not show.
    fn behind(&self, checkpoints: &CheckpointView, properties: &PartitionProperties, is_stale: bool) -> Duration {
        if self.has_processed_all(checkpoints, properties) && !is_stale {
            return Duration::ZERO;
        }
        let batch_age = self.batch_age.filter(|_| self.processed_in_batch(checkpoints).is_some());
        let by_event = self.handled_age.into_iter().chain(batch_age).map(|(at, age)| age + at.elapsed());
        let by_check = self.caught_up.map(|at| at.elapsed());
        by_event.chain(by_check).min().unwrap_or_else(|| self.began.elapsed())
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
    failed: Option<Failed>,
}

/// A failure of the handler. The events before it may have been processed in part.
#[derive(Clone, Copy, Debug)]
struct Failed {
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
pub(crate) struct Progress(Mutex<Inner>);

impl Progress {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Inner {
            phase: Phase::Adopting,
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

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let mut inner = self.inner();
        if inner.phase != phase {
            (inner.phase, inner.since) = (phase, Instant::now());
        }
    }

    /// Records that the handler gets a batch from the first to the last event, if they have numbers. The first one was
    /// enqueued `age` ago, if that is known.
    pub(crate) fn handling(&self, batch: Option<(i64, i64)>, age: Option<Duration>) {
        self.enter(Phase::Handling);
        let mut inner = self.inner();
        inner.batch = batch;
        inner.batch_age = age.map(|age| (Instant::now(), age));
    }

    /// Records that the handler failed after it had got the events up to `last`. What was processed of the batch counts.
    pub(crate) fn batch_failed(&self, last: Option<i64>) {
        let mut inner = self.inner();
        let before = inner.end.failed.and_then(|failed| failed.last);
        inner.end.failed = Some(Failed { last: last.max(before) });
        let Some(processed) = inner.processed_in_batch(&inner.checkpoints()) else { return };
        inner.handled = inner.handled.max(Some(processed));
        inner.handled_age = inner.batch_age.or(inner.handled_age);
    }

    /// Returns the first and the last event of the batch with which the handler failed, unless it failed without one.
    pub(crate) fn take_batch(&self) -> Option<(i64, i64)> {
        self.inner().batch.take()
    }

    pub(crate) fn dead_lettered(&self) {
        self.inner().dead_letters += 1;
    }

    pub(crate) fn skipped_undecodable(&self) {
        let mut inner = self.inner();
        inner.undecodable += 1;
        let fixed = inner.last_error.take();
        drop(inner);
        drop(fixed);
    }

    /// Records that the handler accepted a batch up to `last`, which was enqueued `age` ago, if that is known.
    pub(crate) fn handled(&self, last: Option<i64>, age: Option<Duration>) {
        let mut inner = self.inner();
        inner.handled_age = age.map(|age| (Instant::now(), age));
        (inner.handled, inner.batch) = (last.max(inner.handled), None);
        inner.link_stalled = false;
        inner.end.failed.take_if(|failed| last.is_none() || last >= failed.last);
        let fixed = inner.last_error.take();
        drop(inner);
        drop(fixed);
    }

    pub(crate) fn link_stalled(&self, link_stalled: bool) {
        self.inner().link_stalled = link_stalled;
    }

    /// Records which events at the end of the partition no link delivers. Returns whether that is news.
    pub(crate) fn set_undelivered(&self, undelivered: Option<Undelivered>) -> bool {
        std::mem::replace(&mut self.inner().undelivered, undelivered) != undelivered
    }

    pub(crate) fn failed(&self, error: &Arc<Error>) {
        let mut inner = self.inner();
        inner.failures += 1;
        let before = inner.last_error.replace(Arc::clone(error));
        drop(inner);
        drop(before);
    }

    pub(crate) fn lag_checked(&self, properties: PartitionProperties) {
        let mut inner = self.inner();
        let now = Instant::now();
        if inner.has_processed_all(&inner.checkpoints(), &properties.without(inner.undelivered)) {
            inner.caught_up = Some(now);
        }
        inner.properties = Some((properties, now));
    }

    /// Records that the partition starts, with this writer. If it starts `elsewhere`, the event hub may be another one, so
    /// that nothing is known about its events.
    pub(crate) fn started(&self, writer: CheckpointWriter, elsewhere: bool) {
        let mut inner = self.inner();
        let former_writer = inner.writer.replace(writer);
        inner.undelivered = None;
        if elsewhere {
            inner.began = Instant::now();
            inner.handled = None;
            inner.handled_age = None;
            inner.batch = None;
            inner.batch_age = None;
            inner.caught_up = None;
            inner.end.failed = None;
        }
        drop(inner);
        drop(former_writer);
    }

    pub(crate) fn aborted(&self) {
        self.inner().end.aborted = true;
    }

    pub(crate) fn uncheckpointed(&self, uncheckpointed: bool) {
        self.inner().end.uncheckpointed = uncheckpointed;
    }

    pub(crate) fn held_back(&self, held_back: bool) {
        self.inner().end.held_back = held_back;
    }

    pub(crate) fn end(&self) -> End {
        self.inner().end
    }

    /// Returns whether a requested position is not durable.
    pub(crate) fn is_behind(&self) -> bool {
        self.inner().writer.as_ref().is_some_and(CheckpointWriter::is_behind)
    }

    /// Observes the partition. Properties older than `lag_checks_due` are stale.
    pub(crate) fn observe(
        &self,
        partition: &PartitionId,
        liveness: &LivenessTracker,
        lag_checks_due: Duration,
    ) -> Observed {
        let inner = self.inner();
        let called = liveness.since(partition).filter(|_| inner.phase == Phase::Handling);
        let stalled_for = called.map(|since| since.elapsed()).filter(|age| liveness.is_too_long(*age));
        let state_for = stalled_for.unwrap_or_else(|| inner.since.elapsed());
        let checkpoints = inner.checkpoints();
        let known = inner.properties.as_ref().map(|(properties, at)| (properties, at.elapsed()));
        let (properties, age) = known.unzip();
        let readable = properties.map(|properties| properties.without(inner.undelivered));
        let is_stale = age.is_some_and(|age| age > lag_checks_due);
        let mut status = PartitionStatus {
            partition: partition.clone(),
            state: state_of(inner.phase, inner.link_stalled, stalled_for.is_some(), liveness.is_too_long(state_for)),
            state_for,
            handled: inner.processed(&checkpoints),
            checkpoint: checkpoints.written,
            last_enqueued: properties.and_then(PartitionProperties::last_enqueued).map(|last| last.sequence_number),
            lag: Lag::between(checkpoints.written, readable.as_ref(), age.unwrap_or_default(), lag_checks_due),
            behind: readable.map(|readable| inner.behind(&checkpoints, &readable, is_stale)),
            in_flight: checkpoints.in_flight,
            failures: inner.failures,
            dead_letters: inner.dead_letters,
            undecodable: inner.undecodable,
            last_error: None,
        };
        let last_error = inner.last_error.clone();
        drop(inner);
        status.last_error = last_error.as_deref().map(ErrorSummary::of);
        Observed { status, checkpoint_failure: checkpoints.failure, held: checkpoints.held }
    }
}

fn state_of(phase: Phase, link_stalled: bool, stalled: bool, for_long: bool) -> PartitionState {
    match phase {
        Phase::Adopting => PartitionState::Adopting,
        Phase::Starting => PartitionState::Starting,
        Phase::Opening => PartitionState::Opening,
        Phase::Idle if link_stalled => PartitionState::LinkStalled,
        Phase::Idle => PartitionState::Idle,
        Phase::Handling if stalled => PartitionState::HandlerStalled,
        Phase::Full if for_long => PartitionState::InFlightFull,
        Phase::Handling | Phase::Full => PartitionState::Handling,
        Phase::Paused => PartitionState::Paused,
        Phase::Failing => PartitionState::Failing,
        Phase::Parked => PartitionState::Parked,
        Phase::Stopping => PartitionState::Stopping,
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
        let progress = Progress::new();
        let writer = CheckpointWriter::detached();
        progress.started(writer.clone(), false);
        let waiting = PartitionProperties::new(0, Some(Position::new(99, "99")), false);
        let processed = || progress.inner().processed(&writer.view());
        let behind = || progress.inner().behind(&writer.view(), &waiting, false);
        advance(300 * SECOND).await;
        progress.handling(Some((0, 9)), Some(20 * SECOND));
        writer.delivered(0..10, Vec::new());
        assert_eq!((processed(), behind()), (None, 300 * SECOND));

        writer.request(4, "4");
        assert_eq!((processed(), behind()), (Some(4), 20 * SECOND));
        progress.batch_failed(Some(9));
        progress.take_batch();
        advance(10 * SECOND).await;
        assert_eq!((processed(), behind()), (Some(4), 30 * SECOND));
    }

    /// Until then, an event that was processed before the failure may be processed again.
    #[tokio::test]
    async fn a_failure_is_settled_by_all_events_of_its_batch() {
        for (accepted, settled) in [(Some(4), false), (Some(9), true), (Some(12), true), (None, true)] {
            let progress = Progress::new();
            progress.batch_failed(Some(9));
            progress.batch_failed(Some(6));
            progress.handled(accepted, None);
            assert_eq!(progress.end().is_settled(), settled, "{accepted:?}");
        }
        let progress = Progress::new();
        progress.batch_failed(None);
        progress.handled(Some(0), None);
        assert!(progress.end().is_settled(), "the failed events have no numbers");
        for elsewhere in [false, true] {
            progress.batch_failed(Some(9));
            progress.started(CheckpointWriter::detached(), elsewhere);
            assert_eq!(progress.end().is_settled(), elsewhere);
        }
    }

    /// An error of an application that looks whether the progress is locked: when it is formatted, and when it is dropped.
    #[derive(Debug)]
    struct Looking(Arc<Progress>, Arc<Mutex<Vec<&'static str>>>);

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
        let (progress, seen) = (Arc::new(Progress::new()), Arc::default());
        let fail = || {
            let cause = Looking(Arc::clone(&progress), Arc::clone(&seen));
            progress.failed(&Arc::new(Error::new(ErrorKind::Handler, "failed").with_source(cause)));
        };
        fail();
        let liveness = LivenessTracker::new(SECOND);
        progress.observe(&PartitionId::from(0), &liveness, SECOND);
        fail();
        progress.handled(None, None);
        fail();
        progress.skipped_undecodable();
        assert_eq!(*seen.lock().unwrap(), ["formatted", "dropped", "dropped", "dropped"]);
    }
}
