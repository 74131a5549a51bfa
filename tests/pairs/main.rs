//! Tests every pair of features in one group, in paused time: features that are tested alone must also work together.
//!
//! A feature is a value: the settings it changes, its action while the group is running, and the deviations it allows.
//! A pair acts in one group of three instances, in both orders. All pairs must keep the same guarantees: every event is
//! handled, without gaps within a session; no checkpoint passes an event that is not handled; no partition has no
//! handler, and no event waits, for longer than the two features allow; afterwards the group settles, is healthy, and
//! shuts down cleanly; no event is handled twice unless one of the two features allows it. Within one session, single
//! events are processed once, in the order that the feature claims. A partition that an operator has paused is not
//! delivered.
//!
//! A failing run prints its pair and seed. To repeat it: `EVENTHUBS_CHECKPOINT_PAIR="batch wait + stalled link" cargo
//! test --test pairs`. `EVENTHUBS_CHECKPOINT_SEED` sets another seed, and `EVENTHUBS_CHECKPOINT_RUNS` the number of
//! consecutive seeds; both also work without a pair. The order of the names is the order of the actions.

mod application;
mod container;
mod feature;
mod features;
mod impossible;
mod lanes;
mod ledger;
mod misbehaviors;
mod run;
mod scene;
mod single_events;
#[path = "../common/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::Processor;

use feature::{Case, Feature};
use impossible::{GROUPS, OPPOSITES, Reason, reason};
use run::run;
use scene::Scene;
use world::{Log, Recorder, World};

/// The order of a pair also changes the random choices, so each pair runs with two draws.
const SEEDS: u64 = 1;

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}, but must be a number")))
}

/// Returns the seeds from the environment, or the default.
fn seeds() -> Range<u64> {
    let first = number("EVENTHUBS_CHECKPOINT_SEED").unwrap_or(1);
    first..first + number("EVENTHUBS_CHECKPOINT_RUNS").unwrap_or(SEEDS)
}

/// Returns the cases from the environment, or `None` if it names no pair.
fn named_cases() -> Option<Vec<Case>> {
    let names = variable("EVENTHUBS_CHECKPOINT_PAIR")?;
    let feature = |name| Feature::named(name).unwrap_or_else(|| panic!("there is no feature {name:?}"));
    let features: Vec<_> = names.split(" + ").map(feature).collect();
    Some(seeds().map(|seed| Case::new(&features, seed)).collect())
}

/// Returns the pairs of one feature. Each pair belongs to one of its two features, and all features have about the same
/// number of pairs.
fn pairs_of(feature: &Feature) -> Vec<[&'static Feature; 2]> {
    let all: Vec<_> = features::all().collect();
    let (count, index) = (all.len(), all.iter().position(|other| other.name == feature.name).unwrap());
    let opposite = (count.is_multiple_of(2) && index < count / 2).then_some(count / 2);
    let steps = (1..=(count - 1) / 2).chain(opposite);
    steps.map(|step| [all[index], all[(index + step) % count]]).collect()
}

/// Returns the feature alone, and each of its pairs in both orders.
fn cases_of(feature: &'static Feature) -> Vec<Case> {
    let possible = pairs_of(feature).into_iter().filter(|[one, other]| reason(one, other).is_none());
    let orders = possible.flat_map(|[one, other]| [vec![one, other], vec![other, one]]);
    let selected = [vec![feature]].into_iter().chain(orders);
    selected.flat_map(|features| seeds().map(move |seed| Case::new(&features, seed))).collect()
}

fn assert_no_violations(cases: &[Case]) {
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
    let failures: Vec<_> = cases.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{} of {} runs failed:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn feature_name(test: &str) -> String {
    test.trim_start_matches("r#").replace('_', " ")
}

/// Defines one test for each feature.
macro_rules! feature_tests {
    ($($test:ident)*) => {
        const FEATURE_TESTS: &[&str] = &[$(stringify!($test)),*];

        $(#[test]
        fn $test() {
            let name = feature_name(stringify!($test));
            if named_cases().is_none() {
                assert_no_violations(&cases_of(Feature::named(&name).unwrap()));
            }
        })*
    };
}

feature_tests! {
    batch_wait prefetch tracking pull
    concurrency order_by_key retries dead_letters
    pause stored_pause release restart
    invalid_fail invalid_earliest invalid_latest failure_restart failure_release failure_park checkpoint_by_count
    checkpoint_at_close
    handoff stealing scope_partition scope_instance balanced greedy r#static weighted strict_leases
    earliest latest enqueued_after after_sequence_number
    stall stalled_link recreated_hub outage throttling shutdown crash
}

#[test]
fn runs_named_in_the_environment() {
    if let Some(cases) = named_cases() {
        assert_no_violations(&cases);
    }
}

#[test]
fn every_pair_is_tested_or_listed_as_impossible() {
    let names: Vec<_> = features::all().map(|feature| feature.name).collect();
    let feature_tests: Vec<_> = FEATURE_TESTS.iter().map(|test| feature_name(test)).collect();
    assert_eq!(feature_tests, names, "each feature has a test");
    let pair = |one: &'static str, other: &'static str| BTreeSet::from([one, other]);
    let tested: Vec<_> = features::all().flat_map(pairs_of).map(|[one, other]| pair(one.name, other.name)).collect();
    let all: BTreeSet<_> = names
        .iter()
        .flat_map(|one| names.iter().map(|other| pair(one, other)))
        .filter(|pair| pair.len() == 2)
        .collect();
    assert_eq!(tested.len(), all.len(), "no pair belongs to two tests");
    assert_eq!(tested.into_iter().collect::<BTreeSet<_>>(), all);
    let opposites = OPPOSITES.iter().flat_map(|(_, first, second)| first.iter().chain(*second));
    let impossible = GROUPS.iter().flat_map(|(_, group)| group.iter()).chain(opposites);
    assert!(impossible.clone().all(|name| names.contains(name)), "{impossible:?}");
}

#[tokio::test(start_paused = true)]
async fn build_rejects_pairs_listed_as_refused() {
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
