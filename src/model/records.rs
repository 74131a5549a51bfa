//! The contents of the records: ownerships, heartbeats and checkpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::owner::{Identity, Incarnation, OwnerId, Relation};
use super::pause::Pause;

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
    /// Whether the lease is renewed per partition or per instance.
    pub scope: LeaseScope,
    /// How long the ownership is valid without renewal, in whole seconds, as its owner says. Missing in records of
    /// other SDKs. A release keeps it.
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
        self.owner
            .as_ref()
            .map_or(Relation::Unowned, |owner| Relation::of_owner(owner, self.incarnation.as_ref(), this))
    }

    /// Returns whether this incarnation owns the partition in this epoch. A record of this incarnation with another
    /// epoch is reclaimable: it comes from a late write of an operation that was given up.
    #[must_use]
    pub(crate) fn is_mine_in(&self, this: &Identity, epoch: i64) -> bool {
        self.relation_to(this) == Relation::This && self.epoch == Some(epoch)
    }
}

/// Whether leases are renewed per partition or per instance.
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

/// The content of a heartbeat blob: its owner is alive, even if it owns nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeartbeatRecord {
    /// The owner that is alive.
    pub owner: OwnerId,
    /// The incarnation of that owner. Missing only in a malformed record.
    pub incarnation: Option<Incarnation>,
    /// The owner that declared this one dead; this owner itself if it has shut down. With [`LeaseScope::Instance`],
    /// other owners may claim its partitions from then on.
    pub declared_dead_by: Option<OwnerId>,
    /// How long the heartbeat is valid, in whole seconds, as its owner says. Missing only in a malformed record, or if
    /// another instance declared an owner dead that never sent a heartbeat.
    pub lease_duration: Option<Duration>,
    /// Keys that this version does not know. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl HeartbeatRecord {
    /// Creates the record of an owner that is alive and that no other instance has declared dead.
    #[must_use]
    pub fn new(owner: OwnerId, incarnation: Incarnation, lease_duration: Duration) -> Self {
        Self {
            owner,
            incarnation: Some(incarnation),
            declared_dead_by: None,
            lease_duration: Some(lease_duration),
            other: BTreeMap::new(),
        }
    }

    /// Returns the relation of this record to an instance.
    #[must_use]
    pub(crate) fn relation_to(&self, this: &Identity) -> Relation {
        Relation::of_owner(&self.owner, self.incarnation.as_ref(), this)
    }
}

/// A position in a partition: the position of an event that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Position {
    /// The sequence number, which grows with every event of the partition.
    pub sequence_number: i64,
    /// The offset. Only the service knows its meaning.
    pub offset: String,
}

impl Position {
    /// Creates the position of the event with this sequence number and offset.
    #[must_use]
    pub fn new(sequence_number: i64, offset: impl Into<String>) -> Self {
        Self { sequence_number, offset: offset.into() }
    }
}

/// The content of a checkpoint blob. Either part of the position may be missing, because other SDKs omit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointRecord {
    /// The sequence number of the last event that was processed.
    pub sequence_number: Option<i64>,
    /// The offset of that event.
    pub offset: Option<String>,
    /// The owner that wrote the checkpoint. For information only: the ETag fences, not the owner ID.
    pub owner: Option<OwnerId>,
    /// When the checkpoint was written, by the server's clock.
    pub updated_at: Option<OffsetDateTime>,
    /// Whether the position is an initial checkpoint: a start position that was recorded before any event up to it was
    /// processed. Every reader can start from it, but it does not show progress: any checkpoint of an owner replaces
    /// it, also one at a smaller position.
    pub initial: bool,
    /// When the event hub was created in which the position was read, in whole seconds. The sequence numbers of a
    /// recreated event hub start over, so a position is meaningless in an event hub with another creation time. `None`
    /// if the writer did not know the time, as with processors of other SDKs.
    pub hub_created_at: Option<OffsetDateTime>,
    /// The pause, if the partition is paused. Checkpoints of this crate keep it until it ends; checkpoints of other
    /// SDKs remove it.
    pub paused: Option<Pause>,
    /// Whether the application keeps its own position of the partition, which takes precedence over this one: its last
    /// start [said so](crate::processor::OwnPosition). Checkpoints of other SDKs remove the mark until the next start.
    pub own_position: bool,
    /// Keys that this version does not know. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl CheckpointRecord {
    /// Returns the position, if the record contains both parts of it.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        Some(Position { sequence_number: self.sequence_number?, offset: self.offset.clone()? })
    }

    /// Returns whether it covers events after this one. An initial checkpoint covers none.
    pub(crate) fn covers_after(&self, sequence_number: i64) -> bool {
        !self.initial && self.sequence_number > Some(sequence_number)
    }

    /// Returns whether the record contains a position.
    #[must_use]
    pub fn has_position(&self) -> bool {
        self.sequence_number.is_some() || self.offset.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn a_position_has_a_number_and_an_offset() {
        let record = |number, offset: Option<&str>| CheckpointRecord {
            sequence_number: number,
            offset: offset.map(str::to_owned),
            ..Default::default()
        };
        assert_eq!(record(Some(7), Some("70")).position(), Some(Position::new(7, "70")));
        assert_eq!([record(Some(7), None), record(None, Some("70"))].map(|record| record.position()), [None, None]);
        let partial = [record(Some(7), None), record(None, Some("70")), record(None, None)];
        assert_eq!(partial.map(|record| record.has_position()), [true, true, false]);
    }

    #[test]
    fn a_checkpoint_covers_events_up_to_its_own() {
        let mut record = CheckpointRecord { sequence_number: Some(7), ..Default::default() };
        assert_eq!([6, 7, 8].map(|number| record.covers_after(number)), [true, false, false]);
        record.initial = true;
        assert!(!record.covers_after(6), "it was written before any event was processed");
        assert!(!CheckpointRecord::default().covers_after(-1));
    }

    #[test]
    fn own_records_match_owner_and_incarnation() {
        let incarnation =
            |second| Incarnation::new(datetime!(2026-01-01 00:00:00 UTC) + time::Duration::seconds(second), 0);
        let me = Identity { owner: OwnerId::new("a").unwrap(), incarnation: incarnation(5) };
        let record = |owner: &str, incarnation| OwnershipRecord {
            owner: (!owner.is_empty()).then(|| OwnerId::from_record(owner)),
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
            owner: Some(OwnerId::from_record("a")),
            incarnation: Some(Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1)),
            claimed_at: Some(datetime!(2026-01-01 00:00:00 UTC)),
            epoch: Some(7),
            load: Some(70),
            cooperative: true,
            handoff_to: Some(OwnerId::from_record("b")),
            operator: Some(OwnerId::from_record("operator-1")),
            draining: true,
            scope: LeaseScope::Instance,
            lease_duration: Some(Duration::from_secs(14)),
            other: other.clone(),
            ..Default::default()
        };
        let reserved = OwnershipRecord {
            epoch: Some(7),
            load: Some(70),
            handoff_to: owned.handoff_to.clone(),
            operator: owned.operator.clone(),
            lease_duration: owned.lease_duration,
            other,
            ..Default::default()
        };
        assert_eq!(owned.released(), reserved);
    }
}
