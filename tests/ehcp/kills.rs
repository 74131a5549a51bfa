//! The program is killed in the middle of a reset, on a live group.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::program::Program;

/// Replays a run.
const SEED: &str = "EHCP_KILL_SEED";

/// The groups, each of which has its own resets.
const GROUPS: u32 = 4;
/// How often the program is killed in each group.
const KILLS: u32 = 5;

/// The program takes about this long.
const RUN: Duration = Duration::from_millis(500);

/// Where the resets go back to.
const TARGET: i64 = 4;

/// Each group continues each time, at the old or at the new position, and no event is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_reset_loses_nothing() {
    let fresh = RandomState::new().hash_one(());
    let seed = std::env::var(SEED).map_or(fresh, |seed| seed.parse().unwrap());
    println!("{SEED}={seed}");
    let killed = join_all((0..GROUPS).map(|group| kill_in_one_group(seed.wrapping_add(group.into())))).await;
    println!("killed before the end, of {KILLS}: {killed:?}");
    assert!(killed.iter().sum::<u32>() > GROUPS, "hardly any run was killed before its end: {killed:?}");
}

/// Returns how many runs were killed before their end.
async fn kill_in_one_group(seed: u64) -> u32 {
    let mut rng = StdRng::seed_from_u64(seed);
    let fleet = Fleet::new(3).await;
    let (a, b) = (fleet.own("a").await, fleet.own("b").await);
    let program = Program::for_fleet(&fleet).await;
    let mut killed = 0;
    for _ in 0..KILLS {
        fleet.settles_among(&["a", "b"]).await;
        let before = fleet.checkpoints().await;
        let target = TARGET.to_string();
        let mut running = program.spawn(&["reset", "--to-sequence", &target, "--live", "--execute"]);
        sleep(RUN.mul_f64(rng.random_range(0.2..1.2))).await;
        running.start_kill().unwrap();
        killed += u32::from(running.wait().await.unwrap().code().is_none());
        for (partition, position) in fleet.checkpoints().await {
            let (found, old) = (position.sequence_number, before[&partition].sequence_number);
            assert!(found >= old.min(TARGET), "partition {partition}: at {found}, before {old}");
        }
    }
    // It checks that no published event is missing.
    fleet.settles_among(&["a", "b"]).await;
    a.shut_down().await;
    b.shut_down().await;
    killed
}
