//! The wait between two cycles: the interval, and longer while nothing changes.

use std::time::Duration;

use super::retries::back_off;

/// The longest wait, in intervals.
const LONGEST: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    interval: Duration,
    longest: Duration,
    /// How many cycles in a row found nothing new and nothing to do.
    calm: u32,
    /// How many cycles in a row have failed.
    failures: u32,
}

impl Pacing {
    /// Creates the pacing of a loop. Half the lease duration limits the wait, so that an expired owner is detected
    /// within one and a half lease durations after its last renewal.
    pub(super) fn new(interval: Duration, lease_duration: Duration) -> Self {
        Self { interval, longest: (LONGEST * interval).min(lease_duration / 2).max(interval), calm: 0, failures: 0 }
    }

    /// Records that a cycle succeeded, and whether it was calm.
    pub(super) fn cycle(&mut self, calm: bool) {
        self.calm = if calm { (self.calm + 1).min(LONGEST) } else { 0 };
        self.failures = 0;
    }

    /// Records that a cycle has failed, and returns the wait before the next one. The first wait is short, because the
    /// previous one may have been long. Later waits double, up to the longest wait of the steady state.
    pub(super) fn failed(&mut self, first: Duration, jitter: f64) -> Duration {
        self.calm = 0;
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
        let longer = (self.interval * self.calm.clamp(1, LONGEST)).mul_f64(1.0 + jitter / 10.0);
        if longer <= self.longest { longer } else { self.longest.mul_f64(1.0 - jitter / 10.0) }
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
                pacing.cycle(true);
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
        pacing.cycle(false);
        assert_eq!(pacing.failed(seconds(1), 0.0), seconds(1));
    }

    #[test]
    fn waits_stay_within_interval_and_half_a_lease() {
        for (interval, lease_duration, longest) in [(10, 60, 30), (10, 40, 20), (10, 30, 15), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(lease_duration));
            for _ in 0..9 {
                pacing.cycle(true);
            }
            assert_eq!(pacing.pause(0.0), seconds(longest), "{interval} {lease_duration}");
        }
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
                pacing.cycle(true);
            }
        }
    }
}
