//! The group as one instance sees it: which owner has which partition, and how many each one has.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::model::{Incarnation, Moment, OwnerId, Ownership, PartitionId};

/// The owner of a partition, as one instance sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "owner_id", rename_all = "snake_case")]
#[non_exhaustive]
pub enum PartitionOwner {
    /// No instance has ever claimed it.
    Unowned,
    /// Its last owner released it.
    Released,
    /// This instance owns it and runs it. That remains so after the lease duration, as long as no other instance has
    /// taken it.
    This,
    /// The live record names this instance, in this incarnation or an earlier one, but the instance does not run the
    /// partition. It may claim the partition at once.
    Reclaimable,
    /// Another live owner.
    Other(OwnerId),
    /// An owner that did not renew in time.
    Expired(OwnerId),
}

/// One partition, its owner, and the instance that it is being handed over to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionView {
    /// The partition.
    pub partition: PartitionId,
    /// Its owner.
    #[serde(flatten)]
    pub owner: PartitionOwner,
    /// Whether its owner is another instance that hands partitions over on request, so that it need not be stolen.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cooperative: bool,
    /// Whether its owner is another instance that has shut down and kept it for its restart. It is neither stolen nor
    /// requested before its lease expires.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub away: bool,
    /// The instance that it is being handed over to. While the partition is owned, that instance, which is alive, has
    /// requested it from the owner. Once it is [released](PartitionOwner::Released), it is reserved for that instance.
    /// It already counts for that instance. `None` if the requesting instance has expired, or the reservation has
    /// ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_to: Option<OwnerId>,
    /// The operator that works on it, see [`Operator::reset`](crate::admin::Operator::reset): it owns the partition,
    /// has requested it, or has released it. An operator is not a member of the group, so the partition counts for
    /// `handoff_to`, or for the owner that it was requested from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<OwnerId>,
}

impl PartitionView {
    /// Creates the view of a partition that is not being handed over.
    #[must_use]
    pub fn new(partition: PartitionId, owner: PartitionOwner) -> Self {
        Self { partition, owner, cooperative: false, away: false, handoff_to: None, operator: None }
    }

    /// Returns the owner whose share it is part of.
    pub(crate) fn counts_for<'a>(&'a self, this: &'a OwnerId) -> Option<&'a OwnerId> {
        let owner = match &self.owner {
            PartitionOwner::This | PartitionOwner::Reclaimable => Some(this),
            PartitionOwner::Other(owner) => Some(owner),
            PartitionOwner::Unowned | PartitionOwner::Released | PartitionOwner::Expired(_) => None,
        };
        let mut receiver_or_owner = [self.handoff_to.as_ref(), owner].into_iter().flatten();
        receiver_or_owner.find(|owner| self.operator.as_ref() != Some(*owner))
    }

    /// Returns whether any instance may claim it.
    pub(crate) fn is_unowned(&self) -> bool {
        self.is_free() || self.is_expired()
    }

    /// Returns whether no instance owns it, and it is not reserved for one.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.owner, PartitionOwner::Unowned | PartitionOwner::Released) && self.handoff_to.is_none()
    }

    /// Returns whether its owner did not renew in time.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self.owner, PartitionOwner::Expired(_))
    }

    /// Returns whether an operator owns it.
    pub(crate) fn is_owned_by_operator(&self) -> bool {
        matches!(&self.owner, PartitionOwner::Other(owner) if self.operator.as_ref() == Some(owner))
    }
}

/// The group, as one instance sees it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Every partition of the event hub, in order.
    pub partitions: Vec<PartitionView>,
    /// The records that it was read from.
    pub records: HashMap<&'a PartitionId, &'a Ownership>,
    /// Partitions that this instance runs, but that the event hub no longer has.
    pub removed: Vec<PartitionId>,
    /// The other owners with a live heartbeat, whether they own anything or not.
    pub present: BTreeSet<OwnerId>,
    /// Partitions of [cooperative](PartitionView::cooperative) owners whose records are too old for a handoff request:
    /// a request renews the record, and must not keep the lease of a dead owner alive. Each of them is renewed soon, or
    /// else expires.
    pub not_requestable: BTreeSet<PartitionId>,
    /// The observing instance.
    pub me: OwnerId,
    /// A later incarnation of this instance that is running: this one must stop.
    pub replaced_by: Option<Incarnation>,
    /// Whether an owner of another SDK is alive in the group. Other SDKs compare ages with their own wall clocks, so
    /// leases must be renewed more often.
    pub foreign_owner: bool,
    /// When the first ownership of another instance expires, if nothing renews it.
    pub next_expiry: Option<Moment>,
    /// The other owners with a live record.
    pub owners: BTreeMap<OwnerId, LiveOwnership>,
}

/// What the live records of one other owner show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOwnership {
    /// The partition whose lease was renewed last.
    pub partition: PartitionId,
    /// When a whole lease duration will have passed since then.
    pub silent_at: Moment,
    /// When the first lease expires that should have been renewed by now: the owner may be dead.
    pub overdue_expiry: Option<Moment>,
    /// Whether the owner looks after the group, too. An operator does not, nor does an owner that has shut down and
    /// kept its partitions.
    pub takes_part: bool,
}

impl<'a> View<'a> {
    /// Returns the same view without the records, so that it can outlive the listing. Nothing can be planned over its
    /// records.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn without_records(self) -> View<'static> {
        View {
            partitions: self.partitions,
            records: HashMap::new(),
            removed: self.removed,
            present: self.present,
            not_requestable: self.not_requestable,
            me: self.me,
            replaced_by: self.replaced_by,
            foreign_owner: self.foreign_owner,
            next_expiry: self.next_expiry,
            owners: self.owners,
        }
    }

    /// Returns the record of a partition, if it has one.
    #[must_use]
    pub fn record_of(&self, partition: &PartitionId) -> Option<&'a Ownership> {
        self.records.get(partition).copied()
    }

    /// Returns the owner of a partition, or nothing if the event hub has no such partition.
    #[must_use]
    pub fn owner_of_partition(&self, partition: &PartitionId) -> Option<&PartitionOwner> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.owner)
    }

    /// Returns how many partitions each live owner owns or is about to receive by handoff. Includes this instance and
    /// every owner with a heartbeat.
    #[must_use]
    pub fn count_by_owner(&self) -> BTreeMap<OwnerId, usize> {
        let counts = OwnershipCounts::new(self);
        counts.owners.iter().map(|owner| (*owner).clone()).zip(counts.by_owner()).collect()
    }

    /// Returns whether any partition is unowned.
    #[must_use]
    pub fn has_unowned(&self) -> bool {
        self.partitions.iter().any(PartitionView::is_unowned)
    }

    /// Returns whether any released partition is reserved for another instance, as long as that instance is alive.
    #[must_use]
    pub fn has_reserved(&self) -> bool {
        let mut released = self.partitions.iter().filter(|entry| entry.owner == PartitionOwner::Released);
        released.any(|entry| entry.handoff_to.as_ref().is_some_and(|to| *to != self.me))
    }
}

/// The number of this instance among the owners of [`OwnershipCounts`].
pub(super) const THIS: usize = 0;

/// The live owners of a view and those with a heartbeat, numbered in the order in which they are found. This instance
/// is always the first.
pub(super) struct OwnershipCounts<'a> {
    pub(super) owners: Vec<&'a OwnerId>,
    /// The number of the owner that each partition counts for: its live owner, or the owner that it is being handed
    /// over to.
    pub(super) counts_for: Vec<Option<usize>>,
}

impl<'a> OwnershipCounts<'a> {
    pub(super) fn new(view: &'a View<'_>) -> Self {
        let mut owners = vec![&view.me];
        // The map is only for lookups, so its order does not matter.
        let mut numbers = HashMap::from([(&view.me, THIS)]);
        let mut number_of = |owner: &'a OwnerId| {
            *numbers.entry(owner).or_insert_with(|| {
                owners.push(owner);
                owners.len() - 1
            })
        };
        let counts_for = view.partitions.iter().map(|entry| entry.counts_for(&view.me).map(&mut number_of)).collect();
        view.present.iter().for_each(|owner| {
            number_of(owner);
        });
        Self { owners, counts_for }
    }

    /// Returns how many partitions each owner owns or is about to receive by handoff, by number.
    pub(super) fn by_owner(&self) -> Vec<usize> {
        let mut counts = vec![0; self.owners.len()];
        for owner in self.counts_for.iter().flatten() {
            counts[*owner] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use crate::model::OwnerId;
    use crate::planner::PartitionOwner;
    use crate::planner::idle::tests::view_of;

    /// A partition that was handed over, and that the other instance has not claimed yet.
    #[test]
    fn only_a_release_for_another_instance_is_reserved() {
        for (owner, handoff_to, is_reserved) in [
            (PartitionOwner::Released, Some("b"), true),
            (PartitionOwner::Released, Some("m"), false),
            (PartitionOwner::Released, None, false),
            (PartitionOwner::This, Some("b"), false),
            (PartitionOwner::Unowned, None, false),
        ] {
            let mut view = view_of("m.");
            view.partitions[1].owner = owner;
            view.partitions[1].handoff_to = handoff_to.map(OwnerId::from_record);
            assert_eq!(view.has_reserved(), is_reserved, "{:?}", view.partitions[1]);
        }
    }
}
