//! Three owners, one partition, thousands of random steps, and all kinds of faults, in paused time. The invariants are
//! checked at every write that the container accepts.
//!
//! A failing run prints its seed. To repeat it: `EVENTHUBS_CHECKPOINT_SEED=7 cargo test -p eventhubs-checkpoint-lab
//! random::`, with `EVENTHUBS_CHECKPOINT_STEPS` for another length, and `EVENTHUBS_CHECKPOINT_RUNS` for the number of
//! seeds from there on.

mod foreign;
mod incarnation;
mod judge;
mod run;
mod server;

use std::collections::BTreeMap;
use std::env;

use self::run::{Outcome, Profile, run};

const PROFILES: [Profile; 3] = [Profile::CrateOnly, Profile::Mixed, Profile::Stormy];

/// In each profile.
const STEPS: u32 = 10_000;

/// Each must have happened at least once, or the steps prove little.
const INTERESTING: [&str; 26] = [
    "won",
    "lost",
    "replaced",
    "indeterminate",
    "contended ownership",
    "first claim",
    "claim of a released partition",
    "claim of an expired partition",
    "steal",
    "reclaim",
    "released",
    "adopted",
    "adoption lost",
    "written",
    "superseded",
    "fenced",
    "contended checkpoint",
    "failed",
    "renewal found the record deleted",
    "ownership deleted",
    "foreign claim",
    "foreign checkpoint",
    "freeze",
    "crash in an operation",
    "operation abandoned",
    "late write accepted",
];

fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, but must be a number")))
}

fn play(profile: Profile, seed: u64, steps: u32) -> Result<Outcome, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(profile, seed, steps))
}

fn play_all(seed: u64, steps: u32, counts: &mut BTreeMap<&'static str, u64>) {
    for profile in PROFILES {
        let outcome = play(profile, seed, steps).unwrap_or_else(|what| {
            panic!("{what}\nEVENTHUBS_CHECKPOINT_SEED={seed} EVENTHUBS_CHECKPOINT_STEPS={steps} ({profile:?})")
        });
        for (what, count) in outcome.counts {
            *counts.entry(what).or_default() += count;
        }
    }
}

#[test]
fn no_invariant_is_violated() {
    let steps = variable("EVENTHUBS_CHECKPOINT_STEPS").map_or(STEPS, |steps| u32::try_from(steps).unwrap());
    let seeds: Vec<_> = match variable("EVENTHUBS_CHECKPOINT_SEED") {
        Some(first) => {
            (first..).take(variable("EVENTHUBS_CHECKPOINT_RUNS").map_or(1, |runs| runs.try_into().unwrap())).collect()
        }
        // With seed 47 an owner that is judged before the checkpoint is read overwrites its successor's checkpoint.
        None => vec![1, 2, 3, 47],
    };
    let mut counts = BTreeMap::new();
    for seed in &seeds {
        println!("seed {seed}");
        play_all(*seed, steps, &mut counts);
    }
    println!("{counts:#?}");
    let enough = steps >= STEPS && seeds.len() >= 3;
    let missing: Vec<_> = INTERESTING.into_iter().filter(|what| !counts.contains_key(what)).collect();
    assert!(!enough || missing.is_empty(), "never happened with the seeds {seeds:?}: {missing:?}");
}

#[test]
fn a_seed_is_repeatable() {
    for profile in PROFILES {
        let history = || play(profile, 3, 500).unwrap_or_else(|what| panic!("{what}")).history;
        assert_eq!(history(), history(), "{profile:?}");
    }
}
