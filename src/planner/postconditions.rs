//! What holds of every plan.
//!
//! The rules use only the view and the plan, and share none with the planner, except for the weights of partitions. For
//! what is fair, see [`fairness`](super::fairness).

use std::collections::{BTreeMap, BTreeSet};

use super::fairness::{OwnerLoads, Verdict, Violation, ensure, fewest_moves, is_settled};
use super::plan::{ClaimReason, Plan, PlannedClaim, PlannedHandoff, ReleaseReason};
use super::policy::{ClaimPace, LoadBalancingStrategy, Policy};
use super::view::{PartitionOwner, PartitionView, View};
use crate::model::{OwnerId, PartitionId};

/// Checks everything that holds of a single plan: it is safe for the group, and it is empty if the group is settled.
///
/// # Errors
///
/// The first broken rule.
pub fn check_plan(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    check_safety(view, policy, plan)?;
    check_stability(view, policy, plan)
}

/// Checks safety, for any view: the plan claims and requests only what it may, no more than the limit and the strategy
/// allow; no victim keeps less than its share; only what must be released is released.
///
/// # Errors
///
/// The first broken rule.
pub fn check_safety(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    each_partition_once(plan)?;
    claims_only_what_it_may(view, policy, plan)?;
    requests_only_what_it_may(view, policy, plan)?;
    stays_within_the_limit(view, policy, plan)?;
    releases_only_what_it_must(view, policy, plan)?;
    steals_only_if_nothing_is_unowned(view, policy, plan)?;
    match &policy.strategy {
        LoadBalancingStrategy::Balanced => {
            let taken = gains(plan).filter(|gain| gain.victim.is_some()).count();
            ensure(taken <= 1, || format!("takes {taken} from live owners at once"))?;
            let at_once = if policy.pace == ClaimPace::One { 1 } else { usize::MAX };
            shares_by_number(view, policy, plan, at_once)
        }
        LoadBalancingStrategy::Greedy => shares_by_number(view, policy, plan, usize::MAX),
        LoadBalancingStrategy::Static(_) => ensure(gains(plan).all(|gain| gain.victim.is_none()), || {
            format!("takes from others by a static assignment: {plan:?}")
        }),
        LoadBalancingStrategy::Weighted { threshold_percent } => shares_by_load(view, policy, plan, *threshold_percent),
    }
}

/// Checks stability: a [settled](is_settled) group plans nothing.
///
/// # Errors
///
/// The plan.
pub fn check_stability(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let quiet = plan.is_empty() && plan.unclaimed_due_to_limit == 0;
    ensure(quiet || !is_settled(view, policy), || format!("a settled group plans {plan:?}"))
}

/// A partition that a plan adds to the share of this instance.
#[derive(Debug)]
struct Gain<'a> {
    partition: &'a PartitionId,
    /// The live owner that loses it, now or by a handoff.
    victim: Option<&'a OwnerId>,
}

/// Convergence: returns the number of rounds within which a group settles, if every owner plans once per round, one
/// after another, no partition is to be avoided, no owner is capped and none uses the other blob-name casing. `None`
/// for [`LoadBalancingStrategy::Weighted`], for which it depends on the loads.
///
/// By number: in each round every owner below the floor gains one partition (Balanced) or all that it lacks (Greedy),
/// and no owner falls below the floor again; in one more round, the owners that may hold one more take it. A requested
/// partition counts as gained when it is requested; the time of the handoff is added. Static: in the first round
/// everything is released, in the second it is claimed.
#[cfg(any(test, feature = "testing"))]
#[must_use]
pub fn rounds_to_settle(strategy: &LoadBalancingStrategy, partitions: usize, owners: usize) -> Option<usize> {
    match strategy {
        LoadBalancingStrategy::Balanced => Some(partitions / owners.max(1) + 1),
        LoadBalancingStrategy::Greedy | LoadBalancingStrategy::Static(_) => Some(2),
        LoadBalancingStrategy::Weighted { .. } => None,
    }
}

/// Returns the claims of partitions that this instance did not own, then the handoffs.
fn gains(plan: &Plan) -> impl Iterator<Item = Gain<'_>> {
    let claimed = plan.claim.iter().filter_map(|PlannedClaim { partition, reason, .. }| match reason {
        ClaimReason::Reclaimed | ClaimReason::HandedOver => None,
        ClaimReason::Unowned | ClaimReason::Released | ClaimReason::Expired(_) => {
            Some(Gain { partition, victim: None })
        }
        ClaimReason::Stolen(victim) => Some(Gain { partition, victim: Some(victim) }),
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

fn stays_within_the_limit(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
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

fn released_partitions(plan: &Plan, reason: ReleaseReason) -> impl Iterator<Item = &PartitionId> {
    plan.release.iter().filter(move |release| release.reason == reason).map(|release| &release.partition)
}

fn releases_only_what_it_must(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let gone: Vec<_> = released_partitions(plan, ReleaseReason::PartitionRemoved).collect();
    ensure(gone.iter().copied().eq(&view.removed), || {
        format!("releases {gone:?} as removed, but {:?} are removed", view.removed)
    })?;
    let own = view.partitions.iter().enumerate().filter(|(_, entry)| entry.owner == PartitionOwner::This);
    let (admitted, strange): (Vec<_>, Vec<_>) = own.partition(|(ordinal, entry)| match &policy.strategy {
        LoadBalancingStrategy::Static(assignment) => assignment.covers(*ordinal, &entry.partition),
        _ => true,
    });
    let strange: BTreeSet<_> = strange.into_iter().map(|(_, entry)| &entry.partition).collect();
    let not_assigned: BTreeSet<_> = released_partitions(plan, ReleaseReason::NotAssigned).collect();
    ensure(not_assigned == strange, || format!("releases {not_assigned:?} as not assigned"))?;
    // A partition that is being handed over to another member is released anyway. An operator returns it.
    let kept = admitted.into_iter().filter(|(_, entry)| {
        entry.handoff_to.as_ref().is_none_or(|to| *to == view.me || entry.operator.as_ref() == Some(to))
    });
    let kept: BTreeSet<_> = kept.map(|(_, entry)| &entry.partition).collect();
    let above: BTreeSet<_> = released_partitions(plan, ReleaseReason::OverLimit).collect();
    let excess = kept.len().saturating_sub(policy.max_partitions.unwrap_or(usize::MAX));
    ensure(above.len() == excess && above.is_subset(&kept), || {
        format!("releases {above:?}, but {excess} are above the limit")
    })
}

fn steals_only_if_nothing_is_unowned(view: &View<'_>, policy: &Policy, plan: &Plan) -> Verdict {
    let claimed: BTreeSet<_> = plan.claim.iter().map(|claim| &claim.partition).collect();
    let steals = gains(plan).any(|gain| gain.victim.is_some());
    let mut unowned = view.partitions.iter().filter(|entry| is_unowned(entry)).map(|entry| &entry.partition);
    let leaves_unowned = unowned.any(|partition| !policy.avoid.contains(partition) && !claimed.contains(partition));
    ensure(!(steals && leaves_unowned), || format!("steals although a partition is unowned: {plan:?}"))
}

/// The gains of this instance stay within its share, and each steal or handoff is one of the [`fewest_moves`], so its
/// victim keeps no less than its share. The share of unowned partitions is the share without the idle owners.
fn shares_by_number(view: &View<'_>, policy: &Policy, plan: &Plan, at_once: usize) -> Verdict {
    let new: Vec<_> = gains(plan).collect();
    ensure(new.len() <= at_once, || format!("gains {} at once", new.len()))?;
    let mut counts = view.count_by_owner();
    let partitions = view.partitions.len();
    let floor = partitions / counts.len();
    let larger_shares = partitions % counts.len();
    let mut to_come = fewest_moves(partitions, &counts.values().copied().collect::<Vec<_>>());
    for gain in new {
        if let Some(victim) = gain.victim {
            let held = counts.entry(victim.clone()).or_default();
            *held = held.saturating_sub(1);
            ensure(*held >= floor, || format!("{victim} keeps less than its share"))?;
        }
        *counts.entry(view.me.clone()).or_default() += 1;
        let above = counts.iter().filter(|(owner, held)| **owner != view.me && **held > floor).count();
        let own = counts[&view.me];
        let share = floor + usize::from(above < larger_shares);
        let left = fewest_moves(partitions, &counts.values().copied().collect::<Vec<_>>());
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
    let floor = partitions / active.len();
    let larger_shares = partitions % active.len();
    let above = active.iter().filter(|(owner, held)| **owner != view.me && **held > floor).count();
    floor + usize::from(above < larger_shares)
}

/// One gain at a time, by an owner below the fair load. After a steal or handoff, both owners have less than the victim
/// had and more than the claiming instance had, by more than the threshold.
fn shares_by_load(view: &View<'_>, policy: &Policy, plan: &Plan, threshold_percent: u32) -> Verdict {
    let new: Vec<_> = gains(plan).collect();
    ensure(new.len() <= 1, || format!("gains {} at once", new.len()))?;
    let Some(gain) = new.first() else { return Ok(()) };
    let loads = OwnerLoads::new(view, policy);
    let own = loads.by_owner.get(&view.me).copied().unwrap_or_default();
    let (total, owners) = if gain.victim.is_none() {
        let idle = loads.by_owner.iter().filter(|(owner, _)| policy.idle.contains(**owner));
        idle.fold((loads.total, loads.count_owners()), |(total, owners), (_, load)| (total - load, owners - 1))
    } else {
        (loads.total, loads.count_owners())
    };
    ensure(own * owners < total, || format!("gains with {own}, the fair load or more"))?;
    let Some(victim) = gain.victim else { return Ok(()) };
    let mut weighed = view.partitions.iter().zip(&loads.weights);
    let weight = weighed.find(|(entry, _)| entry.partition == *gain.partition).map_or(0, |(_, weight)| *weight);
    let other = loads.by_owner.get(victim).copied().unwrap_or_default();
    let gains_enough = other >= own + weight && loads.exceeds_threshold(other - own - weight, threshold_percent);
    ensure(gains_enough, || format!("steals {weight} from {other} for {own}, which gains too little"))
}
