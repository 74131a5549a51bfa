//! What one instance should do about what it observes.

use rand::Rng;

use super::candidates::{WantedPartitions, find_claimable};
use super::plan::{ClaimReason, Plan, PlannedClaim, PlannedHandoff, PlannedRelease, ReleaseReason};
use super::policy::{LoadBalancingStrategy, Policy};
use super::view::{PartitionOwner, PartitionView, View};
use super::{postconditions, shares, weighted};
use crate::model::OwnerId;

/// Decides what to do about a view.
///
/// Post-conditions, for any view and policy, which `postconditions` checks in debug builds:
///
/// - What this instance owns, claims and requests never exceeds the limit, and what it newly claims or requests never
///   exceeds what the strategy grants. Partitions that are recorded as its own already or reserved for it are claimed
///   in any case, within the limit: they were counted before.
/// - Neither a claim nor a request leaves another owner with less than its share. Nothing is stolen or requested while
///   there is an unowned partition to claim.
/// - A partition that is being handed over counts for the requesting instance, and not for its owner anymore. No other
///   instance takes it.
/// - Partitions to avoid are neither claimed nor requested.
/// - If every owner has its share, there is nothing to do.
pub fn plan(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Plan {
    // Phase 1: what this instance must not keep.
    let release = choose_releases(view, policy);

    // Phase 2: partitions that are recorded as its own or reserved for it are claimed at once, within the limit. They
    // count as its own already, so nothing moves.
    let mut room = room_within_limit(view, policy);
    let mut claim = find_claimable(view, policy, |entry| is_own_to_claim(entry, &view.me));
    claim.truncate(room);
    room -= claim.len();

    // Phase 3: what the strategy would claim: unowned partitions first, then the partitions of owners with too many.
    let wanted = match &policy.strategy {
        LoadBalancingStrategy::Balanced | LoadBalancingStrategy::Greedy => shares::choose_by_number(view, policy, rng),
        LoadBalancingStrategy::Static(_) => {
            let unowned = find_claimable(view, policy, PartitionView::is_unowned);
            WantedPartitions { unowned, stolen: Vec::new(), at_once: usize::MAX }
        }
        LoadBalancingStrategy::Weighted { threshold_percent } => {
            weighted::choose_by_load(view, policy, *threshold_percent, rng)
        }
    };

    // Phase 4: as much of that as the limit allows. Partitions of cooperative owners are requested.
    let unclaimed_due_to_limit = wanted.unowned.len().saturating_sub(room);
    let left_for_later = wanted.unowned.len().min(room).saturating_sub(wanted.at_once);
    let new = wanted.unowned.into_iter().chain(wanted.stolen).take(room.min(wanted.at_once));
    let (requested, claimed): (Vec<_>, Vec<_>) =
        new.partition(|place| policy.handoff && view.partitions[*place].cooperative);
    claim.extend(claimed);
    let plan = Plan {
        claim: claim.into_iter().filter_map(|place| plan_claim(view, &view.partitions[place])).collect(),
        handoff: requested.into_iter().filter_map(|place| plan_handoff(view, &view.partitions[place])).collect(),
        release,
        unclaimed_due_to_limit,
        left_for_later,
    };
    debug_assert_eq!(postconditions::check_plan(view, policy, &plan), Ok(()));
    plan
}

/// Returns the partitions that the event hub no longer has, those that are not assigned to this instance, and the last
/// ones of those above the limit. Partitions that are being handed over are released anyway.
fn choose_releases(view: &View<'_>, policy: &Policy) -> Vec<PlannedRelease> {
    let mut releases: Vec<_> = view.removed.iter().map(|removed| (removed, ReleaseReason::PartitionRemoved)).collect();
    let mut kept = Vec::new();
    let own = view.partitions.iter().enumerate().filter(|(_, entry)| entry.owner == PartitionOwner::This);
    for (ordinal, entry) in own {
        if !policy.strategy.may_own(ordinal, &entry.partition) {
            releases.push((&entry.partition, ReleaseReason::NotAssigned));
        } else if entry.counts_for(&view.me) == Some(&view.me) {
            kept.push(&entry.partition);
        }
    }
    let above_limit = kept.into_iter().skip(policy.max_partitions.unwrap_or(usize::MAX));
    releases.extend(above_limit.map(|partition| (partition, ReleaseReason::OverLimit)));
    releases.into_iter().map(|(partition, reason)| PlannedRelease { partition: partition.clone(), reason }).collect()
}

/// Returns how many more partitions this instance may own. Partitions that it has not released yet count, and so do
/// those that it has requested, and those that are recorded as its own or reserved for it but not to be claimed now,
/// because a claim may be under way.
fn room_within_limit(view: &View<'_>, policy: &Policy) -> usize {
    let Some(max) = policy.max_partitions else { return usize::MAX };
    let taken = view.partitions.iter().filter(|entry| match entry.owner {
        PartitionOwner::This => true,
        _ if is_own_to_claim(entry, &view.me) => policy.avoid.contains(&entry.partition),
        _ => entry.counts_for(&view.me) == Some(&view.me),
    });
    max.saturating_sub(view.removed.len() + taken.count())
}

/// Returns whether it is recorded as this instance's own but not run, or reserved for this instance.
fn is_own_to_claim(entry: &PartitionView, this: &OwnerId) -> bool {
    matches!(entry.owner, PartitionOwner::Reclaimable | PartitionOwner::Released)
        && entry.counts_for(this) == Some(this)
}

fn plan_handoff(view: &View<'_>, entry: &PartitionView) -> Option<PlannedHandoff> {
    let PartitionOwner::Other(from) = &entry.owner else { return None };
    Some(PlannedHandoff {
        partition: entry.partition.clone(),
        from: from.clone(),
        seen: view.record_of(&entry.partition).cloned(),
    })
}

fn plan_claim(view: &View<'_>, entry: &PartitionView) -> Option<PlannedClaim> {
    let reason = match &entry.owner {
        PartitionOwner::Reclaimable => ClaimReason::Reclaimed,
        PartitionOwner::Unowned => ClaimReason::Unowned,
        PartitionOwner::Released if entry.handoff_to.is_some() => ClaimReason::HandedOver,
        PartitionOwner::Released => ClaimReason::Released,
        PartitionOwner::Expired(owner) => ClaimReason::Expired(owner.clone()),
        PartitionOwner::Other(owner) => ClaimReason::Stolen(owner.clone()),
        PartitionOwner::This => return None,
    };
    Some(PlannedClaim { partition: entry.partition.clone(), reason, over: view.record_of(&entry.partition).cloned() })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::planner::idle::tests::view_of;

    /// Two partitions of this instance, of which an operator has requested the first.
    fn view_with_operator() -> View<'static> {
        let mut view = view_of("mm");
        let operator = Some(OwnerId::from_record("operator"));
        view.partitions[0].handoff_to.clone_from(&operator);
        view.partitions[0].operator = operator;
        view
    }

    /// The operator returns it.
    #[test]
    fn a_partition_that_an_operator_wants_still_counts() {
        let policy = Policy { max_partitions: Some(1), ..Policy::default() };
        let planned = plan(&view_with_operator(), &policy, &mut StdRng::seed_from_u64(0));
        assert_eq!(planned.release, [PlannedRelease { partition: 1.into(), reason: ReleaseReason::OverLimit }]);
    }

    /// Returns what is claimed, what is unclaimed because of the limit, and what is left for later.
    fn plan_claims(view: &View<'_>, policy: &Policy) -> (Vec<String>, usize, usize) {
        let planned = plan(view, policy, &mut StdRng::seed_from_u64(0));
        let claimed = planned.claim.iter().map(|claim| claim.partition.to_string());
        (claimed.collect(), planned.unclaimed_due_to_limit, planned.left_for_later)
    }

    #[test]
    fn a_recorded_partition_counts_once_for_the_limit() {
        let mut view = view_of("..");
        view.partitions[0].owner = PartitionOwner::Reclaimable;
        let limited = |max, avoid: &[u32]| Policy {
            max_partitions: Some(max),
            avoid: avoid.iter().map(|partition| (*partition).into()).collect(),
            ..Policy::default()
        };
        let claims = |max, avoid: &[u32]| plan_claims(&view, &limited(max, avoid)).0;
        assert_eq!(claims(2, &[]), ["0", "1"]);
        assert_eq!(claims(1, &[]), ["0"]);
        assert_eq!(claims(2, &[0]), ["1"]);
        assert_eq!(claims(1, &[0]), [""; 0], "a claim of the other may be under way");
    }

    #[test]
    fn what_stays_unowned_is_due_to_the_limit_or_later() {
        let limited = |max_partitions| Policy { max_partitions, ..Policy::default() };
        for (max, unclaimed, left) in [(None, 0, 3), (Some(5), 0, 3), (Some(2), 2, 1), (Some(1), 3, 0)] {
            let planned = plan_claims(&view_of("...."), &limited(max));
            assert_eq!((planned.0.len(), planned.1, planned.2), (1, unclaimed, left), "{max:?}");
        }
        assert_eq!(plan_claims(&view_of("...."), &limited(Some(0))), (Vec::new(), 4, 0));
    }

    #[test]
    fn a_wrong_plan_violates_a_postcondition() {
        let claim = PlannedClaim { partition: 1.into(), reason: ClaimReason::Unowned, over: None };
        let wrong = Plan { claim: vec![claim], ..Plan::default() };
        let violation = postconditions::check_plan(&view_with_operator(), &Policy::default(), &wrong).unwrap_err();
        assert!(violation.to_string().starts_with("claims"), "{violation}");
    }
}
