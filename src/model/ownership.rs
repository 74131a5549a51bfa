//! The content of an ownership record, its relation to an owner, and how long it is valid.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::heartbeat::HeartbeatRecord;
use super::owner::{Identity, Incarnation, OwnerId};

/// The relation between a record and an [`Identity`]. Exhaustive: no other relation is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// This incarnation of this owner wrote it.
    This,
    /// An earlier incarnation of this owner wrote it, or one without an incarnation.
    EarlierIncarnation,
    /// A later incarnation of this owner wrote it: this one was replaced.
    LaterIncarnation,
    /// Another owner wrote it.
    Other,
    /// It names no owner: the partition was released.
    Unowned,
}

/// The content of an ownership blob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnershipRecord {
    /// The owner; `None` if the partition was released.
    pub owner: Option<OwnerId>,
    /// The incarnation of that owner. Missing in records of other SDKs.
    pub incarnation: Option<Incarnation>,
    /// The server time of the claim. Renewals keep it.
    pub claimed_at: Option<OffsetDateTime>,
    /// The epoch that the last claim began. It is greater than all earlier epochs of the partition. Renewals, handoff
    /// requests and releases keep it. Missing in records of other SDKs.
    pub epoch: Option<i64>,
    /// How much work the partition is, as measured by its owner.
    pub load: Option<u64>,
    /// Whether its owner hands the partition over on request, so that it need not be stolen.
    pub cooperative: bool,
    /// The owner that requested the partition. After the release the partition is reserved for this owner for a while.
    pub handoff_to: Option<OwnerId>,
    /// The operator that wrote the record, or that requested the partition: an owner with an id of its own for one
    /// administrative operation, which is not a member of the group.
    pub operator: Option<OwnerId>,
    /// Whether its owner has acknowledged a handoff request: the owner takes no more events, and releases the partition
    /// when the events in flight are finished.
    pub draining: bool,
    /// Whether its owner has shut down, and will process the partition again after its restart.
    pub away: bool,
    /// What keeps the ownership alive.
    pub scope: LeaseScope,
    /// How long the ownership is valid without renewal, in whole seconds, as its owner says. Missing in records of other
    /// SDKs. A release keeps it.
    pub lease_duration: Option<Duration>,
    /// Keys that this version does not know. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl OwnershipRecord {
    /// Creates a record with an owner and nothing else. Owners of other SDKs have no incarnation.
    #[must_use]
    pub fn owned_by(owner: OwnerId, incarnation: Option<Incarnation>) -> Self {
        Self { owner: Some(owner), incarnation, ..Self::default() }
    }

    /// Returns the record of a release. It has no owner, and keeps what concerns the partition itself and what other
    /// programs have added. It also keeps the handoff request, which reserves the partition, the lease duration, which
    /// says for how long if an operator is involved, and the epoch, because the next epoch must be greater.
    #[must_use]
    pub fn released(&self) -> Self {
        Self {
            load: self.load,
            epoch: self.epoch,
            handoff_to: self.handoff_to.clone(),
            operator: self.operator.clone(),
            lease_duration: self.lease_duration,
            other: self.other.clone(),
            ..Self::default()
        }
    }

    /// Returns the relation of this record to an instance.
    #[must_use]
    pub(crate) fn relation_to(&self, this: &Identity) -> Relation {
        self.owner.as_ref().map_or(Relation::Unowned, |owner| relation(owner, self.incarnation.as_ref(), this))
    }

    /// Returns whether this incarnation owns the partition in this epoch. A record of this incarnation with another
    /// epoch is reclaimable: it comes from a late write of an operation that was given up.
    #[must_use]
    pub(crate) fn is_mine_in(&self, this: &Identity, epoch: i64) -> bool {
        self.relation_to(this) == Relation::This && self.epoch == Some(epoch)
    }
}

pub(super) fn relation(owner: &OwnerId, incarnation: Option<&Incarnation>, this: &Identity) -> Relation {
    if *owner != this.owner {
        return Relation::Other;
    }
    match incarnation.map(|recorded| recorded.cmp(&this.incarnation)) {
        Some(Ordering::Equal) => Relation::This,
        Some(Ordering::Greater) => Relation::LaterIncarnation,
        Some(Ordering::Less) | None => Relation::EarlierIncarnation,
    }
}

/// What keeps an ownership alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeaseScope {
    /// Each ownership is renewed individually. The default, and what all other SDKs do.
    #[default]
    Partition,
    /// The heartbeat of an owner keeps all its ownerships alive. Each one also counts as renewed when it is written.
    Instance,
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
    /// For records without a lease duration, which are those of other SDKs.
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
    use time::macros::datetime;

    #[test]
    fn own_records_match_owner_and_incarnation() {
        let incarnation =
            |second| Incarnation::new(datetime!(2026-01-01 00:00:00 UTC) + time::Duration::seconds(second), 0);
        let me = Identity { owner: OwnerId::new("a").unwrap(), incarnation: incarnation(5) };
        let record = |owner: &str, incarnation| OwnershipRecord {
            owner: (!owner.is_empty()).then(|| OwnerId::recorded(owner)),
            incarnation,
            ..Default::default()
        };
        assert_eq!(record("a", Some(incarnation(5))).relation_to(&me), Relation::This);
        assert_eq!(record("a", Some(incarnation(4))).relation_to(&me), Relation::EarlierIncarnation);
        assert_eq!(record("a", None).relation_to(&me), Relation::EarlierIncarnation);
        assert_eq!(record("a", Some(incarnation(6))).relation_to(&me), Relation::LaterIncarnation);
        assert_eq!(record("b", Some(incarnation(5))).relation_to(&me), Relation::Other);
        assert_eq!(record("", Some(incarnation(5))).relation_to(&me), Relation::Unowned);
    }

    #[test]
    fn own_records_of_an_epoch_match_the_epoch() {
        let incarnation = Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 0);
        let me = Identity { owner: OwnerId::new("a").unwrap(), incarnation: incarnation.clone() };
        let record =
            |epoch| OwnershipRecord { epoch, ..OwnershipRecord::owned_by(me.owner.clone(), Some(incarnation.clone())) };
        assert!(record(Some(7)).is_mine_in(&me, 7));
        assert!(!record(Some(8)).is_mine_in(&me, 7) && !record(None).is_mine_in(&me, 7));
        let released = OwnershipRecord { epoch: Some(7), ..Default::default() };
        assert!(!released.is_mine_in(&me, 7));
    }

    #[test]
    fn a_release_keeps_epoch_request_and_unknown_keys() {
        let other = BTreeMap::from([("foreign".to_owned(), "1".to_owned())]);
        let owned = OwnershipRecord {
            owner: Some(OwnerId::recorded("a")),
            incarnation: Some(Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1)),
            claimed_at: Some(datetime!(2026-01-01 00:00:00 UTC)),
            epoch: Some(7),
            cooperative: true,
            handoff_to: Some(OwnerId::recorded("b")),
            operator: Some(OwnerId::recorded("operator-1")),
            draining: true,
            scope: LeaseScope::Instance,
            lease_duration: Some(Duration::from_secs(14)),
            other: other.clone(),
            ..Default::default()
        };
        let (handoff_to, operator) = (owned.handoff_to.clone(), owned.operator.clone());
        let lease_duration = owned.lease_duration;
        let reserved =
            OwnershipRecord { epoch: Some(7), handoff_to, operator, lease_duration, other, ..Default::default() };
        assert_eq!(owned.released(), reserved);
    }

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
