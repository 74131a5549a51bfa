//! Records as a listing shows them.

use std::time::Duration;

use time::OffsetDateTime;

use super::heartbeat::HeartbeatRecord;
use super::names::PartitionId;
use super::owner::Identity;
use super::ownership::{LeaseScope, OwnershipRecord, Relation};
use super::version::ETag;

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
        let (owner, incarnation) = (self.record.owner.as_ref(), &self.record.incarnation);
        let counts = |seen: &&Heartbeat| {
            let same = Some(&seen.record.owner) == owner && seen.record.incarnation == *incarnation;
            same && seen.record.declared_dead_by.is_none() && self.record.scope == LeaseScope::Instance
        };
        let heartbeat = heartbeats.iter().filter(counts).map(|seen| seen.age_at(now)).min();
        heartbeat.map_or(self.age_at(now), |heartbeat| heartbeat.min(self.age_at(now)))
    }

    /// Returns whether the owner must be [declared dead](crate::store::GroupStore::declare_dead) before the partition
    /// may be claimed because its lease expired. Not if the partition was released, if only the age of the record
    /// counts, or if this incarnation wrote the record.
    pub(crate) fn is_kept_alive_by_heartbeat(&self, this: &Identity) -> bool {
        let is_kept_alive = self.record.owner.is_some() && self.record.scope == LeaseScope::Instance;
        is_kept_alive && self.record.relation_to(this) != Relation::This
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
