//! The ports for the local wall clock and for the clock that measures leases.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

/// The local wall clock. It decides nothing about ownership; requests that are signed with an account key need it for
/// their date. A port, so that tests can set it.
pub trait WallClock: fmt::Debug + Send + Sync {
    /// Returns the current time of this machine.
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

/// The clock that measures leases. It keeps running while this machine is suspended, because the leases and timeouts of
/// other instances do. A port, so that tests can suspend a machine.
pub trait LeaseClock: fmt::Debug + Send + Sync {
    /// Returns the time since a fixed moment. Only differences are meaningful.
    fn now(&self) -> Duration;
}

/// Tokio's clock plus the time for which the machine was suspended, which Linux and Android report by `CLOCK_BOOTTIME`.
/// Under paused tokio time it is tokio's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemLeaseClock {
    started: Instant,
    suspended_before: Duration,
}

/// The first value of this clock, large enough that moments before it exist.
const BEGINNING: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Two clocks cannot be read at the same moment, so smaller differences between them are ignored.
const UNCERTAINTY: Duration = Duration::from_millis(500);

impl Default for SystemLeaseClock {
    fn default() -> Self {
        Self { started: Instant::now(), suspended_before: time_suspended() }
    }
}

impl LeaseClock for SystemLeaseClock {
    fn now(&self) -> Duration {
        BEGINNING + lease_time(self.started.elapsed(), self.suspended_before, time_suspended())
    }
}

fn lease_time(awake: Duration, suspended_before: Duration, suspended: Duration) -> Duration {
    let meanwhile = suspended.saturating_sub(suspended_before);
    if meanwhile < UNCERTAINTY { awake } else { awake + meanwhile }
}

/// Returns how long this machine was suspended since it booted.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn time_suspended() -> Duration {
    use rustix::time::{ClockId, Timespec, clock_gettime};
    // The awake time is read first, so that the difference is not too small.
    let [awake, since_boot] = [ClockId::Monotonic, ClockId::Boottime].map(|clock| {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
        Duration::new(u64::try_from(tv_sec).unwrap_or_default(), u32::try_from(tv_nsec).unwrap_or_default())
    });
    since_boot.saturating_sub(awake)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn time_suspended() -> Duration {
    Duration::ZERO
}

/// Waits until this moment; forever if there is none.
pub(crate) async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Returns whether tokio's time is paused on this runtime, as in tests.
///
/// Tokio does not expose that. Its clock stands still if it is paused, so this compares it with the system's clock.
#[expect(clippy::disallowed_methods, reason = "the system's clock is what this compares with")]
pub(crate) fn is_paused() -> bool {
    let paused = Instant::now();
    let system = std::time::Instant::now();
    while system.elapsed() < Duration::from_micros(1) {}
    Instant::now() == paused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_time_is_detected() {
        assert!(is_paused());
        tokio::time::resume();
        assert!(!is_paused());
    }

    #[tokio::test(start_paused = true)]
    async fn in_paused_time_the_lease_clock_is_tokios() {
        let clock = SystemLeaseClock::default();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.now(), before + Duration::from_secs(60));
    }

    #[test]
    fn only_long_differences_count_as_suspension() {
        let seconds = Duration::from_secs;
        assert_eq!(lease_time(seconds(10), seconds(100), seconds(700)), seconds(610));
        assert_eq!(lease_time(seconds(10), seconds(100), seconds(100) + Duration::from_millis(20)), seconds(10));
        assert_eq!(lease_time(seconds(10), seconds(100), seconds(99)), seconds(10));
    }
}
