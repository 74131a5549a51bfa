//! Who holds how many partitions.

use std::collections::{BTreeMap, HashMap};

use super::view::View;
use crate::model::OwnerId;

/// My number among the owners of a [`Census`].
pub(super) const THIS: usize = 0;

/// The live owners of a view and those present, numbered in the order in which they are first seen. I am always the
/// first.
pub(super) struct OwnershipCounts<'a> {
    pub(super) owners: Vec<&'a OwnerId>,
    /// The number of the one for whom each partition counts: its live owner, or the one to whom it is being handed
    /// over.
    pub(super) holders: Vec<Option<usize>>,
}

impl<'a> OwnershipCounts<'a> {
    pub(super) fn of(view: &'a View<'_>) -> Self {
        let mut owners = vec![&view.me];
        // Only looked up, so that its order plays no part.
        let mut numbers = HashMap::from([(&view.me, THIS)]);
        let mut number_of = |owner: &'a OwnerId| {
            *numbers.entry(owner).or_insert_with(|| {
                owners.push(owner);
                owners.len() - 1
            })
        };
        let holders = view.partitions.iter().map(|entry| entry.counts_for(&view.me).map(&mut number_of));
        let holders = holders.collect();
        view.present.iter().for_each(|present| {
            number_of(present);
        });
        Self { owners, holders }
    }

    /// How many partitions each owner holds or is being handed, by number.
    pub(super) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.owners.len()];
        for holder in self.holders.iter().flatten() {
            counts[*holder] += 1;
        }
        counts
    }
}

impl View<'_> {
    /// How many partitions each live owner holds or is being handed. I am always in it, and so is every owner that is
    /// present.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let census = OwnershipCounts::of(self);
        census.owners.iter().map(|owner| (*owner).clone()).zip(census.counts()).collect()
    }
}
