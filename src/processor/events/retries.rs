//! What follows a failed attempt at one event.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::processor::policies::DeadLetterPolicy;
use crate::processor::shared::shorten_randomly;
use crate::util::setters;

/// How often an event that fails is tried again in its place, without a restart of the partition.
///
/// Between two attempts the event waits, and with it all later events of its [order](super::EventOrder). The wait
/// doubles with each failure.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::processor::{EventHandler, Handler, RetryPolicy, each_event};
///
/// fn patient<E: Send + Sync + 'static>(handler: impl EventHandler<E>) -> impl Handler<E>
/// where
///     E: eventhubs_checkpoint::source::Positioned,
/// {
///     let retries = RetryPolicy::default().with_max_attempts(20).with_longest_wait(Duration::from_secs(60));
///     each_event(handler).with_retries(retries)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// See [`with_max_attempts`](Self::with_max_attempts).
    pub max_attempts: u32,
    /// See [`with_first_wait`](Self::with_first_wait).
    #[serde(with = "humantime_serde")]
    pub first_wait: Duration,
    /// See [`with_longest_wait`](Self::with_longest_wait).
    #[serde(with = "humantime_serde")]
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, first_wait: Duration::from_millis(100), longest_wait: Duration::from_secs(10) }
    }
}

impl RetryPolicy {
    setters! {
        /// Sets how many attempts there are. After the last one the partition fails, and
        /// [`OnFailure`](crate::processor::OnFailure) determines what follows. Default 5, which takes about 1.5 s; 0
        /// counts as 1.
        ///
        /// With [dead letters](crate::processor::ProcessorBuilder::with_dead_letters) their policy applies instead.
        with_max_attempts(max_attempts: u32);
        /// Sets the wait after the first failure. Default 100 ms. Jitter shortens each wait by up to a quarter.
        with_first_wait(first_wait: Duration);
        /// Sets the longest wait. Default 10 s.
        with_longest_wait(longest_wait: Duration);
    }

    /// Returns the wait after so many failures, of which there is at least one, with jitter.
    pub(super) fn wait_after(&self, failures: u32, random: u64) -> Duration {
        let backoff = Backoff::new(self.first_wait, self.longest_wait.min(LONGEST));
        shorten_randomly(backoff.wait_after(failures.saturating_sub(1)), random)
    }

    /// Returns a policy without retries: the first failure counts.
    #[must_use]
    pub fn without_retries() -> Self {
        Self::default().with_max_attempts(1)
    }
}

/// The longest wait, so that sums of waits cannot overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The failures of one event so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failures {
    /// At least one.
    pub(super) attempts: u32,
    /// The time from the first failure to the last one.
    pub(super) failing_for: Duration,
    /// The last failure names the event.
    pub(super) named: bool,
    /// The handler says that no further attempt can succeed.
    pub(super) permanent: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterFailure {
    RetryIn(Duration),
    MoveToDeadLetters,
    FailPartition,
}

impl Failures {
    /// Decides what follows. Jitter shortens a wait, by the random number.
    pub(super) fn next_step(
        self,
        retries: &RetryPolicy,
        dead_letters: Option<&DeadLetterPolicy>,
        random: u64,
    ) -> AfterFailure {
        let wait = retries.wait_after(self.attempts, random);
        let Some(policy) = dead_letters else {
            let is_last = self.permanent || self.attempts >= retries.max_attempts;
            return if is_last { AfterFailure::FailPartition } else { AfterFailure::RetryIn(wait) };
        };
        if policy.named_only && !self.named {
            return AfterFailure::RetryIn(wait);
        }
        if policy.is_met(self.attempts, self.failing_for, self.permanent) {
            return AfterFailure::MoveToDeadLetters;
        }
        if self.attempts < policy.max_attempts {
            return AfterFailure::RetryIn(wait);
        }
        // The event is moved as soon as the policy allows it.
        AfterFailure::RetryIn(wait.min(policy.min_failing_time.saturating_sub(self.failing_for)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(attempts: u32, failing_for: Duration) -> Failures {
        Failures { attempts, failing_for, named: false, permanent: false }
    }

    fn permanent() -> Failures {
        Failures { named: true, permanent: true, ..after(1, Duration::ZERO) }
    }

    #[test]
    fn waits_double_until_the_partition_fails() {
        let retries = RetryPolicy::default().with_max_attempts(4).with_longest_wait(SECOND / 4);
        let steps = [1, 2, 3, 4].map(|attempts| after(attempts, Duration::ZERO).next_step(&retries, None, 0));
        let waits = [100, 200, 250].map(|millis| AfterFailure::RetryIn(Duration::from_millis(millis)));
        assert_eq!(steps[..3], waits);
        assert_eq!(steps[3], AfterFailure::FailPartition);
        assert_eq!(permanent().next_step(&retries, None, 0), AfterFailure::FailPartition);
        assert_eq!(
            after(1, Duration::ZERO).next_step(&RetryPolicy::without_retries(), None, 0),
            AfterFailure::FailPartition
        );
    }

    #[test]
    fn dead_letters_have_their_own_limits() {
        let retries = RetryPolicy::without_retries().with_first_wait(30 * SECOND).with_longest_wait(30 * SECOND);
        let policy = DeadLetterPolicy::default().with_max_attempts(3).with_min_failing_time(40 * SECOND);
        let next = |failures: Failures| failures.next_step(&retries, Some(&policy), 0);
        assert_eq!(next(after(1, Duration::ZERO)), AfterFailure::RetryIn(30 * SECOND));
        assert_eq!(next(after(2, 30 * SECOND)), AfterFailure::RetryIn(30 * SECOND));
        assert_eq!(next(after(3, 60 * SECOND)), AfterFailure::MoveToDeadLetters);
        assert_eq!(next(permanent()), AfterFailure::MoveToDeadLetters);
    }

    #[test]
    fn no_wait_exceeds_what_the_policy_still_requires() {
        let retries = RetryPolicy::default().with_first_wait(30 * SECOND).with_longest_wait(30 * SECOND);
        let policy = DeadLetterPolicy::default().with_max_attempts(2).with_min_failing_time(40 * SECOND);
        let next = after(2, 30 * SECOND).next_step(&retries, Some(&policy), 0);
        assert_eq!(next, AfterFailure::RetryIn(10 * SECOND));
    }

    #[test]
    fn only_named_events_are_moved_if_set() {
        let retries = RetryPolicy::default();
        let policy = DeadLetterPolicy::default().with_max_attempts(1).with_min_failing_time(Duration::ZERO);
        let next = |named, named_only| {
            let policy = policy.clone().with_named_only(named_only);
            Failures { named, ..after(1, Duration::ZERO) }.next_step(&retries, Some(&policy), 0)
        };
        assert_eq!(next(false, true), AfterFailure::RetryIn(SECOND / 10));
        for (named, named_only) in [(true, true), (true, false), (false, false)] {
            assert_eq!(next(named, named_only), AfterFailure::MoveToDeadLetters);
        }
    }

    #[test]
    fn no_wait_overflows() {
        let retries = RetryPolicy::default().with_first_wait(Duration::MAX).with_longest_wait(Duration::MAX);
        let next = after(1, Duration::ZERO).next_step(&retries, None, 0);
        assert_eq!(next, AfterFailure::RetryIn(86_400 * SECOND), "a day");
    }
}
