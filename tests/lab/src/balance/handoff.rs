//! Whole groups with handoffs, whose members send heartbeats before they hold any partition.

use std::collections::BTreeSet;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy};
use eventhubs_checkpoint::internal::planner::Policy;

use super::group::{Group, Round};
use eventhubs_checkpoint::internal::postconditions;

const SEEDS: std::ops::Range<u64> = 0..10;

fn policy(strategy: &LoadBalancingStrategy, handoff: bool) -> Policy {
    Policy { strategy: strategy.clone(), handoff, ..Policy::default() }
}

fn send_heartbeats(group: &mut Group) {
    group.members.iter_mut().for_each(|member| member.sends_heartbeats = true);
}

/// Returns a group of one member that holds 64 partitions, and seven new ones.
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

/// Returns the partitions that move until nothing happens for some rounds.
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
fn seven_joins_move_each_partition_at_most_once() {
    for (strategy, handoff) in
        [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy].iter().flat_map(|by| [(by, false), (by, true)])
    {
        for (round, seed) in
            [Group::round, Group::round_at_once].into_iter().flat_map(|by| SEEDS.map(move |seed| (by, seed)))
        {
            let mut group = seven_join_one(&policy(strategy, handoff), seed);
            send_heartbeats(&mut group);
            let moved = moved(&mut group, round);
            let context = format!("{strategy:?}, handoff {handoff}, seed {seed}");
            assert_eq!(moved.len(), 56, "{context}");
            assert_eq!(moved.iter().collect::<BTreeSet<_>>().len(), 56, "{context}: a partition moved twice");
            assert_eq!(group.counts(), [8; 8], "{context}");
        }
    }
}

#[test]
fn seven_joins_without_heartbeats_move_more_if_greedy() {
    for seed in SEEDS {
        let mut group = seven_join_one(&policy(&LoadBalancingStrategy::Greedy, false), seed);
        assert!(moved(&mut group, Group::round_at_once).len() > 56, "seed {seed}");
        assert_eq!(group.counts(), [8; 8]);
    }
}

#[test]
fn balanced_requests_one_handoff_per_interval() {
    for seed in SEEDS {
        let mut group = seven_join_one(&policy(&LoadBalancingStrategy::Balanced, true), seed);
        send_heartbeats(&mut group);
        for round in group.settle() {
            assert!(round.requested <= 7, "seed {seed}: {round:?}");
            assert!(round.claims.iter().all(|(.., reason)| *reason == ClaimReason::HandedOver), "{round:?}");
        }
    }
}

#[test]
fn requests_of_a_crashed_owner_go_to_the_others() {
    let mut group = Group::new(4, 1);
    group.join(policy(&LoadBalancingStrategy::Greedy, true));
    group.settle();
    let claimer = group.join(policy(&LoadBalancingStrategy::Balanced, true));
    send_heartbeats(&mut group);
    assert_eq!(group.round().requested, 1);
    group.members[claimer].crashed = true;
    let rounds: Vec<_> = (0..8).map(|_| group.round()).collect();
    assert_eq!(rounds.iter().map(|round| round.releases).sum::<usize>(), 1);
    let claims: Vec<_> = rounds.iter().flat_map(|round| &round.claims).map(|(by, _, reason)| (*by, reason)).collect();
    assert_eq!(claims, [(0, &ClaimReason::Released)]);
    assert_eq!(group.counts(), [4]);
}

#[test]
fn mixed_groups_settle_with_the_fewest_moves() {
    for seed in SEEDS {
        let mut group = Group::balanced(23, 3, &LoadBalancingStrategy::Balanced, seed);
        for member in 0..5 {
            if member >= 3 {
                group.join(Policy::default());
            }
            group.members[member].policy.handoff = member % 2 == 0;
        }
        send_heartbeats(&mut group);
        let fewest = postconditions::fewest_moves(23, &group.counts());
        assert_eq!(moved(&mut group, Group::round).len(), fewest, "seed {seed}");
        postconditions::check_fairness(23, &group.counts()).unwrap();
    }
}
