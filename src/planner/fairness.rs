//! When a group is shared fairly, by number and by load.
//!
//! The rules use only the view, and share none with the planner, except for the weights of partitions.

use std::collections::BTreeMap;

use super::policy::{LoadBalancingStrategy, Policy};
use super::view::{PartitionOwner, PartitionView, View};
use super::weighted::weights;
use crate::model::OwnerId;

/// A description of the rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub(super) String);

pub(super) type Verdict = Result<(), Violation>;

pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Violation(otherwise())) }
}

/// Returns whether an owner that observes the group in this state has nothing left to do by this policy.
#[must_use]
pub fn is_settled(view: &View<'_>, policy: &Policy) -> bool {
    let own = view.partitions.iter().filter(|entry| entry.owner == PartitionOwner::This).count();
    if policy.max_partitions.is_some_and(|max| own > max) || !view.removed.is_empty() {
        return false;
    }
    match &policy.strategy {
        LoadBalancingStrategy::Static(assignment) => view.partitions.iter().enumerate().all(|(ordinal, entry)| {
            if assignment.covers(ordinal, &entry.partition) {
                is_taken(entry)
            } else {
                entry.owner != PartitionOwner::This
            }
        }),
        LoadBalancingStrategy::Balanced | LoadBalancingStrategy::Greedy => {
            let counts: Vec<_> = view.count_by_owner().into_values().collect();
            view.partitions.iter().all(is_taken) && check_fairness(view.partitions.len(), &counts).is_ok()
        }
        LoadBalancingStrategy::Weighted { threshold_percent } => {
            view.partitions.iter().all(is_taken) && check_evenness(view, policy, *threshold_percent).is_ok()
        }
    }
}

/// A partition in a handoff counts as taken until the new owner can claim it.
fn is_taken(entry: &PartitionView) -> bool {
    matches!(entry.owner, PartitionOwner::This | PartitionOwner::Other(_))
}

/// Checks fairness by number: with P partitions and N owners every owner holds `floor(P/N)`, and `P mod N` owners one
/// more. `counts` includes owners that hold nothing.
///
/// # Errors
///
/// The counts, if they are not fair.
pub fn check_fairness(partitions: usize, counts: &[usize]) -> Verdict {
    let owners = counts.len().max(1);
    let floor = partitions / owners;
    let above = counts.iter().filter(|held| **held == floor + 1).count();
    let at_floor = counts.iter().filter(|held| **held == floor).count();
    ensure(above == partitions % owners && above + at_floor == counts.len(), || {
        format!("{partitions} partitions are not shared fairly: {counts:?}")
    })
}

/// Checks fairness by load: no owner's load, minus its lightest partition, exceeds the least load by more than the
/// threshold.
///
/// # Errors
///
/// The owner whose load is too high.
pub fn check_evenness(view: &View<'_>, policy: &Policy, threshold_percent: u32) -> Verdict {
    let loads = OwnerLoads::new(view, policy);
    let least = loads.by_owner.values().copied().min().unwrap_or_default();
    for (owner, load) in &loads.by_owner {
        let lightest = loads.lightest.get(owner).copied().unwrap_or_default();
        ensure(!loads.exceeds_threshold(load.saturating_sub(least + lightest), threshold_percent), || {
            format!(
                "{owner} has a load of {load}, of which the lightest partition is {lightest}, but the least load is \
                 {least}"
            )
        })?;
    }
    Ok(())
}

/// Returns the fewest partitions that must be taken from live owners before every owner can hold its share: the number
/// that each owner has above its share, if the owners with the most get the larger shares. `counts` includes all
/// owners.
///
/// The strategies by number need no more moves than that if every owner is counted from the start, which means that all
/// hold something, or if those that hold something share all partitions fairly before others join.
#[must_use]
pub fn fewest_moves(partitions: usize, counts: &[usize]) -> usize {
    let owners = counts.len().max(1);
    let floor = partitions / owners;
    let larger_shares = partitions % owners;
    let mut counts = counts.to_vec();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let ranked = counts.iter().enumerate();
    ranked.map(|(rank, held)| held.saturating_sub(floor + usize::from(rank < larger_shares))).sum()
}

/// The loads of the owners in a view, by the weights of their partitions.
#[derive(Debug)]
pub struct OwnerLoads<'a> {
    /// The weight of each partition, in the order of the view.
    pub weights: Vec<u128>,
    /// The load of each live owner, including owners without partitions.
    pub by_owner: BTreeMap<&'a OwnerId, u128>,
    /// The weight of the lightest partition of each owner.
    pub lightest: BTreeMap<&'a OwnerId, u128>,
    /// The weight of all partitions, including unowned ones.
    pub total: u128,
}

impl<'a> OwnerLoads<'a> {
    /// Weighs the partitions of a view.
    #[must_use]
    pub fn new(view: &'a View<'a>, policy: &Policy) -> Self {
        let weights = weights(&view.partitions, &policy.loads);
        let mut by_owner: BTreeMap<_, _> =
            [&view.me].into_iter().chain(&view.present).map(|owner| (owner, 0)).collect();
        let mut lightest = BTreeMap::new();
        for (entry, weight) in view.partitions.iter().zip(&weights) {
            if let Some(owner) = find_load_owner(entry, view) {
                *by_owner.entry(owner).or_default() += weight;
                let known = lightest.entry(owner).or_insert(*weight);
                *known = (*known).min(*weight);
            }
        }
        Self { total: weights.iter().sum(), weights, by_owner, lightest }
    }

    /// Returns the number of owners.
    #[must_use]
    pub fn count_owners(&self) -> u128 {
        self.by_owner.len() as u128
    }

    pub(super) fn exceeds_threshold(&self, gain: u128, threshold_percent: u32) -> bool {
        gain * 100 * self.count_owners() > u128::from(threshold_percent) * self.total
    }
}

/// A partition in a handoff is part of the load of its receiver.
fn find_load_owner<'a>(entry: &'a PartitionView, view: &'a View<'a>) -> Option<&'a OwnerId> {
    if entry.handoff_to.is_some() && entry.handoff_to != entry.operator {
        return entry.handoff_to.as_ref();
    }
    match &entry.owner {
        PartitionOwner::This | PartitionOwner::Reclaimable => Some(&view.me),
        PartitionOwner::Other(owner) if entry.operator.as_ref() != Some(owner) => Some(owner),
        _ => None,
    }
}
