//! Time: the ports of the local wall clock and of the clock that leases go by, and waiting for a moment that may not be
//! set.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

/// The local wall clock. It decides nothing about ownership; requests signed with an account key need it for their
/// date. A port, so that tests can put it wrong.
pub trait WallClock: fmt::Debug + Send + Sync {
    /// What this machine takes for the current time.
    fn now(&self) -> OffsetDateTime;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    #[expect(clippy::disallowed_methods, reason = "this is the port itself")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

/// The time so long after this one, or the last moment of the calendar. A backend may pass on any date.
pub(crate) fn later(time: OffsetDateTime, by: Duration) -> OffsetDateTime {
    time.saturating_add(by.try_into().unwrap_or(time::Duration::MAX))
}

/// Time as leases count it. It goes on while this machine is suspended, for the leases of others, and the patience of
/// others with ours, do so, too. A port, so that tests can suspend a machine.
pub trait LeaseClock: fmt::Debug + Send + Sync {
    /// Time since some fixed moment. Only differences mean anything.
    fn now(&self) -> Duration;
}

/// Tokio's clock, and what that leaves out: the time of suspension, where the system tells it (Linux and Android, by
/// `CLOCK_BOOTTIME`). In paused tokio time it is tokio's clock alone.
#[derive(Clone, Copy, Debug)]
pub struct SystemLeaseClock {
    started: Instant,
    suspended_before: Duration,
}

/// Where this clock begins: so far from zero that a moment before its beginning is one, too.
const BEGINNING: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Two clocks cannot be read at one moment; smaller differences between them are taken for that.
const UNCERTAINTY: Duration = Duration::from_millis(500);

impl Default for SystemLeaseClock {
    fn default() -> Self {
        Self { started: Instant::now(), suspended_before: suspended() }
    }
}

impl LeaseClock for SystemLeaseClock {
    fn now(&self) -> Duration {
        BEGINNING + lease_time(self.started.elapsed(), self.suspended_before, suspended())
    }
}

fn lease_time(awake: Duration, suspended_before: Duration, suspended: Duration) -> Duration {
    let meanwhile = suspended.saturating_sub(suspended_before);
    if meanwhile < UNCERTAINTY { awake } else { awake + meanwhile }
}

/// For how long this machine was suspended since its start.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn suspended() -> Duration {
    use rustix::time::{ClockId, Timespec, clock_gettime};
    let since_start = |Timespec { tv_sec, tv_nsec }| {
        Duration::new(u64::try_from(tv_sec).unwrap_or_default(), u32::try_from(tv_nsec).unwrap_or_default())
    };
    let running = since_start(clock_gettime(ClockId::Monotonic));
    since_start(clock_gettime(ClockId::Boottime)).saturating_sub(running)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn suspended() -> Duration {
    Duration::ZERO
}

/// Ready at this moment; never, if there is none.
pub(crate) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn in_paused_time_the_lease_clock_is_tokios() {
        let clock = SystemLeaseClock::default();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.now(), before + Duration::from_secs(60));
    }

    #[test]
    fn time_of_suspension_counts_and_what_two_clocks_read_apart_does_not() {
        let seconds = Duration::from_secs;
        assert_eq!(lease_time(seconds(10), seconds(100), seconds(700)), seconds(610));
        assert_eq!(lease_time(seconds(10), seconds(100), seconds(100) + Duration::from_millis(20)), seconds(10));
        assert_eq!(lease_time(seconds(10), seconds(100), seconds(99)), seconds(10));
    }
}
