//! Properties of every plan and of every planning group, as functions for tests and simulations.
//!
//! They use only the view and the plan, and share no rule with the planner, except for the weights of partitions.

use std::collections::{BTreeMap, BTreeSet};

use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy, PartitionOwner, PartitionView};
use eventhubs_checkpoint::internal::planner::{
    Plan, PlannedClaim, PlannedHandoff, Policy, ReleaseReason, View, weights,
};
use eventhubs_checkpoint::{OwnerId, PartitionId};

/// A description of the rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

type Verdict = Result<(), Violation>;

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Violation(otherwise())) }
}

/// Checks everything that holds of a single plan: it is [safe] and [stable].
///
/// # Errors
///
/// The first broken rule.
pub fn check(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    safe(view, policy, plan)?;
    stable(view, policy, plan)
}

/// Checks safety, for any view: the plan claims and requests only what it may, no more than the cap and the strategy
/// allow; no victim keeps less than its share; only what must be released is released.
///
/// # Errors
///
/// The first broken rule.
pub fn safe(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    each_partition_once(plan)?;
    claims_only_what_it_may(view, policy, plan)?;
    requests_only_what_it_may(view, policy, plan)?;
    stays_within_the_cap(view, policy, plan)?;
    releases_only_what_it_must(view, policy, plan)?;
    steals_only_if_nothing_is_unowned(view, policy, plan)?;
    match &policy.strategy {
        LoadBalancingStrategy::Balanced => shares_by_number(view, policy, plan, 1),
        LoadBalancingStrategy::Greedy => shares_by_number(view, policy, plan, usize::MAX),
        LoadBalancingStrategy::Static(_) => ensure(gains(plan).all(|gain| gain.victim.is_none()), || {
            format!("takes from others by a static assignment: {plan:?}")
        }),
        LoadBalancingStrategy::Weighted { threshold_percent } => shares_by_load(view, policy, plan, *threshold_percent),
        other => Err(Violation(format!("unsupported strategy {other:?}"))),
    }
}

/// Checks stability: a [settled] group plans nothing.
///
/// # Errors
///
/// The plan.
pub fn stable(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let quiet = plan.is_empty() && plan.unclaimed_due_to_limit == 0;
    ensure(quiet || !settled(view, policy), || format!("a settled group plans {plan:?}"))
}

/// Returns whether an owner that observes the group in this state has nothing left to do by this policy.
#[must_use]
pub fn settled(view: &View<'_>, policy: &Policy) -> bool {
    let own = view.partitions.iter().filter(|entry| entry.owner == PartitionOwner::This).count();
    // A partition in a handoff counts as taken until the new owner can claim it.
    let taken = |entry: &PartitionView| matches!(entry.owner, PartitionOwner::This | PartitionOwner::Other(_));
    if policy.max_partitions.is_some_and(|max| own > max) || !view.removed.is_empty() {
        return false;
    }
    match &policy.strategy {
        LoadBalancingStrategy::Static(assignment) => view.partitions.iter().enumerate().all(|(ordinal, entry)| {
            if assignment.covers(ordinal, &entry.partition) {
                taken(entry)
            } else {
                entry.owner != PartitionOwner::This
            }
        }),
        LoadBalancingStrategy::Balanced | LoadBalancingStrategy::Greedy => {
            let counts: Vec<_> = view.counts().into_values().collect();
            view.partitions.iter().all(taken) && fair(view.partitions.len(), &counts).is_ok()
        }
        LoadBalancingStrategy::Weighted { threshold_percent } => {
            view.partitions.iter().all(taken) && even(view, policy, *threshold_percent).is_ok()
        }
        other => unimplemented!("{other:?}"),
    }
}

/// Checks fairness by number: with P partitions and N owners every owner holds `floor(P/N)`, and `P mod N` owners one
/// more. `counts` includes owners that hold nothing.
///
/// # Errors
///
/// The counts, if they are not fair.
pub fn fair(partitions: usize, counts: &[usize]) -> Verdict {
    let (floor, remainder) = (partitions / counts.len().max(1), partitions % counts.len().max(1));
    let above = counts.iter().filter(|held| **held == floor + 1).count();
    let at_floor = counts.iter().filter(|held| **held == floor).count();
    ensure(above == remainder && above + at_floor == counts.len(), || {
        format!("{partitions} partitions are not shared fairly: {counts:?}")
    })
}

/// Checks fairness by load: no owner's load, minus its lightest partition, exceeds the least load by more than the
/// threshold.
///
/// # Errors
///
/// The owner whose load is too high.
pub fn even(view: &View<'_>, policy: &Policy, threshold_percent: u32) -> Verdict {
    let scales = Scales::of(view, policy);
    let least = scales.loads.values().copied().min().unwrap_or_default();
    for (owner, load) in &scales.loads {
        let lightest = scales.lightest.get(owner).copied().unwrap_or_default();
        ensure(!scales.exceeds(load.saturating_sub(least + lightest), threshold_percent), || {
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
    let (floor, remainder) = (partitions / counts.len().max(1), partitions % counts.len().max(1));
    let mut counts = counts.to_vec();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let share = |rank: usize| floor + usize::from(rank < remainder);
    counts.iter().enumerate().map(|(rank, held)| held.saturating_sub(share(rank))).sum()
}

/// Convergence: returns the number of rounds within which a group settles, if every owner plans once per round, one
/// after another, no partition is to be avoided, no owner is capped and none uses the other name case. `None` for
/// [`LoadBalancingStrategy::Weighted`], for which it depends on the loads, see [`steals_to_settle`].
///
/// By number: in each round every owner below the floor gains one partition (Balanced) or all that it lacks (Greedy),
/// and no owner falls below the floor again; in one more round, the owners that may hold one more take it. A requested
/// partition counts as gained when it is requested; the time of the handoff is added. Static: in the first round
/// everything is released, in the second it is claimed.
#[must_use]
pub fn rounds_to_settle(strategy: &LoadBalancingStrategy, partitions: usize, owners: usize) -> Option<usize> {
    match strategy {
        LoadBalancingStrategy::Balanced => Some(partitions / owners.max(1) + 1),
        LoadBalancingStrategy::Greedy | LoadBalancingStrategy::Static(_) => Some(2),
        LoadBalancingStrategy::Weighted { .. } => None,
        other => unimplemented!("{other:?}"),
    }
}

/// Convergence of [`LoadBalancingStrategy::Weighted`] once everything is owned: returns the maximum number of steals;
/// each round that does not settle has one. Every steal lowers the sum of the squared distances from the fair load by
/// at least twice the lightest weight times the least gain. The bound is far above the number in practice.
///
/// Before that, unowned partitions are claimed in at most as many rounds as there are such partitions: while there is
/// one, an owner is below the fair load.
#[must_use]
pub fn steals_to_settle(view: &View<'_>, policy: &Policy, threshold_percent: u32) -> u128 {
    let scales = Scales::of(view, policy);
    let owners = scales.owners();
    let squares = scales.loads.values().fold(0, |sum: u128, load| sum.saturating_add(load.saturating_mul(*load)));
    let distances = squares.saturating_sub(scales.total.saturating_mul(scales.total) / owners);
    let least_gain = u128::from(threshold_percent) * scales.total / (100 * owners) + 1;
    let lightest = scales.weights.iter().copied().min().unwrap_or(1);
    distances / (2 * lightest * least_gain)
}

/// A partition that a plan adds to the share of this instance.
#[derive(Debug)]
struct Gain<'a> {
    partition: &'a PartitionId,
    /// The live owner that loses it, now or by a handoff.
    victim: Option<&'a OwnerId>,
}

/// Returns claims of partitions that this instance did not own, then handoffs.
fn gains(plan: &Plan) -> impl Iterator<Item = Gain<'_>> {
    let claimed = plan.claim.iter().filter_map(|PlannedClaim { partition, reason, .. }| match reason {
        ClaimReason::Reclaimed | ClaimReason::HandedOver => None,
        ClaimReason::Unowned | ClaimReason::Released | ClaimReason::Expired(_) => {
            Some(Gain { partition, victim: None })
        }
        ClaimReason::Stolen(victim) => Some(Gain { partition, victim: Some(victim) }),
        other => unimplemented!("{other:?}"),
    });
    let requested =
        plan.handoff.iter().map(|PlannedHandoff { partition, from, .. }| Gain { partition, victim: Some(from) });
    claimed.chain(requested)
}

fn is_unowned(entry: &PartitionView) -> bool {
    match &entry.owner {
        PartitionOwner::Unowned | PartitionOwner::Expired(_) => true,
        PartitionOwner::Released => entry.handoff_to.is_none(),
        _ => false,
    }
}

fn each_partition_once(plan: &Plan) -> Verdict {
    let claimed = plan.claim.iter().map(|claim| &claim.partition);
    let requested = plan.handoff.iter().map(|handoff| &handoff.partition);
    let named: Vec<_> = claimed.chain(requested).chain(plan.release.iter().map(|release| &release.partition)).collect();
    let different: BTreeSet<_> = named.iter().collect();
    ensure(different.len() == named.len(), || format!("a partition is listed twice: {plan:?}"))
}

fn claims_only_what_it_may(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let places: BTreeMap<_, _> =
        view.partitions.iter().zip(0..).map(|(entry, place)| (&entry.partition, place)).collect();
    for claim in &plan.claim {
        let partition = &claim.partition;
        ensure(!policy.avoid.contains(partition), || format!("claims {partition}, which is to be avoided"))?;
        let place: usize = *places.get(partition).ok_or_else(|| Violation(format!("the hub has no {partition}")))?;
        let entry = &view.partitions[place];
        let PartitionView { owner: holder, handoff_to, cooperative, .. } = entry;
        let matches_view = match &claim.reason {
            ClaimReason::Reclaimed => *holder == PartitionOwner::Reclaimable,
            ClaimReason::Unowned => *holder == PartitionOwner::Unowned,
            ClaimReason::Released => *holder == PartitionOwner::Released && handoff_to.is_none(),
            ClaimReason::HandedOver => *holder == PartitionOwner::Released && *handoff_to == Some(view.me.clone()),
            ClaimReason::Expired(owner) => *holder == PartitionOwner::Expired(owner.clone()),
            ClaimReason::Stolen(owner) => {
                is_others(entry, owner, view) && handoff_to.is_none() && !(policy.handoff && *cooperative)
            }
            other => unimplemented!("{other:?}"),
        };
        ensure(matches_view, || format!("claims {entry:?} as {:?}", claim.reason))?;
        if let LoadBalancingStrategy::Static(assignment) = &policy.strategy {
            ensure(assignment.covers(place, partition), || format!("claims {partition}, which is not assigned"))?;
        }
    }
    Ok(())
}

fn is_others(entry: &PartitionView, owner: &OwnerId, view: &View<'_>) -> bool {
    entry.owner == PartitionOwner::Other(owner.clone()) && *owner != view.me
}

/// Handoffs are requested only from a cooperative owner that is certainly live, and only if no other instance has
/// requested the partition.
fn requests_only_what_it_may(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    ensure(policy.handoff || plan.handoff.is_empty(), || "requests a handoff, which is disabled".to_owned())?;
    let entries: BTreeMap<_, _> = view.partitions.iter().map(|entry| (&entry.partition, entry)).collect();
    for PlannedHandoff { partition, from, .. } in &plan.handoff {
        let set_apart = policy.avoid.contains(partition) || view.not_requestable.contains(partition);
        let may = entries.get(partition).is_some_and(|entry| {
            is_others(entry, from, view) && entry.cooperative && entry.handoff_to.is_none() && !set_apart
        });
        ensure(may, || format!("requests from {from} {:?}", entries.get(partition)))?;
    }
    Ok(())
}

fn stays_within_the_cap(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let unowned = view.partitions.iter().filter(|entry| is_unowned(entry)).count();
    let taken = gains(plan).filter(|gain| gain.victim.is_none()).count();
    let Some(max) = policy.max_partitions else {
        return ensure(plan.unclaimed_due_to_limit == 0, || "reports a cap that does not exist".to_owned());
    };
    ensure(plan.unclaimed_due_to_limit + taken <= unowned, || format!("more unclaimed than unowned: {plan:?}"))?;
    let held = view.partitions.iter().filter(|entry| match &entry.owner {
        PartitionOwner::This => true,
        // A partition to be avoided may have a claim in progress.
        PartitionOwner::Reclaimable => policy.avoid.contains(&entry.partition),
        PartitionOwner::Released => {
            entry.handoff_to.as_ref() == Some(&view.me) && policy.avoid.contains(&entry.partition)
        }
        _ => entry.handoff_to.as_ref() == Some(&view.me),
    });
    let new = plan.claim.len() + plan.handoff.len();
    let after = view.removed.len() + held.count() + new;
    ensure(new == 0 || after <= max, || format!("would hold {after} of at most {max}"))
}

fn releases_only_what_it_must(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let released = |reason| plan.release.iter().filter(move |release| release.reason == reason);
    let gone: Vec<_> = released(ReleaseReason::PartitionRemoved).map(|release| release.partition.clone()).collect();
    ensure(gone == view.removed, || format!("releases {gone:?} as removed, but {:?} are removed", view.removed))?;
    let own = view.partitions.iter().enumerate().filter(|(_, entry)| entry.owner == PartitionOwner::This);
    let (admitted, strange): (Vec<_>, Vec<_>) = own.partition(|(ordinal, entry)| match &policy.strategy {
        LoadBalancingStrategy::Static(assignment) => assignment.covers(*ordinal, &entry.partition),
        _ => true,
    });
    let names = |entries: &[(usize, &PartitionView)]| -> BTreeSet<PartitionId> {
        entries.iter().map(|(_, entry)| entry.partition.clone()).collect()
    };
    let not_assigned: BTreeSet<_> =
        released(ReleaseReason::NotAssigned).map(|release| release.partition.clone()).collect();
    ensure(not_assigned == names(&strange), || format!("releases {not_assigned:?} as not assigned"))?;
    let above: BTreeSet<_> = released(ReleaseReason::OverLimit).map(|release| release.partition.clone()).collect();
    // A partition in a handoff is released anyway.
    let own = |(_, entry): &(usize, &PartitionView)| entry.handoff_to.as_ref().is_none_or(|to| *to == view.me);
    let admitted: Vec<_> = admitted.into_iter().filter(own).collect();
    let excess = admitted.len().saturating_sub(policy.max_partitions.unwrap_or(usize::MAX));
    ensure(above.len() == excess && above.is_subset(&names(&admitted)), || {
        format!("releases {above:?}, but {excess} are above the cap")
    })
}

fn steals_only_if_nothing_is_unowned(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let claimed: BTreeSet<_> = plan.claim.iter().map(|claim| &claim.partition).collect();
    let left = |entry: &&PartitionView| {
        is_unowned(entry) && !policy.avoid.contains(&entry.partition) && !claimed.contains(&entry.partition)
    };
    let steals = gains(plan).any(|gain| gain.victim.is_some());
    ensure(!steals || view.partitions.iter().find(left).is_none(), || {
        format!("steals although a partition is unowned: {plan:?}")
    })
}

/// The gains of this instance stay within its share, and each steal or handoff is one of the [`fewest_moves`], so its
/// victim keeps no less than its share. The share of unowned partitions is the share without the idle owners.
fn shares_by_number(view: &View<'_>, policy: &Policy, plan: &Plan, at_once: usize) -> Verdict {
    let new: Vec<_> = gains(plan).collect();
    ensure(new.len() <= at_once, || format!("gains {} at once", new.len()))?;
    let mut counts = view.counts();
    let partitions = view.partitions.len();
    let (floor, remainder) = (partitions / counts.len(), partitions % counts.len());
    let moves =
        |counts: &BTreeMap<OwnerId, usize>| fewest_moves(partitions, &counts.values().copied().collect::<Vec<_>>());
    let mut to_come = moves(&counts);
    for gain in new {
        if let Some(victim) = gain.victim {
            let held = counts.entry(victim.clone()).or_default();
            *held = held.saturating_sub(1);
            ensure(*held >= floor, || format!("{victim} keeps less than its share"))?;
        }
        *counts.entry(view.me.clone()).or_default() += 1;
        let above = counts.iter().filter(|(owner, held)| **owner != view.me && **held > floor).count();
        let (own, share) = (counts[&view.me], floor + usize::from(above < remainder));
        let left = moves(&counts);
        if gain.victim.is_none() && own > share {
            let share = share_without_idle(partitions, &counts, view, policy);
            ensure(own <= share, || format!("gains up to {own}, but the share without idle owners is {share}"))?;
        } else {
            ensure(own <= share, || format!("gains up to {own}, but the share is {share}"))?;
            ensure(left + usize::from(gain.victim.is_some()) == to_come, || format!("a move too many: {gain:?}"))?;
        }
        to_come = left;
    }
    Ok(())
}

fn share_without_idle(partitions: usize, counts: &BTreeMap<OwnerId, usize>, view: &View<'_>, policy: &Policy) -> usize {
    let (idle, active): (Vec<_>, Vec<_>) = counts.iter().partition(|(owner, _)| policy.idle.contains(*owner));
    let partitions = partitions - idle.iter().map(|(_, held)| **held).sum::<usize>();
    let (floor, remainder) = (partitions / active.len(), partitions % active.len());
    let above = active.iter().filter(|(owner, held)| **owner != view.me && **held > floor).count();
    floor + usize::from(above < remainder)
}

/// One gain at a time, by an owner below the fair load. After a steal or handoff, both owners have less than the victim
/// had and more than the claiming instance had, by more than the threshold.
fn shares_by_load(view: &View<'_>, policy: &Policy, plan: &Plan, threshold_percent: u32) -> Verdict {
    let new: Vec<_> = gains(plan).collect();
    ensure(new.len() <= 1, || format!("gains {} at once", new.len()))?;
    let Some(gain) = new.first() else { return Ok(()) };
    let scales = Scales::of(view, policy);
    let own = scales.loads.get(&view.me).copied().unwrap_or_default();
    let (total, owners) = if gain.victim.is_none() {
        let idle = scales.loads.iter().filter(|(owner, _)| policy.idle.contains(**owner));
        idle.fold((scales.total, scales.owners()), |(total, owners), (_, load)| (total - load, owners - 1))
    } else {
        (scales.total, scales.owners())
    };
    ensure(own * owners < total, || format!("gains with {own}, the fair load or more"))?;
    let Some(victim) = gain.victim else { return Ok(()) };
    let weight = scales.weight_of(gain.partition).unwrap_or_default();
    let other = scales.loads.get(victim).copied().unwrap_or_default();
    let gains = other >= own + weight && scales.exceeds(other - own - weight, threshold_percent);
    ensure(gains, || format!("steals {weight} from {other} for {own}, which gains too little"))
}

/// The weights of a view.
struct Scales<'a> {
    view: &'a View<'a>,
    weights: Vec<u128>,
    loads: BTreeMap<&'a OwnerId, u128>,
    /// The weight of the lightest partition of each owner.
    lightest: BTreeMap<&'a OwnerId, u128>,
    total: u128,
}

impl<'a> Scales<'a> {
    fn of(view: &'a View<'a>, policy: &Policy) -> Self {
        let weights = weights(&view.partitions, &policy.loads);
        let mut loads: BTreeMap<_, _> = [&view.me].into_iter().chain(&view.present).map(|owner| (owner, 0)).collect();
        let mut lightest = BTreeMap::new();
        for (entry, weight) in view.partitions.iter().zip(&weights) {
            if let Some(owner) = owner_of(entry, view) {
                *loads.entry(owner).or_default() += weight;
                let known = lightest.entry(owner).or_insert(*weight);
                *known = (*known).min(*weight);
            }
        }
        let total = weights.iter().sum();
        Self { view, weights, loads, lightest, total }
    }

    fn owners(&self) -> u128 {
        self.loads.len() as u128
    }

    fn exceeds(&self, gain: u128, threshold_percent: u32) -> bool {
        gain * 100 * self.owners() > u128::from(threshold_percent) * self.total
    }

    fn weight_of(&self, partition: &PartitionId) -> Option<u128> {
        let mut weighed = self.view.partitions.iter().zip(&self.weights);
        weighed.find(|(entry, _)| entry.partition == *partition).map(|(_, weight)| *weight)
    }
}

/// A partition in a handoff is part of the load of its receiver.
fn owner_of<'a>(entry: &'a PartitionView, view: &'a View<'a>) -> Option<&'a OwnerId> {
    let is_member = |owner: &&OwnerId| entry.operator.as_ref() != Some(*owner);
    if let Some(to) = entry.handoff_to.as_ref().filter(is_member) {
        return Some(to);
    }
    match &entry.owner {
        PartitionOwner::This | PartitionOwner::Reclaimable => Some(&view.me),
        PartitionOwner::Other(owner) => Some(owner).filter(is_member),
        _ => None,
    }
}
