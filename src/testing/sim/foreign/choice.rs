//! Which partitions an owner of another SDK goes for.

use std::collections::BTreeMap;

use rand::RngExt;
use rand::rngs::StdRng;

use super::rules::{Rules, Stealing};
use crate::blob::ETag;
use crate::model::PartitionId;

/// An ownership as a listing shows it.
pub(super) struct Seen {
    pub(super) owner: String,
    /// By the wall clock of the one who looks.
    pub(super) live: bool,
    pub(super) etag: ETag,
}

pub(super) struct Choosing<'a> {
    pub(super) me: &'a str,
    pub(super) rules: &'a Rules,
    pub(super) partitions: &'a [PartitionId],
    pub(super) seen: &'a BTreeMap<PartitionId, Seen>,
}

impl Choosing<'_> {
    /// What is mine already, and what to go for.
    pub(super) fn choose(&self, rng: &mut StdRng) -> (Vec<PartitionId>, Vec<PartitionId>) {
        let mut held: BTreeMap<&str, Vec<&PartitionId>> = BTreeMap::from([(self.me, Vec::new())]);
        let mut free = Vec::new();
        for partition in self.partitions {
            match self.owner_of(partition) {
                Some(owner) => held.entry(owner).or_default().push(partition),
                None => free.push(partition),
            }
        }
        let mine: Vec<PartitionId> = held[self.me].iter().map(|partition| (*partition).clone()).collect();
        let (floor, remainder) = (self.partitions.len() / held.len(), self.partitions.len() % held.len());
        let above = held.values().filter(|partitions| partitions.len() > floor).count();
        let target = floor + usize::from(above < remainder);
        let lacking = target.saturating_sub(mine.len());
        let at_once = if self.rules.greedy { lacking } else { lacking.min(1) };
        let mut wanted = drawn(&mut free, at_once, rng);
        if wanted.is_empty() || self.rules.stealing == Stealing::FromAllAbove {
            let more = at_once - wanted.len();
            wanted.extend(self.stolen(&held, floor, more, rng));
        }
        (mine, wanted)
    }

    fn owner_of(&self, partition: &PartitionId) -> Option<&str> {
        let seen = self.seen.get(partition).filter(|seen| seen.live)?;
        (self.rules.counts_released || !seen.owner.is_empty()).then_some(seen.owner.as_str())
    }

    fn stolen(
        &self,
        held: &BTreeMap<&str, Vec<&PartitionId>>,
        floor: usize,
        lacking: usize,
        rng: &mut StdRng,
    ) -> Vec<PartitionId> {
        let others = held.iter().filter(|(owner, _)| **owner != self.me).map(|(_, partitions)| partitions);
        match self.rules.stealing {
            Stealing::OneFromTheFullest => {
                let fullest = others.max_by_key(|partitions| partitions.len());
                let mut from: Vec<_> = fullest.filter(|held| held.len() > floor).cloned().unwrap_or_default();
                drawn(&mut from, lacking.min(1), rng)
            }
            Stealing::FromAllAbove => {
                let mut from: Vec<_> =
                    others.filter(|partitions| partitions.len() > floor).flatten().copied().collect();
                drawn(&mut from, lacking, rng)
            }
        }
    }
}

/// So many of them, by chance.
fn drawn(from: &mut Vec<&PartitionId>, count: usize, rng: &mut StdRng) -> Vec<PartitionId> {
    let count = count.min(from.len());
    (0..count).map(|_| from.swap_remove(rng.random_range(0..from.len())).clone()).collect()
}
