//! Whole groups that hand partitions over, and whose members are present before they hold anything.

use std::collections::BTreeSet;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy};
use eventhubs_checkpoint::internal::planner::Policy;

use super::group::{Group, Round};
use crate::invariants;

const SEEDS: std::ops::Range<u64> = 0..10;

fn policy(strategy: &LoadBalancingStrategy, handoff: bool) -> Policy {
    Policy { strategy: strategy.clone(), handoff, ..Policy::default() }
}

fn present(group: &mut Group) {
    group.members.iter_mut().for_each(|member| member.present = true);
}

/// One that holds 64 partitions, and seven that have just come.
fn seven_join_one(policy: &Policy, seed: u64) -> Group {
    let mut group = Group::new(64, seed);
    group.join(Policy { strategy: LoadBalancingStrategy::Greedy, ..policy.clone() });
    group.settle();
    assert_eq!(group.counts(), [64]);
    group.members[0].policy = policy.clone();
    (0..7).for_each(|_| {
        group.join(policy.clone());
    });
    group
}

/// What moves until nothing happens for some rounds.
fn moved(group: &mut Group, round: impl Fn(&mut Group) -> Round) -> Vec<PartitionId> {
    let (mut moved, mut quiet) = (Vec::new(), 0);
    for _ in 0..200 {
        let round = round(group);
        quiet = if round.is_quiet() { quiet + 1 } else { 0 };
        moved.extend(round.moved().cloned());
        if quiet == 3 {
            return moved;
        }
    }
    panic!("does not settle: {:?}", group.counts());
}

#[test]
fn seven_that_are_present_join_one_and_each_partition_moves_once_at_most() {
    for (strategy, handoff) in
        [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy].iter().flat_map(|by| [(by, false), (by, true)])
    {
        for (round, seed) in
            [Group::round, Group::round_at_once].into_iter().flat_map(|by| SEEDS.map(move |seed| (by, seed)))
        {
            let mut group = seven_join_one(&policy(strategy, handoff), seed);
            present(&mut group);
            let moved = moved(&mut group, round);
            let context = format!("{strategy:?}, handoff {handoff}, seed {seed}");
            assert_eq!(moved.len(), 56, "{context}");
            assert_eq!(moved.iter().collect::<BTreeSet<_>>().len(), 56, "{context}: one moved twice");
            assert_eq!(group.counts(), [8; 8], "{context}");
        }
    }
}

#[test]
fn seven_that_nobody_can_see_move_more_by_greed() {
    for seed in SEEDS {
        let mut group = seven_join_one(&policy(&LoadBalancingStrategy::Greedy, false), seed);
        assert!(moved(&mut group, Group::round_at_once).len() > 56, "seed {seed}");
        assert_eq!(group.counts(), [8; 8]);
    }
}

#[test]
fn balanced_begins_one_handoff_per_interval_and_nothing_is_stolen() {
    for seed in SEEDS {
        let mut group = seven_join_one(&policy(&LoadBalancingStrategy::Balanced, true), seed);
        present(&mut group);
        for round in group.settle() {
            assert!(round.asked <= 7, "seed {seed}: {round:?}");
            assert!(round.claims.iter().all(|(.., reason)| *reason == ClaimReason::HandedOver), "{round:?}");
        }
    }
}

#[test]
fn what_one_that_died_had_asked_for_goes_to_those_that_are_left() {
    let mut group = Group::new(4, 1);
    group.join(policy(&LoadBalancingStrategy::Greedy, true));
    group.settle();
    let thief = group.join(policy(&LoadBalancingStrategy::Balanced, true));
    present(&mut group);
    assert_eq!(group.round().asked, 1);
    group.members[thief].dead = true;
    let rounds: Vec<_> = (0..8).map(|_| group.round()).collect();
    assert_eq!(rounds.iter().map(|round| round.releases).sum::<usize>(), 1);
    let claims: Vec<_> = rounds.iter().flat_map(|round| &round.claims).map(|(by, _, reason)| (*by, reason)).collect();
    assert_eq!(claims, [(0, &ClaimReason::Released)]);
    assert_eq!(group.counts(), [4]);
}

#[test]
fn groups_of_those_that_hand_over_and_those_that_do_not_settle_with_the_fewest_moves() {
    for seed in SEEDS {
        let mut group = Group::balanced(23, 3, &LoadBalancingStrategy::Balanced, seed);
        for member in 0..5 {
            if member >= 3 {
                group.join(Policy::default());
            }
            group.members[member].policy.handoff = member % 2 == 0;
        }
        present(&mut group);
        let fewest = invariants::fewest_moves(23, &group.counts());
        assert_eq!(moved(&mut group, Group::round).len(), fewest, "seed {seed}");
        invariants::fair(23, &group.counts()).unwrap();
    }
}
