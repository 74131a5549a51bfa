//! Sharing by loads. For the rules and what they guarantee, see
//! [`LoadBalancingStrategy::Weighted`](super::LoadBalancingStrategy::Weighted).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use super::candidates::{ClaimTurn, WantedPartitions, places_of_others, unowned_places};
use super::policy::Policy;
use super::view::{OwnershipCounts, PartitionView, THIS, View};
use crate::model::{OwnerId, PartitionId};

/// A partition with next to no load counts as this fraction of the mean.
const IDLE_PART: u64 = 10;

/// Returns what brings this instance closer to the fair load.
pub(super) fn choose_by_load(
    view: &View<'_>,
    policy: &Policy,
    threshold_percent: u32,
    rng: &mut impl Rng,
) -> WantedPartitions {
    let group = GroupLoads::new(view, policy, threshold_percent);
    let nothing = WantedPartitions { unowned: Vec::new(), stolen: Vec::new(), at_once: 1 };
    let own = group.loads[THIS];
    let fair_without_idle = group.fair_without(&policy.idle);
    if !fair_without_idle.is_above(own) {
        return nothing;
    }
    let unowned = unowned_places(view, policy, ClaimTurn::ALONE, rng).places;
    if !unowned.is_empty() {
        return WantedPartitions { unowned: group.fill_up(unowned, fair_without_idle), ..nothing };
    }
    if !group.fair.is_above(own) {
        return nothing;
    }
    let stolen = group.best_to_steal(places_of_others(view, policy, rng));
    WantedPartitions { stolen: stolen.into_iter().collect(), ..nothing }
}

/// Returns the weight of each partition: its load, or the mean if it is unknown, and never less than a tenth of the
/// mean.
#[must_use]
pub fn weights(partitions: &[PartitionView], loads: &BTreeMap<PartitionId, u64>) -> Vec<u128> {
    let loads: Vec<_> = partitions.iter().map(|entry| loads.get(&entry.partition).copied()).collect();
    let known = loads.iter().flatten().count();
    let sum: u128 = loads.iter().flatten().map(|load| u128::from(*load)).sum();
    let mean = sum.div_ceil(known.max(1) as u128).max(1);
    let least = mean.div_ceil(u128::from(IDLE_PART));
    loads.into_iter().map(|load| load.map_or(mean, u128::from).max(least)).collect()
}

/// Returns the owners with less than the fair load that results without the idle ones.
pub(super) fn owners_below_fair_load<'a>(view: &'a View<'_>, policy: &Policy) -> Vec<&'a OwnerId> {
    let group = GroupLoads::new(view, policy, 0);
    let fair = group.fair_without(&policy.idle);
    let loads = group.counts.owners.into_iter().zip(group.loads);
    loads.filter(|(_, load)| fair.is_above(*load)).map(|(owner, _)| owner).collect()
}

/// A load that this many owners share. It is compared by products, because the fair load of each need not be a whole
/// number.
#[derive(Clone, Copy)]
struct FairLoad {
    total: u128,
    owners: u128,
}

impl FairLoad {
    fn is_above(self, load: u128) -> bool {
        load * self.owners < self.total
    }

    fn is_at_least(self, load: u128) -> bool {
        load * self.owners <= self.total
    }
}

/// The live owners and their loads.
struct GroupLoads<'a> {
    counts: OwnershipCounts<'a>,
    weights: Vec<u128>,
    /// The load of each owner.
    loads: Vec<u128>,
    /// The fair load of all partitions, including unowned ones.
    fair: FairLoad,
    threshold_percent: u128,
}

impl<'a> GroupLoads<'a> {
    fn new(view: &'a View<'_>, policy: &Policy, threshold_percent: u32) -> Self {
        let counts = OwnershipCounts::new(view);
        let weights = weights(&view.partitions, &policy.loads);
        let mut loads = vec![0; counts.owners.len()];
        for (owner, weight) in counts.counts_for.iter().zip(&weights) {
            if let Some(owner) = owner {
                loads[*owner] += weight;
            }
        }
        let fair = FairLoad { total: weights.iter().sum(), owners: loads.len() as u128 };
        Self { counts, weights, loads, fair, threshold_percent: threshold_percent.into() }
    }

    /// Returns the fair load of the others, if the idle ones keep their loads.
    fn fair_without(&self, idle: &BTreeSet<OwnerId>) -> FairLoad {
        let owners = self.counts.owners.iter().zip(&self.loads);
        let kept = owners.filter(|(owner, _)| idle.contains(**owner)).map(|(_, load)| *load);
        kept.fold(self.fair, |fair, load| FairLoad { total: fair.total - load, owners: fair.owners - 1 })
    }

    /// Returns the unowned partitions that fit below the fair load, and one more if they do not reach it.
    fn fill_up(&self, unowned: Vec<usize>, fair: FairLoad) -> Vec<usize> {
        let mut load = self.loads[THIS];
        let mut taken = Vec::new();
        let mut too_heavy = None;
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

    /// Returns what to steal: from the owner with the greatest load that has something to gain, the partition that
    /// brings the two loads closest together; of equal ones, the last.
    fn best_to_steal(&self, candidates: Vec<usize>) -> Option<usize> {
        let own = self.loads[THIS];
        let owns_least = self.loads.iter().all(|load| *load >= own);
        let gains = candidates.into_iter().filter_map(|place| {
            let weight = self.weights[place];
            let other = self.loads[self.counts.counts_for[place]?];
            let gain = other.checked_sub(own + weight)?;
            let fits = owns_least || self.fair.is_at_least(own + weight);
            let uneven = (2 * weight).abs_diff(other - own);
            let exceeds_threshold = gain * 100 * self.fair.owners > self.threshold_percent * self.fair.total;
            (fits && exceeds_threshold).then_some((other, Reverse(uneven), place))
        });
        gains.max_by_key(|(other, uneven, _)| (*other, *uneven)).map(|(.., place)| place)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::planner::PartitionOwner;
    use crate::planner::idle::tests::view_of;

    /// Returns the first partition that is claimed or stolen with these loads, for any random order.
    fn first_of(layout: &str, loads: &[u64]) -> Option<usize> {
        let loads = (0u32..).zip(loads).map(|(id, load)| (id.into(), *load)).collect();
        let policy = Policy { loads, ..Policy::default() };
        let view = view_of(layout);
        let chosen = (0..20).map(|seed| {
            let wanted = choose_by_load(&view, &policy, 10, &mut StdRng::seed_from_u64(seed));
            wanted.unowned.into_iter().chain(wanted.stolen).next()
        });
        let chosen: BTreeSet<_> = chosen.collect();
        assert_eq!(chosen.len(), 1, "{layout}: {chosen:?}");
        chosen.into_iter().next().flatten()
    }

    #[test]
    fn what_fits_below_the_fair_load_is_claimed_first() {
        assert_eq!(first_of("ma..", &[30, 50, 100, 10]), Some(3), "the fair load is 95");
        assert_eq!(first_of("ma.", &[30, 50, 100]), Some(2), "one more, because nothing fits");
    }

    #[test]
    fn a_steal_brings_the_two_loads_closest_together() {
        assert_eq!(first_of("maaa", &[20, 10, 38, 52]), Some(2), "58 and 62");
    }

    /// The fair load is 56 2/3.
    #[test]
    fn only_the_least_owner_steals_above_the_fair_load() {
        assert_eq!(first_of("mbaa", &[40, 30, 10, 90]), Some(2), "with 50 it stays below");
        assert_eq!(first_of("mbaa", &[40, 30, 50, 50]), None);
        assert!(first_of("mbaaa", &[30, 40, 50, 40, 10]).is_some());
    }

    fn weights_of(loads: &[Option<u64>]) -> Vec<u128> {
        let entries = (0u32..).zip(loads);
        let partitions: Vec<_> =
            entries.clone().map(|(id, _)| PartitionView::new(id.into(), PartitionOwner::Unowned)).collect();
        let known = entries.filter_map(|(id, load)| Some((id.into(), (*load)?))).collect();
        weights(&partitions, &known)
    }

    #[test]
    fn a_missing_load_counts_as_the_mean() {
        assert_eq!(weights_of(&[Some(100), None, Some(200)]), [100, 150, 200]);
        assert_eq!(weights_of(&[None, None]), [1, 1]);
    }

    #[test]
    fn next_to_no_load_counts_as_a_tenth_of_the_mean() {
        assert_eq!(weights_of(&[Some(300), Some(0), Some(300)]), [300, 20, 300]);
        assert_eq!(weights_of(&[Some(0), Some(0)]), [1, 1]);
    }

    #[test]
    fn the_largest_loads_do_not_overflow() {
        assert_eq!(weights_of(&[Some(u64::MAX); 3]), [u128::from(u64::MAX); 3]);
    }
}
