//! When an event counts as one that can never be processed.

use std::time::Duration;

use serde::Deserialize;

use crate::processor::partition::attempts::Failing;

/// When a failing event is moved to the dead letters.
///
/// The attempts and the time distinguish an event that can never be processed from an outage, such as that of a database,
/// in which no event can be processed. They count for one event: the next failing event needs its own. In an outage that
/// is longer than `min_failing_time`, each partition therefore moves one event in each such period. Choose it longer than
/// the outages that the handler should survive, or turn `isolation` off, so that only events that the handler names with
/// an [`EventError`](crate::processor::EventError) are moved.
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
    /// How long the attempts must have failed at the event, from the first failure to the last one. Default 60 s, so that a
    /// restart of a database moves nothing.
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
    pub(super) fn applies(&self, failing: &Failing) -> bool {
        let enough = failing.failures >= self.max_attempts && failing.failing_for() >= self.min_failing_time;
        failing.is_permanent() || enough
    }
}
