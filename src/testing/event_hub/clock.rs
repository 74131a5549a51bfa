//! The wall clock of an emulator.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;

use crate::clock::{SystemWallClock, WallClock, later};

/// The clock of this machine, ahead by what a test added. It decides when tokens expire, when an event hub was created
/// and when events were enqueued.
#[derive(Debug)]
pub(super) struct EmulatorClock {
    ahead: watch::Sender<Duration>,
}

impl Default for EmulatorClock {
    fn default() -> Self {
        Self { ahead: watch::Sender::new(Duration::ZERO) }
    }
}

impl EmulatorClock {
    /// Moves the clock ahead, and wakes those that wait for [`moved`](Self::moved).
    pub(super) fn advance(&self, by: Duration) {
        self.ahead.send_modify(|ahead| *ahead = ahead.saturating_add(by));
    }

    /// Returns a receiver that is notified each time a test moves the clock.
    pub(super) fn moved(&self) -> watch::Receiver<Duration> {
        self.ahead.subscribe()
    }
}

impl WallClock for EmulatorClock {
    fn now(&self) -> OffsetDateTime {
        later(SystemWallClock.now(), *self.ahead.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_only_moves_ahead() {
        let (clock, hour) = (EmulatorClock::default(), Duration::from_secs(3600));
        clock.advance(hour);
        clock.advance(hour);
        assert!(clock.now() >= SystemWallClock.now() + hour + hour - Duration::from_secs(1));
        assert!(clock.now() <= SystemWallClock.now() + hour + hour);
    }
}
