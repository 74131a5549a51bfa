//! How many partitions each owner owns.

use std::collections::{BTreeMap, HashMap};

use super::view::View;
use crate::model::OwnerId;

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
    pub(super) fn of(view: &'a View<'_>) -> Self {
        let mut owners = vec![&view.me];
        // The map is only for lookups, so its order does not matter.
        let mut numbers = HashMap::from([(&view.me, THIS)]);
        let mut number_of = |owner: &'a OwnerId| {
            *numbers.entry(owner).or_insert_with(|| {
                owners.push(owner);
                owners.len() - 1
            })
        };
        let counts_for = view.partitions.iter().map(|entry| entry.counts_for(&view.me).map(&mut number_of));
        let counts_for = counts_for.collect();
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

impl View<'_> {
    /// Returns how many partitions each live owner owns or is about to receive by handoff. Includes this instance and
    /// every owner with a heartbeat.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let counts = OwnershipCounts::of(self);
        counts.owners.iter().map(|owner| (*owner).clone()).zip(counts.by_owner()).collect()
    }
}
