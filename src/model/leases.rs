//! Leases: the records of owners as a listing shows them, and how long they are valid.

use std::time::Duration;

use time::OffsetDateTime;

use super::blob::ETag;
use super::names::PartitionId;
use super::owner::{Identity, Relation};
use super::records::{HeartbeatRecord, LeaseScope, OwnershipRecord};

/// A point in time on an instance's own monotonic clock, which measures leases: the time since a fixed moment. Only
/// differences are meaningful.
pub type Moment = Duration;

/// The ownership of one partition, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ownership {
    /// The partition.
    pub partition: PartitionId,
    /// The content of the record.
    pub record: OwnershipRecord,
    /// The version of the blob.
    pub etag: ETag,
    /// Time since the last write, by the server's clock, at the time of the response.
    pub age: Duration,
    /// The server time of the response.
    pub server_time: OffsetDateTime,
    /// When the response arrived, on the [lease clock](crate::store::GroupStore::lease_clock_now).
    pub received: Moment,
}

impl Ownership {
    /// Creates an ownership with this version and age, from a response with `server_time` that arrived at `received`.
    #[must_use]
    pub fn new(
        partition: PartitionId,
        record: OwnershipRecord,
        etag: ETag,
        age: Duration,
        (server_time, received): (OffsetDateTime, Moment),
    ) -> Self {
        Self { partition, record, etag, age, server_time, received }
    }

    /// Returns the age of the record at `now`, on the same clock as `received`.
    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }

    /// Returns the time since the owner last renewed the lease, at `now`: the age of the record, or the age of the
    /// owner's heartbeat if that keeps the lease alive and is younger.
    #[must_use]
    pub fn time_since_renewal(&self, heartbeats: &[Heartbeat], now: Moment) -> Duration {
        let age = self.age_at(now);
        if self.record.scope != LeaseScope::Instance {
            return age;
        }
        heartbeats
            .iter()
            .filter(|seen| {
                Some(&seen.record.owner) == self.record.owner.as_ref()
                    && seen.record.incarnation == self.record.incarnation
                    && seen.record.declared_dead_by.is_none()
            })
            .map(|seen| seen.age_at(now))
            .fold(age, Duration::min)
    }

    /// Returns whether the owner must be [declared dead](crate::store::GroupStore::declare_dead) before the partition
    /// may be claimed because its lease expired. Not if the partition was released, if only the age of the record
    /// counts, or if this incarnation wrote the record.
    pub(crate) fn is_kept_alive_by_heartbeat(&self, this: &Identity) -> bool {
        self.record.owner.is_some()
            && self.record.scope == LeaseScope::Instance
            && self.record.relation_to(this) != Relation::This
    }
}

/// The heartbeat of one owner, as a listing shows it.
///
/// Other instances leave a share to an owner with a live heartbeat, even if it owns nothing. An owner that would not
/// claim its share, because it is stalled or shuts down, must not have a heartbeat: no instance would read that share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The content of the record.
    pub record: HeartbeatRecord,
    /// The version of the blob.
    pub etag: ETag,
    /// Time since the last write, by the server's clock, at the time of the response.
    pub age: Duration,
    /// When the response arrived, on the [lease clock](crate::store::GroupStore::lease_clock_now).
    pub received: Moment,
}

impl Heartbeat {
    /// Creates a heartbeat with this version and age, from a response that arrived at `received`.
    #[must_use]
    pub fn new(record: HeartbeatRecord, etag: ETag, age: Duration, received: Moment) -> Self {
        Self { record, etag, age, received }
    }

    /// Returns the age of the record at `now`, on the same clock as `received`.
    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }
}

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
    /// Added to the age at which the ownership of another owner counts as expired, because `Date` and `Last-Modified`
    /// have a resolution of one second and may come from two machines.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// The shortest lease duration: server times have a resolution of one second. A shorter one in a record counts as
    /// this one.
    pub const SHORTEST: Duration = Duration::from_secs(4);

    /// The longest lease duration. No SDK has a longer one, and sums of such durations cannot overflow. A longer one in
    /// a record counts as this one.
    pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

    /// Creates the lease durations of an instance.
    #[must_use]
    pub const fn new(own: Duration, foreign: Duration) -> Self {
        Self { own, foreign }
    }

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

    /// Returns whether a lease of this duration should have been renewed at this age: an owner renews it after half the
    /// duration, and after two thirds of it at least one renewal has failed.
    #[must_use]
    pub fn is_overdue(age: Duration, lease_duration: Duration) -> bool {
        age >= lease_duration * 2 / 3
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
    use crate::model::{Incarnation, OwnerId};

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

    const DURATIONS: LeaseDurations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));

    fn owned_by(owner: &str, number: u32) -> OwnershipRecord {
        let incarnation = Incarnation::new(OffsetDateTime::UNIX_EPOCH, number);
        let mut record = OwnershipRecord::owned_by(OwnerId::from_record(owner), Some(incarnation));
        record.lease_duration = Some(DURATIONS.own);
        record
    }

    /// Returns a record that was 10 s old when it was received, one second after the clock began.
    fn seen(record: OwnershipRecord) -> Ownership {
        let times = (OffsetDateTime::UNIX_EPOCH, Duration::from_secs(1));
        Ownership::new(PartitionId::from(0), record, ETag::new("1"), Duration::from_secs(10), times)
    }

    fn heartbeat(owner: &str, number: u32) -> Heartbeat {
        let incarnation = Incarnation::new(OffsetDateTime::UNIX_EPOCH, number);
        let record = HeartbeatRecord::new(OwnerId::from_record(owner), incarnation, DURATIONS.own);
        Heartbeat { record, etag: ETag::new("1"), age: Duration::from_secs(4), received: Duration::from_secs(2) }
    }

    #[test]
    fn a_lease_ages_since_its_response() {
        let seconds = Duration::from_secs;
        assert_eq!(seen(owned_by("a", 1)).age_at(seconds(8)), seconds(17));
        assert_eq!(heartbeat("a", 1).age_at(seconds(8)), seconds(10));
    }

    #[test]
    fn only_the_own_heartbeat_renews_a_lease() {
        let mut record = owned_by("a", 1);
        let since = |record: &OwnershipRecord, heartbeats: &[Heartbeat]| {
            seen(record.clone()).time_since_renewal(heartbeats, Duration::from_secs(8)).as_secs()
        };
        assert_eq!(since(&record, &[heartbeat("a", 1)]), 17, "its lease is of the partition");
        record.scope = LeaseScope::Instance;
        let mut dead = heartbeat("a", 1);
        dead.record.declared_dead_by = Some(OwnerId::from_record("b"));
        assert_eq!(since(&record, &[heartbeat("b", 1), heartbeat("a", 2), dead]), 17);
        assert_eq!(since(&record, &[heartbeat("a", 1)]), 10);
        assert!(seen(record.clone()).is_kept_alive_by_heartbeat(&identity("a", 2)));
        assert!(!seen(record.clone()).is_kept_alive_by_heartbeat(&identity("a", 1)));
        assert!(!seen(owned_by("a", 1)).is_kept_alive_by_heartbeat(&identity("b", 1)));
        assert!(!seen(record.released()).is_kept_alive_by_heartbeat(&identity("b", 1)));
    }

    fn identity(owner: &str, number: u32) -> Identity {
        Identity::new(OwnerId::from_record(owner), Incarnation::new(OffsetDateTime::UNIX_EPOCH, number))
    }

    #[test]
    fn a_lease_expires_once_it_is_surely_over() {
        let record = owned_by("a", 1);
        let lifetime = DURATIONS.lifetime(&record);
        assert_eq!(lifetime, Duration::from_secs(60) + LeaseDurations::GRACE);
        let just_before = lifetime.saturating_sub(Duration::from_nanos(1));
        assert!(DURATIONS.counts_as_live(&record, just_before) && !DURATIONS.counts_as_live(&record, lifetime));
        assert!(!DURATIONS.counts_as_live(&record.released(), Duration::ZERO));
        let mut heartbeat = heartbeat("a", 1).record;
        assert_eq!(DURATIONS.of_heartbeat(&heartbeat), Duration::from_secs(60));
        assert!(DURATIONS.counts_as_present(&heartbeat, just_before));
        assert!(!DURATIONS.counts_as_present(&heartbeat, lifetime));
        heartbeat.declared_dead_by = Some(OwnerId::from_record("b"));
        assert!(!DURATIONS.counts_as_present(&heartbeat, Duration::ZERO));
    }

    #[test]
    fn a_lease_is_overdue_after_two_thirds() {
        let is_overdue = |age| LeaseDurations::is_overdue(Duration::from_millis(age), Duration::from_secs(60));
        assert_eq!([39_999, 40_000, 60_000].map(is_overdue), [false, true, true]);
    }

    #[test]
    fn a_recorded_lease_duration_is_rounded_up() {
        let recorded = |millis| LeaseDurations::new(Duration::from_millis(millis), Duration::ZERO).recorded();
        assert_eq!([4000, 4001, 4999].map(|millis| recorded(millis).as_secs()), [4, 5, 5]);
    }
}
