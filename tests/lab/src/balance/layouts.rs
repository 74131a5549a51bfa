//! What one instance plans in small groups, written as one letter per partition.

use std::collections::{BTreeSet, HashMap};

use eventhubs_checkpoint::balancer::{Assignment, ClaimReason, LoadBalancingStrategy, PartitionOwner, PartitionView};
use eventhubs_checkpoint::internal::planner::{Plan, Policy, ReleaseReason, View, plan};
use eventhubs_checkpoint::{OwnerId, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::invariants::check;

/// One letter per partition. `.` nobody, `_` released, `m` me, `o` an orphan of mine, `X` an expired owner, `E` one in
/// the other tree; any other letter is a live owner.
fn view_of(layout: &str) -> View<'static> {
    let owner = |letter: char| OwnerId::new(letter.to_string()).unwrap();
    let holder = |letter| match letter {
        '.' => PartitionOwner::Unowned,
        '_' => PartitionOwner::Released,
        'm' => PartitionOwner::This,
        'o' => PartitionOwner::Reclaimable,
        'X' => PartitionOwner::Expired(owner('x')),
        'E' => PartitionOwner::OtherNameCase(owner('e')),
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
    }
}

fn checked(view: &View<'_>, policy: &Policy) -> Plan {
    let plan = plan(view, policy, &mut StdRng::seed_from_u64(1));
    check(view, policy, &plan).unwrap();
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

fn with_present(view: View<'static>, present: &[&str]) -> View<'static> {
    View { present: present.iter().map(|owner| OwnerId::new(owner).unwrap()).collect(), ..view }
}

fn asking() -> Policy {
    Policy { handoff: true, ..greedy() }
}

fn asked(plan: &Plan) -> Vec<(&str, &str)> {
    plan.handoff.iter().map(|handoff| (handoff.partition.as_str(), handoff.from.as_str())).collect()
}

fn ids(ids: &[u32]) -> impl Iterator<Item = PartitionId> {
    ids.iter().copied().map(PartitionId::from)
}

fn claimed(plan: &Plan) -> Vec<&str> {
    plan.claim.iter().map(|claim| claim.partition.as_str()).collect()
}

fn given_back(plan: &Plan) -> Vec<(&str, ReleaseReason)> {
    plan.release.iter().map(|release| (release.partition.as_str(), release.reason)).collect()
}

#[test]
fn what_is_recorded_as_mine_comes_back_at_once_whatever_the_strategy() {
    for strategy in [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy, LoadBalancingStrategy::weighted()]
    {
        let plan = checked(&view_of("bbooo"), &Policy { strategy, ..Policy::default() });
        assert_eq!(plan.claim.len(), 3);
        assert!(plan.claim.iter().all(|claim| claim.reason == ClaimReason::Reclaimed));
    }
}

#[test]
fn what_is_to_be_avoided_leaves_the_claim_to_another_partition() {
    let avoiding = |avoid: &[u32]| Policy { avoid: ids(avoid).collect(), ..Policy::default() };
    // A free one, an expired one, and two that could be stolen.
    let view = view_of(".Xbb");
    assert_eq!(claimed(&checked(&view, &avoiding(&[]))), ["0"]);
    assert_eq!(claimed(&checked(&view, &avoiding(&[0]))), ["1"]);
    assert_eq!(checked(&view, &avoiding(&[0, 1, 2, 3])), Plan::default());
}

#[test]
fn an_owner_above_the_floor_is_not_robbed_while_that_is_its_share() {
    // Five for two: one may hold three. That the last one is to be avoided makes nobody too full.
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
fn a_cap_limits_what_is_claimed_and_tells_what_stays_unowned() {
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
fn a_cap_that_only_hinders_a_steal_is_no_alarm() {
    let plan = checked(&view_of("mbbbbb"), &Policy { max_partitions: Some(1), ..greedy() });
    assert_eq!(plan, Plan::default());
}

#[test]
fn a_slow_strategy_sounds_no_alarm_for_what_the_next_intervals_bring() {
    let policy = Policy { max_partitions: Some(4), ..Policy::default() };
    let plan = checked(&view_of("...."), &policy);
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (1, 0));
}

#[test]
fn what_is_above_the_cap_is_given_back_and_nothing_is_claimed_meanwhile() {
    let policy = Policy { max_partitions: Some(2), ..greedy() };
    let plan = checked(&view_of("mmmmoo..bb"), &policy);
    assert_eq!(given_back(&plan), [("2", ReleaseReason::OverLimit), ("3", ReleaseReason::OverLimit)]);
    assert_eq!(plan.claim, []);
}

#[test]
fn under_a_cap_a_claim_under_way_counts_as_held() {
    let policy = Policy { max_partitions: Some(2), avoid: ids(&[1]).collect(), ..greedy() };
    assert_eq!(checked(&view_of("mo..."), &policy).claim, []);
}

#[test]
fn what_the_hub_no_longer_has_is_given_back() {
    let view = View { removed: vec![7.into()], ..view_of("m") };
    assert_eq!(given_back(&checked(&view, &Policy::default())), [("7", ReleaseReason::PartitionRemoved)]);
}

#[test]
fn by_assignment_what_is_not_mine_is_given_back_and_not_reclaimed() {
    let strategy = LoadBalancingStrategy::Static(Assignment::index(0, 2).unwrap());
    let plan = checked(&view_of("mmoo.._XbbEE"), &Policy { strategy, ..Policy::default() });
    assert_eq!(given_back(&plan), [("1", ReleaseReason::NotAssigned)]);
    assert_eq!(claimed(&plan), ["2", "4", "6"]);
}

#[test]
fn an_assignment_above_the_cap_is_an_alarm() {
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions(ids(&[0, 1, 2])));
    let plan = checked(&view_of("...."), &Policy { strategy, max_partitions: Some(2), ..Policy::default() });
    assert_eq!((plan.claim.len(), plan.unclaimed_due_to_limit), (2, 1));
}

#[test]
fn by_load_what_fits_is_taken_before_what_does_not() {
    let loads = (0u32..).map(PartitionId::from).zip([50, 10, 40]).collect();
    let policy = Policy { strategy: LoadBalancingStrategy::weighted(), loads, ..Policy::default() };
    // The fourth counts as the mean, 34, so that 67 are fair: my 40 leave room for the ten, not for the fifty.
    for seed in 0..10 {
        let plan = plan(&view_of("..mb"), &policy, &mut StdRng::seed_from_u64(seed));
        assert_eq!(claimed(&plan), ["1"]);
    }
}

#[test]
fn by_load_an_owner_is_robbed_only_if_that_gains_more_than_the_threshold() {
    let plan = |loads: [u64; 4], threshold_percent| {
        let loads = (0u32..).map(PartitionId::from).zip(loads).collect();
        let strategy = LoadBalancingStrategy::Weighted { threshold_percent };
        checked(&view_of("bbbm"), &Policy { strategy, loads, ..Policy::default() })
    };
    // Fair are 100. With 40 of 120 for my 80 I would hold as much as the victim held: no gain. With 10 it is 30.
    assert!(plan([40, 40, 40, 80], 0).is_empty());
    assert_eq!(claimed(&plan([10, 70, 40, 80], 29)), ["0"]);
    assert!(plan([10, 70, 40, 80], 30).is_empty());
    // Of several that gain, the one that evens out most.
    assert_eq!(claimed(&plan([10, 60, 100, 30], 10)), ["1"]);
}

#[test]
fn by_load_only_who_holds_least_goes_above_the_fair_load() {
    let plan = |layout: &str| {
        let strategy = LoadBalancingStrategy::Weighted { threshold_percent: 0 };
        checked(&view_of(layout), &Policy { strategy, ..Policy::default() })
    };
    // Fair are 2.75. With two and one more I would be above.
    assert!(plan("bbbbbbmmccd").is_empty());
    // Fair are three: whoever stays within them need not wait for d.
    assert_eq!(plan("bbbbbbbmmccd").claim.len(), 1);
    assert_eq!(plan("bbbbbmmccdd").claim.len(), 1);
}

#[test]
fn who_is_present_is_left_its_share_before_it_holds_anything() {
    assert_eq!(checked(&view_of("...."), &greedy()).claim.len(), 4);
    assert_eq!(checked(&with_present(view_of("...."), &["b", "c", "d"]), &greedy()).claim.len(), 1);
    let by_load = Policy { strategy: LoadBalancingStrategy::weighted(), ..Policy::default() };
    let view = with_present(view_of("mbbbbbb"), &["b"]);
    assert_eq!(checked(&view, &by_load).claim.len(), 1);
    // Fair are 1.75: with one more I would be above, and d holds less than I do.
    assert!(checked(&with_present(view_of("mbbbbbb"), &["c", "d"]), &by_load).is_empty());
}

#[test]
fn what_a_cooperative_owner_has_too_much_is_asked_for_and_what_another_has_is_stolen() {
    let mut view = cooperative("bbbbccccm", &[]);
    view.partitions[4..8].iter_mut().for_each(|entry| entry.cooperative = false);
    let plan = checked(&view, &asking());
    assert_eq!(plan.handoff.iter().map(|handoff| handoff.from.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(plan.claim.len(), 1);
    assert_eq!(plan.claim[0].reason, ClaimReason::Stolen(OwnerId::new("c").unwrap()));
    assert!(!plan.is_empty() && checked(&view, &greedy()).handoff.is_empty());
    assert_eq!(checked(&view, &greedy()).claim.len(), 2);
}

#[test]
fn whoever_asks_is_not_idle() {
    let plan = checked(&cooperative("bb", &[]), &Policy { handoff: true, ..Policy::default() });
    assert!(plan.claim.is_empty() && !plan.is_empty());
}

#[test]
fn what_is_expired_or_unowned_is_claimed_as_ever() {
    let plan = checked(&cooperative("X._b", &[]), &Policy { max_partitions: Some(3), ..asking() });
    assert_eq!((plan.claim.len(), plan.handoff.len()), (2, 0));
}

#[test]
fn what_i_have_asked_for_counts_as_mine_and_as_gone_for_its_victim() {
    for policy in [asking(), Policy { handoff: true, ..Policy::default() }, greedy()] {
        assert!(checked(&cooperative("bbbb", &[(0, 'm'), (1, 'm')]), &policy).is_empty());
    }
    // Two are fair. The victim has three left, so that one more is too many, two are not.
    let plan = checked(&cooperative("bbbb", &[(0, 'm')]), &asking());
    assert_eq!(plan.handoff.len(), 1);
    assert_ne!(asked(&plan)[0], ("0", "b"));
}

#[test]
fn what_another_has_asked_for_counts_for_that_one_and_is_left_alone() {
    // Two each are fair, and one more for one of the three.
    let handed = [(0, 'c'), (1, 'c'), (2, 'c')];
    let view = cooperative("bbbbbbm", &handed[..2]);
    for policy in [asking(), greedy()] {
        let plan = checked(&view, &policy);
        let taken: Vec<_> = claimed(&plan).into_iter().chain(asked(&plan).into_iter().map(|(id, _)| id)).collect();
        assert_eq!(taken.len(), 1, "of the four that b has left");
        assert!(!taken.contains(&"0") && !taken.contains(&"1"));
    }
    assert!(checked(&cooperative("bbbbbbmm", &handed), &asking()).is_empty());
}

#[test]
fn what_i_am_asked_for_makes_no_room_for_more() {
    // Four of mine are asked for: two of eight are left, my share of four owners.
    let handed = [(0, 'b'), (1, 'b'), (2, 'c'), (3, 'd')];
    assert!(checked(&cooperative("mmmmmmcd", &handed), &asking()).is_empty());
    // But one more than my share was asked for.
    assert_eq!(checked(&cooperative("mm.b", &[(0, 'b')]), &asking()).claim.len(), 1);
}

#[test]
fn what_is_reserved_for_me_is_claimed_beside_what_is_new_and_what_is_for_another_is_not() {
    let view = cooperative("_____bb", &[(0, 'm'), (1, 'm'), (2, 'c')]);
    let plan = checked(&view, &Policy { handoff: true, ..Policy::default() });
    let reasons: Vec<_> = plan.claim.iter().map(|claim| &claim.reason).collect();
    assert_eq!(reasons, [&ClaimReason::HandedOver, &ClaimReason::HandedOver, &ClaimReason::Released]);
    assert_eq!(claimed(&plan)[..2], ["0", "1"]);
    assert!(["3", "4"].contains(&claimed(&plan)[2]));
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions(ids(&[0, 2, 3])));
    assert_eq!(claimed(&checked(&view, &Policy { strategy, ..asking() })), ["0", "3"]);
}

#[test]
fn what_is_too_old_to_be_marked_is_neither_asked_for_nor_stolen() {
    let view = |unmarkable: &[u32]| View { not_requestable: ids(unmarkable).collect(), ..cooperative("bbb", &[]) };
    assert_eq!(asked(&checked(&view(&[0, 2]), &asking())), [("1", "b")]);
    assert!(checked(&view(&[0, 1, 2]), &asking()).is_empty());
    assert_eq!(checked(&view(&[0, 1, 2]), &greedy()).claim.len(), 1);
}

#[test]
fn what_is_to_be_avoided_is_not_asked_for() {
    let policy = Policy { avoid: ids(&[0, 2]).collect(), ..asking() };
    assert_eq!(asked(&checked(&cooperative("bbb", &[]), &policy)), [("1", "b")]);
    assert_eq!(checked(&cooperative("_bb", &[(0, 'm')]), &policy), Plan::default());
}

#[test]
fn under_a_cap_what_i_have_asked_for_counts_as_held() {
    let capped = |max| Policy { max_partitions: Some(max), ..asking() };
    let view = cooperative("mbbbbb", &[(1, 'm')]);
    assert_eq!(checked(&view, &capped(2)), Plan::default());
    assert_eq!(checked(&view, &capped(3)).handoff.len(), 1);
    // It has come, but a claim of it is under way.
    let avoiding = |max| Policy { avoid: ids(&[1]).collect(), ..capped(max) };
    let view = cooperative("m_bbbb", &[(1, 'm')]);
    assert_eq!(checked(&view, &avoiding(2)), Plan::default());
    assert_eq!(checked(&view, &avoiding(3)).handoff.len(), 1);
    assert_eq!(claimed(&checked(&view, &capped(2))), ["1"]);
    assert_eq!(checked(&view, &capped(1)), Plan::default());
}

#[test]
fn what_is_being_handed_over_is_not_given_back_for_the_cap_nor_makes_others_go() {
    let policy = Policy { max_partitions: Some(2), ..asking() };
    assert_eq!(given_back(&checked(&cooperative("mmm", &[(1, 'b')]), &policy)), []);
    let plan = checked(&cooperative("mmmm", &[(1, 'b')]), &policy);
    assert_eq!(given_back(&plan), [("3", ReleaseReason::OverLimit)]);
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions([]));
    let plan = checked(&cooperative("m", &[(0, 'b')]), &Policy { strategy, ..asking() });
    assert_eq!(given_back(&plan), [("0", ReleaseReason::NotAssigned)]);
}

#[test]
fn by_load_what_is_being_handed_over_weighs_for_the_one_who_gets_it() {
    let policy = Policy { strategy: LoadBalancingStrategy::weighted(), handoff: true, ..Policy::default() };
    assert_eq!(checked(&cooperative("bbbb", &[]), &policy).handoff.len(), 1);
    assert_eq!(checked(&cooperative("bbbb", &[(0, 'm')]), &policy).handoff.len(), 1);
    assert!(checked(&cooperative("bbbb", &[(0, 'm'), (1, 'm')]), &policy).is_empty());
}
