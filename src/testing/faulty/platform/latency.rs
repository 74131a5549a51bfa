//! How long the service takes for a request.

use std::time::Duration;

/// How long each request takes. The default is no time.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::testing::faulty::Latency;
///
/// let seconds = Duration::from_secs;
/// assert_eq!(Latency::constant(seconds(4)).after(seconds(60)), seconds(4));
/// let growing = Latency::growing(seconds(1), seconds(3), seconds(60));
/// assert_eq!([0, 30, 60, 90].map(|at| growing.after(seconds(at))), [1, 2, 3, 3].map(seconds));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    first: Duration,
    last: Duration,
    over: Duration,
}

impl Latency {
    /// Every request takes this time.
    #[must_use]
    pub const fn constant(latency: Duration) -> Self {
        Self { first: latency, last: latency, over: Duration::ZERO }
    }

    /// Requests take `first` at the beginning, longer and longer for the time `over`, and `last` from then on.
    #[must_use]
    pub const fn growing(first: Duration, last: Duration, over: Duration) -> Self {
        Self { first, last, over }
    }

    /// Returns how long a request takes that begins after this time.
    #[must_use]
    pub fn after(&self, elapsed: Duration) -> Duration {
        if elapsed >= self.over {
            return self.last;
        }
        let share = elapsed.as_secs_f64() / self.over.as_secs_f64();
        self.first.mul_f64(1.0 - share) + self.last.mul_f64(share)
    }
}
