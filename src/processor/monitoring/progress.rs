//! The progress of a partition, which its task records, and the status that it shows.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::ErrorSummary;
use super::status::{EventCounts, ObservedPartition, PartitionState, PartitionStatus};
use crate::balancer::LivenessTracker;
use crate::error::Error;
use crate::model::{PartitionId, Pause};
use crate::processor::checkpoints::pending::CheckpointView;
use crate::processor::checkpoints::requests::CheckpointRequester;
use crate::source::Lag;
use crate::source::properties::{PartitionProperties, Undelivered};
use crate::util::lock;

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
    /// When the handler got that batch, or the last one before, and how old its first event was then.
    batch_age: Option<(Instant, Duration)>,
    handled: Option<i64>,
    /// When the last event was processed, and how old it was then.
    handled_age: Option<(Instant, Duration)>,
    /// The time of the last lag check all of whose events are processed: an event that waits now was enqueued later.
    caught_up: Option<Instant>,
    dead_letters: u64,
    undecodable: u64,
    pause: Option<Pause>,
    link_stalled: bool,
    failures: u64,
    last_error: Option<Arc<Error>>,
    properties: Option<(PartitionProperties, Instant)>,
    /// The events at the end of the partition that no link delivers.
    undelivered: Option<Undelivered>,
    checkpoints: Option<CheckpointRequester>,
    /// The position of the checkpoint that was adopted, before there are any `checkpoints`.
    adopted: Option<i64>,
    events: Option<Arc<dyn CountEvents>>,
    end: End,
}

/// Events that are processed one by one.
pub(crate) trait CountEvents: fmt::Debug + Send + Sync {
    fn count_events(&self) -> EventCounts;

    /// Returns how long the oldest attempt has taken that still runs.
    fn longest_attempt(&self) -> Option<Duration>;
}

impl ProgressState {
    fn view_checkpoints(&self) -> CheckpointView {
        match &self.checkpoints {
            Some(checkpoints) => checkpoints.checkpoint_view(),
            None => CheckpointView { written: self.adopted, ..CheckpointView::default() },
        }
    }

    /// Records the time of the last lag check, if all events that it found are processed.
    fn record_if_caught_up(&mut self) {
        let Some((properties, checked_at)) = &self.properties else { return };
        if self.has_processed_all(&self.view_checkpoints(), &properties.without_undelivered(self.undelivered)) {
            self.caught_up = Some(*checked_at);
        }
    }

    fn has_processed_all(&self, view: &CheckpointView, properties: &PartitionProperties) -> bool {
        let last = properties.last_enqueued().filter(|_| !properties.is_empty());
        last.is_none_or(|last| self.last_processed(view).max(view.written) >= Some(last.sequence_number))
    }

    /// Returns the last event that was processed, in the current or the failed batch or before.
    fn last_processed(&self, view: &CheckpointView) -> Option<i64> {
        self.handled.max(self.last_processed_in_batch(view))
    }

    /// Returns the last event of the batch up to which all its events are finished.
    fn last_processed_in_batch(&self, view: &CheckpointView) -> Option<i64> {
        let (first, last) = self.batch?;
        view.reached.filter(|reached| *reached >= first).map(|reached| reached.min(last))
    }

    /// Returns by how much the handler lags behind: the least that is known about the first waiting event, which is not
    /// older than any event before it. Events may wait that stale properties do not show.
    fn time_behind(&self, view: &CheckpointView, properties: &PartitionProperties, is_stale: bool) -> Duration {
        if self.has_processed_all(view, properties) && !is_stale {
            return Duration::ZERO;
        }
        self.handled_age
            .into_iter()
            .chain(self.batch_age)
            .map(|(at, age)| age + at.elapsed())
            .chain(self.caught_up.map(|at| at.elapsed()))
            .min()
            .unwrap_or_else(|| self.began.elapsed())
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
    /// The handler failed, or did not finish before a restart, and has not accepted all events again that it had got by
    /// then.
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
            pause: None,
            link_stalled: false,
            failures: 0,
            last_error: None,
            properties: None,
            undelivered: None,
            checkpoints: None,
            adopted: None,
            events: None,
            end: End::default(),
        }))
    }

    fn lock_state(&self) -> MutexGuard<'_, ProgressState> {
        lock(&self.0)
    }

    /// Changes the state. Drops what `change` takes out of it after the state is unlocked.
    fn change_state<T>(&self, change: impl FnOnce(&mut ProgressState) -> T) {
        let taken = change(&mut self.lock_state());
        drop(taken);
    }

    pub(crate) fn enter_phase(&self, phase: PartitionPhase) {
        let mut state = self.lock_state();
        if state.phase != phase {
            state.phase = phase;
            state.since = Instant::now();
        }
    }

    /// Records that the handler gets an empty batch. A partition that is full remains so.
    pub(crate) fn record_empty_batch(&self) {
        if self.lock_state().phase != PartitionPhase::Full {
            self.enter_phase(PartitionPhase::Handling);
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

    /// Records that the handler failed after it had got the events up to `last`. What it processed of the batch counts.
    pub(crate) fn record_batch_failure(&self, last: Option<i64>) {
        let mut state = self.lock_state();
        // Without an event after the last finished one, nothing is delivered again.
        if last.is_none() || last > state.view_checkpoints().reached {
            state.end.failed = Some(HandlerFailure { last: last.max(state.end.failed.and_then(|failed| failed.last)) });
        }
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
        self.change_state(|state| {
            state.undecodable += 1;
            state.last_error.take()
        });
    }

    /// Records that the handler accepted a batch up to `last`, which was enqueued `age` ago, if that is known.
    pub(crate) fn record_handled(&self, last: Option<i64>, age: Option<Duration>) {
        self.change_state(|state| {
            state.handled_age = age.map(|age| (Instant::now(), age));
            state.handled = last.max(state.handled);
            state.batch = None;
            state.link_stalled = false;
            state.end.failed.take_if(|failed| last.is_none() || last >= failed.last);
            state.last_error.take()
        });
    }

    /// Records the position of the checkpoint that was adopted, of a partition that does not start.
    pub(crate) fn record_adopted(&self, position: Option<i64>) {
        self.lock_state().adopted = position;
    }

    /// Records the pause that the checkpoint shows.
    pub(crate) fn set_pause(&self, pause: Option<Pause>) {
        self.lock_state().pause = pause;
    }

    pub(crate) fn set_link_stalled(&self, link_stalled: bool) {
        self.lock_state().link_stalled = link_stalled;
    }

    /// Records which events at the end of the partition no link delivers. Returns whether that is news.
    pub(crate) fn set_undelivered(&self, undelivered: Option<Undelivered>) -> bool {
        std::mem::replace(&mut self.lock_state().undelivered, undelivered) != undelivered
    }

    pub(crate) fn record_failure(&self, error: &Arc<Error>) {
        self.change_state(|state| {
            state.failures += 1;
            state.last_error.replace(Arc::clone(error))
        });
    }

    /// Records that what failed last has succeeded.
    pub(crate) fn forget_failure(&self) {
        self.change_state(|state| state.last_error.take());
    }

    pub(crate) fn record_lag_check(&self, properties: PartitionProperties) {
        let mut state = self.lock_state();
        state.record_if_caught_up();
        state.properties = Some((properties, Instant::now()));
        state.record_if_caught_up();
    }

    /// Records that the partition starts, with these checkpoints. If it starts `elsewhere`, the event hub may be
    /// another one, so that nothing is known about its events.
    pub(crate) fn record_start(&self, checkpoints: CheckpointRequester, elsewhere: bool) {
        self.change_state(|state| {
            state.undelivered = None;
            if std::mem::take(&mut state.end.aborted) | std::mem::take(&mut state.end.uncheckpointed) {
                state.end.failed.get_or_insert(HandlerFailure { last: None });
            }
            if elsewhere {
                state.began = Instant::now();
                state.handled = None;
                state.handled_age = None;
                state.batch = None;
                state.batch_age = None;
                state.caught_up = None;
                state.end.failed = None;
            }
            state.checkpoints.replace(checkpoints)
        });
    }

    /// Shows these events in the status, until `None` replaces them.
    pub(crate) fn set_events(&self, events: Option<Arc<dyn CountEvents>>) {
        self.change_state(|state| std::mem::replace(&mut state.events, events));
    }

    pub(crate) fn record_abort(&self) {
        self.lock_state().end.aborted = true;
    }

    /// Records whether the last requested position is not durable, and whether a dropped token holds the checkpoint
    /// back.
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
        self.lock_state().checkpoints.as_ref().is_some_and(CheckpointRequester::is_behind)
    }

    /// Observes the partition. Properties older than `lag_checks_due` are stale.
    pub(crate) fn observe_partition(
        &self,
        partition: &PartitionId,
        liveness: &LivenessTracker,
        lag_checks_due: Duration,
    ) -> ObservedPartition {
        let state = self.lock_state();
        let call = liveness.batch_since(partition).filter(|_| state.phase == PartitionPhase::Handling);
        let is_open = matches!(state.phase, PartitionPhase::Idle | PartitionPhase::Handling | PartitionPhase::Full);
        let attempt = state.events.as_ref().filter(|_| is_open).and_then(|events| events.longest_attempt());
        let stalled_for =
            call.map(|since| since.elapsed()).max(attempt).filter(|longest| liveness.is_too_long(*longest));
        let state_for = stalled_for.unwrap_or_else(|| state.since.elapsed());
        let view = state.view_checkpoints();
        let properties = state.properties.as_ref().map(|(properties, _)| properties);
        let readable = properties.map(|properties| properties.without_undelivered(state.undelivered));
        let age = state.properties.as_ref().map(|(_, at)| at.elapsed());
        let is_stale = age > Some(lag_checks_due);
        let mut status = PartitionStatus {
            partition: partition.clone(),
            state: state_of(state.phase, state.link_stalled, stalled_for.is_some(), liveness.is_too_long(state_for)),
            state_for,
            handled: state.last_processed(&view),
            checkpoint: view.written,
            last_enqueued: properties.and_then(PartitionProperties::last_enqueued).map(|last| last.sequence_number),
            lag: Lag::between(view.written, readable.as_ref(), age.unwrap_or_default(), lag_checks_due),
            behind: readable.map(|readable| state.time_behind(&view, &readable, is_stale)),
            in_flight: view.in_flight,
            events: state.events.as_ref().map(|events| events.count_events()),
            failures: state.failures,
            dead_letters: state.dead_letters,
            undecodable: state.undecodable,
            pause: state.pause.clone(),
            last_error: None,
        };
        let last_error = state.last_error.clone();
        drop(state);
        status.last_error = last_error.as_deref().map(ErrorSummary::from_error);
        ObservedPartition { status, checkpoint_failure: view.failure, held: view.held }
    }
}

fn state_of(phase: PartitionPhase, link_stalled: bool, stalled: bool, for_long: bool) -> PartitionState {
    match phase {
        PartitionPhase::Idle if link_stalled => PartitionState::LinkStalled,
        PartitionPhase::Handling | PartitionPhase::Idle | PartitionPhase::Full if stalled => {
            PartitionState::HandlerStalled
        }
        PartitionPhase::Adopting => PartitionState::Adopting,
        PartitionPhase::Starting => PartitionState::Starting,
        PartitionPhase::Opening => PartitionState::Opening,
        PartitionPhase::Idle => PartitionState::Idle,
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
    async fn the_lag_is_the_age_of_the_batch_in_the_handler() {
        let progress = PartitionProgress::new();
        let checkpoints = CheckpointRequester::new_detached();
        progress.record_start(checkpoints.clone(), false);
        let waiting = PartitionProperties::new(0, Some(Position::new(99, "99")), false);
        let processed = || progress.lock_state().last_processed(&checkpoints.checkpoint_view());
        let behind = || progress.lock_state().time_behind(&checkpoints.checkpoint_view(), &waiting, false);
        advance(300 * SECOND).await;
        assert_eq!((processed(), behind()), (None, 300 * SECOND));
        progress.record_batch(Some((0, 9)), Some(20 * SECOND));
        checkpoints.begin_batch(0..10, Vec::new());
        assert_eq!((processed(), behind()), (None, 20 * SECOND));

        checkpoints.request_position(4, "4");
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

    /// An error of an application that looks whether the progress is locked: when it is formatted, and when it is
    /// dropped.
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
