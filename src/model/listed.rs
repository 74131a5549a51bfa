//! Records as a listing shows them.

use std::time::Duration;

use time::OffsetDateTime;

use super::names::PartitionId;
use super::owner::Identity;
use super::ownership::{LeaseScope, OwnershipRecord, Relation};
use super::presence::HeartbeatRecord;
use super::version::ETag;

/// A point on an instance's own monotonic clock, by which leases count: the time since some fixed moment. Only
/// differences mean anything.
pub type Moment = Duration;

/// One partition's ownership, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ownership {
    /// The partition.
    pub partition: PartitionId,
    /// What the blob says.
    pub record: OwnershipRecord,
    /// Its version.
    pub etag: ETag,
    /// Time since it was last written, by the server's clock, when the server answered.
    pub age: Duration,
    /// The server's time of that answer.
    pub server_time: OffsetDateTime,
    /// When the answer arrived, on the [lease clock](crate::store::GroupStore::lease_clock_now).
    pub received: Moment,
}

impl Ownership {
    /// A record that was seen in this version, this old, by an answer of `server_time` that arrived at `received`.
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

    /// Its age at `now`, on the same clock as `received`.
    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }

    /// Time since the last sign of life of its owner, at `now`: its age, or that of the owner's presence if the record
    /// says that it lives by the presence and that is younger.
    #[must_use]
    pub fn time_since_renewal(&self, presences: &[Heartbeat], now: Moment) -> Duration {
        let (owner, incarnation) = (self.record.owner.as_ref(), &self.record.incarnation);
        let counts = |seen: &&Heartbeat| {
            let same = Some(&seen.record.owner) == owner && seen.record.incarnation == *incarnation;
            same && seen.record.declared_dead_by.is_none() && self.record.scope == LeaseScope::Instance
        };
        let presence = presences.iter().filter(counts).map(|seen| seen.age_at(now)).min();
        presence.map_or(self.age_at(now), |presence| presence.min(self.age_at(now)))
    }

    /// Whether its owner has to be [declared dead](crate::store::GroupStore::declare_dead) before the partition is
    /// claimed from it as abandoned. Not if it was released, lives by its own age, or was recorded by this incarnation.
    pub(crate) fn is_kept_alive_by_heartbeat(&self, me: &Identity) -> bool {
        let lives = self.record.owner.is_some() && self.record.scope == LeaseScope::Instance;
        lives && self.record.relation_to(me) != Relation::This
    }
}

/// The presence of one owner, as a listing shows it.
///
/// Other instances leave a present owner its share, also while it owns nothing. So an owner that would not claim a
/// share, because it is stalled or about to end, must not be present: no instance would read that share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// What the blob says.
    pub record: HeartbeatRecord,
    /// Its version.
    pub etag: ETag,
    /// Time since it was last written, by the server's clock, when the server answered.
    pub age: Duration,
    /// When the answer arrived, on the [lease clock](crate::store::GroupStore::lease_clock_now).
    pub received: Moment,
}

impl Heartbeat {
    /// A record that was seen in this version, this old, by an answer that arrived at `received`.
    #[must_use]
    pub fn new(record: HeartbeatRecord, etag: ETag, age: Duration, received: Moment) -> Self {
        Self { record, etag, age, received }
    }

    /// Its age at `now`, on the same clock as `received`.
    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }
}
