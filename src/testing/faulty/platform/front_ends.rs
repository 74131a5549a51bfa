//! The clocks of the machines that respond.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// The number of machines that respond.
const FRONT_ENDS: usize = 4;

/// The machines that respond, in the order of their responses.
#[derive(Debug)]
pub(super) struct FrontEnds {
    rng: StdRng,
    clocks: [Clock; FRONT_ENDS],
}

/// The clock of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// A moment at which a second of the storage's clock began.
    second: Instant,
    milliseconds_ahead: i64,
}

impl FrontEnds {
    /// Creates machines whose clocks are at most `bound` ahead of or behind the clock of the storage.
    pub(super) fn new(seed: u64, bound: Duration) -> Self {
        let (second, mut rng) = (Instant::now(), StdRng::seed_from_u64(seed));
        let bound = i64::try_from(bound.as_millis()).unwrap_or(i64::MAX);
        let clocks = std::array::from_fn(|_| Clock {
            second,
            milliseconds_ahead: rng.random_range(bound.saturating_neg()..=bound),
        });
        Self { rng, clocks }
    }

    /// Returns the clock of the machine that responds to the next request.
    pub(super) fn next(&mut self) -> Clock {
        self.clocks[self.rng.random_range(0..FRONT_ENDS)]
    }
}

impl Clock {
    /// Returns the difference in seconds between the `Date` of this machine and the storage's clock at this moment.
    /// Both have whole seconds.
    pub(super) fn seconds_ahead(self, moment: Instant) -> i64 {
        let into_second = moment.saturating_duration_since(self.second).subsec_millis();
        (i64::from(into_second).saturating_add(self.milliseconds_ahead)).div_euclid(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_the_clock_in_whole_seconds() {
        let second = Instant::now();
        for (milliseconds_ahead, into_second, expected) in [
            (0, 0, 0),
            (0, 999, 0),
            (1, 999, 1),
            (-1, 0, -1),
            (-1, 1, 0),
            (1000, 0, 1),
            (1000, 999, 1),
            (-1000, 999, -1),
            (2500, 499, 2),
            (2500, 500, 3),
        ] {
            let clock = Clock { second, milliseconds_ahead };
            let moment = second + Duration::from_secs(7) + Duration::from_millis(into_second);
            assert_eq!(clock.seconds_ahead(moment), expected, "{milliseconds_ahead} ms ahead, at {into_second} ms");
        }
    }

    #[test]
    fn clocks_are_bounded_and_deterministic() {
        let drawn = |seed, bound| {
            let mut front_ends = FrontEnds::new(seed, bound);
            (0..100).map(|_| front_ends.next().milliseconds_ahead).collect::<Vec<_>>()
        };
        let bound = Duration::from_millis(700);
        let first = drawn(3, bound);
        assert_eq!(first, drawn(3, bound));
        assert_ne!(first, drawn(4, bound));
        assert!(first.iter().all(|ahead| ahead.abs() <= 700), "{first:?}");
        assert!(first.iter().any(|ahead| *ahead != first[0]), "{first:?}");
        assert!(drawn(3, Duration::ZERO).iter().all(|ahead| *ahead == 0));
    }
}
