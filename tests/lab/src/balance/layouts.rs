//! Plans of one instance in small groups, written as one letter per partition.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use eventhubs_checkpoint::balancer::{Assignment, ClaimReason, LoadBalancingStrategy, PartitionOwner, PartitionView};
use eventhubs_checkpoint::internal::planner::{Plan, Policy, ReleaseReason, View, plan};
use eventhubs_checkpoint::{OwnerId, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;

use eventhubs_checkpoint::internal::postconditions::check_plan;

/// One letter per partition. `.` unowned, `_` released, `m` this instance, `o` this instance's record that it does not
/// run, `X` an expired owner; any other letter is a live owner.
fn view_of(layout: &str) -> View<'static> {
    let owner = |letter: char| OwnerId::new(letter.to_string()).unwrap();
    let holder = |letter| match letter {
        '.' => PartitionOwner::Unowned,
        '_' => PartitionOwner::Released,
        'm' => PartitionOwner::This,
        'o' => PartitionOwner::Reclaimable,
        'X' => PartitionOwner::Expired(owner('x')),
        live => PartitionOwner::Other(owner(live)),
    };
    let entries = (0u32..).zip(layout.chars());
    let partitions = entries.map(|(id, letter)| PartitionView::new(id.into(), holder(letter)));
    View {
        partitions: partitions.collect(),
        records: HashMap::new(),
        removed: Vec::new(),
        present: BTreeSet::new(),
        not_requestable: BTreeSet::new(),
        me: owner('m'),
        replaced_by: None,
        foreign_owner: false,
        next_expiry: None,
        owners: BTreeMap::new(),
    }
}

fn checked(view: &View<'_>, policy: &Policy) -> Plan {
    let plan = plan(view, policy, &mut StdRng::seed_from_u64(1));
    check_plan(view, policy, &plan).unwrap();
    plan
}

fn greedy() -> Policy {
    Policy { strategy: LoadBalancingStrategy::Greedy, ..Policy::default() }
}

/// All other live owners are cooperative, and these partitions are being handed over.
fn cooperative(layout: &str, handed: &[(usize, char)]) -> View<'static> {
    let mut view = view_of(layout);
    for entry in &mut view.partitions {
        entry.cooperative = matches!(entry.owner, PartitionOwner::Other(_));
    }
    for (place, to) in handed {
        view.partitions[*place].handoff_to = OwnerId::new(to.to_string()).ok();
    }
    view
}

fn with_heartbeats_of(view: View<'static>, present: &[&str]) -> View<'static> {
    View { present: present.iter().map(|owner| OwnerId::new(owner).unwrap()).collect(), ..view }
}

fn with_handoff() -> Policy {
    Policy { handoff: true, ..greedy() }
}

fn requested(plan: &Plan) -> Vec<(&str, &str)> {
    plan.handoff.iter().map(|handoff| (handoff.partition.as_str(), handoff.from.as_str())).collect()
}

fn ids(ids: &[u32]) -> impl Iterator<Item = PartitionId> {
    ids.iter().copied().map(PartitionId::from)
}

fn claimed(plan: &Plan) -> Vec<&str> {
    plan.claim.iter().map(|claim| claim.partition.as_str()).collect()
}

fn released(plan: &Plan) -> Vec<(&str, ReleaseReason)> {
    plan.release.iter().map(|release| (release.partition.as_str(), release.reason)).collect()
}

#[test]
fn own_records_are_reclaimed_at_once_in_any_strategy() {
    for strategy in [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy, LoadBalancingStrategy::weighted()]
    {
        let plan = checked(&view_of("bbooo"), &Policy { strategy, ..Policy::default() });
        assert_eq!(plan.claim.len(), 3);
        assert!(plan.claim.iter().all(|claim| claim.reason == ClaimReason::Reclaimed));
    }
}

#[test]
fn an_avoided_partition_leaves_the_claim_to_another() {
    let avoiding = |avoid: &[u32]| Policy { avoid: ids(avoid).collect(), ..Policy::default() };
    // An unowned partition, an expired one, and two that could be stolen.
    let view = view_of(".Xbb");
    assert_eq!(claimed(&checked(&view, &avoiding(&[]))), ["0"]);
    assert_eq!(claimed(&checked(&view, &avoiding(&[0]))), ["1"]);
    assert_eq!(checked(&view, &avoiding(&[0, 1, 2, 3])), Plan::default());
}

#[test]
fn an_owner_is_not_stolen_from_within_its_share() {
    // Five partitions for two owners: one may hold three. Avoiding the last partition does not make either owner exceed
    // its share.
    let policy = Policy { avoid: ids(&[4]).collect(), ..greedy() };
    assert_eq!(checked(&view_of("bbbm."), &policy), Plan::default());
}

#[test]
fn a_hub_without_partitions_needs_no_plan() {
    for strategy in [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy, LoadBalancingStrategy::weighted()]
    {
        assert_eq!(checked(&view_of(""), &Policy { strategy, ..Policy::default() }), Plan::default());
    }
}

#[test]
fn a_cap_limits_claims_and_reports_unclaimed_ones() {
    let capped = |max| Policy { max_partitions: Some(max), ..greedy() };
    let view = view_of("m.....bb");
    let plan = checked(&view, &capped(3));
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (2, 1));
    let plan = checked(&view, &capped(1));
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (0, 3));
    let plan = checked(&view, &capped(4));
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (3, 0));
}

#[test]
fn a_cap_that_only_prevents_a_steal_is_no_alarm() {
    let plan = checked(&view_of("mbbbbb"), &Policy { max_partitions: Some(1), ..greedy() });
    assert_eq!(plan, Plan::default());
}

#[test]
fn claims_of_later_intervals_are_no_alarm() {
    let policy = Policy { max_partitions: Some(4), ..Policy::default() };
    let plan = checked(&view_of("...."), &policy);
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (1, 0));
}

#[test]
fn partitions_above_the_cap_are_released_first() {
    let policy = Policy { max_partitions: Some(2), ..greedy() };
    let plan = checked(&view_of("mmmmoo..bb"), &policy);
    assert_eq!(released(&plan), [("2", ReleaseReason::OverLimit), ("3", ReleaseReason::OverLimit)]);
    assert_eq!(plan.claim, []);
}

#[test]
fn a_claim_in_progress_counts_toward_the_cap() {
    let policy = Policy { max_partitions: Some(2), avoid: ids(&[1]).collect(), ..greedy() };
    assert_eq!(checked(&view_of("mo..."), &policy).claim, []);
}

#[test]
fn removed_partitions_are_released() {
    let view = View { removed: vec![7.into()], ..view_of("m") };
    assert_eq!(released(&checked(&view, &Policy::default())), [("7", ReleaseReason::PartitionRemoved)]);
}

#[test]
fn static_releases_what_is_not_assigned() {
    let strategy = LoadBalancingStrategy::Static(Assignment::index(0, 2).unwrap());
    let plan = checked(&view_of("mmoo.._Xbbbb"), &Policy { strategy, ..Policy::default() });
    assert_eq!(released(&plan), [("1", ReleaseReason::NotAssigned)]);
    assert_eq!(claimed(&plan), ["2", "4", "6"]);
}

#[test]
fn an_assignment_above_the_cap_is_an_alarm() {
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions(ids(&[0, 1, 2])));
    let plan = checked(&view_of("...."), &Policy { strategy, max_partitions: Some(2), ..Policy::default() });
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (2, 1));
}

#[test]
fn by_load_a_partition_that_fits_is_claimed_first() {
    let loads = (0u32..).map(PartitionId::from).zip([50, 10, 40]).collect();
    let policy = Policy { strategy: LoadBalancingStrategy::weighted(), loads, ..Policy::default() };
    // The fourth partition counts as the mean, 34, so that the fair load is 67: this instance's 40 leave room for the
    // ten, not for the fifty.
    for seed in 0..10 {
        let plan = plan(&view_of("..mb"), &policy, &mut StdRng::seed_from_u64(seed));
        assert_eq!(claimed(&plan), ["1"]);
    }
}

#[test]
fn by_load_a_steal_must_gain_more_than_the_threshold() {
    let plan = |loads: [u64; 4], threshold_percent| {
        let loads = (0u32..).map(PartitionId::from).zip(loads).collect();
        let strategy = LoadBalancingStrategy::Weighted { threshold_percent };
        checked(&view_of("bbbm"), &Policy { strategy, loads, ..Policy::default() })
    };
    // The fair load is 100. With 40 of the victim's 120 added to 80, this instance would hold as much as the victim
    // held: no gain. With 10 the gain is 30.
    assert!(plan([40, 40, 40, 80], 0).is_empty());
    assert_eq!(claimed(&plan([10, 70, 40, 80], 29)), ["0"]);
    assert!(plan([10, 70, 40, 80], 30).is_empty());
    // Of several partitions that gain, the move that evens the loads most.
    assert_eq!(claimed(&plan([10, 60, 100, 30], 10)), ["1"]);
}

#[test]
fn by_load_only_the_least_exceeds_the_fair_load() {
    let plan = |layout: &str| {
        let strategy = LoadBalancingStrategy::Weighted { threshold_percent: 0 };
        checked(&view_of(layout), &Policy { strategy, ..Policy::default() })
    };
    // The fair load is 2.75. With two partitions and one more, this instance would exceed it.
    assert!(plan("bbbbbbmmccd").is_empty());
    // The fair load is three: an owner that stays within it need not wait for d.
    assert_eq!(plan("bbbbbbbmmccd").claim.len(), 1);
    assert_eq!(plan("bbbbbmmccdd").claim.len(), 1);
}

#[test]
fn an_owner_with_a_heartbeat_gets_its_share() {
    assert_eq!(checked(&view_of("...."), &greedy()).claim.len(), 4);
    assert_eq!(checked(&with_heartbeats_of(view_of("...."), &["b", "c", "d"]), &greedy()).claim.len(), 1);
    let by_load = Policy { strategy: LoadBalancingStrategy::weighted(), ..Policy::default() };
    let view = with_heartbeats_of(view_of("mbbbbbb"), &["b"]);
    assert_eq!(checked(&view, &by_load).claim.len(), 1);
    // The fair load is 1.75: with one more partition this instance would exceed it, and d holds less.
    assert!(checked(&with_heartbeats_of(view_of("mbbbbbb"), &["c", "d"]), &by_load).is_empty());
}

#[test]
fn cooperative_owners_are_asked_others_stolen_from() {
    let mut view = cooperative("bbbbccccm", &[]);
    view.partitions[4..8].iter_mut().for_each(|entry| entry.cooperative = false);
    let plan = checked(&view, &with_handoff());
    assert_eq!(plan.handoff.iter().map(|handoff| handoff.from.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(plan.claim.len(), 1);
    assert_eq!(plan.claim[0].reason, ClaimReason::Stolen(OwnerId::new("c").unwrap()));
    assert!(!plan.is_empty() && checked(&view, &greedy()).handoff.is_empty());
    assert_eq!(checked(&view, &greedy()).claim.len(), 2);
}

#[test]
fn an_owner_that_requests_a_handoff_is_not_idle() {
    let plan = checked(&cooperative("bb", &[]), &Policy { handoff: true, ..Policy::default() });
    assert!(plan.claim.is_empty() && !plan.is_empty());
}

#[test]
fn handoffs_do_not_delay_claims_of_unowned_partitions() {
    let plan = checked(&cooperative("X._b", &[]), &Policy { max_partitions: Some(3), ..with_handoff() });
    assert_eq!((plan.claim.len(), plan.handoff.len()), (2, 0));
}

#[test]
fn a_requested_partition_counts_for_this_instance() {
    for policy in [with_handoff(), Policy { handoff: true, ..Policy::default() }, greedy()] {
        assert!(checked(&cooperative("bbbb", &[(0, 'm'), (1, 'm')]), &policy).is_empty());
    }
    // The fair share is two. The victim has three partitions left: one more handoff is allowed, two are not.
    let plan = checked(&cooperative("bbbb", &[(0, 'm')]), &with_handoff());
    assert_eq!(plan.handoff.len(), 1);
    assert_ne!(requested(&plan)[0], ("0", "b"));
}

#[test]
fn a_partition_requested_by_another_is_left_alone() {
    // The fair share is two each, and one more for one of the three.
    let handed = [(0, 'c'), (1, 'c'), (2, 'c')];
    let view = cooperative("bbbbbbm", &handed[..2]);
    for policy in [with_handoff(), greedy()] {
        let plan = checked(&view, &policy);
        let taken: Vec<_> = claimed(&plan).into_iter().chain(requested(&plan).into_iter().map(|(id, _)| id)).collect();
        assert_eq!(taken.len(), 1, "of the four that b has left");
        assert!(!taken.contains(&"0") && !taken.contains(&"1"));
    }
    assert!(checked(&cooperative("bbbbbbmm", &handed), &with_handoff()).is_empty());
}

#[test]
fn own_partitions_in_handoff_make_no_room_for_more() {
    // Four of this instance's partitions are requested: two of eight remain, the share of four owners.
    let handed = [(0, 'b'), (1, 'b'), (2, 'c'), (3, 'd')];
    assert!(checked(&cooperative("mmmmmmcd", &handed), &with_handoff()).is_empty());
    // But one more than the share was requested.
    assert_eq!(checked(&cooperative("mm.b", &[(0, 'b')]), &with_handoff()).claim.len(), 1);
}

#[test]
fn reserved_partitions_are_claimed_in_addition() {
    let view = cooperative("_____bb", &[(0, 'm'), (1, 'm'), (2, 'c')]);
    let plan = checked(&view, &Policy { handoff: true, ..Policy::default() });
    let reasons: Vec<_> = plan.claim.iter().map(|claim| &claim.reason).collect();
    assert_eq!(reasons, [&ClaimReason::HandedOver, &ClaimReason::HandedOver, &ClaimReason::Released]);
    assert_eq!(claimed(&plan)[..2], ["0", "1"]);
    assert!(["3", "4"].contains(&claimed(&plan)[2]));
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions(ids(&[0, 2, 3])));
    assert_eq!(claimed(&checked(&view, &Policy { strategy, ..with_handoff() })), ["0", "3"]);
}

#[test]
fn too_old_leases_are_neither_requested_nor_stolen() {
    let view =
        |not_requestable: &[u32]| View { not_requestable: ids(not_requestable).collect(), ..cooperative("bbb", &[]) };
    assert_eq!(requested(&checked(&view(&[0, 2]), &with_handoff())), [("1", "b")]);
    assert!(checked(&view(&[0, 1, 2]), &with_handoff()).is_empty());
    assert_eq!(checked(&view(&[0, 1, 2]), &greedy()).claim.len(), 1);
}

#[test]
fn an_avoided_partition_is_not_requested() {
    let policy = Policy { avoid: ids(&[0, 2]).collect(), ..with_handoff() };
    assert_eq!(requested(&checked(&cooperative("bbb", &[]), &policy)), [("1", "b")]);
    assert_eq!(checked(&cooperative("_bb", &[(0, 'm')]), &policy), Plan::default());
}

#[test]
fn a_requested_partition_counts_toward_the_cap() {
    let capped = |max| Policy { max_partitions: Some(max), ..with_handoff() };
    let view = cooperative("mbbbbb", &[(1, 'm')]);
    assert_eq!(checked(&view, &capped(2)), Plan::default());
    assert_eq!(checked(&view, &capped(3)).handoff.len(), 1);
    // It was handed over, but a claim of it is in progress.
    let avoiding = |max| Policy { avoid: ids(&[1]).collect(), ..capped(max) };
    let view = cooperative("m_bbbb", &[(1, 'm')]);
    assert_eq!(checked(&view, &avoiding(2)), Plan::default());
    assert_eq!(checked(&view, &avoiding(3)).handoff.len(), 1);
    assert_eq!(claimed(&checked(&view, &capped(2))), ["1"]);
    assert_eq!(checked(&view, &capped(1)), Plan::default());
}

#[test]
fn a_partition_in_handoff_is_not_released_for_the_cap() {
    let policy = Policy { max_partitions: Some(2), ..with_handoff() };
    assert_eq!(released(&checked(&cooperative("mmm", &[(1, 'b')]), &policy)), []);
    let plan = checked(&cooperative("mmmm", &[(1, 'b')]), &policy);
    assert_eq!(released(&plan), [("3", ReleaseReason::OverLimit)]);
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions([]));
    let plan = checked(&cooperative("m", &[(0, 'b')]), &Policy { strategy, ..with_handoff() });
    assert_eq!(released(&plan), [("0", ReleaseReason::NotAssigned)]);
}

#[test]
fn by_load_a_handoff_counts_for_its_receiver() {
    let policy = Policy { strategy: LoadBalancingStrategy::weighted(), handoff: true, ..Policy::default() };
    assert_eq!(checked(&cooperative("bbbb", &[]), &policy).handoff.len(), 1);
    assert_eq!(checked(&cooperative("bbbb", &[(0, 'm')]), &policy).handoff.len(), 1);
    assert!(checked(&cooperative("bbbb", &[(0, 'm'), (1, 'm')]), &policy).is_empty());
}
