//! Who holds how many partitions.

use std::collections::HashMap;

use super::view::{Holder, View};
use crate::model::OwnerId;

/// My number among the owners of a [`Census`].
pub(super) const ME: usize = 0;

/// The live owners of a view, numbered in the order in which they are first seen. I am always the first.
pub(super) struct Census<'a> {
    pub(super) owners: Vec<&'a OwnerId>,
    /// The number of each partition's live owner.
    pub(super) holders: Vec<Option<usize>>,
}

impl<'a> Census<'a> {
    pub(super) fn of(view: &'a View) -> Self {
        let mut owners = vec![&view.me];
        // Only looked up, so that its order plays no part.
        let mut numbers = HashMap::from([(&view.me, ME)]);
        let mut number_of = |owner: &'a OwnerId| {
            *numbers.entry(owner).or_insert_with(|| {
                owners.push(owner);
                owners.len() - 1
            })
        };
        let holders = view.partitions.iter().map(|entry| match &entry.holder {
            Holder::Me | Holder::Orphan => Some(ME),
            Holder::Live(owner) | Holder::Elsewhere(owner) => Some(number_of(owner)),
            Holder::Nobody | Holder::Released | Holder::Expired(_) => None,
        });
        let holders = holders.collect();
        Self { owners, holders }
    }

    /// How many partitions each owner holds, by number.
    pub(super) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.owners.len()];
        for holder in self.holders.iter().flatten() {
            counts[*holder] += 1;
        }
        counts
    }
}
