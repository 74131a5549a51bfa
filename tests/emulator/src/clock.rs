//! The wall clock of an emulator.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;

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
    /// Returns the current time, up to the last moment of the calendar.
    pub(super) fn now(&self) -> OffsetDateTime {
        let ahead = time::Duration::try_from(*self.ahead.borrow()).unwrap_or(time::Duration::MAX);
        system_time().saturating_add(ahead)
    }

    /// Moves the clock ahead, and wakes those that wait for [`moved`](Self::moved).
    pub(super) fn advance(&self, by: Duration) {
        self.ahead.send_modify(|ahead| *ahead = ahead.saturating_add(by));
    }

    /// Returns a receiver that is notified each time a test moves the clock.
    pub(super) fn moved(&self) -> watch::Receiver<Duration> {
        self.ahead.subscribe()
    }
}

/// Returns the time of this machine.
#[expect(clippy::disallowed_methods, reason = "everything else here takes the time from this clock")]
fn system_time() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_only_moves_ahead() {
        let clock = EmulatorClock::default();
        let hour = Duration::from_secs(3600);
        clock.advance(hour);
        clock.advance(hour);
        assert!(clock.now() >= system_time() + hour + hour - Duration::from_secs(1));
        assert!(clock.now() <= system_time() + hour + hour);
    }
}
