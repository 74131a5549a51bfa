//! When an event counts as one that can never be processed.

use std::time::Duration;

use serde::Deserialize;

/// When a failing event is moved to the dead letters.
///
/// An event that can never be processed must be told from an outage, such as that of a database, in which no event can
/// be processed. An [`EventError`](super::EventError) is certain: the handler says that this event is the reason. After
/// any other failure, the attempts, the time and the other events of the batch decide:
///
/// - Nothing is moved while all events of a batch fail, or more than `max_events_per_batch`.
/// - If the batch is a single event, only attempts and time decide. Choose `min_failing_time` longer than the outages
///   that the handler should survive, or turn `isolate` off, so that only events with an `EventError` are moved.
/// - An event that is tracked and [fails](crate::processor::TrackedEvent::fail) is named, but the other events of its batch show
///   nothing about an outage, because they are still being processed. Attempts and time decide.
///
/// Attempts are counted in the memory of the owner. After the partition moved to another instance, the count starts
/// again, so with [`OnFailure::Release`](crate::processor::OnFailure::Release) the policy never applies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadLetterPolicy {
    /// How many attempts must have failed. Default 5. 0 counts as 1.
    #[doc(alias = "max_delivery_count")]
    pub max_attempts: u32,
    /// How long the attempts must have failed. Default 60 s, so that a restart of a database moves nothing.
    #[serde(with = "humantime_serde")]
    pub min_failing_time: Duration,
    /// How many events of one batch may be moved that no `EventError` names. If more fail, the partition fails. Default
    /// 10, because a single call that succeeds by chance must not move the rest of a large batch. 0 counts as 1.
    pub max_events_per_batch: usize,
    /// Whether to isolate the failing event if the failure does not name it. Default true.
    pub isolate: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, min_failing_time: Duration::from_secs(60), max_events_per_batch: 10, isolate: true }
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

    /// Sets how many events of one batch may be moved that no `EventError` names.
    #[must_use]
    pub fn with_max_events_per_batch(mut self, events: usize) -> Self {
        self.max_events_per_batch = events;
        self
    }

    /// Sets whether to isolate the failing event if the failure does not name it.
    #[must_use]
    pub fn with_isolate(mut self, isolate: bool) -> Self {
        self.isolate = isolate;
        self
    }

    pub(super) fn applies(&self, failures: u32, failing_for: Duration) -> bool {
        failures >= self.max_attempts.max(1) && failing_for >= self.min_failing_time
    }

    /// Returns whether so many unnamed events of one batch may be moved.
    pub(super) fn allows(&self, unnamed: usize) -> bool {
        unnamed <= self.max_events_per_batch.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_and_time_must_both_be_reached() {
        let policy = DeadLetterPolicy::default();
        let minute = policy.min_failing_time;
        assert!(policy.applies(5, minute));
        assert!(!policy.applies(4, 10 * minute));
        assert!(!policy.applies(50, Duration::from_secs(59)));
        let none = policy.with_max_attempts(0).with_min_failing_time(Duration::ZERO).with_max_events_per_batch(0);
        assert!(none.applies(1, Duration::ZERO) && !none.applies(0, Duration::ZERO));
        assert!(none.allows(1) && !none.allows(2));
    }
}
