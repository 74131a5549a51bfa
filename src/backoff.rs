//! The wait between attempts: it doubles with each failure in a row, from a first wait to a longest one.
//!
//! | who waits | first | longest | jitter | reset by |
//! |---|---|---|---|---|
//! | an operation of the store, `store::retry_schedule` | lease / 16, at most 1 s | lease / 6 | longer | its end |
//! | a conditional write whose outcome is unknown, `store::settle` | 20 ms | 320 ms | none | its end |
//! | the first requests of a store, `store::builder` | 250 ms | 1 s | none | its end |
//! | an operator's change, `admin::session` | request timeout / 16 | lease / 6 | longer | its end |
//! | the writer of checkpoints, `processor::checkpoints` | the policy's interval, 1 to 30 s | lease / 2, or the first | longer | a response that is no error |
//! | a renewal of a lease or of the heartbeat, `balancer::renewals` | lease / 16, at most 1 s | lease / 8, lease / 16 | longer | a success of the same lease |
//! | a load-balancing cycle that failed, `balancer::pacing` | lease / 16, at most 1 s | the longest pause | shorter, by a tenth | a cycle that succeeded |
//! | the claims of an instance, `balancer::pacing` | 1 s, or four times as long as the last cycle | one interval | longer | one step back per claim that is won, or cycle without one |
//! | a poll of a requested handoff that failed, `balancer::handoffs` | 1 s to interval / 2 | lease | none | a poll that succeeded |
//! | a read of the beacon, `balancer::beacon` | beacon interval | interval | both ways, by a twentieth | a response |
//! | a change that cannot be written to the beacon, or that it does not show, `balancer::beacon` | 1 s | lease | none | a success |
//! | the comparison of the blob-name casings, `balancer::case_check` | lease / 16, at most 1 s | lease / 8 | none | a response |
//! | a partition that was not won, `balancer::config` | interval / 4 | lease | none | a claim that is won, or a live owner in a listing |
//! | a restart of a partition, `processor::partition` | 250 ms; 100 ms after progress | 30 s | shorter | progress, or a link that was open for 30 s |
//! | another link for events that two links did not deliver, `processor::partition` | 7.5 lag-check intervals, at most 1 h | 1 h | none | a new event, or another end of the event hub |
//! | requests for the event hub's properties and starts, `processor::start` | 250 ms | 3 intervals, 30 s | shorter | a success |
//! | a new connection to the event hub, `eventhubs` | 2 s | 30 s | none | an attempt 1 min after the last one |
//! | the refresh of a token, `blob::azure` | 5 s, without a valid token 1 s | 30 s, 5 s | none | a new token |
//!
//! A caller that waits for a server waits at least as long as the server asks, up to a limit that the caller states.

use std::time::Duration;

/// The doubling waits of one kind of attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the wait after a failure that followed this many other failures in a row.
    pub(crate) fn wait_after(self, earlier_failures: u32) -> Duration {
        self.first.saturating_mul(2u32.saturating_pow(earlier_failures)).min(self.longest)
    }
}

/// A [`Backoff`] that counts the failures in a row.
#[derive(Debug)]
pub(crate) struct CountingBackoff {
    backoff: Backoff,
    failures: u32,
}

impl CountingBackoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { backoff: Backoff::new(first, longest), failures: 0 }
    }

    /// Counts a failure, and returns the wait after it.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.backoff.wait_after(self.failures);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Records a success: the next wait is the first one again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Lengthens a wait by up to a quarter, so that instances that failed together do not try again together. `chance` is
/// from 0 to 1. For waits that protect a server, which must not become shorter.
pub(crate) fn lengthen_wait(wait: Duration, chance: f64) -> Duration {
    wait.mul_f64(1.0 + chance / 4.0)
}

/// Shortens a wait by up to a quarter, for the same purpose. For waits that have a promised limit, which must not
/// become longer.
pub(crate) fn shorten_wait(wait: Duration, chance: f64) -> Duration {
    wait.mul_f64(1.0 - chance / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff::new(SECOND, 7 * SECOND);
        let waits = [0, 1, 2, 3, 4, 40, u32::MAX].map(|earlier| backoff.wait_after(earlier).as_secs());
        assert_eq!(waits, [1, 2, 4, 7, 7, 7, 7]);
        assert_eq!(Backoff::new(Duration::ZERO, SECOND).wait_after(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn waits_begin_again_after_a_success() {
        let mut backoff = CountingBackoff::new(SECOND, 30 * SECOND);
        assert_eq!([backoff.next_wait(), backoff.next_wait()], [SECOND, 2 * SECOND]);
        backoff.reset();
        assert_eq!(backoff.next_wait(), SECOND);
    }

    #[test]
    fn jitter_is_up_to_a_quarter() {
        assert_eq!([0.0, 0.5, 1.0].map(|chance| lengthen_wait(8 * SECOND, chance).as_secs()), [8, 9, 10]);
        assert_eq!([0.0, 0.5, 1.0].map(|chance| shorten_wait(8 * SECOND, chance).as_secs()), [8, 7, 6]);
    }
}
