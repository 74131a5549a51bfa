//! The wait between two cycles: the interval, longer while nothing changes, and shorter while this instance claims
//! unowned partitions.

use std::time::Duration;

use super::retries::back_off;

/// The longest wait, in intervals.
const LONGEST: u32 = 3;

/// The shortest wait while unowned partitions are claimed.
const SHORTEST: Duration = Duration::from_secs(1);

/// A short wait takes at least this many times as long as the cycle before it, so that a slow storage has few requests.
const REST: u32 = 4;

/// What a cycle found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing new and nothing to do.
    Nothing,
    Change,
    /// Unowned partitions, of which this instance claims at least one.
    Unowned,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    interval: Duration,
    longest: Duration,
    /// How many cycles in a row found nothing new and nothing to do.
    calm: u32,
    /// How many cycles in a row have failed.
    failures: u32,
    /// Whether the last cycle claimed an unowned partition.
    claims: bool,
    /// The wait after such a cycle.
    short: Duration,
}

impl Pacing {
    /// Creates the pacing of a loop. Half the lease duration limits the wait, so that an expired owner is detected
    /// within one and a half lease durations after its last renewal.
    pub(super) fn new(interval: Duration, lease_duration: Duration) -> Self {
        Self {
            interval,
            longest: (LONGEST * interval).min(lease_duration / 2).max(interval),
            calm: 0,
            failures: 0,
            claims: false,
            short: SHORTEST.min(interval),
        }
    }

    /// Records that a cycle succeeded, what it found, and how long it took.
    pub(super) fn cycle(&mut self, found: Found, took: Duration) {
        self.calm = if found == Found::Nothing { (self.calm + 1).min(LONGEST) } else { 0 };
        self.failures = 0;
        self.claims = found == Found::Unowned;
        self.short = (self.short / 2).max(SHORTEST).max(REST * took).min(self.interval);
    }

    /// Returns whether the last cycle claimed an unowned partition, so that the wait after it is short.
    pub(super) fn claims(&self) -> bool {
        self.claims
    }

    /// Records that a request failed: the next short wait is a whole interval, and the waits after it are half as long
    /// each time.
    pub(super) fn slow_down(&mut self) {
        self.short = self.interval;
    }

    /// Records that a cycle has failed, and returns the wait before the next one. The first wait is short, because the
    /// previous one may have been long. Later waits double, up to the longest wait of the steady state.
    pub(super) fn failed(&mut self, first: Duration, jitter: f64) -> Duration {
        self.calm = 0;
        self.slow_down();
        let pause = back_off(self.failures, first, self.longest);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(1.0 - jitter / 10.0)
    }

    /// Records that something changed.
    pub(super) fn disturb(&mut self) {
        self.calm = 0;
    }

    /// Returns the wait before the next cycle. `jitter`, a number from 0 to 1, makes it up to a tenth longer; if that
    /// exceeds the limit, the wait is up to a tenth shorter than the limit. Instances that started together then do not
    /// list together forever.
    pub(super) fn pause(&self, jitter: f64) -> Duration {
        if self.claims {
            return self.short_pause(jitter);
        }
        let longer = (self.interval * self.calm.clamp(1, LONGEST)).mul_f64(1.0 + jitter / 10.0);
        if longer <= self.longest { longer } else { self.longest.mul_f64(1.0 - jitter / 10.0) }
    }

    /// Returns the wait before the next cycle if an ownership of another instance expires after this time: until then,
    /// unless the usual wait is shorter.
    pub(super) fn pause_until(&self, expiry: Option<Duration>, jitter: f64) -> Duration {
        let expires = |expiry: Duration| expiry.max(self.short) + SHORTEST.min(self.interval).mul_f64(jitter);
        let usual = self.pause(jitter);
        expiry.map_or(usual, |expiry| usual.min(expires(expiry)))
    }

    /// Returns the wait between two claims: up to a quarter longer than the shortest one, so that instances that started
    /// together do not list together.
    fn short_pause(&self, jitter: f64) -> Duration {
        self.short.mul_f64(1.0 + jitter / 4.0).min(self.interval.mul_f64(1.0 + jitter / 10.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn calm_cycles_wait_up_to_three_intervals() {
        let mut pacing = Pacing::new(seconds(10), seconds(120));
        let pauses: Vec<_> = (0..5)
            .map(|_| {
                pacing.cycle(Found::Nothing, Duration::ZERO);
                pacing.pause(0.0)
            })
            .collect();
        assert_eq!(pauses, [10, 20, 30, 30, 30].map(seconds));
        pacing.disturb();
        assert_eq!(pacing.pause(0.0), seconds(10));
        assert_eq!(pacing.pause(0.5), Duration::from_millis(10_500));
    }

    #[test]
    fn waits_after_failures_double_up_to_the_limit() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        let pauses: Vec<_> = (0..7).map(|_| pacing.failed(seconds(1), 0.0)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30].map(seconds));
        assert_eq!(pacing.failed(seconds(1), 0.5), Duration::from_millis(28_500));
        pacing.cycle(Found::Change, Duration::ZERO);
        assert_eq!(pacing.failed(seconds(1), 0.0), seconds(1));
    }

    #[test]
    fn waits_stay_within_interval_and_half_a_lease() {
        for (interval, lease_duration, longest) in [(10, 60, 30), (10, 40, 20), (10, 30, 15), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(lease_duration));
            for _ in 0..9 {
                pacing.cycle(Found::Nothing, Duration::ZERO);
            }
            assert_eq!(pacing.pause(0.0), seconds(longest), "{interval} {lease_duration}");
        }
    }

    #[test]
    fn waits_between_claims_are_short() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        pacing.cycle(Found::Unowned, Duration::ZERO);
        assert!(pacing.claims());
        assert_eq!((pacing.pause(0.0), pacing.pause(1.0)), (seconds(1), Duration::from_millis(1250)));
        pacing.cycle(Found::Change, Duration::ZERO);
        assert_eq!((pacing.claims(), pacing.pause(0.0)), (false, seconds(10)));
    }

    #[test]
    fn waits_between_claims_grow_with_slow_storage() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        let mut after = |took| {
            pacing.cycle(Found::Unowned, Duration::from_millis(took));
            pacing.pause(0.0)
        };
        assert_eq!([100, 500, 2000, 9000].map(&mut after), [1, 2, 8, 10].map(seconds));
        assert_eq!([0, 0, 0, 0].map(after), [5000, 2500, 1250, 1000].map(Duration::from_millis));
    }

    #[test]
    fn a_failure_makes_the_waits_between_claims_long() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        pacing.cycle(Found::Unowned, Duration::ZERO);
        pacing.slow_down();
        assert_eq!((pacing.pause(0.0), pacing.pause(1.0)), (seconds(10), seconds(11)));
        pacing.cycle(Found::Unowned, Duration::ZERO);
        assert_eq!(pacing.pause(0.0), seconds(5));
        pacing.failed(seconds(1), 0.0);
        pacing.cycle(Found::Unowned, Duration::ZERO);
        assert_eq!(pacing.pause(0.0), seconds(5), "a listing that failed counts, too");
    }

    #[test]
    fn short_intervals_are_never_exceeded() {
        let mut pacing = Pacing::new(Duration::from_millis(20), seconds(60));
        pacing.cycle(Found::Unowned, seconds(1));
        assert_eq!(pacing.pause(0.0), Duration::from_millis(20));
    }

    #[test]
    fn the_next_cycle_waits_for_an_expiry() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        (0..5).for_each(|_| pacing.cycle(Found::Nothing, Duration::ZERO));
        let until = |pacing: &Pacing, expiry| pacing.pause_until(Some(seconds(expiry)), 0.0);
        assert_eq!([0, 1, 7, 29, 31].map(|expiry| until(&pacing, expiry)), [1, 1, 7, 29, 30].map(seconds));
        assert_eq!(pacing.pause_until(Some(seconds(7)), 1.0), seconds(8));
        pacing.slow_down();
        assert_eq!(until(&pacing, 2), seconds(10), "not while the storage fails");
    }

    /// Each jitter results in a different wait, also in the steady state, and no wait exceeds the limit.
    #[test]
    fn b23_jitter_spreads_cycles_in_the_steady_state() {
        for (interval, lease_duration, longest) in [(10, 60, 30), (10, 40, 20), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(lease_duration));
            for calm in 0..5 {
                let pauses: BTreeSet<_> = (0..10).map(|jitter| pacing.pause(f64::from(jitter) / 10.0)).collect();
                assert_eq!(pauses.len(), 10, "{interval} {lease_duration} after {calm}");
                assert!(pauses.last() <= Some(&seconds(longest)), "{pauses:?}");
                assert!(pauses.first() >= Some(&seconds(interval)), "{pauses:?}");
                pacing.cycle(Found::Nothing, Duration::ZERO);
            }
        }
    }
}
