//! Whole groups of processors, mixed with owners of other SDKs, in storms of everything that can go wrong.
//!
//! A run prints its seed when it fails, and the plan of the fewest incidents that still make it fail. To see it again:
//! `EVENTHUBS_CHECKPOINT_SEED=7 cargo test -p eventhubs-checkpoint-lab sim::`, with `EVENTHUBS_CHECKPOINT_RUNS` for so
//! many seeds from there on.

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
    BuiltIn, Foreign, Host, IncidentKind, InstanceFactory, InstanceFuture, InstanceKind, Invariant, Plan, Report,
    Reset, Role, Scale, Sdk, Totals, run, shrink,
};

/// From 1 on. In debug builds each takes six seconds; `cargo simulate` runs them by the thousand.
const SEEDS: u64 = 10;

/// The same over a [`Platform`](eventhubs_checkpoint::testing::faulty::Platform).
const SEEDS_OVER_PLATFORM: u64 = 4;

/// The same with settings from the whole range that `build` accepts.
const WILD_SEEDS: u64 = 4;

/// The same with operators.
const RESET_SEEDS: u64 = 4;

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

/// What is needed to understand a failure.
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

/// Plays these seeds, on all cores at once.
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

/// Plays the seeds that the environment names, or else so many from 1 on. `test` is where this is called.
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
    assert_no_violation("no_invariant_is_violated", SEEDS, |seed| Plan::draw(seed, &Scale::default()));
}

#[test]
fn over_the_platform() {
    let scale = Scale { platform: true, ..Scale::default() };
    assert_no_violation("over_the_platform", SEEDS_OVER_PLATFORM, |seed| Plan::draw(seed, &scale));
}

#[test]
fn far_from_the_defaults() {
    let scale = Scale { wild: true, ..Scale::default() };
    assert_no_violation("far_from_the_defaults", WILD_SEEDS, |seed| Plan::draw(seed, &scale));
}

/// Operators come all the time, in storms of every kind.
fn stormy(seed: u64) -> Plan {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0be2);
    let storm = Duration::from_secs(1440);
    let (platform, wild) = (seed.is_multiple_of(2), seed.is_multiple_of(3));
    let scale = Scale { instances: 5, partitions: 12, storm, platform, wild, ..Scale::default() };
    let mut plan = Plan::draw(seed, &scale);
    let mut at = Duration::from_secs(60);
    while at < scale.storm {
        at += Duration::from_secs(rng.random_range(1..150));
        plan = plan.clone().with(at, IncidentKind::Reset(reset(&mut rng, plan.partitions, &plan.settings)));
    }
    plan
}

#[test]
fn operators_reset_in_storms() {
    assert_no_violation("operators_reset_in_storms", RESET_SEEDS, stormy);
}

/// Operators come to groups that are well, now and then, and nothing else happens.
fn calm(seed: u64) -> Plan {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0be2);
    let scale =
        Scale { instances: 5, partitions: 12, storm: Duration::from_secs(3600), foreign: false, ..Scale::default() };
    let mut plan = Plan::calm(seed, &scale);
    let mut at = Duration::from_secs(300);
    while at < scale.storm {
        let reset = reset(&mut rng, plan.partitions, &plan.settings);
        plan = plan.with(at, IncidentKind::Reset(Reset { storage_fault: None, killed_after: None, ..reset }));
        at += Duration::from_secs(rng.random_range(150..400));
    }
    plan
}

#[test]
fn nothing_moves_because_of_a_reset() {
    let totals = assert_no_violation("nothing_moves_because_of_a_reset", RESET_SEEDS, calm);
    assert!(totals.counts["resets in calm"] > 3 * totals.plans, "{totals:?}");
}

#[test]
fn a_seed_repeats_itself() {
    let plain = Plan::draw(1, &Scale::default());
    let over_platform = Plan::draw(1, &Scale { platform: true, ..Scale::default() });
    let [plain, over_platform] = [plain, over_platform].map(|plan| {
        let (one, again) = (play(&plan, false), play(&plan, true));
        assert_eq!((&one.trace, one.totals), (&again.trace, again.totals));
        one.trace
    });
    assert_ne!(plain, over_platform);
    assert_ne!(plain, play(&Plan::draw(2, &Scale::default()), false).trace);
}

/// Guests come back from a crash with the code of another SDK, and still say that they are ours.
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
fn what_breaks_an_invariant_is_caught_and_shrunk_to_the_incident_that_it_takes() {
    let scale = Scale {
        instances: 3,
        partitions: 4,
        storm: Duration::from_secs(900),
        incident_every: Duration::from_secs(60),
        foreign: false,
        platform: false,
        wild: false,
    };
    let mut plan =
        Plan::draw(7, &scale).with(Duration::from_secs(300), IncidentKind::Crash { member: 1, down: Duration::ZERO });
    plan.members[1].role = Role::Guest(0);
    let breaks = |plan: &Plan| {
        let report = play_with(plan, &Impostors::default(), false);
        report.violations.iter().any(|violation| violation.invariant == Invariant::Conditional)
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
