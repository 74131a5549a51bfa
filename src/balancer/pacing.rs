//! How long to wait between two cycles: the interval, and longer while nothing changes.

use std::time::Duration;

use super::retries::back_off;

/// At most this many intervals.
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
    /// Half the expiry is the limit in any case, so that a dead owner is noticed within an expiry and a half.
    pub(super) fn new(interval: Duration, expiry: Duration) -> Self {
        Self { interval, longest: (LONGEST * interval).min(expiry / 2).max(interval), calm: 0, failures: 0 }
    }

    /// A cycle has ended, and was calm or not.
    pub(super) fn cycle(&mut self, calm: bool) {
        self.calm = if calm { (self.calm + 1).min(LONGEST) } else { 0 };
        self.failures = 0;
    }

    /// A cycle has failed. Answers the wait before the next one: short at first, for after a stretched pause there is
    /// no time to lose, then ever longer, up to the longest wait of a group at rest.
    pub(super) fn failed(&mut self, first: Duration, jitter: f64) -> Duration {
        self.calm = 0;
        let pause = back_off(self.failures, first, self.longest);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(1.0 - jitter / 10.0)
    }

    /// Something has changed.
    pub(super) fn disturb(&mut self) {
        self.calm = 0;
    }

    /// The wait before the next cycle. Jitter, a number from 0 to 1, makes it up to a tenth longer, or where that
    /// exceeds the limit, up to a tenth shorter than the limit: so that instances started together do not list together
    /// for ever.
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
    fn calm_cycles_come_ever_more_seldom_up_to_three_intervals() {
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
    fn a_cycle_that_failed_is_tried_again_soon_and_then_ever_later_up_to_the_limit() {
        let mut pacing = Pacing::new(seconds(10), seconds(60));
        let pauses: Vec<_> = (0..7).map(|_| pacing.failed(seconds(1), 0.0)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30].map(seconds));
        assert_eq!(pacing.failed(seconds(1), 0.5), Duration::from_millis(28_500));
        pacing.cycle(false);
        assert_eq!(pacing.failed(seconds(1), 0.0), seconds(1));
    }

    #[test]
    fn never_beyond_half_the_expiry_and_never_below_the_interval() {
        for (interval, expiry, longest) in [(10, 60, 30), (10, 40, 20), (10, 30, 15), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(expiry));
            for _ in 0..9 {
                pacing.cycle(true);
            }
            assert_eq!(pacing.pause(0.0), seconds(longest), "{interval} {expiry}");
        }
    }

    /// As many different waits as there are jitters, also in a settled group, and none beyond the limit.
    #[test]
    fn b23_jitter_spreads_the_cycles_of_a_settled_group() {
        for (interval, expiry, longest) in [(10, 60, 30), (10, 40, 20), (20, 60, 30)] {
            let mut pacing = Pacing::new(seconds(interval), seconds(expiry));
            for calm in 0..5 {
                let pauses: BTreeSet<_> = (0..10).map(|jitter| pacing.pause(f64::from(jitter) / 10.0)).collect();
                assert_eq!(pauses.len(), 10, "{interval} {expiry} after {calm}");
                assert!(pauses.last() <= Some(&seconds(longest)), "{pauses:?}");
                assert!(pauses.first() >= Some(&seconds(interval)), "{pauses:?}");
                pacing.cycle(true);
            }
        }
    }
}
