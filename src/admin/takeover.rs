//! Whether and how an operator takes a partition over, by what was listed.

use super::outcome::NotDone;
use crate::model::{OwnerId, Ownership, PartitionId};
use crate::planner::{PartitionOwner, PartitionView, View};

/// How to take a partition over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The record that it is claimed over; `None` if it has none.
    pub over: Option<Ownership>,
    /// The owner to return it to.
    pub return_to: Option<OwnerId>,
    /// The owner did not renew in time, and lives by its presence: it is to be declared dead first.
    pub declare_dead: bool,
    /// Owners of other SDKs may still write the checkpoint for a while.
    pub settle: bool,
}

/// Decides by a view of the operator's. `beside_foreign`: also where an owner of another SDK is alive in the group.
///
/// # Errors
///
/// Why the operator is to leave the partition alone.
pub fn takeover(view: &View<'_>, partition: &PartitionId, beside_foreign: bool) -> Result<Takeover, NotDone> {
    let record = view.record(partition);
    let entry = view.partitions.iter().find(|entry| entry.partition == *partition);
    let free = PartitionView::new(partition.clone(), PartitionOwner::Unowned);
    let entry = entry.unwrap_or(&free);
    match &entry.owner {
        PartitionOwner::OtherNameCase(owner) => return Err(NotDone::OtherNameCase { owner: owner.clone() }),
        PartitionOwner::Other(operator) if entry.is_held_by_operator() => {
            return Err(NotDone::Busy { operator: operator.clone() });
        }
        _ => {}
    }
    let foreign = foreign_owner(view);
    if let Some(owner) = foreign.filter(|_| !beside_foreign) {
        return Err(NotDone::Foreign { owner: owner.clone() });
    }
    let is_expired = matches!(entry.owner, PartitionOwner::Expired(_));
    // An operator before this one may have died at it, or this one failed at it.
    let is_left = is_expired || entry.owner == PartitionOwner::Reclaimable;
    let inherited = record.filter(|seen| is_left && seen.record.operator.is_some());
    let return_to = match inherited {
        Some(seen) => seen.record.handoff_to.clone(),
        None => entry.counts_for(&view.me).cloned(),
    };
    let displaces_foreign = record.is_some_and(|seen| seen.record.owner.is_some() && seen.record.incarnation.is_none());
    Ok(Takeover {
        over: record.cloned(),
        return_to,
        declare_dead: is_expired,
        settle: foreign.is_some() || displaces_foreign,
    })
}

/// A live owner of another SDK.
fn foreign_owner<'a>(view: &View<'a>) -> Option<&'a OwnerId> {
    let live = view.partitions.iter().filter(|entry| matches!(entry.owner, PartitionOwner::Other(_)));
    let mut records = live.filter_map(|entry| view.record(&entry.partition));
    records.find(|seen| seen.record.incarnation.is_none())?.record.owner.as_ref()
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
        OwnershipRecord::owned_by(owner(id), Some(incarnation()))
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

    /// What is decided about partition 0.
    fn decided(listing: &[Ownership], other_tree: &[Ownership], beside_foreign: bool) -> Result<Takeover, NotDone> {
        let (me, running) = (Identity::new(owner("operator-9"), incarnation()), BTreeSet::new());
        let expiry = Duration::from_secs(60);
        let observer = Observer {
            this: &me,
            lease_durations: LeaseDurations::new(expiry, 3 * expiry),
            running: &running,
            other_name_case: other_tree,
            heartbeats: &[],
            interval: expiry / 6,
            outage_ended: None,
        };
        let view = observe(listing, &[0.into(), 1.into()], &observer, Moment::ZERO);
        takeover(&view, &0.into(), beside_foreign)
    }

    fn returned_to(record: OwnershipRecord, age: u64) -> Option<OwnerId> {
        decided(&[seen(0, record, age)], &[], false).unwrap().return_to
    }

    #[test]
    fn what_has_no_owner_is_returned_to_none() {
        assert_eq!(decided(&[], &[], false).unwrap().return_to, None);
        assert_eq!(returned_to(OwnershipRecord::default(), 100), None);
        assert_eq!(returned_to(owned("a"), 100), None, "its owner has died");
    }

    #[test]
    fn it_is_returned_to_the_owner_for_which_it_counts() {
        assert_eq!(returned_to(owned("a"), 0), Some(owner("a")));
        let released = OwnershipRecord { handoff_to: Some(owner("b")), ..OwnershipRecord::default() };
        assert_eq!(returned_to(released.clone(), 5), Some(owner("b")), "it is reserved");
        assert_eq!(returned_to(released, 20), None, "it was");
        let asked = OwnershipRecord { handoff_to: Some(owner("b")), ..owned("a") };
        let listing = [seen(0, asked, 0), seen(1, owned("b"), 0)];
        assert_eq!(decided(&listing, &[], false).unwrap().return_to, Some(owner("b")), "it was asked for");
    }

    #[test]
    fn a_live_operator_is_left_alone_and_a_dead_one_inherited_from() {
        let operated = OwnershipRecord {
            operator: Some(owner("operator-1")),
            handoff_to: Some(owner("a")),
            ..owned("operator-1")
        };
        let busy = decided(&[seen(0, operated.clone(), 0)], &[], false).unwrap_err();
        assert!(matches!(busy, NotDone::Busy { operator } if operator == owner("operator-1")));
        assert_eq!(returned_to(operated, 100), Some(owner("a")));
    }

    #[test]
    fn what_the_operator_itself_has_left_goes_to_the_same_owner() {
        let (me, to) = (owner("operator-9"), Some(owner("a")));
        let left = OwnershipRecord { operator: Some(me.clone()), handoff_to: to.clone(), ..owned(me.as_str()) };
        for age in [0, 100] {
            assert_eq!(returned_to(left.clone(), age), to);
        }
    }

    #[test]
    fn a_group_with_a_foreign_owner_is_left_alone_unless_asked() {
        let foreign = OwnershipRecord::owned_by(owner("python"), None);
        let listing = [seen(0, owned("a"), 0), seen(1, foreign.clone(), 0)];
        let refused = decided(&listing, &[], false).unwrap_err();
        assert!(matches!(refused, NotDone::Foreign { owner: found } if found == owner("python")));
        assert!(decided(&listing, &[], true).unwrap().settle, "it may be the next owner");
        assert!(!decided(&listing[..1], &[], true).unwrap().settle);
        assert!(decided(&[seen(0, foreign, 500)], &[], false).unwrap().settle, "it may still be at work");
    }

    #[test]
    fn the_other_tree_is_left_alone() {
        let there = seen(0, OwnershipRecord::owned_by(owner("go"), None), 0);
        let refused = decided(&[], std::slice::from_ref(&there), true).unwrap_err();
        assert!(matches!(refused, NotDone::OtherNameCase { owner: found } if found == owner("go")));
    }
}
