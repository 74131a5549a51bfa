//! When failed renewals are retried: with growing waits, and while none succeeds, about as often as leases are renewed
//! in the steady state.

use std::time::Duration;

use crate::model::Moment;

/// While no renewal succeeds, at least this many are tried per lease duration, so that even an instance with few leases
/// detects a recovered storage before they expire.
const LEAST_PER_LEASE_DURATION: u32 = 8;

/// Returns the wait after this many failures in a row. It doubles, up to a limit.
pub(super) fn back_off(failures: u32, first: Duration, longest: Duration) -> Duration {
    first.saturating_mul(2u32.saturating_pow(failures.min(16))).min(longest)
}

/// Returns when to retry if the server asked for a wait: not before that, except for one attempt while the lease can
/// still be renewed.
pub(super) fn retry_time(wait: Duration, earliest: Moment, now: Moment, last_chance: Moment) -> Moment {
    let wanted = (now + wait).max(earliest);
    if last_chance > now { wanted.min(last_chance.max(earliest)) } else { wanted }
}

/// Returns the age at which a lease is tried once more in any case: two request timeouts before its end; or halfway
/// from its first renewal to its end, if that is later, because request timeouts may be as long as half the lease
/// duration.
pub(super) fn last_chance(renewal_age: Duration, lifetime: Duration, request_timeout: Duration) -> Duration {
    lifetime.saturating_sub(2 * request_timeout).max((renewal_age + lifetime) / 2)
}

/// Lets one failed renewal at a time be retried while none succeeds: as many per lease duration as there are leases. In
/// the steady state, each lease is renewed twice in that time.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next: Moment,
    /// Whether a renewal waits for its turn.
    any_waits: bool,
}

impl Turns {
    /// Records that a renewal has failed, and waits for its turn.
    pub(super) fn wait(&mut self) {
        self.any_waits = true;
    }

    /// Returns when the next turn begins.
    pub(super) fn next(&self) -> Moment {
        self.next
    }

    /// Takes the turn now, for one of this many leases.
    pub(super) fn take(&mut self, now: Moment, leases: usize, lease_duration: Duration) {
        let leases = u32::try_from(leases).unwrap_or(u32::MAX).max(LEAST_PER_LEASE_DURATION);
        self.next = now + lease_duration / leases;
    }

    /// Records that a renewal succeeded. Returns whether others had waited.
    pub(super) fn clear(&mut self) -> bool {
        self.next = Moment::ZERO;
        std::mem::take(&mut self.any_waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        let waits = [0, 1, 2, 3, 4, u32::MAX].map(|failures| back_off(failures, seconds(1), seconds(7)));
        assert_eq!(waits, [1, 2, 4, 7, 7, 7].map(seconds));
    }

    #[test]
    fn one_attempt_precedes_a_long_server_wait() {
        let at =
            |wait, now, last_chance| retry_time(seconds(wait), seconds(now + 1), seconds(now), seconds(last_chance));
        assert_eq!(at(0, 100, 120), seconds(101));
        assert_eq!(at(5, 100, 120), seconds(105));
        assert_eq!(at(30, 100, 120), seconds(120), "the lease would expire");
        assert_eq!(at(30, 120, 120), seconds(150), "the last attempt was made");
        assert_eq!(at(30, 130, 120), seconds(160), "the lease has expired");
    }

    #[test]
    fn last_attempt_is_between_renewal_and_expiry() {
        for (lease_duration, lifetime, request_timeout, expected) in
            [(60, 60, 5, 50), (60, 40, 5, 35), (20, 20, 5, 15), (60, 60, 29, 45)]
        {
            let chance = last_chance(seconds(lease_duration) / 2, seconds(lifetime), seconds(request_timeout));
            assert_eq!(chance, seconds(expected), "{lease_duration} {lifetime} {request_timeout}");
        }
    }

    #[test]
    fn each_lease_has_a_turn_per_lease_duration() {
        for (leases, expected) in [(256, 256), (8, 8), (1, 8)] {
            let (mut turns, mut taken) = (Turns::default(), 0);
            while turns.next() < seconds(60) {
                turns.take(turns.next(), leases, seconds(60));
                taken += 1;
            }
            assert_eq!(taken, expected, "{leases}");
        }
    }
}
