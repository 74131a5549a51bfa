//! Whether and how an operator takes a partition over, decided by a listing.

use super::reset::ResetError;
use crate::model::{OwnerId, Ownership, PartitionId};
use crate::planner::{PartitionOwner, PartitionView, View};

/// How to take a partition over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The record to claim over; `None` if there is none.
    pub over: Option<Ownership>,
    /// The owner to return the partition to.
    pub return_to: Option<OwnerId>,
    /// Whether the owner must be declared dead first: it did not renew in time, and its heartbeat keeps its leases
    /// alive.
    pub declare_dead: bool,
    /// Whether owners of other SDKs may still write the checkpoint for a while.
    pub settle: bool,
}

/// The owners that an operator may take partitions from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Live owners of this crate.
    pub live: bool,
    /// Partitions in a group with a live owner of another SDK.
    pub foreign: bool,
}

/// Decides by the operator's view.
///
/// # Errors
///
/// The reason why the operator must leave the partition alone.
pub fn takeover(view: &View<'_>, partition: &PartitionId, allowed: Allowed) -> Result<Takeover, ResetError> {
    let record = view.record_of(partition);
    let unowned = PartitionView::new(partition.clone(), PartitionOwner::Unowned);
    let entry = view.partitions.iter().find(|entry| entry.partition == *partition).unwrap_or(&unowned);
    if let PartitionOwner::Other(operator) = &entry.owner
        && entry.is_owned_by_operator()
    {
        return Err(ResetError::Busy { operator: operator.clone() });
    }
    let foreign = foreign_owner(view);
    if let Some(owner) = foreign.filter(|_| !allowed.foreign) {
        return Err(ResetError::Foreign { owner: owner.clone() });
    }
    if let PartitionOwner::Other(owner) = &entry.owner
        && !allowed.live
    {
        return Err(ResetError::Live { owner: owner.clone() });
    }
    let is_expired = matches!(entry.owner, PartitionOwner::Expired(_));
    // An earlier operator may have crashed during its work, or this one failed.
    let is_remnant = is_expired || entry.owner == PartitionOwner::Reclaimable;
    let return_to = match record.filter(|seen| is_remnant && seen.record.operator.is_some()) {
        Some(seen) => seen.record.handoff_to.clone(),
        None => entry.counts_for(&view.me).cloned(),
    };
    let displaces_foreign = record.is_some_and(|seen| seen.record.owner.is_some() && seen.record.incarnation.is_none());
    // The record of an earlier operator does not show which SDK its owner before that uses.
    let may_be_foreign = record
        .filter(|seen| seen.record.operator.is_some())
        .and_then(|seen| seen.record.handoff_to.as_ref())
        .is_some_and(|owner| !is_of_this_crate(view, owner));
    Ok(Takeover {
        over: record.cloned(),
        // An id that only another SDK could write cannot be named: its owner claims like any other.
        return_to: return_to.filter(|owner| OwnerId::new(owner.as_str()).is_ok()),
        declare_dead: is_expired,
        settle: foreign.is_some() || displaces_foreign || may_be_foreign,
    })
}

/// Returns whether an owner is known to use this crate, by its heartbeat or a record.
fn is_of_this_crate(view: &View<'_>, owner: &OwnerId) -> bool {
    let mut records = view.records.values().map(|seen| &seen.record);
    view.present.contains(owner)
        || records.any(|record| record.owner.as_ref() == Some(owner) && record.incarnation.is_some())
}

/// Returns a live owner of another SDK.
fn foreign_owner<'a>(view: &View<'a>) -> Option<&'a OwnerId> {
    view.partitions
        .iter()
        .filter(|entry| matches!(entry.owner, PartitionOwner::Other(_)))
        .filter_map(|entry| view.record_of(&entry.partition))
        .find(|seen| seen.record.incarnation.is_none())?
        .record
        .owner
        .as_ref()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;
    use crate::model::{ETag, Identity, Incarnation, LeaseDurations, Moment, OwnershipRecord};
    use crate::planner::{Observer, observe};

    fn owner(id: &str) -> OwnerId {
        OwnerId::new(id).unwrap()
    }

    fn incarnation() -> Incarnation {
        Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1)
    }

    fn owned(id: &str) -> OwnershipRecord {
        let lease_duration = Some(Duration::from_secs(60));
        OwnershipRecord { lease_duration, ..OwnershipRecord::owned_by(owner(id), Some(incarnation())) }
    }

    fn seen(partition: u32, record: OwnershipRecord, age: u64) -> Ownership {
        Ownership::new(
            partition.into(),
            record,
            ETag::new("seen"),
            Duration::from_secs(age),
            (datetime!(2026-01-01 00:00:00 UTC), Moment::ZERO),
        )
    }

    /// Returns what is decided about partition 0.
    fn decided(listing: &[Ownership], foreign: bool) -> Result<Takeover, ResetError> {
        let me = Identity::new(owner("operator-9"), incarnation());
        let lease_duration = Duration::from_secs(60);
        let observer = Observer {
            this: &me,
            lease_durations: LeaseDurations::new(lease_duration, 3 * lease_duration),
            running: &BTreeSet::new(),
            heartbeats: &[],
            outage_ended: None,
        };
        let view = observe(listing, &[0.into(), 1.into()], &observer, Moment::ZERO);
        takeover(&view, &0.into(), Allowed { live: true, foreign })
    }

    fn returned_to(record: OwnershipRecord, age: u64) -> Option<OwnerId> {
        decided(&[seen(0, record, age)], false).unwrap().return_to
    }

    #[test]
    fn a_partition_without_owner_is_returned_to_none() {
        assert_eq!(decided(&[], false).unwrap().return_to, None);
        assert_eq!(returned_to(OwnershipRecord::default(), 100), None);
        assert_eq!(returned_to(owned("a"), 100), None, "its owner has expired");
    }

    #[test]
    fn it_is_returned_to_no_owner_beyond_ascii() {
        let foreign =
            OwnershipRecord { owner: Some(OwnerId::from_record("gr\u{f6}\u{df}e")), ..OwnershipRecord::default() };
        let takeover = decided(&[seen(0, foreign, 0)], true).unwrap();
        assert_eq!((takeover.return_to, takeover.settle), (None, true));
    }

    #[test]
    fn it_is_returned_to_the_owner_that_it_counts_for() {
        assert_eq!(returned_to(owned("a"), 0), Some(owner("a")));
        let released = OwnershipRecord { handoff_to: Some(owner("b")), ..OwnershipRecord::default() };
        let reserved = |age| {
            let listing = [seen(0, released.clone(), age), seen(1, owned("b"), 0)];
            decided(&listing, false).unwrap().return_to
        };
        assert_eq!(reserved(5), Some(owner("b")));
        assert_eq!(reserved(70), None, "it was");
        assert_eq!(returned_to(released.clone(), 5), None, "that owner is not alive");
        let requested = OwnershipRecord { handoff_to: Some(owner("b")), ..owned("a") };
        let listing = [seen(0, requested, 0), seen(1, owned("b"), 0)];
        assert_eq!(decided(&listing, false).unwrap().return_to, Some(owner("b")), "it was requested");
    }

    #[test]
    fn an_expired_operator_is_replaced_but_not_a_live_one() {
        let operated = OwnershipRecord {
            operator: Some(owner("operator-1")),
            handoff_to: Some(owner("a")),
            ..owned("operator-1")
        };
        let busy = decided(&[seen(0, operated.clone(), 0)], false).unwrap_err();
        assert!(matches!(busy, ResetError::Busy { operator } if operator == owner("operator-1")));
        assert_eq!(returned_to(operated, 100), Some(owner("a")));
    }

    #[test]
    fn own_remnants_are_returned_to_the_same_owner() {
        let me = owner("operator-9");
        let to = Some(owner("a"));
        let left = OwnershipRecord { operator: Some(me.clone()), handoff_to: to.clone(), ..owned(me.as_str()) };
        for age in [0, 100] {
            assert_eq!(returned_to(left.clone(), age), to);
        }
    }

    #[test]
    fn a_group_with_a_foreign_owner_needs_the_option() {
        let foreign = OwnershipRecord::owned_by(owner("python"), None);
        let listing = [seen(0, owned("a"), 0), seen(1, foreign.clone(), 0)];
        let rejected = decided(&listing, false).unwrap_err();
        assert!(matches!(rejected, ResetError::Foreign { owner: found } if found == owner("python")));
        assert!(decided(&listing, true).unwrap().settle, "it may be the next owner");
        assert!(!decided(&listing[..1], true).unwrap().settle);
        assert!(decided(&[seen(0, foreign, 500)], false).unwrap().settle, "it may still process events");
    }

    #[test]
    fn an_earlier_operator_hides_the_sdk_of_the_owner() {
        let operated = OwnershipRecord {
            operator: Some(owner("operator-1")),
            handoff_to: Some(owner("a")),
            ..owned("operator-1")
        };
        let released = OwnershipRecord { owner: None, ..operated.clone() };
        for listing in [[seen(0, operated, 100)], [seen(0, released.clone(), 5)]] {
            assert!(decided(&listing, true).unwrap().settle, "it may be of another SDK");
        }
        let known = [seen(0, released, 5), seen(1, owned("a"), 0)];
        assert!(!decided(&known, true).unwrap().settle);
    }
}
