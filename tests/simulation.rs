//! Whole groups of processors, mixed with owners of other SDKs, in storms of everything that can go wrong.
//!
//! A run prints its seed when it fails, and the plan of the fewest incidents that still make it fail. To see it again:
//! `EVENTHUBS_CHECKPOINT_SEED=7 cargo test --test simulation`, with `EVENTHUBS_CHECKPOINT_RUNS` for so many seeds from there
//! on.

use std::env;

use eventhubs_checkpoint::testing::sim::{Plan, Report, Scale, Totals, Usual, run, shrink};

/// From 1 on.
const SEEDS: u64 = 20;

fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, but must be a number")))
}

fn play(plan: &Plan, verbose: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(plan, &Usual, verbose)).unwrap()
}

fn fails(plan: &Plan) -> bool {
    !play(plan, false).violations.is_empty()
}

/// What is needed to understand a failure.
fn explanation(plan: &Plan) -> String {
    let smallest = shrink(plan, fails);
    let report = play(&smallest, true);
    let violations: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
    format!(
        "{}\n\n{smallest:#?}\n\n{}\n\nEVENTHUBS_CHECKPOINT_SEED={} cargo test --test simulation",
        report.history.join("\n"),
        violations.join("\n"),
        plan.seed
    )
}

#[test]
fn whatever_happens_no_invariant_is_violated() {
    let first = variable("EVENTHUBS_CHECKPOINT_SEED");
    let runs = variable("EVENTHUBS_CHECKPOINT_RUNS").unwrap_or(if first.is_some() { 1 } else { SEEDS });
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    for seed in (first.unwrap_or(1)..).take(usize::try_from(runs).unwrap()) {
        let report = play(&Plan::draw(seed, &Scale::default()), false);
        for violation in report.violations.iter().take(3) {
            println!("seed {seed}: {violation}");
        }
        if !report.violations.is_empty() {
            failed.push(seed);
        }
        totals.add(&report.totals);
    }
    println!("{totals:#?}");
    if let Some(seed) = failed.first() {
        panic!("{}\nfailed: {failed:?}", explanation(&Plan::draw(*seed, &Scale::default())));
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [1, 2] {
        let plan = Plan::draw(seed, &Scale::default());
        let (one, other) = (play(&plan, false), play(&plan, true));
        assert_eq!((one.trace, one.totals), (other.trace, other.totals), "seed {seed}");
    }
    let other = play(&Plan::draw(3, &Scale::default()), false);
    assert_ne!(other.trace, play(&Plan::draw(4, &Scale::default()), false).trace);
}
