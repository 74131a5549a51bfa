//! What an ownership record says, how it relates to an owner, and how long it lives.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::owner::{Identity, Incarnation, OwnerId};

/// How a recorded ownership or presence relates to an [`Identity`]. Exhaustive: no other relation is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Recorded by this very life of mine.
    This,
    /// My name, an earlier life of mine (or one that left no incarnation).
    EarlierIncarnation,
    /// My name, a later life: I have been replaced.
    LaterIncarnation,
    /// Another owner.
    Other,
    /// Nobody: it was released.
    Unowned,
}

/// What an ownership blob says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnershipRecord {
    /// The owner, or nobody: released.
    pub owner: Option<OwnerId>,
    /// The life of that owner. Absent in records of other SDKs.
    pub incarnation: Option<Incarnation>,
    /// The server's time of the claim. Renewals keep it.
    pub claimed_at: Option<OffsetDateTime>,
    /// The number of the tenure that the claim began, or of the last one: greater than that of every tenure before it.
    /// Renewals, marks and releases keep it. Absent in records of other SDKs.
    pub epoch: Option<i64>,
    /// How much work the partition is, as its owner measures it.
    pub load: Option<u64>,
    /// Its owner hands partitions over on request: it answers a mark, and need not be stolen from.
    pub cooperative: bool,
    /// The owner that asked for the partition. Once it is released, it is reserved for that one for a while.
    pub handoff_to: Option<OwnerId>,
    /// The operator that wrote the record, or that asked for the partition: an owner with an id of its own for one
    /// administrative operation, which is no member of the group.
    pub operator: Option<OwnerId>,
    /// Its owner has seen that it is asked for: it takes no more events, and releases when the last one is settled.
    pub draining: bool,
    /// Its owner has shut down, and will process the partition again after its restart.
    pub away: bool,
    /// What keeps the ownership alive.
    pub scope: LeaseScope,
    /// Keys that this version does not read. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl OwnershipRecord {
    /// A record that names an owner and says nothing else. Owners of other SDKs have no incarnation.
    #[must_use]
    pub fn owned_by(owner: OwnerId, incarnation: Option<Incarnation>) -> Self {
        Self { owner: Some(owner), incarnation, ..Self::default() }
    }

    /// The record of a release: nobody's, with what is known of the partition itself, and what others have added. Who
    /// asked for it is kept: it is reserved for that one. The epoch is kept, too: that of the next tenure must be
    /// greater.
    #[must_use]
    pub fn released(&self) -> Self {
        Self {
            load: self.load,
            epoch: self.epoch,
            handoff_to: self.handoff_to.clone(),
            operator: self.operator.clone(),
            other: self.other.clone(),
            ..Self::default()
        }
    }

    /// How this record relates to me.
    #[must_use]
    pub(crate) fn relation_to(&self, me: &Identity) -> Relation {
        self.owner.as_ref().map_or(Relation::Unowned, |owner| relation(owner, self.incarnation.as_ref(), me))
    }

    /// Whether it is mine, in the tenure with this epoch. A record that is mine with another epoch is an orphan: a late
    /// write of an operation that was given up.
    #[must_use]
    pub(crate) fn is_mine_in(&self, me: &Identity, epoch: i64) -> bool {
        self.relation_to(me) == Relation::This && self.epoch == Some(epoch)
    }
}

pub(super) fn relation(owner: &OwnerId, incarnation: Option<&Incarnation>, me: &Identity) -> Relation {
    if *owner != me.owner {
        return Relation::Other;
    }
    match incarnation.map(|theirs| theirs.cmp(&me.incarnation)) {
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
    /// Each is renewed by itself. The default, and what all other SDKs do.
    #[default]
    Partition,
    /// All of an owner live as long as its presence does, beside their own age.
    Instance,
}

/// How long an ownership lives without renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseDurations {
    /// For owners of this crate.
    pub own: Duration,
    /// For owners of other SDKs, which know nothing of `expiry`.
    pub foreign: Duration,
}

impl LeaseDurations {
    /// Terms with these two times.
    #[must_use]
    pub const fn new(expiry: Duration, peer_expiry: Duration) -> Self {
        Self { own: expiry, foreign: peer_expiry }
    }

    /// Added to the age at which another's ownership counts as abandoned: `Date` and `Last-Modified` come in whole
    /// seconds and may come from two machines.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// Whether a record of this age still counts. Releases never do.
    #[must_use]
    pub fn counts_as_live(self, record: &OwnershipRecord, age: Duration) -> bool {
        record.owner.is_some() && age < self.lifetime(record)
    }

    /// The age at which an owner with such a record counts as dead, whoever looks.
    #[must_use]
    pub fn lifetime(self, record: &OwnershipRecord) -> Duration {
        let expiry = if record.incarnation.is_some() { self.own } else { self.foreign };
        expiry + Self::GRACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn a_record_is_mine_only_with_owner_and_incarnation() {
        let life = |second| Incarnation::new(datetime!(2026-01-01 00:00:00 UTC) + time::Duration::seconds(second), 0);
        let me = Identity { owner: OwnerId::new("a").unwrap(), incarnation: life(5) };
        let record = |owner: &str, incarnation| OwnershipRecord {
            owner: (!owner.is_empty()).then(|| OwnerId::recorded(owner)),
            incarnation,
            ..Default::default()
        };
        assert_eq!(record("a", Some(life(5))).relation_to(&me), Relation::This);
        assert_eq!(record("a", Some(life(4))).relation_to(&me), Relation::EarlierIncarnation);
        assert_eq!(record("a", None).relation_to(&me), Relation::EarlierIncarnation);
        assert_eq!(record("a", Some(life(6))).relation_to(&me), Relation::LaterIncarnation);
        assert_eq!(record("b", Some(life(5))).relation_to(&me), Relation::Other);
        assert_eq!(record("", Some(life(5))).relation_to(&me), Relation::Unowned);
    }

    #[test]
    fn a_record_is_of_a_tenure_only_with_its_epoch() {
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
    fn a_release_stays_reserved_and_keeps_the_epoch_the_operator_and_unknown_keys() {
        let other = BTreeMap::from([("foreign".to_owned(), "1".to_owned())]);
        let held = OwnershipRecord {
            owner: Some(OwnerId::recorded("a")),
            incarnation: Some(Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1)),
            claimed_at: Some(datetime!(2026-01-01 00:00:00 UTC)),
            epoch: Some(7),
            cooperative: true,
            handoff_to: Some(OwnerId::recorded("b")),
            operator: Some(OwnerId::recorded("operator-1")),
            draining: true,
            scope: LeaseScope::Instance,
            other: other.clone(),
            ..Default::default()
        };
        let (handoff_to, operator) = (held.handoff_to.clone(), held.operator.clone());
        let reserved = OwnershipRecord { epoch: Some(7), handoff_to, operator, other, ..Default::default() };
        assert_eq!(held.released(), reserved);
    }
}
