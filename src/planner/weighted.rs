//! Sharing by loads. The rules and what they guarantee: [`LoadBalancingStrategy::Weighted`](super::LoadBalancingStrategy::Weighted).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use super::candidates::{Wanted, in_other_hands, unowned};
use super::census::{OwnershipCounts, THIS};
use super::policy::Policy;
use super::view::{PartitionView, View};
use crate::model::{OwnerId, PartitionId};

/// What part of the mean a partition with next to no load counts as.
const IDLE_PART: u64 = 10;

/// What brings me nearer to the fair load.
pub(super) fn wanted(view: &View<'_>, policy: &Policy, threshold_percent: u32, rng: &mut impl Rng) -> Wanted {
    let group = Group::of(view, policy, threshold_percent);
    let nothing = Wanted { unowned: Vec::new(), stolen: Vec::new(), at_once: 1 };
    let mine = group.loads[THIS];
    let fair_without_idle = group.fair_without(&policy.idle);
    if !fair_without_idle.is_above(mine) {
        return nothing;
    }
    let unowned = unowned(view, policy, rng);
    if !unowned.is_empty() {
        return Wanted { unowned: group.fill_up(unowned, fair_without_idle), ..nothing };
    }
    if !group.fair.is_above(mine) {
        return nothing;
    }
    let stolen = group.best_to_steal(in_other_hands(view, policy, rng));
    Wanted { stolen: stolen.into_iter().collect(), ..nothing }
}

/// The weight of each partition: its load, the mean for those without, and never below a tenth of the mean.
#[must_use]
pub fn weights(partitions: &[PartitionView], loads: &BTreeMap<PartitionId, u64>) -> Vec<u128> {
    let loads: Vec<_> = partitions.iter().map(|entry| loads.get(&entry.partition).copied()).collect();
    let known = loads.iter().flatten().count();
    let sum: u128 = loads.iter().flatten().map(|load| u128::from(*load)).sum();
    let mean = sum.div_ceil(known.max(1) as u128).max(1);
    let least = mean.div_ceil(u128::from(IDLE_PART));
    loads.into_iter().map(|load| load.map_or(mean, u128::from).max(least)).collect()
}

/// The owners that carry less than the fair load without the idle ones.
pub(super) fn below_fair_load<'a>(view: &'a View<'_>, policy: &Policy) -> Vec<&'a OwnerId> {
    let group = Group::of(view, policy, 0);
    let fair = group.fair_without(&policy.idle);
    let loads = group.census.owners.into_iter().zip(group.loads);
    loads.filter(|(_, load)| fair.is_above(*load)).map(|(owner, _)| owner).collect()
}

/// A load that so many owners share. Compared as products: the fair load of each need not be a whole number.
#[derive(Clone, Copy)]
struct Fair {
    total: u128,
    owners: u128,
}

impl Fair {
    fn is_above(self, load: u128) -> bool {
        load * self.owners < self.total
    }

    fn is_at_least(self, load: u128) -> bool {
        load * self.owners <= self.total
    }
}

/// The live owners and what they carry.
struct Group<'a> {
    census: OwnershipCounts<'a>,
    weights: Vec<u128>,
    /// Of each owner.
    loads: Vec<u128>,
    /// Of all partitions, unowned ones too.
    fair: Fair,
    threshold_percent: u128,
}

impl<'a> Group<'a> {
    fn of(view: &'a View<'_>, policy: &Policy, threshold_percent: u32) -> Self {
        let census = OwnershipCounts::of(view);
        let weights = weights(&view.partitions, &policy.loads);
        let mut loads = vec![0; census.owners.len()];
        for (holder, weight) in census.holders.iter().zip(&weights) {
            if let Some(owner) = holder {
                loads[*owner] += weight;
            }
        }
        let fair = Fair { total: weights.iter().sum(), owners: loads.len() as u128 };
        Self { census, weights, loads, fair, threshold_percent: threshold_percent.into() }
    }

    /// The fair load of the others, if these keep what they carry.
    fn fair_without(&self, idle: &BTreeSet<OwnerId>) -> Fair {
        let owners = self.census.owners.iter().zip(&self.loads);
        let kept = owners.filter(|(owner, _)| idle.contains(**owner)).map(|(_, load)| *load);
        kept.fold(self.fair, |fair, load| Fair { total: fair.total - load, owners: fair.owners - 1 })
    }

    /// Of what nobody owns, everything that fits below the fair load, and if that does not fill it, one more.
    fn fill_up(&self, unowned: Vec<usize>, fair: Fair) -> Vec<usize> {
        let mut load = self.loads[THIS];
        let (mut taken, mut too_heavy) = (Vec::new(), None);
        for place in unowned {
            let filled = load + self.weights[place];
            if fair.is_at_least(filled) {
                load = filled;
                taken.push(place);
            } else {
                too_heavy = too_heavy.or(Some(place));
            }
        }
        if fair.is_above(load) {
            taken.extend(too_heavy);
        }
        taken
    }

    /// From the fullest owner from which something can be gained, what comes closest to evening out the two; of equals,
    /// the last.
    fn best_to_steal(&self, candidates: Vec<usize>) -> Option<usize> {
        let mine = self.loads[THIS];
        let i_hold_least = self.loads.iter().all(|load| *load >= mine);
        let gains = candidates.into_iter().filter_map(|place| {
            let weight = self.weights[place];
            let theirs = self.loads[self.census.holders[place]?];
            let gain = theirs.checked_sub(mine + weight)?;
            let fits = i_hold_least || self.fair.is_at_least(mine + weight);
            let uneven = (2 * weight).abs_diff(theirs - mine);
            (fits && self.exceeds_threshold(gain)).then_some((theirs, Reverse(uneven), place))
        });
        gains.max_by_key(|(theirs, uneven, _)| (*theirs, *uneven)).map(|(.., place)| place)
    }

    fn exceeds_threshold(&self, gain: u128) -> bool {
        gain * 100 * self.fair.owners > self.threshold_percent * self.fair.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::PartitionOwner;

    fn weights_of(loads: &[Option<u64>]) -> Vec<u128> {
        let entries = (0u32..).zip(loads);
        let partitions: Vec<_> =
            entries.clone().map(|(id, _)| PartitionView::new(id.into(), PartitionOwner::Unowned)).collect();
        let known = entries.filter_map(|(id, load)| Some((id.into(), (*load)?))).collect();
        weights(&partitions, &known)
    }

    #[test]
    fn a_partition_whose_load_is_not_given_counts_as_the_mean_of_the_others() {
        assert_eq!(weights_of(&[Some(100), None, Some(200)]), [100, 150, 200]);
        assert_eq!(weights_of(&[None, None]), [1, 1]);
    }

    #[test]
    fn a_partition_with_next_to_no_load_counts_as_a_tenth_of_the_mean() {
        assert_eq!(weights_of(&[Some(300), Some(0), Some(300)]), [300, 20, 300]);
        assert_eq!(weights_of(&[Some(0), Some(0)]), [1, 1]);
    }

    #[test]
    fn loads_as_large_as_can_be_do_no_harm() {
        assert_eq!(weights_of(&[Some(u64::MAX); 3]), [u128::from(u64::MAX); 3]);
    }
}
