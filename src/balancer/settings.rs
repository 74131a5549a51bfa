//! What does not change while a loop runs.

use std::time::Duration;

use super::config::{BalancerConfig, OnLeaseExpiry};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::model::{Identity, LeaseDurations};

/// The longest cooldown. Longer ones make no difference, and sums of them must not overflow.
const LONGEST_COOLDOWN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The settings of a loop and of its store.
#[derive(Clone, Debug)]
pub struct LoopSettings {
    pub this: Identity,
    pub lease_durations: LeaseDurations,
    pub request_timeout: Duration,
    pub config: BalancerConfig,
    /// How long handlers may take to stop.
    pub drain_timeout: Duration,
    /// Whether the application reports each partition that it has started to process. A balancer alone does not know
    /// when its application does, so it does not wait for that.
    pub reports_starts: bool,
    /// Whether the names of the group differ in the other name case.
    pub has_other_name_case: bool,
}

impl LoopSettings {
    pub(super) fn lease_duration(&self) -> Duration {
        self.lease_durations.own
    }

    pub(super) fn interval(&self) -> Duration {
        self.config.load_balancing_interval
    }

    /// Whether partitions move by handoff. Only if handlers have time to stop: otherwise a request has no advantage
    /// over a steal.
    pub(super) fn hands_over(&self) -> bool {
        self.config.handoff && !self.drain_timeout.is_zero()
    }

    /// Returns the age at which a lease ends with [`OnLeaseExpiry::Stop`]. The handler must have stopped before the
    /// server can show an age of the lease duration, and the server shows whole seconds.
    pub(super) fn lease_lifetime(&self) -> Option<Duration> {
        let strict = self.config.on_lease_expiry == OnLeaseExpiry::Stop;
        strict.then(|| self.lease_duration().saturating_sub(LeaseDurations::GRACE + self.drain_timeout))
    }

    /// Returns the age at which a lease is renewed: half the lease duration. With [`OnLeaseExpiry::Stop`] the lease
    /// ends earlier, and a renewal that meets the request of another instance needs three requests, each of which may
    /// take almost the request timeout, so it begins earlier, too, but not before a third of that time.
    pub(super) fn renewal_age(&self) -> Duration {
        let half = self.lease_duration() / 2;
        let Some(lifetime) = self.lease_lifetime() else { return half };
        half.min(lifetime.saturating_sub(3 * self.request_timeout).max(lifetime / 3))
    }

    /// Returns the wait before the first retry of a request that failed.
    pub(super) fn first_retry_wait(&self) -> Duration {
        (self.lease_duration() / 16).min(Duration::from_secs(1))
    }

    /// Returns the wait that the server asks for, up to the lease duration: this instance must still look for expired
    /// owners.
    pub(super) fn retry_after(&self, error: &Error) -> Duration {
        error.retry_after().unwrap_or_default().min(self.lease_duration())
    }

    /// Returns the wait between two polls of a handoff.
    pub(super) fn poll_wait(&self) -> Duration {
        self.interval() / 2
    }

    /// Returns how long a handler may take to stop and to write its last checkpoint: one that is under way, and one
    /// after a conflict. An instance that requested the partition waits as long as the lease is renewed.
    pub(super) fn time_to_stop(&self) -> Duration {
        self.drain_timeout + 4 * self.request_timeout
    }

    /// Returns how long releases may take.
    pub(super) fn release_limit(&self) -> Duration {
        4 * self.request_timeout
    }

    /// Returns the wait before a partition is claimed again that could not be won `failures` times in a row: a quarter
    /// of an interval at first, doubled with each failure, and at most the lease duration.
    pub(super) fn setback_wait(&self, failures: u32, at_least: Duration) -> Duration {
        let wait = Backoff::new(self.interval() / 4, self.lease_duration()).wait_after(failures);
        wait.max(at_least.min(LONGEST_COOLDOWN))
    }

    /// Returns the wait before this instance claims a partition again that it has released: at least one interval and a
    /// half, so that another instance can claim it.
    pub(super) fn claim_cooldown(&self, wanted: Duration) -> Duration {
        wanted.min(LONGEST_COOLDOWN).max(self.interval()) + self.interval() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Incarnation, OwnerId};
    use time::macros::datetime;

    /// In seconds, for a lease duration, a request timeout, and how long a handler may take to stop.
    fn renewal_age(on_lease_expiry: OnLeaseExpiry, lease: u64, timeout: u64, drain: u64) -> u64 {
        let lease = Duration::from_secs(lease);
        let incarnation = Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1);
        let settings = LoopSettings {
            this: Identity::new(OwnerId::new("a").unwrap(), incarnation),
            lease_durations: LeaseDurations::new(lease, 3 * lease),
            request_timeout: Duration::from_secs(timeout),
            config: BalancerConfig::default().with_on_lease_expiry(on_lease_expiry),
            drain_timeout: Duration::from_secs(drain),
            reports_starts: false,
            has_other_name_case: false,
        };
        settings.renewal_age().as_secs()
    }

    /// Otherwise each request of a handoff would cost the lease if the storage is slow.
    #[test]
    fn a_renewal_has_time_for_three_slow_requests() {
        use OnLeaseExpiry::{Continue, Stop};
        for (on_lease_expiry, lease, timeout, drain, age) in [
            (Continue, 60, 5, 20, 30),
            (Stop, 60, 5, 20, 23),
            (Stop, 60, 1, 5, 30),
            (Stop, 30, 5, 4, 9),
            (Stop, 20, 5, 3, 5),
        ] {
            assert_eq!(renewal_age(on_lease_expiry, lease, timeout, drain), age, "{on_lease_expiry:?} {lease} s");
        }
    }
}
