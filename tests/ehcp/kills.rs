//! The program is killed in the middle of a reset, on a live group.

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, timeout};

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::Program;

/// Replays a run.
const SEED: &str = "EHCP_KILL_SEED";

/// The groups, each of which has its own resets.
const GROUPS: u32 = 3;
/// How many programs reset a group at the same time, each of them other partitions: so the group waits only once for
/// the leases of all that are killed.
const PROGRAMS: u16 = 4;
/// They are killed this often, and again until enough were killed before their end: how long they take depends on what
/// else the machine does.
const ROUNDS: RangeInclusive<u32> = 2..=12;

/// The partitions that each program resets.
const PARTITIONS: u16 = 3;

/// Where the resets go back to.
const TARGET: i64 = 4;

/// Each group continues each time, at the old or at the new position, and no event is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_reset_loses_nothing() {
    let fresh = RandomState::new().hash_one(());
    let seed = std::env::var(SEED).map_or(fresh, |seed| seed.parse().unwrap());
    println!("{SEED}={seed}");
    let killed = join_all((0..GROUPS).map(|group| kill_in_one_group(seed.wrapping_add(group.into())))).await;
    println!("killed before the end: {killed:?}");
}

/// Returns how many runs were killed before their end.
async fn kill_in_one_group(seed: u64) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let fleet = Fleet::new(PROGRAMS * PARTITIONS).await;
    let (a, b) = (fleet.own("a").await, fleet.own("b").await);
    let program = Program::for_fleet(&fleet).await;
    settles(&fleet).await;
    let undisturbed = join_all((0..PROGRAMS).map(|part| reset(&program, part, TIMEOUT))).await;
    let (mut takes, mut killed) = (undisturbed.into_iter().flatten().min().unwrap(), 0);
    let mut rounds = 0;
    while rounds < *ROUNDS.start() || killed < usize::from(PROGRAMS) {
        rounds += 1;
        assert!(rounds <= *ROUNDS.end(), "hardly any run is killed before its end: {killed}");
        settles(&fleet).await;
        let before = fleet.checkpoints().await;
        let runs = (0..PROGRAMS).map(|part| reset(&program, part, takes.mul_f64(rng.random_range(0.2..1.2))));
        let ended: Vec<_> = join_all(runs).await.into_iter().flatten().collect();
        killed += usize::from(PROGRAMS) - ended.len();
        takes = ended.into_iter().min().unwrap_or(takes);
        for (partition, position) in fleet.checkpoints().await {
            let (found, old) = (position.sequence_number, before[&partition].sequence_number);
            assert!(found >= old.min(TARGET), "partition {partition}: at {found}, before {old}");
        }
    }
    settles(&fleet).await;
    a.shut_down().await;
    b.shut_down().await;
    killed
}

/// Resets a part of the partitions. Returns how long that took, or nothing if it was killed after this time.
async fn reset(program: &Program, part: u16, killed_after: Duration) -> Option<Duration> {
    let (partitions, target) = (part * PARTITIONS..(part + 1) * PARTITIONS, TARGET.to_string());
    let partitions = format!("{}-{}", partitions.start, partitions.end - 1);
    let began = Instant::now();
    let mut running = program.spawn(&["reset", "--to-sequence", &target, "-p", &partitions, "--live", "--execute"]);
    if timeout(killed_after, running.wait()).await.is_ok() {
        return Some(began.elapsed());
    }
    running.start_kill().unwrap();
    running.wait().await.unwrap().code().map(|_| killed_after)
}

/// Waits until both have all partitions, and no published event is missing. The leases of a program that was killed
/// expire only after a minute.
async fn settles(fleet: &Fleet) {
    fleet.shared_among(&["a", "b"]).await;
    fleet.settles_among(&["a", "b"]).await;
}
