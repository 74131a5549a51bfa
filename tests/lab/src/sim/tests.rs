//! Whole groups of processors, mixed with owners of other SDKs, with every kind of fault.
//!
//! A failing run prints its seed and the smallest plan that still fails. To repeat it: `EVENTHUBS_CHECKPOINT_SEED=7
//! cargo test -p eventhubs-checkpoint-lab sim::`, with `EVENTHUBS_CHECKPOINT_RUNS` for the number of seeds from there
//! on.

mod blocked;
mod failing;
mod mixed;

use std::env;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::sim::plan::reset;
use crate::sim::{
    BuiltIn, Foreign, Host, IncidentKind, InstanceFactory, InstanceFuture, InstanceKind, Invariant, OwnPositions, Plan,
    Report, Reset, Role, Scale, Sdk, Totals, run, shrink,
};

/// Seeds from 1 on, each of which takes seconds in debug builds; `cargo simulate` runs thousands of larger groups.
const SEEDS: u64 = 10;

/// The number of seeds over a [`Platform`](eventhubs_checkpoint::testing::faulty::Platform).
const SEEDS_OVER_PLATFORM: u64 = 4;

/// The number of seeds with settings from the whole range that `build` accepts.
const WILD_SEEDS: u64 = 4;

/// The number of seeds with applications that keep their own positions.
const OWN_POSITION_SEEDS: u64 = 4;

/// The number of seeds with recreated hubs.
const RECREATION_SEEDS: u64 = 4;

/// The number of seeds with operators.
const RESET_SEEDS: u64 = 4;

/// The numbers of seeds with rough conditions.
struct SeedsOf;

impl SeedsOf {
    const FAILURES: u64 = 3;
    const MIXED_SETTINGS: u64 = 3;
    const BLOCKED: u64 = 3;
}

/// The size of most groups here: every kind of incident happens in it, and it is simulated in seconds.
fn small() -> Scale {
    Scale { partitions: 12, storm: Duration::from_secs(2400), ..Scale::default() }
}

fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, but must be a number")))
}

fn play(plan: &Plan, verbose: bool) -> Report {
    play_with(plan, &BuiltIn, verbose)
}

fn play_with(plan: &Plan, factory: &dyn InstanceFactory, verbose: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(plan, factory, verbose)).unwrap()
}

fn fails(plan: &Plan) -> bool {
    !play(plan, false).violations.is_empty()
}

/// Returns a description of the failure: the plan, its history, and the command that repeats it.
fn explanation(plan: &Plan, test: &str) -> String {
    let smallest = shrink(plan, fails);
    let report = play(&smallest, true);
    let violations: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
    format!(
        "{}\n\n{smallest:#?}\n\n{}\n\nEVENTHUBS_CHECKPOINT_SEED={} cargo test -p eventhubs-checkpoint-lab sim::tests::{test}",
        report.history.join("\n"),
        violations.join("\n"),
        plan.seed
    )
}

/// Runs these seeds on all cores.
fn play_all(seeds: Range<u64>, draw: impl Fn(u64) -> Plan + Sync) -> (Totals, Vec<u64>) {
    let (left, played) = (Mutex::new(seeds), Mutex::new((Totals::default(), Vec::new())));
    let work = || {
        while let Some(seed) = { left.lock().unwrap().next() } {
            let report = play(&draw(seed), false);
            for violation in report.violations.iter().take(3) {
                println!("seed {seed}: {violation}");
            }
            let (totals, failed) = &mut *played.lock().unwrap();
            totals.add(&report.totals);
            failed.extend((!report.violations.is_empty()).then_some(seed));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    played.into_inner().unwrap()
}

/// Runs the seeds that the environment sets, or else `seeds` seeds from 1 on. `test` is the name of the calling test.
fn assert_no_violation(test: &str, seeds: u64, draw: impl Fn(u64) -> Plan + Sync) -> Totals {
    let first = variable("EVENTHUBS_CHECKPOINT_SEED");
    let runs = variable("EVENTHUBS_CHECKPOINT_RUNS").unwrap_or(if first.is_some() { 1 } else { seeds });
    let first = first.unwrap_or(1);
    let (totals, failed) = play_all(first..first + runs, &draw);
    println!("{totals:#?}");
    if let Some(seed) = failed.iter().min() {
        panic!("{}\nfailed: {failed:?}", explanation(&draw(*seed), test));
    }
    totals
}

#[test]
fn no_invariant_is_violated() {
    assert_no_violation("no_invariant_is_violated", SEEDS, |seed| Plan::draw(seed, &small()));
}

#[test]
fn over_the_platform() {
    let scale = Scale { platform: true, ..small() };
    assert_no_violation("over_the_platform", SEEDS_OVER_PLATFORM, |seed| Plan::draw(seed, &scale));
}

#[test]
fn far_from_the_defaults() {
    let scale = Scale { wild: true, ..small() };
    assert_no_violation("far_from_the_defaults", WILD_SEEDS, |seed| Plan::draw(seed, &scale));
}

/// Each plan recreates the hub up to four times, while instances run, crash and are frozen. At once the new hub has
/// between none and twice the events of the deleted one.
#[test]
fn a_recreated_hub_is_read_from_its_beginning() {
    let storm = Duration::from_secs(1800);
    let scale = Scale { instances: 4, partitions: 8, storm, recreations: true, ..Scale::default() };
    let test = "a_recreated_hub_is_read_from_its_beginning";
    let totals = assert_no_violation(test, RECREATION_SEEDS, |seed| Plan::draw(seed, &scale));
    assert!(totals.incidents["hub recreated"] >= totals.plans, "{totals:?}");
}

/// A reset does not move an application that keeps its own positions.
fn resettable(mut plan: Plan) -> Plan {
    plan.settings.own_positions = OwnPositions::None;
    plan
}

/// Returns a plan with frequent operators and every kind of fault.
fn stormy(seed: u64) -> Plan {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0be2);
    let storm = Duration::from_secs(1440);
    let (platform, wild) = (seed.is_multiple_of(2), seed.is_multiple_of(3));
    let scale = Scale { instances: 5, partitions: 12, storm, platform, wild, ..Scale::default() };
    let mut plan = resettable(Plan::draw(seed, &scale));
    let mut at = Duration::from_secs(60);
    while at < scale.storm {
        at += Duration::from_secs(rng.random_range(1..150));
        plan = plan.clone().with(at, IncidentKind::Reset(reset(&mut rng, plan.partitions, &plan.settings)));
    }
    plan
}

#[test]
fn operators_reset_during_faults() {
    assert_no_violation("operators_reset_during_faults", RESET_SEEDS, stormy);
}

/// Returns a plan for an application that keeps its own positions.
fn with_own_positions(seed: u64, own_positions: OwnPositions) -> Plan {
    let (platform, wild) = (seed.is_multiple_of(2), seed.is_multiple_of(3));
    let scale = Scale { instances: 4, foreign: false, platform, wild, ..small() };
    let mut plan = Plan::draw(seed, &scale);
    plan.settings.own_positions = own_positions;
    plan.incidents.retain(|incident| !matches!(incident.kind, IncidentKind::Reset(_)));
    plan
}

#[test]
fn own_positions_count_every_event_once() {
    let draw = |seed| with_own_positions(seed, OwnPositions::Fenced);
    let totals = assert_no_violation("own_positions_count_every_event_once", OWN_POSITION_SEEDS, draw);
    assert!(totals.checked[&Invariant::CountedOnce] > 1000 * totals.plans, "{totals:?}");
}

/// The observer finds what the comparison of epochs prevents.
#[test]
fn unfenced_own_positions_count_events_twice() {
    let counts_twice = |seed| {
        let report = play(&with_own_positions(seed, OwnPositions::Unfenced), false);
        report.violations.iter().any(|violation| violation.invariant == Invariant::CountedOnce)
    };
    assert!((1..20).any(counts_twice));
}

/// Returns a plan with occasional operators and no other incidents.
fn calm(seed: u64) -> Plan {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0be2);
    let scale =
        Scale { instances: 5, partitions: 12, storm: Duration::from_secs(3600), foreign: false, ..Scale::default() };
    let mut plan = resettable(Plan::calm(seed, &scale));
    let mut at = Duration::from_secs(300);
    while at < scale.storm {
        let reset = reset(&mut rng, plan.partitions, &plan.settings);
        plan = plan.with(at, IncidentKind::Reset(Reset { storage_fault: None, killed_after: None, ..reset }));
        at += Duration::from_secs(rng.random_range(150..400));
    }
    plan
}

#[test]
fn no_partition_moves_because_of_a_reset() {
    let totals = assert_no_violation("no_partition_moves_because_of_a_reset", RESET_SEEDS, calm);
    assert!(totals.counts["resets in calm"] > 3 * totals.plans, "{totals:?}");
}

#[test]
fn a_seed_is_repeatable() {
    let scale = Scale { storm: Duration::from_secs(900), ..small() };
    let plain = Plan::draw(1, &scale);
    let over_platform = Plan::draw(1, &Scale { platform: true, ..scale });
    let [plain, over_platform] = [plain, over_platform].map(|plan| {
        let (one, again) = (play(&plan, false), play(&plan, true));
        assert_eq!((&one.trace, one.totals), (&again.trace, again.totals));
        one.trace
    });
    assert_ne!(plain, over_platform);
    assert_ne!(plain, play(&Plan::draw(2, &scale), false).trace);
}

/// Guests that run the code of another SDK after a crash and still claim to run this crate.
#[derive(Default)]
struct Impostors(AtomicU32);

impl InstanceFactory for Impostors {
    fn kind_of(&self, role: Role) -> Arc<dyn InstanceKind> {
        match role {
            Role::Guest(_) if self.0.fetch_add(1, Ordering::Relaxed) > 0 => Arc::new(Impostor),
            role => BuiltIn.kind_of(role),
        }
    }
}

struct Impostor;

impl InstanceKind for Impostor {
    fn is_crate_processor(&self) -> bool {
        true
    }

    fn live(&self, host: Host) -> InstanceFuture {
        Foreign::like(Sdk::JavaScript).live(host)
    }
}

#[test]
fn a_violation_is_found_and_shrunk_to_its_incident() {
    let scale = Scale {
        instances: 3,
        partitions: 4,
        storm: Duration::from_secs(900),
        incident_every: Duration::from_secs(60),
        foreign: false,
        ..Scale::default()
    };
    let mut plan =
        Plan::draw(7, &scale).with(Duration::from_secs(300), IncidentKind::Crash { member: 1, down: Duration::ZERO });
    plan.members[1].role = Role::Guest(0);
    let breaks = |plan: &Plan| {
        let report = play_with(plan, &Impostors::default(), false);
        report.violations.iter().any(|violation| violation.invariant == Invariant::OwnRecord)
    };
    assert!(plan.incidents.len() > 5 && breaks(&plan));
    let smallest = shrink(&plan, breaks);
    let comes_back = |kind: &IncidentKind| match kind {
        IncidentKind::Crash { member, .. }
        | IncidentKind::Restart { member, .. }
        | IncidentKind::Replace { member, .. } => *member == 1,
        IncidentKind::Deployment { .. } => true,
        _ => false,
    };
    assert!(matches!(&smallest.incidents[..], [only] if comes_back(&only.kind)), "{:#?}", smallest.incidents);
}
