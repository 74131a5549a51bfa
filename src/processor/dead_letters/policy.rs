//! When an event counts as one that can never be processed, and how a batch is split to find it.

use std::time::Duration;

use serde::Deserialize;

use crate::processor::partition::handler_failures::{FailurePlace, FailureRun};
use crate::source::Positioned;

/// When a failing event is moved to the dead letters.
///
/// The attempts and the time distinguish an event that can never be processed from an outage, such as that of a
/// database, in which no event can be processed. They count for one event: the next failing event needs its own. In an
/// outage that is longer than `min_failing_time`, each partition therefore moves one event in each such period. Choose
/// it longer than the outages that the handler should survive, or turn `isolation` off, so that only events that the
/// handler names with an [`EventError`](crate::processor::EventError) are moved.
///
/// A [permanent](crate::processor::EventError::permanent) error is certain. Its event is moved at the next delivery.
///
/// Attempts are counted in the memory of the owner. After the partition moved to another instance, the count starts
/// again, so with [`OnFailure::Release`](crate::processor::OnFailure::Release) the policy may never apply.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadLetterPolicy {
    /// How many attempts must have failed at the event. Default 5. 0 counts as 1.
    #[doc(alias = "max_delivery_count")]
    pub max_attempts: u32,
    /// How long the attempts must have failed at the event, from the first failure to the last one. Default 60 s, so
    /// that a restart of a database moves nothing.
    #[serde(with = "humantime_serde")]
    pub min_failing_time: Duration,
    /// Whether to find the failing event if the failure does not name it. Default true.
    pub isolation: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, min_failing_time: Duration::from_secs(60), isolation: true }
    }
}

impl DeadLetterPolicy {
    /// Sets how many attempts must have failed.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets how long the attempts must have failed.
    #[must_use]
    pub fn with_min_failing_time(mut self, time: Duration) -> Self {
        self.min_failing_time = time;
        self
    }

    /// Sets whether to find the failing event if the failure does not name it.
    #[must_use]
    pub fn with_isolation(mut self, isolation: bool) -> Self {
        self.isolation = isolation;
        self
    }

    /// Returns whether the event at which the partition fails is moved.
    pub(super) fn applies_to(&self, failing: &FailureRun) -> bool {
        failing.is_permanent()
            || (failing.failures >= self.max_attempts && failing.failing_for() >= self.min_failing_time)
    }
}

/// A part of a batch. The parts keep the order of the events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<E> {
    /// The handler gets these events together. Never empty.
    Events(Vec<E>),
    /// The event at which the partition failed, alone.
    Suspect(E),
}

/// By how much a call with the failing event becomes smaller with each failure.
const NARROWING: usize = 10;

/// Splits a batch so that the next failure shows more: the failing event alone, if it is known; otherwise, from the
/// first event that it may be, calls with a tenth of the events.
pub(super) fn split_batch<E: Positioned>(mut events: Vec<E>, place: FailurePlace) -> Vec<Part<E>> {
    let mut parts = Vec::new();
    match place {
        FailurePlace::Event(event) => {
            if let Some(index) = events.iter().position(|each| each.sequence_number() == Some(event)) {
                let after = events.split_off(index + 1);
                let suspect = events.pop();
                push_events(&mut parts, events);
                parts.extend(suspect.map(Part::Suspect));
                events = after;
            }
        }
        FailurePlace::From { first, events: failed } => {
            let start = events.iter().position(|each| each.sequence_number() >= Some(first)).unwrap_or(events.len());
            let mut suspects = events.split_off(start);
            push_events(&mut parts, events);
            let size = failed.div_ceil(NARROWING);
            while suspects.len() > size {
                let rest = suspects.split_off(size);
                push_events(&mut parts, suspects);
                suspects = rest;
            }
            events = suspects;
        }
        FailurePlace::Unknown => {}
    }
    push_events(&mut parts, events);
    parts
}

fn push_events<E>(parts: &mut Vec<Part<E>>, events: Vec<E>) {
    if !events.is_empty() {
        parts.push(Part::Events(events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Numbered(i64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    /// Returns the parts as numbers; the suspect is negative.
    fn parts(events: std::ops::Range<i64>, place: FailurePlace) -> Vec<Vec<i64>> {
        let parts = split_batch(events.map(Numbered).collect(), place);
        let numbers = parts.into_iter().map(|part| match part {
            Part::Events(events) => events.into_iter().map(|event| event.0).collect(),
            Part::Suspect(event) => vec![-event.0],
        });
        numbers.collect()
    }

    #[test]
    fn a_known_event_is_alone() {
        assert_eq!(parts(1..6, FailurePlace::Event(3)), [vec![1, 2], vec![-3], vec![4, 5]]);
        assert_eq!(parts(1..3, FailurePlace::Event(1)), [vec![-1], vec![2]]);
        assert_eq!(parts(1..3, FailurePlace::Event(2)), [vec![1], vec![-2]]);
        assert_eq!(parts(1..3, FailurePlace::Event(7)), [vec![1, 2]], "another batch");
    }

    #[test]
    fn an_unknown_event_is_narrowed_down() {
        let from = |first, events| FailurePlace::From { first, events };
        assert_eq!(parts(1..8, from(3, 20)), [vec![1, 2], vec![3, 4], vec![5, 6], vec![7]]);
        assert_eq!(parts(3..6, from(3, 2)), [vec![3], vec![4], vec![5]]);
        assert_eq!(parts(1..3, from(7, 20)), [vec![1, 2]], "an earlier batch");
        assert_eq!(parts(8..10, from(7, 100)), [vec![8, 9]]);
        assert_eq!(parts(1..3, FailurePlace::Unknown), [vec![1, 2]]);
    }
}
