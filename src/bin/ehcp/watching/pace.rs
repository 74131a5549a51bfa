//! When to look at a group: pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::args::LookIntervals;

/// Decides when the records are listed: after a change that the beacon shows, and from time to time without one.
#[derive(Debug)]
pub struct LookPace {
    interval: Duration,
    refresh: Duration,
    /// When the last refresh began.
    looked_at: Option<Instant>,
    /// How many looks have failed in a row.
    failures: u32,
    /// The last change that the beacon has shown.
    shown: Option<i64>,
    /// The last change that a look covers.
    covered: Option<i64>,
}

impl LookPace {
    pub fn new(intervals: LookIntervals) -> Self {
        let LookIntervals { interval, refresh, .. } = intervals;
        Self { interval, refresh, looked_at: None, failures: 0, shown: None, covered: None }
    }

    /// Returns whether the beacon can save a look. If the records are listed at each interval, it cannot.
    pub fn needs_beacon(&self) -> bool {
        self.refresh > self.interval
    }

    /// Notes what the beacon shows. A beacon that is missing or not readable shows nothing new.
    pub fn on_beacon(&mut self, change: Option<i64>) {
        self.shown = change.or(self.shown);
    }

    /// Returns whether to look now. A look that failed is repeated at the next interval, and then less and less often:
    /// a blob service that rejects requests charges for them, too.
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(looked_at) = self.looked_at else { return true };
        let age = now.duration_since(looked_at);
        let retry = self.interval.saturating_mul(1 << self.failures.saturating_sub(1).min(16));
        age >= self.refresh || if self.failures == 0 { self.shown != self.covered } else { age >= retry }
    }

    /// Returns whether to look because the user wants it.
    pub fn is_older_than_interval(&self, now: Instant) -> bool {
        self.looked_at.is_none_or(|looked_at| now.duration_since(looked_at) > self.interval)
    }

    pub fn on_look_begun(&mut self, now: Instant) {
        self.looked_at = Some(now);
    }

    /// A change that the beacon showed before the look is covered by it.
    pub fn on_look_ended(&mut self, has_succeeded: bool) {
        if has_succeeded {
            self.failures = 0;
            self.covered = self.shown;
        } else {
            self.failures += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Parser)]
    struct Defaults {
        #[command(flatten)]
        looks: LookIntervals,
    }

    fn intervals(arguments: &[&str]) -> LookIntervals {
        Defaults::parse_from([&["ehcp"], arguments].concat()).looks
    }

    /// A pace after its first look.
    struct Paced {
        pace: LookPace,
        began: Instant,
    }

    impl Paced {
        fn new(arguments: &[&str]) -> Self {
            let mut paced = Self { pace: LookPace::new(intervals(arguments)), began: Instant::now() };
            assert!(paced.pace.is_due(paced.began));
            paced.look(0, true);
            paced
        }

        fn look(&mut self, seconds: u32, has_succeeded: bool) {
            self.pace.on_look_begun(self.began + seconds * SECOND);
            self.pace.on_look_ended(has_succeeded);
        }

        fn is_due(&self, seconds: u32) -> bool {
            self.pace.is_due(self.began + seconds * SECOND)
        }
    }

    #[test]
    fn a_change_is_looked_at_once() {
        let mut paced = Paced::new(&[]);
        paced.pace.on_beacon(Some(7));
        assert!(paced.is_due(3));
        paced.look(3, true);
        for shown in [Some(7), None] {
            paced.pace.on_beacon(shown);
            assert!(!paced.is_due(6), "{shown:?}");
        }
        paced.pace.on_beacon(Some(8));
        assert!(paced.is_due(9));
    }

    #[test]
    fn without_a_change_looks_come_at_each_refresh() {
        let mut paced = Paced::new(&["--refresh", "30s"]);
        for shown in [None, Some(0)] {
            paced.pace.on_beacon(shown);
            paced.look(0, true);
            assert_eq!([29, 30].map(|seconds| paced.is_due(seconds)), [false, true], "{shown:?}");
        }
    }

    #[test]
    fn a_short_refresh_needs_no_beacon() {
        for (refresh, needs) in [("2s", false), ("3s", false), ("4s", true)] {
            assert_eq!(Paced::new(&["--refresh", refresh]).pace.needs_beacon(), needs, "{refresh}");
        }
        assert!(Paced::new(&["--refresh", "100ms"]).is_due(3));
    }

    #[test]
    fn a_failed_look_is_repeated_ever_more_rarely() {
        let mut paced = Paced::new(&[]);
        for waits in [3, 6, 12, 24, 48, 60, 60] {
            paced.pace.on_beacon(Some(waits));
            paced.look(0, false);
            assert_eq!([waits - 1, waits].map(|at| paced.is_due(at.try_into().unwrap())), [false, true], "{waits}");
        }
        paced.look(0, true);
        assert!(!paced.is_due(59));
    }

    #[test]
    fn a_look_that_failed_covers_no_change() {
        let mut paced = Paced::new(&[]);
        paced.pace.on_beacon(Some(7));
        paced.look(3, false);
        assert!(paced.is_due(6));
        assert_ne!(paced.pace.shown, paced.pace.covered);
    }

    /// In USD per month, for a group whose names have uppercase letters, so that each refresh sends two listings.
    #[test]
    fn the_defaults_cost_at_most_a_dollar() {
        const LISTING: f64 = 0.055 / 10_000.0;
        const READ: f64 = 0.0044 / 10_000.0;
        const HOURS: f64 = 730.0;
        let mut paced = Paced::new(&[]);
        let (mut reads, mut looks) = (0, 0);
        for seconds in (0..=3600).step_by(3).skip(1) {
            reads += u32::from(paced.pace.needs_beacon());
            if paced.is_due(seconds) {
                looks += 1;
                paced.look(seconds, true);
            }
        }
        assert_eq!((reads, looks), (1200, 60), "per hour, as docs/ehcp.md says");
        let dollars = HOURS * (f64::from(reads) * READ + f64::from(2 * looks) * LISTING);
        assert!((0.8..=1.0).contains(&dollars), "{dollars}");
    }
}
