//! Every pair of features at work in one group, in paused time: what was tested alone must hold where two meet.
//!
//! A feature is a value: what it sets, what it does while the group is at work, what it allows. A pair lets both act in
//! one group of three instances, in both orders. The same promises hold for all pairs: every event is handled, without
//! gaps within a start; no checkpoint passes an event that is not handled; no partition is dark, and no event waits,
//! for longer than the two allow; afterwards the group settles, is well, and ends in order; nothing is handled twice
//! unless one of the two allows it.
//!
//! A run prints its pair and seed when it fails. To see it again:
//! `EVENTHUBS_CHECKPOINT_PAIR="batch wait + silence" cargo test --test pairs`, with `EVENTHUBS_CHECKPOINT_SEED` for
//! another seed, and `EVENTHUBS_CHECKPOINT_RUNS` for so many seeds from there on, also of all pairs. The order of the
//! names is that of the actions.

mod application;
mod feature;
mod features;
mod impossible;
mod ledger;
mod run;
mod scene;
mod witness;
#[path = "../common/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::Processor;

use feature::{Case, Feature};
use impossible::{GROUPS, Reason, reason};
use run::run;
use scene::Scene;
use world::{Log, Recorder, World};

/// The order decides what is drawn, too: each pair runs with two draws.
const SEEDS: u64 = 1;

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}, but must be a number")))
}

/// The seeds that the environment names, or the usual ones.
fn seeds() -> Range<u64> {
    let first = number("EVENTHUBS_CHECKPOINT_SEED").unwrap_or(1);
    first..first + number("EVENTHUBS_CHECKPOINT_RUNS").unwrap_or(SEEDS)
}

/// The cases that the environment names; nothing, if it names none.
fn named_cases() -> Option<Vec<Case>> {
    let names = variable("EVENTHUBS_CHECKPOINT_PAIR")?;
    let feature = |name| Feature::named(name).unwrap_or_else(|| panic!("there is no feature {name:?}"));
    let features: Vec<_> = names.split(" + ").map(feature).collect();
    Some(seeds().map(|seed| Case::new(&features, seed)).collect())
}

/// The pairs of one feature: each pair belongs to one of its two features, and all features have about as many.
fn pairs_of(feature: &Feature) -> Vec<[&'static Feature; 2]> {
    let all: Vec<_> = features::all().collect();
    let (count, index) = (all.len(), all.iter().position(|other| other.name == feature.name).unwrap());
    let opposite = (count.is_multiple_of(2) && index < count / 2).then_some(count / 2);
    let steps = (1..=(count - 1) / 2).chain(opposite);
    steps.map(|step| [all[index], all[(index + step) % count]]).collect()
}

/// Alone, and each of its pairs in both orders.
fn cases_of(feature: &'static Feature) -> Vec<Case> {
    let possible = pairs_of(feature).into_iter().filter(|[one, other]| reason(one, other).is_none());
    let orders = possible.flat_map(|[one, other]| [vec![one, other], vec![other, one]]);
    let played = [vec![feature]].into_iter().chain(orders);
    played.flat_map(|features| seeds().map(move |seed| Case::new(&features, seed))).collect()
}

fn assert_as_promised(cases: &[Case]) {
    let failed = |case: &Case| {
        let violations = run(case);
        let (name, seed) = (case.name(), case.seed);
        (!violations.is_empty()).then(|| {
            format!(
                "EVENTHUBS_CHECKPOINT_PAIR=\"{name}\" EVENTHUBS_CHECKPOINT_SEED={seed} cargo test --test pairs\n  \
                 {:?}\n  {}",
                case.draw,
                violations.join("\n  ")
            )
        })
    };
    let active_faults: Vec<_> = cases.iter().filter_map(failed).collect();
    assert!(
        active_faults.is_empty(),
        "{} of {} runs failed:\n{}",
        active_faults.len(),
        cases.len(),
        active_faults.join("\n")
    );
}

fn name_of_row(row: &str) -> String {
    row.trim_start_matches("r#").replace('_', " ")
}

/// One test for each feature.
macro_rules! rows {
    ($($row:ident)*) => {
        const ROWS: &[&str] = &[$(stringify!($row)),*];

        $(#[test]
        fn $row() {
            let name = name_of_row(stringify!($row));
            if named_cases().is_none() {
                assert_as_promised(&cases_of(Feature::named(&name).unwrap()));
            }
        })*
    };
}

rows! {
    batch_wait prefetch tokens pause release pull
    invalid_fail invalid_earliest invalid_latest failure_restart failure_release failure_stop checkpoint_by_count
    checkpoint_at_close
    handoff stealing scope_partition scope_instance balanced greedy r#static weighted strict_leases
    earliest latest enqueued_after after_sequence_number
    stall_keep stall_release silence recreated_hub outage throttling shutdown crash
}

#[test]
fn what_the_environment_names() {
    if let Some(cases) = named_cases() {
        assert_as_promised(&cases);
    }
}

#[test]
fn every_pair_is_tested_or_impossible() {
    let names: Vec<_> = features::all().map(|feature| feature.name).collect();
    let rows: Vec<_> = ROWS.iter().map(|row| name_of_row(row)).collect();
    assert_eq!(rows, names, "each feature has a row");
    let pair = |one: &'static str, other: &'static str| BTreeSet::from([one, other]);
    let tested: Vec<_> = features::all().flat_map(pairs_of).map(|[one, other]| pair(one.name, other.name)).collect();
    let all: BTreeSet<_> = names
        .iter()
        .flat_map(|one| names.iter().map(|other| pair(one, other)))
        .filter(|pair| pair.len() == 2)
        .collect();
    assert_eq!(tested.len(), all.len(), "no pair belongs to two rows");
    assert_eq!(tested.into_iter().collect::<BTreeSet<_>>(), all);
    let impossible = GROUPS.iter().flat_map(|(_, group)| group.iter());
    assert!(impossible.clone().all(|name| names.contains(name)), "{impossible:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_refused_by_build() {
    for (_, group) in GROUPS.iter().filter(|(reason, _)| *reason == Reason::Refused) {
        let features: Vec<_> = group.iter().map(|name| Feature::named(name).unwrap()).collect();
        let scene = Scene::new(Case::new(&features, 1));
        let world = World::new(1);
        let handler = Recorder { owner: "a".into(), log: Log::default(), checkpoint: true };
        let builder = Processor::<_, Recorder>::builder(world.hub.source(), world.store("a").await, handler);
        let refused = builder.with_config(scene.config(0, 0)).build().err();
        assert!(refused.is_some_and(|error| error.kind() == ErrorKind::Config), "{group:?} is not refused");
    }
}
