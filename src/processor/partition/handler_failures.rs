//! At which event a partition fails, and how often it has failed there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, cause_of};
use crate::processor::handler_errors::{DeadLetterError, EventError, NotSkipped};
use crate::source::Positioned;
use crate::util::lock;

/// The failures of the handler of one partition in one epoch.
#[derive(Debug, Default)]
pub(crate) struct HandlerFailures(Mutex<FailureState>);

#[derive(Debug, Default)]
struct FailureState {
    /// The first event and the number of events of the current call.
    call: Option<(i64, usize)>,
    failing: Option<FailureRun>,
    /// The sequence numbers and offsets of the events that were moved to the dead letters. They may be redelivered, if
    /// neither a checkpoint nor a position of the application has passed them.
    moved: BTreeMap<i64, String>,
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
    /// It is this event: the failure names it, or the handler was called with this event alone.
    Event(i64),
    /// It is one of this many events, of which this is the first one.
    From { first: i64, events: usize },
    /// The events have no sequence numbers.
    Unknown,
}

impl FailurePlace {
    /// Returns the first event that the place includes.
    pub(crate) fn first_event(self) -> Option<i64> {
        match self {
            Self::Event(first) | Self::From { first, .. } => Some(first),
            Self::Unknown => None,
        }
    }

    /// Returns whether a failure here continues the failures at `before`.
    fn is_continuation_of(self, before: Self) -> bool {
        match (self, before) {
            // The number of events changes while the place is narrowed down.
            (Self::From { first, .. }, Self::From { first: before, .. }) => first == before,
            _ => self == before,
        }
    }
}

impl FailureRun {
    /// Returns the time from the first to the last of the failures. Later time, such as a pause, shows nothing.
    pub(crate) fn failing_for(&self) -> Duration {
        self.last_at - self.first_at
    }

    /// Returns whether the last failure names its event.
    pub(crate) fn is_named(&self) -> bool {
        cause_of::<EventError>(&*self.error).is_some()
    }

    /// Returns whether the handler says that no further attempt can succeed.
    pub(crate) fn is_permanent(&self) -> bool {
        cause_of::<EventError>(&*self.error).is_some_and(EventError::is_permanent)
    }
}

impl HandlerFailures {
    /// Records that the handler gets this many events, of which this is the first one.
    pub(crate) fn record_call(&self, first: Option<i64>, events: usize) {
        lock(&self.0).call = first.map(|first| (first, events));
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
            (Some(event), _) | (None, Some((event, 1))) => FailurePlace::Event(event),
            (None, Some((first, events))) => FailurePlace::From { first, events },
            (None, None) => FailurePlace::Unknown,
        };
        let before = state.failing.take().filter(|before| place.is_continuation_of(before.place));
        let now = Instant::now();
        state.failing = Some(FailureRun {
            place,
            failures: before.as_ref().map_or(1, |before| before.failures.saturating_add(1)),
            first_at: before.map_or(now, |before| before.first_at),
            last_at: now,
            error: Arc::clone(error),
        });
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

    pub(crate) fn current_failure(&self) -> Option<FailureRun> {
        lock(&self.0).failing.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use super::*;
    use crate::error::ErrorKind;

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
        let fails = |call: Option<(i64, usize)>, error: Arc<Error>| {
            attempts.record_call(call.map(|(first, _)| first), call.map_or(1, |(_, events)| events));
            attempts.record_failure(&error);
            place_and_failures(&attempts).unwrap()
        };
        assert_eq!(fails(Some((3, 100)), unnamed()), (FailurePlace::From { first: 3, events: 100 }, 1));
        assert_eq!(
            fails(Some((3, 10)), unnamed()),
            (FailurePlace::From { first: 3, events: 10 }, 2),
            "it is narrowed down"
        );
        assert_eq!(fails(Some((3, 1)), unnamed()), (FailurePlace::Event(3), 1), "now it is known");
        assert_eq!(fails(Some((3, 1)), unnamed()), (FailurePlace::Event(3), 2));
        assert_eq!(fails(Some((0, 100)), named(3)), (FailurePlace::Event(3), 3), "named, and alone");
        assert_eq!(
            fails(Some((0, 100)), failure(Wrapped(EventError::for_tracked_event(Some(3), "x")))),
            (FailurePlace::Event(3), 4)
        );
        assert_eq!(fails(Some((0, 100)), named(4)), (FailurePlace::Event(4), 1), "another event");
        assert_eq!(fails(Some((3, 1)), unnamed()), (FailurePlace::Event(3), 1), "it starts over");
        assert_eq!(fails(None, unnamed()), (FailurePlace::Unknown, 1));
        assert_eq!(fails(None, unnamed()), (FailurePlace::Unknown, 2));
    }

    #[tokio::test]
    async fn a_tracked_event_may_fail_permanently() {
        let attempts = HandlerFailures::default();
        for permanent in [false, true] {
            let event = crate::testing::memory_hub::MemoryEvent::new(3, "x");
            let error = if permanent { EventError::permanent(&event, "x") } else { EventError::new(&event, "x") };
            attempts.record_failure(&failure(EventError::for_tracked_event(Some(3), error)));
            assert_eq!(attempts.current_failure().unwrap().is_permanent(), permanent);
        }
    }

    #[tokio::test]
    async fn a_place_that_was_passed_is_forgotten() {
        let attempts = HandlerFailures::default();
        attempts.record_call(Some(3), 10);
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
        assert_eq!(place_and_failures(&attempts), Some((FailurePlace::Event(3), 1)));
        assert!(attempts.current_failure().unwrap().error.source().unwrap().is::<EventError>(), "the error stays");
    }
}
