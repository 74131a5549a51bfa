//! The cases of `scenarios/balance.json`: what one instance plans, and where whole groups end. Its `_about` tells how to
//! read them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eventhubs_checkpoint::balance::{
    ClaimReason, Holder, Observation, PlannedClaim, Policy, Strategy, View, observe, plan,
};
use eventhubs_checkpoint::{Identity, Incarnation, LeaseTerms, OwnerId, OwnershipRecord, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;
use time::macros::datetime;

#[derive(Deserialize)]
struct Scenarios {
    cycles: Vec<Cycle>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Cycle {
    name: String,
    layout: String,
    me: char,
    balanced: usize,
    greedy: usize,
    only: Option<BTreeSet<usize>>,
    balanced_only: Option<BTreeSet<usize>>,
    #[serde(default)]
    must: BTreeSet<usize>,
    must_in: Option<String>,
    #[serde(default)]
    never: BTreeSet<usize>,
    steal_from: Option<char>,
}

#[derive(Deserialize)]
struct Run {
    name: String,
    start: String,
    members: Vec<char>,
    #[serde(default)]
    silent_members: Vec<char>,
    strategy: String,
    rounds: usize,
    owned: Option<BTreeMap<char, usize>>,
    counts: Option<Vec<usize>>,
    moves: Option<usize>,
}

const TERMS: LeaseTerms = LeaseTerms { expiry: Duration::from_secs(60), peer_expiry: Duration::from_secs(180) };

fn scenarios() -> Scenarios {
    serde_json::from_str(include_str!("scenarios/balance.json")).unwrap()
}

fn strategy(name: &str) -> Strategy {
    match name {
        "balanced" => Strategy::Balanced,
        "greedy" => Strategy::Greedy,
        other => panic!("unknown strategy {other}"),
    }
}

fn policy(strategy: Strategy) -> Policy {
    Policy { strategy, avoid: BTreeSet::new() }
}

fn owner(letter: char) -> OwnerId {
    OwnerId::new(letter.to_string()).unwrap()
}

fn life() -> Incarnation {
    Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 0)
}

/// The record that a character of a layout stands for.
fn record(index: usize, character: char) -> Option<Observation> {
    let (holder, age) = match character {
        '.' => return None,
        '_' => (None, 0),
        letter if letter.is_ascii_uppercase() => (Some(owner(letter.to_ascii_lowercase())), 100),
        letter => (Some(owner(letter)), 0),
    };
    let incarnation = holder.is_some().then(life);
    let record = OwnershipRecord { owner: holder, incarnation, ..OwnershipRecord::default() };
    Some(Observation {
        partition: id(index),
        record,
        age: Duration::from_secs(age),
        received: Duration::ZERO,
        other_tree: false,
    })
}

fn id(index: usize) -> PartitionId {
    u32::try_from(index).unwrap().into()
}

fn index(claim: &PlannedClaim) -> usize {
    claim.partition.as_str().parse().unwrap()
}

/// What `me` sees; it runs what is recorded as its own and fresh.
fn view(layout: &str, me: char) -> View {
    let partitions: Vec<_> = (0..layout.len()).map(id).collect();
    let records: Vec<_> =
        layout.chars().enumerate().filter_map(|(index, character)| record(index, character)).collect();
    let running = layout.chars().enumerate().filter(|(_, character)| *character == me).map(|(index, _)| id(index));
    let identity = Identity { owner: owner(me), incarnation: life() };
    observe(&records, &partitions, &running.collect(), &identity, TERMS, Duration::ZERO)
}

fn check_cycle(case: &Cycle, name: &str, seed: u64) {
    let claims = plan(&view(&case.layout, case.me), &policy(strategy(name)), &mut StdRng::seed_from_u64(seed)).claim;
    let claimed: BTreeSet<_> = claims.iter().map(index).collect();
    let context = format!("{} {name}: {claimed:?}", case.name);
    let expected = if name == "balanced" { case.balanced } else { case.greedy };
    assert_eq!(claims.len(), expected, "{context}");
    let only = case.balanced_only.as_ref().filter(|_| name == "balanced").or(case.only.as_ref());
    assert!(only.is_none_or(|only| claimed.is_subset(only)), "{context}");
    assert!(claimed.is_disjoint(&case.never), "{context}");
    if case.must_in.as_deref().is_none_or(|strategy| strategy == name) {
        assert!(claimed.is_superset(&case.must), "{context}");
    }
    for claim in &claims {
        if let (ClaimReason::Stolen(victim), Some(allowed)) = (&claim.reason, case.steal_from) {
            assert_eq!(*victim, owner(allowed), "{context}");
        }
    }
}

#[test]
fn every_cycle_of_the_table_is_planned_as_it_says() {
    let cases = scenarios().cycles;
    assert!(cases.len() >= 20);
    for case in &cases {
        for seed in 0..20 {
            check_cycle(case, "balanced", seed);
            check_cycle(case, "greedy", seed);
        }
    }
}

/// Lets every member plan once; answers how many partitions changed hands, and how many were taken from a live owner.
fn round(layout: &mut [char], members: &[char], strategy: Strategy, rng: &mut StdRng) -> (usize, usize) {
    let (mut changes, mut moves) = (0, 0);
    for me in members {
        let seen = view(&layout.iter().collect::<String>(), *me);
        for claim in plan(&seen, &policy(strategy), rng).claim {
            moves += usize::from(matches!(seen.holder(&claim.partition), Some(Holder::Live(_))));
            changes += 1;
            layout[index(&claim)] = *me;
        }
    }
    (changes, moves)
}

fn check_run(case: &Run, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut layout: Vec<char> = case.start.chars().collect();
    let moves: usize =
        (0..case.rounds).map(|_| round(&mut layout, &case.members, strategy(&case.strategy), &mut rng).1).sum();
    let everybody = || case.members.iter().chain(&case.silent_members);
    let counts: BTreeMap<char, usize> =
        everybody().map(|member| (*member, layout.iter().filter(|owner| *owner == member).count())).collect();
    assert!(case.owned.as_ref().is_none_or(|owned| *owned == counts), "{}: {counts:?}", case.name);
    if let Some(expected) = &case.counts {
        let mut found: Vec<_> = counts.values().copied().collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(found, *expected, "{}", case.name);
    }
    assert!(case.moves.is_none_or(|expected| expected == moves), "{}: {moves} moves", case.name);
    for _ in 0..2 {
        assert_eq!(round(&mut layout, &case.members, strategy(&case.strategy), &mut rng).0, 0, "{}", case.name);
    }
}

#[test]
fn every_run_of_the_table_ends_as_it_says() {
    let cases = scenarios().runs;
    assert!(cases.len() >= 10);
    for case in &cases {
        for seed in 0..20 {
            check_run(case, seed);
        }
    }
}
