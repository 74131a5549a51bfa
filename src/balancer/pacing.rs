//! The wait between two cycles: the interval, longer while nothing changes, and shorter while this instance claims
//! unowned partitions. While the beacon is trusted, a group in which nothing changes is hardly ever listed.

use std::time::Duration;

use crate::backoff::{Backoff, lengthen_wait};
use crate::model::Moment;

/// The longest wait without a trusted beacon, in intervals.
const LONGEST: u32 = 3;

/// The longest wait with one, in lease durations. Whatever the beacon, the watched owners and the own renewals do not
/// show is found by the listing after it.
const LONGEST_TRUSTING: u32 = 5;

/// The shortest wait while unowned partitions are claimed.
const SHORTEST: Duration = Duration::from_secs(1);

/// A short wait takes at least this many times as long as the cycle before it, so that a slow storage has few requests.
const REST: u32 = 4;

/// Further claims that fail make no wait longer, so that a few that are won make it short again.
const MOST_FAILED_CLAIMS: u32 = 4;

/// What a cycle found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CycleFinding {
    /// Nothing new and nothing to do.
    Nothing,
    Change,
    /// Unowned partitions, of which this instance claims at least one.
    Unowned,
}

/// Whether the server throttled a cycle that failed, and the wait that it asked for. Such a cycle is not retried sooner
/// than in the steady state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Throttled {
    No,
    Asked(Duration),
}

/// Decides when the next cycle is due. All waits count from the end of the last cycle: what happens in the meantime
/// makes them longer or shorter, but nothing can postpone a cycle again and again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    interval: Duration,
    longest: Duration,
    longest_trusting: Duration,
    /// The last cycle; `None` while one is running, and before the first one.
    ended: Option<CycleEnd>,
    /// The jitter of the last cycle that has ended. Of the cycles that one change calls, those with the smallest begin
    /// first.
    pub(super) jitter: f64,
    /// Something has changed in the group since the last cycle began.
    call: Option<CycleCall>,
    /// How many cycles in a row found nothing new and nothing to do.
    calm: u32,
    /// How many cycles in a row have failed.
    failures: u32,
    /// Whether the last cycle claimed an unowned partition.
    claims: bool,
    /// The wait after such a cycle.
    short: Duration,
    /// How many more claims have failed than were won, counted from zero.
    failed_claims: u32,
}

/// Something has changed in the group.
#[derive(Clone, Copy, Debug)]
struct CycleCall {
    at: Moment,
    wait: CallWait,
}

/// How long a called cycle waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallWait {
    /// The least time since the last cycle.
    pub(super) after: Duration,
    /// One change calls cycles of all instances: these are spread over this time.
    pub(super) spread: Duration,
}

/// The end of a cycle.
#[derive(Clone, Copy, Debug)]
struct CycleEnd {
    at: Moment,
    outcome: CycleOutcome,
    /// A number from 0 to 1, which spreads the cycles of instances that started together.
    jitter: f64,
}

#[derive(Clone, Copy, Debug)]
enum CycleOutcome {
    /// There has been no cycle yet.
    Begun,
    Succeeded {
        next_claimable: NextClaimable,
    },
    /// The next cycle comes after this wait, and not before the server allows it.
    Failed {
        wait: Duration,
        asked: Duration,
    },
}

/// When the first partition may become claimable: the lease of another instance expires, unless it is renewed, or the
/// wait after a failed claim ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NextClaimable {
    /// The first lease or wait.
    pub(super) first: Option<Moment>,
    /// The first of those that are likely: leases that should have been renewed already, and waits.
    pub(super) first_likely: Option<Moment>,
}

impl Pacing {
    /// Creates the pacing of a loop. Half the lease duration limits the wait, so that an expired owner is detected
    /// within one and a half lease durations after its last renewal.
    pub(super) fn new(interval: Duration, lease_duration: Duration) -> Self {
        Self {
            interval,
            longest: (LONGEST * interval).min(lease_duration / 2).max(interval),
            longest_trusting: LONGEST_TRUSTING * lease_duration,
            ended: None,
            jitter: 0.0,
            call: None,
            calm: 0,
            failures: 0,
            claims: false,
            short: SHORTEST.min(interval),
            failed_claims: 0,
        }
    }

    /// Returns the average wait between two cycles of a group in which nothing changes, with a beacon that works.
    pub(super) fn average_calm_wait(lease_duration: Duration) -> Duration {
        (LONGEST_TRUSTING * lease_duration).mul_f64(0.95)
    }

    /// Returns when the next cycle begins; `None` while one is running. `trusted_until`: until then the beacon and the
    /// watched owners show what happens, so that a group in which nothing changes need not be listed.
    pub(super) fn next_cycle_at(&self, trusted_until: Option<Moment>) -> Option<Moment> {
        let CycleEnd { at, outcome, jitter } = self.ended?;
        Some(match outcome {
            CycleOutcome::Begun => at,
            CycleOutcome::Failed { wait, asked } => at + wait.max(asked),
            CycleOutcome::Succeeded { next_claimable } => {
                let due = self.first_of(at + self.steady_wait(jitter), next_claimable.first, at, jitter);
                let due = match trusted_until.filter(|_| self.calm == LONGEST) {
                    None => due,
                    Some(until) => {
                        let longest = at + self.longest_trusting.mul_f64(1.0 - jitter / 10.0);
                        due.max(until).min(self.first_of(longest, next_claimable.first_likely, at, jitter))
                    }
                };
                let Some(CycleCall { at: called, wait }) = self.call else { return Some(due) };
                due.min(called.max(at + wait.after) + wait.spread.mul_f64(jitter))
            }
        })
    }

    /// Returns `due`, or when a partition may become claimable before, but not sooner than between two claims.
    fn first_of(&self, due: Moment, claimable: Option<Moment>, ended: Moment, jitter: f64) -> Moment {
        let Some(claimable) = claimable else { return due };
        due.min(claimable.max(ended + self.short_wait()) + SHORTEST.min(self.interval).mul_f64(jitter))
    }

    /// Begins the next cycle soon, because something has changed in the group. If the server asked for a wait, the
    /// cycle comes after it.
    pub(super) fn call_cycle(&mut self, at: Moment, wait: CallWait) {
        self.call.get_or_insert(CycleCall { at, wait });
    }

    /// Makes the next cycle due now.
    pub(super) fn begin_now(&mut self, now: Moment) {
        self.ended = Some(CycleEnd { at: now, outcome: CycleOutcome::Begun, jitter: 0.0 });
    }

    /// Records that a cycle is running.
    pub(super) fn begin_cycle(&mut self) {
        self.ended = None;
        self.call = None;
    }

    /// Records that a cycle succeeded, what it found, how long it took, and when the first partition may become
    /// claimable.
    pub(super) fn record_success(
        &mut self,
        now: Moment,
        found: CycleFinding,
        took: Duration,
        next_claimable: NextClaimable,
        jitter: f64,
    ) {
        self.calm = if found == CycleFinding::Nothing { (self.calm + 1).min(LONGEST) } else { 0 };
        self.failures = 0;
        self.claims = found == CycleFinding::Unowned;
        if !self.claims {
            self.record_won_claim();
        }
        self.short = (self.short / 2).max(SHORTEST).max(REST * took).min(self.interval);
        self.jitter = jitter;
        self.ended = Some(CycleEnd { at: now, outcome: CycleOutcome::Succeeded { next_claimable }, jitter });
    }

    /// Records that a cycle failed, and returns the wait before the next one. The first wait is short, because the
    /// previous one may have been long. Later waits double, up to the longest wait of the steady state.
    pub(super) fn record_failure(
        &mut self,
        now: Moment,
        first: Duration,
        throttled: Throttled,
        jitter: f64,
    ) -> Duration {
        self.calm = 0;
        self.record_failed_claim();
        let wait = Backoff::new(first, self.longest).wait_after(self.failures).mul_f64(1.0 - jitter / 10.0);
        self.failures = self.failures.saturating_add(1);
        let asked = match throttled {
            Throttled::No => Duration::ZERO,
            Throttled::Asked(asked) => asked.max(self.interval.mul_f64(1.0 + jitter / 10.0)),
        };
        self.jitter = jitter;
        self.ended = Some(CycleEnd { at: now, outcome: CycleOutcome::Failed { wait, asked }, jitter });
        wait.max(asked)
    }

    /// Returns whether the last cycle claimed an unowned partition, so that the wait after it is short.
    pub(super) fn claims_unowned(&self) -> bool {
        self.claims
    }

    /// Records that a claim failed: the short wait doubles, up to the interval, and each claim that is won halves it.
    /// Storage that fails some requests thus slows the claims down in proportion.
    pub(super) fn record_failed_claim(&mut self) {
        self.failed_claims = (self.failed_claims + 1).min(MOST_FAILED_CLAIMS);
    }

    /// Records that a claim was won, or that there was nothing to claim.
    pub(super) fn record_won_claim(&mut self) {
        self.failed_claims = self.failed_claims.saturating_sub(1);
    }

    /// Records that something changed: the next cycle comes no later than one interval after the last one, if the
    /// server did not ask for a longer wait.
    pub(super) fn bring_forward(&mut self) {
        self.calm = 0;
        let usual = self.steady_wait(0.0);
        if let Some(CycleEnd { outcome: CycleOutcome::Failed { wait, .. }, .. }) = &mut self.ended {
            *wait = usual.min(*wait);
        }
    }

    /// Returns the wait of the steady state. The jitter makes it up to a tenth longer; if that exceeds the limit, the
    /// wait is up to a tenth shorter than the limit. Instances that started together then do not list together forever.
    pub(super) fn steady_wait(&self, jitter: f64) -> Duration {
        if self.claims {
            // Up to a quarter longer than the shortest wait, for the same reason.
            return lengthen_wait(self.short_wait(), jitter).min(self.interval.mul_f64(1.0 + jitter / 10.0));
        }
        let longer = (self.interval * self.calm.clamp(1, LONGEST)).mul_f64(1.0 + jitter / 10.0);
        if longer <= self.longest { longer } else { self.longest.mul_f64(1.0 - jitter / 10.0) }
    }

    /// Returns the shortest wait between two claims.
    fn short_wait(&self) -> Duration {
        Backoff::new(self.short, self.interval).wait_after(self.failed_claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// When the cycles of these tests end.
    const END: Moment = Duration::from_secs(1000);

    impl Pacing {
        fn finds(&mut self, found: CycleFinding) {
            self.record_success(END, found, Duration::ZERO, NextClaimable::default(), 0.0);
        }

        fn fails(&mut self) -> Duration {
            self.record_failure(END, seconds(1), Throttled::No, 0.0)
        }

        /// Returns the wait after the last cycle.
        fn wait(&self) -> Duration {
            self.next_cycle_at(None).unwrap().checked_sub(END).unwrap()
        }
    }

    #[test]
    fn calm_cycles_wait_up_to_three_intervals() {
        let mut pacing = Pacing::new(seconds(10), seconds(120));
        let pauses: Vec<_> = (0..5)
            .map(|_| {
                pacing.finds(CycleFinding::Nothing);
                pacing.wait()
            })
            .collect();
        assert_eq!(pauses, [10, 20, 30, 30, 30].map(seconds));
        pacing.bring_forward();
        assert_eq!(pacing.wait(), seconds(10));
        assert_eq!(pacing.steady_wait(0.5), Duration::from_millis(10_500));
    }

    #[test]
    fn waits_after_failures_double_up_to_the_limit() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        let pauses: Vec<_> = (0..7)
            .map(|_| {
                let announced = pacing.fails();
                assert_eq!(pacing.wait(), announced);
                announced
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30].map(seconds));
        assert_eq!(pacing.record_failure(END, seconds(1), Throttled::No, 0.5), Duration::from_millis(28_500));
        pacing.finds(CycleFinding::Change);
        assert_eq!(pacing.fails(), seconds(1));
    }

    #[test]
    fn a_throttled_cycle_waits_as_long_as_it_was_asked_to() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        for (asked, expected) in [(0, 10), (5, 10), (25, 25)] {
            assert_eq!(
                pacing.record_failure(END, seconds(1), Throttled::Asked(seconds(asked)), 0.0),
                seconds(expected)
            );
            pacing.bring_forward();
            assert_eq!(pacing.wait(), seconds(expected), "no change shortens it");
        }
        let wait = pacing.record_failure(END, seconds(1), Throttled::Asked(Duration::ZERO), 1.0);
        assert_eq!(wait, seconds(11), "never less than an interval");
    }

    #[test]
    fn a_change_ends_a_long_wait_after_failures() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        for _ in 0..9 {
            pacing.fails();
        }
        assert_eq!(pacing.wait(), seconds(30));
        pacing.bring_forward();
        assert_eq!(pacing.wait(), seconds(10));
    }

    #[test]
    fn waits_stay_within_interval_and_half_a_lease() {
        for (interval, lease_duration, longest) in [(10, 60, 30), (10, 40, 20), (10, 30, 15), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(lease_duration));
            (0..9).for_each(|_| pacing.finds(CycleFinding::Nothing));
            assert_eq!(pacing.wait(), seconds(longest), "{interval} {lease_duration}");
        }
    }

    #[test]
    fn waits_between_claims_are_short() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        pacing.finds(CycleFinding::Unowned);
        assert!(pacing.claims_unowned());
        assert_eq!((pacing.steady_wait(0.0), pacing.steady_wait(1.0)), (seconds(1), Duration::from_millis(1250)));
        pacing.finds(CycleFinding::Change);
        assert_eq!((pacing.claims_unowned(), pacing.steady_wait(0.0)), (false, seconds(10)));
    }

    #[test]
    fn waits_between_claims_grow_with_slow_storage() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        let mut after = |took| {
            pacing.record_success(
                END,
                CycleFinding::Unowned,
                Duration::from_millis(took),
                NextClaimable::default(),
                0.0,
            );
            pacing.wait()
        };
        assert_eq!([100, 500, 2000, 9000].map(&mut after), [1, 2, 8, 10].map(seconds));
        assert_eq!([0, 0, 0, 0].map(after), [5000, 2500, 1250, 1000].map(Duration::from_millis));
        pacing.record_success(END, CycleFinding::Unowned, seconds(9), NextClaimable::default(), 0.0);
        assert_eq!(pacing.steady_wait(1.0), seconds(11), "a tenth longer than the interval at most");
    }

    #[test]
    fn each_failed_claim_doubles_the_wait_for_the_next() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        pacing.finds(CycleFinding::Unowned);
        let waits = [(); 5].map(|()| {
            pacing.record_failed_claim();
            pacing.wait()
        });
        assert_eq!(waits, [2, 4, 8, 10, 10].map(seconds));
        pacing.finds(CycleFinding::Unowned);
        let waits = [(); 4].map(|()| {
            pacing.record_won_claim();
            pacing.wait()
        });
        assert_eq!(waits, [8, 4, 2, 1].map(seconds));
        pacing.fails();
        pacing.fails();
        pacing.finds(CycleFinding::Unowned);
        assert_eq!(pacing.wait(), seconds(4), "listings that failed count, too");
    }

    /// Whatever happens after a cycle, and however often, the next one comes at the latest three intervals later.
    #[test]
    fn nothing_postpones_a_cycle_for_ever() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        for found in [CycleFinding::Nothing, CycleFinding::Change, CycleFinding::Unowned] {
            pacing.finds(found);
            for _ in 0..1000 {
                pacing.record_failed_claim();
                pacing.bring_forward();
            }
            assert_eq!(pacing.wait(), seconds(10), "{found:?}");
        }
    }

    #[test]
    fn short_intervals_are_never_exceeded() {
        let mut pacing = Pacing::new(Duration::from_millis(20), seconds(60));
        pacing.record_success(END, CycleFinding::Unowned, seconds(1), NextClaimable::default(), 0.0);
        assert_eq!(pacing.wait(), Duration::from_millis(20));
    }

    #[test]
    fn the_next_cycle_waits_for_an_expiry() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        (0..5).for_each(|_| pacing.finds(CycleFinding::Nothing));
        let until = |mut pacing: Pacing, expiry, jitter| {
            let next = NextClaimable { first: Some(END + seconds(expiry)), first_likely: None };
            pacing.record_success(END, CycleFinding::Nothing, Duration::ZERO, next, jitter);
            pacing
        };
        assert_eq!([0, 1, 7, 29, 31].map(|expiry| until(pacing, expiry, 0.0).wait()), [1, 1, 7, 29, 30].map(seconds));
        assert_eq!(until(pacing, 7, 1.0).wait(), seconds(8));
        let mut failing = until(pacing, 2, 0.0);
        (0..9).for_each(|_| failing.record_failed_claim());
        assert_eq!(failing.wait(), seconds(10), "not while claims fail");
    }

    #[test]
    fn a_trusted_beacon_makes_listings_rare() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        let until_trust_ends =
            |pacing: &Pacing, trusted| pacing.next_cycle_at(Some(END + seconds(trusted))).unwrap().saturating_sub(END);
        for expected in [10, 20, 300, 300] {
            pacing.finds(CycleFinding::Nothing);
            assert_eq!(until_trust_ends(&pacing, 1000), seconds(expected));
        }
        assert_eq!([5, 30, 70].map(|trusted| until_trust_ends(&pacing, trusted)), [30, 30, 70].map(seconds));
        let likely = NextClaimable { first: Some(END + seconds(5)), first_likely: Some(END + seconds(40)) };
        pacing.record_success(END, CycleFinding::Nothing, Duration::ZERO, likely, 0.0);
        assert_eq!(until_trust_ends(&pacing, 1000), seconds(40), "a lease that should have been renewed by now");
        let waits = [0.0, 1.0].map(|jitter| {
            pacing.record_success(END, CycleFinding::Nothing, Duration::ZERO, NextClaimable::default(), jitter);
            until_trust_ends(&pacing, 1000)
        });
        assert_eq!(waits, [300, 270].map(seconds));
        assert_eq!(Pacing::average_calm_wait(seconds(60)), seconds(285), "what the estimate of the cost says");
    }

    #[test]
    fn a_change_in_the_group_begins_a_cycle() {
        let wait = CallWait { after: seconds(1), spread: seconds(4) };
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        (0..5).for_each(|_| pacing.finds(CycleFinding::Nothing));
        pacing.call_cycle(END + seconds(7), wait);
        assert_eq!(pacing.next_cycle_at(None), Some(END + seconds(7)));
        pacing.begin_cycle();
        pacing.call_cycle(END, wait);
        pacing.finds(CycleFinding::Nothing);
        assert_eq!(pacing.wait(), seconds(1), "it came while a cycle was running");
        pacing.begin_cycle();
        pacing.call_cycle(END, wait);
        pacing.record_failure(END, seconds(1), Throttled::Asked(seconds(25)), 0.0);
        assert_eq!(pacing.wait(), seconds(25), "the server asked for a wait");
        pacing.record_success(END, CycleFinding::Nothing, Duration::ZERO, NextClaimable::default(), 0.5);
        pacing.call_cycle(END, wait);
        assert_eq!(pacing.wait(), seconds(3), "not all instances of a large group list at the same time");
    }

    #[test]
    fn no_cycle_is_due_while_one_is_running() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        assert_eq!(pacing.next_cycle_at(None), None);
        pacing.begin_now(END);
        assert_eq!(pacing.next_cycle_at(None), Some(END));
        pacing.begin_cycle();
        pacing.bring_forward();
        assert_eq!(pacing.next_cycle_at(None), None);
    }

    /// Each jitter results in a different wait, also in the steady state, and no wait exceeds the limit.
    #[test]
    fn jitter_spreads_cycles_in_the_steady_state() {
        for (interval, lease_duration, longest) in [(10, 60, 30), (10, 40, 20), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(lease_duration));
            for calm in 0..5 {
                let pauses: BTreeSet<_> = (0..10).map(|jitter| pacing.steady_wait(f64::from(jitter) / 10.0)).collect();
                assert_eq!(pauses.len(), 10, "{interval} {lease_duration} after {calm}");
                assert!(pauses.last() <= Some(&seconds(longest)), "{pauses:?}");
                assert!(pauses.first() >= Some(&seconds(interval)), "{pauses:?}");
                pacing.finds(CycleFinding::Nothing);
            }
        }
    }
}
