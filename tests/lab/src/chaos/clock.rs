//! One clock for all processes of a run: the machine's monotonic clock, which no fault affects.

use std::time::Duration;

use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;

/// Time since the run began.
pub type Moment = Duration;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Duration,
}

impl Clock {
    /// The run begins now.
    pub fn start() -> Self {
        Self { began: monotonic() }
    }

    /// Returns the clock of a run that another process began.
    pub fn of_run(began: u64) -> Self {
        Self { began: Duration::from_nanos(began) }
    }

    /// Returns what another process needs to have the same clock.
    pub fn began(self) -> u64 {
        u64::try_from(self.began.as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn now(self) -> Moment {
        monotonic().saturating_sub(self.began)
    }

    /// Returns the moment of a time of the machine's wall clock, which is not in the future.
    pub fn moment_of(self, time: OffsetDateTime) -> Moment {
        let ago = Duration::try_from(SystemWallClock.now() - time).unwrap_or_default();
        self.now().saturating_sub(ago)
    }
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
