//! What the systems from which this crate descends require of a group, as far as decisions alone can show it. A and B
//! are load balancers of event processors, C segments work across instances, D is a blackboard of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::{Assignment, ClaimReason, LoadBalancingStrategy};
use eventhubs_checkpoint::internal::planner::Policy;

use super::group::{Group, Round};
use super::table::id;
use eventhubs_checkpoint::internal::postconditions;

const SEEDS: std::ops::Range<u64> = 0..10;

/// Cycles until a lease that is no longer renewed has expired: 60 s and the grace period, at 10 s each.
const ROUNDS_TO_EXPIRE: usize = 7;

fn balanced() -> Policy {
    Policy::default()
}

fn moves(rounds: &[Round]) -> usize {
    rounds.iter().map(Round::moves).sum()
}

fn all_strategies() -> [LoadBalancingStrategy; 3] {
    [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy, LoadBalancingStrategy::weighted()]
}

#[test]
fn at_most_one_claim_per_interval() {
    let mut group = Group::new(3, 1);
    let alone = group.join(balanced());
    for held in 1..=3 {
        assert_eq!(group.round().claims.len(), 1);
        assert_eq!(group.counts(), [held]);
    }
    assert!(group.round().is_quiet());
    group.resize(5);
    for _ in 0..2 {
        assert_eq!(group.round().claims_of(alone), 1);
    }
    assert_eq!(group.counts(), [5]);
}

#[test]
fn removed_partitions_are_released() {
    let mut group = Group::balanced(20, 4, &LoadBalancingStrategy::Balanced, 1);
    group.resize(16);
    assert_eq!(group.round().releases, 4);
    assert_eq!(moves(&group.settle()), postconditions::fewest_moves(16, &group.counts()));
    assert_eq!(group.counts_sorted(), [4, 4, 4, 4]);
}

#[test]
fn the_first_instance_claims_a_random_partition() {
    let mut chosen = BTreeSet::new();
    for seed in 0..100 {
        let mut group = Group::new(4, seed);
        group.join(balanced());
        let claims = group.round().claims;
        let [(_, partition, ClaimReason::Unowned)] = claims.as_slice() else { panic!("seed {seed}: {claims:?}") };
        chosen.insert(partition.clone());
    }
    assert_eq!(chosen.len(), 4);
}

#[test]
fn the_surplus_is_idle_and_takes_over() {
    for seed in SEEDS {
        let mut group = Group::balanced(5, 6, &LoadBalancingStrategy::Balanced, seed);
        assert_eq!(group.counts_sorted(), [1, 1, 1, 1, 1, 0]);
        for _ in 0..20 {
            assert!(group.round().is_quiet());
        }
        let idle = group.counts().iter().position(|held| *held == 0).unwrap();
        let gone = (idle + 1) % 6;
        group.members[gone].crashed = true;
        let rounds: Vec<_> = (0..=ROUNDS_TO_EXPIRE).map(|_| group.round()).collect();
        assert_eq!(group.counts(), [1; 5], "seed {seed}");
        assert_eq!(rounds.iter().map(|round| round.claims_of(idle)).sum::<usize>(), 1);
        // The other owners do not see an instance that holds nothing, so one of them may be faster, and release the
        // partition again.
        assert!(moves(&rounds) <= 1, "seed {seed}");
    }
}

#[test]
fn the_surplus_with_a_heartbeat_gets_the_partition() {
    for seed in SEEDS {
        let mut group = Group::balanced(5, 6, &LoadBalancingStrategy::Balanced, seed);
        group.members.iter_mut().for_each(|member| member.sends_heartbeats = true);
        assert!(group.round().is_quiet());
        let idle = group.counts().iter().position(|held| *held == 0).unwrap();
        group.members[(idle + 1) % 6].crashed = true;
        let rounds: Vec<_> = (0..=ROUNDS_TO_EXPIRE).map(|_| group.round()).collect();
        let claims: Vec<_> = rounds.iter().flat_map(|round| &round.claims).map(|(by, ..)| *by).collect();
        assert_eq!((claims, moves(&rounds)), (vec![idle], 0), "seed {seed}");
        assert_eq!(group.counts(), [1; 5], "seed {seed}");
    }
}

#[test]
fn one_joins_18_partitions_from_3_to_4() {
    for seed in SEEDS {
        let mut group = Group::balanced(18, 3, &LoadBalancingStrategy::Balanced, seed);
        let newcomer = group.join(balanced());
        for _ in 0..4 {
            let before = group.counts();
            let round = group.round();
            let [(by, _, ClaimReason::Stolen(victim))] = round.claims.as_slice() else { panic!("{round:?}") };
            assert_eq!(*by, newcomer);
            let victim = group.members.iter().position(|member| member.identity.owner == *victim).unwrap();
            assert!(before[victim] > 4, "seed {seed}: the victim held no more than its share");
        }
        assert!(group.round().is_quiet());
        assert_eq!(group.counts_sorted(), [5, 5, 4, 4]);
    }
}

#[test]
fn three_of_four_instances_take_over_20_partitions() {
    for seed in SEEDS {
        let mut group = Group::balanced(20, 4, &LoadBalancingStrategy::Balanced, seed);
        group.members[2].crashed = true;
        for _ in 1..ROUNDS_TO_EXPIRE {
            assert!(group.round().is_quiet(), "seed {seed}: taken before the expiry");
        }
        let rounds = group.settle();
        assert!(rounds.iter().all(|round| (0..4).all(|member| round.claims_of(member) <= 1)));
        assert_eq!((rounds.len(), moves(&rounds)), (2, 0), "seed {seed}");
        assert_eq!(group.counts_sorted(), [7, 7, 6]);
    }
}

#[test]
fn four_instances_share_20_to_25_partitions() {
    for seed in SEEDS {
        let mut group = Group::balanced(20, 4, &LoadBalancingStrategy::Balanced, seed);
        group.resize(25);
        assert_eq!(moves(&group.settle()), 0, "seed {seed}");
        assert_eq!(group.counts_sorted(), [7, 6, 6, 6]);
    }
}

#[test]
fn several_that_start_at_once_steal_nothing() {
    for seed in SEEDS {
        let mut group = Group::new(20, seed);
        for _ in 0..4 {
            group.join(balanced());
        }
        // Collisions cost some rounds.
        let rounds: Vec<_> = (0..20).map(|_| group.round_at_once()).collect();
        assert_eq!(moves(&rounds), 0, "seed {seed}");
        assert_eq!(group.counts_sorted(), [5, 5, 5, 5], "seed {seed}");
    }
}

#[test]
fn without_a_coordinator_the_survivors_share() {
    for strategy in all_strategies() {
        for gone in 0..4 {
            let mut group = Group::balanced(17, 4, &strategy, 1);
            group.members[gone].crashed = true;
            for _ in 0..ROUNDS_TO_EXPIRE {
                group.round();
            }
            group.settle();
            assert_eq!(group.counts_sorted(), [6, 6, 5], "{strategy:?} without {gone}");
        }
    }
}

#[test]
fn evenly_loaded_groups_are_sticky() {
    for strategy in all_strategies() {
        let mut group = Group::balanced(23, 5, &strategy, 1);
        for _ in 0..100 {
            assert!(group.round().is_quiet(), "{strategy:?}");
        }
    }
}

#[test]
fn a_single_partition_never_hops() {
    for strategy in all_strategies() {
        let mut group = Group::new(1, 1);
        for _ in 0..5 {
            group.join(Policy { strategy: strategy.clone(), ..Policy::default() });
        }
        let claims: usize = (0..100).map(|_| group.round_at_once().claims.len()).sum();
        assert_eq!((claims, group.counts_sorted()), (1, vec![1, 0, 0, 0, 0]), "{strategy:?}");
    }
}

fn loads_of(group: &Group) -> Vec<u64> {
    let load = |partition: &PartitionId| group.members[0].policy.loads[partition];
    group.members.iter().map(|member| member.running.iter().map(load).sum()).collect()
}

fn give_loads(group: &mut Group, load: impl Fn(usize) -> u64) {
    let loads: BTreeMap<_, _> = (0..24).map(|index| (id(index), load(index))).collect();
    for member in &mut group.members {
        member.policy.loads.clone_from(&loads);
    }
}

#[test]
fn groups_with_unequal_loads_are_sticky() {
    for seed in SEEDS {
        let mut group = Group::balanced(24, 3, &LoadBalancingStrategy::weighted(), seed);
        // Every sixth partition has ten times the load.
        let heavy = |index: usize| if index.is_multiple_of(6) { 510 } else { 51 };
        give_loads(&mut group, heavy);
        let fair = (4 * 510 + 20 * 51) / 3;
        let rounds = group.settle();
        let loads = loads_of(&group);
        // No load, minus its lightest partition, exceeds the least load by more than the threshold.
        let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
        assert!(most - 51 <= least + fair / 10, "seed {seed}: {loads:?}");
        assert!(moves(&rounds) <= 8, "seed {seed}: {} moves", moves(&rounds));
        // A variation of a few percent may move at most one partition that was close to the limit.
        let mut tipped = 0;
        for wave in 0..20 {
            give_loads(&mut group, |index| heavy(index) * (98 + (index as u64 * 7 + wave) % 5) / 100);
            tipped += group.round().moves();
        }
        assert!(tipped <= 1, "seed {seed}: {tipped}");
    }
}

/// Returns the instance that processes the partition to which an event hub maps a key.
fn instance_of(key: &str, group: &Group, partitions: usize) -> Option<usize> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let partition = id(usize::try_from(hasher.finish() % 1024).unwrap() % partitions);
    group.alive().into_iter().find(|member| group.members[*member].running.contains(&partition))
}

fn assign(group: &mut Group, of: usize) {
    while group.members.len() < of {
        group.join(Policy::default());
    }
    for (index, member) in group.members.iter_mut().enumerate().take(of) {
        member.policy.strategy = LoadBalancingStrategy::Static(Assignment::index(index, of).unwrap());
    }
}

#[test]
fn the_same_key_goes_to_the_same_instance() {
    let mut group = Group::new(16, 1);
    assign(&mut group, 3);
    group.settle();
    let keys: Vec<String> = (0..100).map(|key| format!("customer-{key}")).collect();
    let before: Vec<_> = keys.iter().map(|key| instance_of(key, &group, 16)).collect();
    assert!(before.iter().all(Option::is_some));
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3);
    // One instance is down for long: its keys wait for it and go to no other instance.
    group.members[1].crashed = true;
    for _ in 0..2 * ROUNDS_TO_EXPIRE {
        assert!(group.round().is_quiet());
    }
    group.members[1].crashed = false;
    group.members[1].running.clear();
    group.settle();
    assert_eq!(keys.iter().map(|key| instance_of(key, &group, 16)).collect::<Vec<_>>(), before);
}

#[test]
fn instances_are_added_and_removed_by_a_number() {
    let mut group = Group::new(16, 1);
    assign(&mut group, 3);
    group.settle();
    assign(&mut group, 4);
    let rounds = group.settle();
    assert!(rounds.len() <= postconditions::rounds_to_settle(&group.members[0].policy.strategy, 16, 4).unwrap());
    assert_eq!((moves(&rounds), group.counts()), (0, vec![4, 4, 4, 4]));
    assign(&mut group, 3);
    group.members[3].policy.strategy = LoadBalancingStrategy::Static(Assignment::partitions([]));
    assert_eq!(moves(&group.settle()), 0);
    assert_eq!(group.counts(), [6, 5, 5, 0]);
}

#[test]
fn only_others_claim_during_a_cooldown() {
    let mut group = Group::new(2, 1);
    let author = group.join(Policy { avoid: [id(0), id(1)].into(), ..Policy::default() });
    for _ in 0..3 {
        assert!(group.round().is_quiet());
    }
    let other = group.join(balanced());
    assert_eq!(group.round().claims_of(other), 1);
    group.members[author].policy.avoid.clear();
    assert_eq!(group.round().claims_of(author), 1);
}
