//! How long records are valid.

use std::time::Duration;

use super::heartbeat::HeartbeatRecord;
use super::ownership::OwnershipRecord;

/// How long ownerships and heartbeats are valid without renewal, as one instance knows it: its own, and those that say
/// nothing about themselves. All others are valid for as long as their records say, so that instances with different
/// lease durations judge each other alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "partition_expiration_duration")]
pub struct LeaseDurations {
    /// For what this instance writes.
    pub own: Duration,
    /// For records without a lease duration: other SDKs do not write one.
    pub foreign: Duration,
}

impl LeaseDurations {
    /// Creates the lease durations of an instance.
    #[must_use]
    pub const fn new(own: Duration, foreign: Duration) -> Self {
        Self { own, foreign }
    }

    /// Added to the age at which the ownership of another owner counts as expired, because `Date` and `Last-Modified`
    /// have a resolution of one second and may come from two machines.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// The shortest lease duration: server times have a resolution of one second. A shorter one in a record counts as
    /// this one.
    pub const SHORTEST: Duration = Duration::from_secs(4);

    /// The longest lease duration. No SDK has a longer one, and sums of such durations cannot overflow. A longer one in
    /// a record counts as this one.
    pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

    /// Returns the lease duration that this instance records: its own, rounded up to whole seconds.
    #[must_use]
    pub fn recorded(self) -> Duration {
        Duration::from_secs(self.own.as_secs() + u64::from(self.own.subsec_nanos() > 0))
    }

    /// Returns how long an ownership is valid without renewal.
    #[must_use]
    pub fn of(self, record: &OwnershipRecord) -> Duration {
        self.or_foreign(record.lease_duration)
    }

    /// Returns how long a heartbeat is valid.
    #[must_use]
    pub fn of_heartbeat(self, record: &HeartbeatRecord) -> Duration {
        self.or_foreign(record.lease_duration)
    }

    fn or_foreign(self, recorded: Option<Duration>) -> Duration {
        recorded.map_or(self.foreign, |duration| duration.clamp(Self::SHORTEST, Self::LONGEST))
    }

    /// Returns whether a record of this age is still valid. A released record never is.
    #[must_use]
    pub fn counts_as_live(self, record: &OwnershipRecord, age: Duration) -> bool {
        record.owner.is_some() && age < self.lifetime(record)
    }

    /// Returns whether the owner of a heartbeat of this age is still present in the group.
    #[must_use]
    pub fn counts_as_present(self, record: &HeartbeatRecord, age: Duration) -> bool {
        record.declared_dead_by.is_none() && age < self.of_heartbeat(record) + Self::GRACE
    }

    /// Returns the age at which a record expires for all observers.
    #[must_use]
    pub fn lifetime(self, record: &OwnershipRecord) -> Duration {
        self.of(record) + Self::GRACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_for_as_long_as_it_says() {
        let durations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));
        let lease_duration = |seconds: Option<u64>| {
            let lease_duration = seconds.map(Duration::from_secs);
            durations.of(&OwnershipRecord { lease_duration, ..Default::default() }).as_secs()
        };
        assert_eq!([14, 60, 300].map(|seconds| lease_duration(Some(seconds))), [14, 60, 300]);
        assert_eq!(lease_duration(None), 180, "another SDK");
        assert_eq!([0, 3].map(|seconds| lease_duration(Some(seconds))), [4, 4]);
        assert_eq!(lease_duration(Some(u64::MAX)), 24 * 60 * 60);
    }

    #[test]
    fn a_recorded_lease_duration_is_rounded_up() {
        let recorded = |millis| LeaseDurations::new(Duration::from_millis(millis), Duration::ZERO).recorded();
        assert_eq!([4000, 4001, 4999].map(|millis| recorded(millis).as_secs()), [4, 5, 5]);
    }
}
