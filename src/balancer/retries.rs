//! When renewals that failed are tried again: ever later, and while none succeeds, no more often than when all is well.

use std::time::Duration;

use crate::model::Moment;

/// While no renewal succeeds, at least this many are tried within an expiry, so that a storage that is back is noticed
/// before the leases run out, however few they are.
const LEAST_PER_EXPIRY: u32 = 8;

/// The wait after so many failures in a row: it doubles, up to a limit.
pub(super) fn back_off(failures: u32, first: Duration, longest: Duration) -> Duration {
    first.saturating_mul(2u32.saturating_pow(failures.min(16))).min(longest)
}

/// When to try again if the server asked for a wait: not before, but for one attempt while there is still time to
/// renew.
pub(super) fn asked_for(wait: Duration, earliest: Moment, now: Moment, last_chance: Moment) -> Moment {
    let wanted = (now + wait).max(earliest);
    if last_chance > now { wanted.min(last_chance.max(earliest)) } else { wanted }
}

/// The age at which a lease is tried once more in any case: two requests before its end; or halfway from its first
/// renewal to its end, if that is later, for requests may be given up to half the expiry.
pub(super) fn last_chance(renewal_age: Duration, lifetime: Duration, request_deadline: Duration) -> Duration {
    lifetime.saturating_sub(2 * request_deadline).max((renewal_age + lifetime) / 2)
}

/// Lets one renewal that has failed be tried again at a time while none succeeds: as many within an expiry as there are
/// leases. When the storage is well, each is renewed twice in that time.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next: Moment,
    /// A renewal waits for its turn.
    any_waits: bool,
}

impl Turns {
    /// A renewal has failed, and waits for its turn.
    pub(super) fn wait(&mut self) {
        self.any_waits = true;
    }

    /// When the next one has its turn.
    pub(super) fn next(&self) -> Moment {
        self.next
    }

    /// One of so many leases has its turn now.
    pub(super) fn take(&mut self, now: Moment, leases: usize, expiry: Duration) {
        let leases = u32::try_from(leases).unwrap_or(u32::MAX).max(LEAST_PER_EXPIRY);
        self.next = now + expiry / leases;
    }

    /// A renewal succeeded. Returns whether any had waited.
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
    fn a_wait_doubles_up_to_its_limit() {
        let waits = [0, 1, 2, 3, 4, u32::MAX].map(|failures| back_off(failures, seconds(1), seconds(7)));
        assert_eq!(waits, [1, 2, 4, 7, 7, 7].map(seconds));
    }

    #[test]
    fn the_wait_that_the_server_asks_for_is_kept_but_for_a_last_attempt() {
        let at =
            |wait, now, last_chance| asked_for(seconds(wait), seconds(now + 1), seconds(now), seconds(last_chance));
        assert_eq!(at(0, 100, 120), seconds(101));
        assert_eq!(at(5, 100, 120), seconds(105));
        assert_eq!(at(30, 100, 120), seconds(120), "the lease would run out");
        assert_eq!(at(30, 120, 120), seconds(150), "it was tried");
        assert_eq!(at(30, 130, 120), seconds(160), "it has run out");
    }

    #[test]
    fn the_last_chance_is_between_the_renewal_and_the_end() {
        for (expiry, lifetime, deadline, expected) in
            [(60, 60, 5, 50), (60, 40, 5, 35), (20, 20, 5, 15), (60, 60, 29, 45)]
        {
            let chance = last_chance(seconds(expiry) / 2, seconds(lifetime), seconds(deadline));
            assert_eq!(chance, seconds(expected), "{expiry} {lifetime} {deadline}");
        }
    }

    #[test]
    fn many_leases_have_a_turn_in_an_expiry_and_few_often_enough() {
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
