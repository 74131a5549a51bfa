//! At which event a partition fails, and how often it has failed there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, cause_of};
use crate::processor::handler_errors::{DeadLetterError, EventError, NotSkipped};
use crate::processor::policies::DeadLetterPolicy;
use crate::source::Positioned;
use crate::util::lock;

/// A restart that the dead-letter policy hastens waits this long at least: jitter shortens each wait, so that the last
/// ones before the policy is met could become arbitrarily short.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// The failures of the handler of one partition in one epoch.
#[derive(Debug, Default)]
pub(crate) struct HandlerFailures(Mutex<FailureState>);

#[derive(Debug, Default)]
struct FailureState {
    /// The first event of the current call.
    call: Option<i64>,
    failing: Option<FailureRun>,
    /// The sequence numbers and offsets of the events that were moved to the dead letters. They may be redelivered, if
    /// neither a checkpoint nor a position of the application has passed them.
    moved: BTreeMap<i64, String>,
    /// The events for which the partition has restarted at once, since it has moved one.
    restarted_for: BTreeSet<i64>,
    /// When an event was last moved that no failure had named.
    unnamed_moved_at: Option<Instant>,
}

/// How many moved events are remembered although the checkpoint has passed them, for an application whose own position
/// is before it.
const REMEMBERED: usize = 1000;

/// The place at which the partition failed last, and its successive failures there.
#[derive(Clone, Debug)]
pub(crate) struct FailureRun {
    pub(crate) place: FailurePlace,
    pub(crate) failures: u32,
    first_at: Instant,
    last_at: Instant,
    /// The last failure.
    pub(crate) error: Arc<Error>,
}

/// What is known about the event at which a partition fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailurePlace {
    /// The failure names it.
    Named(i64),
    /// It is this event, or a later one of the same call.
    From(i64),
    /// The events have no sequence numbers.
    Unknown,
}

impl FailurePlace {
    /// Returns the first event that the place includes.
    pub(crate) fn first_event(self) -> Option<i64> {
        match self {
            Self::Named(event) | Self::From(event) => Some(event),
            Self::Unknown => None,
        }
    }
}

impl FailureRun {
    /// Returns whether the failing event is to be moved to the dead letters. A failure that names none moves none.
    pub(crate) fn is_due(&self, policy: &DeadLetterPolicy) -> bool {
        matches!(self.place, FailurePlace::Named(_))
            && policy.is_met(self.failures, self.failing_for(), self.is_permanent())
    }

    /// Returns the index of the event that the last failure names.
    pub(crate) fn find_event<E: Positioned>(&self, events: &[E]) -> Option<usize> {
        let FailurePlace::Named(number) = self.place else { return None };
        events.iter().position(|event| event.sequence_number() == Some(number))
    }

    /// Returns the time from the first to the last of the failures. Later time, such as a pause, shows nothing.
    fn failing_for(&self) -> Duration {
        self.last_at - self.first_at
    }

    /// Returns whether the handler says that no further attempt can succeed.
    fn is_permanent(&self) -> bool {
        cause_of::<EventError>(&*self.error).is_some_and(EventError::is_permanent)
    }
}

impl HandlerFailures {
    /// Records that the handler gets events, of which this is the first one.
    pub(crate) fn record_call(&self, first: Option<i64>) {
        lock(&self.0).call = first;
    }

    /// Records a failure of the current call, or of a tracked event. A dead-letter sink that fails says nothing about
    /// the event, and neither does an event that was not skipped.
    pub(crate) fn record_failure(&self, error: &Arc<Error>) {
        if cause_of::<DeadLetterError>(&**error).is_some() || cause_of::<NotSkipped>(&**error).is_some() {
            return;
        }
        let mut state = lock(&self.0);
        let named = cause_of::<EventError>(&**error).and_then(EventError::sequence_number);
        let place = match (named, state.call) {
            (Some(event), _) => FailurePlace::Named(event),
            (None, Some(first)) => FailurePlace::From(first),
            (None, None) => FailurePlace::Unknown,
        };
        let before = state.failing.take().filter(|before| before.place == place);
        let now = Instant::now();
        state.failing = Some(FailureRun {
            place,
            failures: before.as_ref().map_or(1, |before| before.failures.saturating_add(1)),
            first_at: before.map_or(now, |before| before.first_at),
            last_at: now,
            error: Arc::clone(error),
        });
    }

    /// Returns how long the restart that begins now may wait, so that a failing event is moved as soon as the policy
    /// allows it: zero if the event is to be moved. Zero is returned once for each event that was `delivered` and is
    /// not finished, because a handler may name events that never come.
    pub(crate) fn begin_restart(
        &self,
        policy: &DeadLetterPolicy,
        finished: Option<i64>,
        delivered: Option<i64>,
    ) -> Option<Duration> {
        let mut state = lock(&self.0);
        let failing = state.failing.as_ref()?;
        let FailurePlace::Named(event) = failing.place else { return None };
        if failing.is_due(policy) {
            return (Some(event) > finished && Some(event) <= delivered && state.restarted_for.insert(event))
                .then_some(Duration::ZERO);
        }
        let left = policy.min_failing_time.saturating_sub(failing.failing_for());
        (!left.is_zero()).then_some(left.max(SHORTEST_WAIT))
    }

    /// Records that the partition starts after this event. If it starts `elsewhere`, the event hub may be another one,
    /// so that nothing is known about its events.
    pub(crate) fn record_start(&self, after: Option<i64>, elsewhere: bool) {
        let mut state = lock(&self.0);
        if elsewhere {
            *state = FailureState::default();
        }
        state.moved.retain(|number, _| Some(*number) > after);
    }

    /// Records that an event was moved, at a time when the checkpoint was at `checkpoint`.
    pub(crate) fn record_move(&self, sequence_number: i64, offset: &str, checkpoint: Option<i64>) {
        let mut state = lock(&self.0);
        state.restarted_for.clear();
        state.moved.insert(sequence_number, offset.to_owned());
        while state.moved.len() > REMEMBERED
            && let Some(first) = state.moved.first_entry().filter(|first| Some(*first.key()) <= checkpoint)
        {
            first.remove();
        }
    }

    /// Returns how long an event that no failure names must not be moved yet, because another one was moved within this
    /// time. If it may be moved, records that it is.
    pub(crate) fn begin_unnamed_move(&self, period: Duration) -> Result<(), Duration> {
        let mut state = lock(&self.0);
        let left = state.unnamed_moved_at.map_or(Duration::ZERO, |at| period.saturating_sub(at.elapsed()));
        if !left.is_zero() {
            return Err(left);
        }
        state.unnamed_moved_at = Some(Instant::now());
        Ok(())
    }

    /// Returns whether this event was moved before.
    pub(crate) fn was_moved(&self, event: &impl Positioned) -> bool {
        let Some(number) = event.sequence_number() else { return false };
        lock(&self.0).moved.get(&number).is_some_and(|offset| event.offset() == Some(offset))
    }

    /// Returns whether any event was moved that may be redelivered.
    pub(crate) fn has_moved(&self) -> bool {
        !lock(&self.0).moved.is_empty()
    }

    /// Records that all events up to this one are processed; `None` if the events have no sequence numbers.
    pub(crate) fn forget_up_to(&self, event: Option<i64>) {
        lock(&self.0).failing.take_if(|failing| event.is_none() || event >= failing.place.first_event());
    }

    /// Records that this event is moved: it does not fail anymore.
    pub(crate) fn forget_event(&self, event: i64) {
        lock(&self.0).failing.take_if(|failing| failing.place == FailurePlace::Named(event));
    }

    pub(crate) fn current_failure(&self) -> Option<FailureRun> {
        lock(&self.0).failing.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use super::*;
    use crate::error::ErrorKind;
    use crate::testing::memory_hub::MemoryEvent;

    fn failure(cause: impl StdError + Send + Sync + 'static) -> Arc<Error> {
        Arc::new(Error::new(ErrorKind::Handler, "the handler failed").with_source(cause))
    }

    fn unnamed() -> Arc<Error> {
        failure(std::io::Error::other("broken"))
    }

    fn named(event: i64) -> Arc<Error> {
        failure(EventError::for_tracked_event(Some(event), "broken"))
    }

    #[derive(Debug, thiserror::Error)]
    #[error("wrapped")]
    struct Wrapped(#[source] EventError);

    fn place_and_failures(attempts: &HandlerFailures) -> Option<(FailurePlace, u32)> {
        attempts.current_failure().map(|failing| (failing.place, failing.failures))
    }

    #[tokio::test]
    async fn failures_count_for_one_place_only() {
        let attempts = HandlerFailures::default();
        let fails = |first: Option<i64>, error: Arc<Error>| {
            attempts.record_call(first);
            attempts.record_failure(&error);
            place_and_failures(&attempts).unwrap()
        };
        assert_eq!(fails(Some(3), unnamed()), (FailurePlace::From(3), 1));
        assert_eq!(fails(Some(3), unnamed()), (FailurePlace::From(3), 2));
        assert_eq!(fails(Some(0), named(3)), (FailurePlace::Named(3), 1), "now it is known");
        let wrapped = failure(Wrapped(EventError::for_tracked_event(Some(3), "x")));
        assert_eq!(fails(Some(0), wrapped), (FailurePlace::Named(3), 2));
        assert_eq!(fails(Some(0), named(4)), (FailurePlace::Named(4), 1), "another event");
        assert_eq!(fails(Some(0), named(3)), (FailurePlace::Named(3), 1), "it starts over");
        assert_eq!(fails(None, unnamed()), (FailurePlace::Unknown, 1));
        assert_eq!(fails(None, unnamed()), (FailurePlace::Unknown, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_waits_no_longer_than_the_policy() {
        let policy = DeadLetterPolicy::default();
        let attempts = HandlerFailures::default();
        attempts.record_call(Some(3));
        attempts.record_failure(&unnamed());
        assert_eq!(attempts.begin_restart(&policy, None, Some(9)), None, "it is not known which event fails");
        let mut waits = Vec::new();
        for pause in [0, 10, 10, 10, 10, 20, 0] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            attempts.record_failure(&named(3));
            waits.push(attempts.begin_restart(&policy, None, Some(9)).map(|wait| wait.as_secs()));
        }
        assert_eq!(waits, [Some(60), Some(50), Some(40), Some(30), Some(20), Some(0), None], "at once only once");
        for (event, wait) in [(5, Some(Duration::ZERO)), (5, None), (2, None), (10, None)] {
            attempts.record_failure(&failure(EventError::permanent(&MemoryEvent::new(event, "x"), "x")));
            assert_eq!(attempts.begin_restart(&policy, Some(2), Some(9)), wait, "event {event}");
        }
        attempts.record_move(5, "50", None);
        attempts.record_failure(&failure(EventError::permanent(&MemoryEvent::new(3, "x"), "x")));
        assert_eq!(attempts.begin_restart(&policy, Some(2), Some(9)), Some(Duration::ZERO), "one was moved");
    }

    #[tokio::test]
    async fn a_tracked_event_may_fail_permanently() {
        let attempts = HandlerFailures::default();
        for permanent in [false, true] {
            let event = MemoryEvent::new(3, "x");
            let error = if permanent { EventError::permanent(&event, "x") } else { EventError::new(&event, "x") };
            attempts.record_failure(&failure(EventError::for_tracked_event(Some(3), error)));
            assert_eq!(attempts.current_failure().unwrap().is_permanent(), permanent);
        }
    }

    #[tokio::test]
    async fn a_place_that_was_passed_is_forgotten() {
        let attempts = HandlerFailures::default();
        attempts.record_call(Some(3));
        for (passed, left) in [(Some(2), true), (Some(3), false), (Some(9), false), (None, false)] {
            attempts.record_failure(&unnamed());
            attempts.forget_up_to(passed);
            assert_eq!(attempts.current_failure().is_some(), left, "{passed:?}");
        }
    }

    #[tokio::test]
    async fn a_failure_of_the_sink_does_not_count() {
        let attempts = HandlerFailures::default();
        attempts.record_failure(&named(3));
        attempts.record_failure(&failure(DeadLetterError::new(Some(3), Error::new(ErrorKind::Handler, "down"))));
        assert_eq!(place_and_failures(&attempts), Some((FailurePlace::Named(3), 1)));
        assert!(attempts.current_failure().unwrap().error.source().unwrap().is::<EventError>(), "the error stays");
    }
}
