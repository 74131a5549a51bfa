//! An idle group is rarely listed, and any change is listed within seconds.

use std::time::Duration;

use crate::sim::Simulation;

use super::group::{EXPIRY, INTERVAL, LATENCY, MINUTE, NOTICED, ROUND, comes, config, group, held_by};

/// Returns the time until the next cycle of an owner.
async fn next_cycle(group: &Simulation, owner: &str) -> Duration {
    let cycles = group.handle(owner).unwrap().snapshots();
    let before = cycles.borrow().cycles;
    comes(group, 5 * EXPIRY + ROUND, |_| cycles.borrow().cycles > before).await
}

#[tokio::test(start_paused = true)]
async fn a_group_at_rest_is_listed_every_five_leases() {
    let mut group = group(11, 4, &["a", "b"]).await;
    for _ in 0..3 {
        next_cycle(&group, "a").await;
        let cycle = next_cycle(&group, "a").await;
        assert!(cycle > 4 * EXPIRY && cycle <= 5 * EXPIRY + LATENCY, "{cycle:?}");
    }
    next_cycle(&group, "a").await;
    group.start("c", config()).await.unwrap();
    comes(&group, 2 * ROUND, |group| held_by(group, "c") == 1).await;
    let cycle = next_cycle(&group, "a").await;
    assert!(cycle <= NOTICED, "an instance that has joined steals: {cycle:?}");
    group.run_for(5 * MINUTE).await;
    next_cycle(&group, "b").await;
    next_cycle(&group, "b").await;
    group.set_partitions(0..5);
    let cycle = next_cycle(&group, "b").await;
    assert!(cycle <= INTERVAL + ROUND, "the hub has changed, which is detected within ten seconds: {cycle:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_claimed_within_five_seconds() {
    for seed in 0..10 {
        let group = group(seed, 3, &["a", "b"]).await;
        let moves = group.moves();
        let (giver, taker) = if held_by(&group, "a") == 2 { ("a", "b") } else { ("b", "a") };
        let handle = group.handle(giver).unwrap();
        let held = handle.snapshots().borrow().owned.clone();
        let (partition, ownership) = held.first_key_value().unwrap();
        handle.release(partition.clone(), *ownership, 10 * MINUTE);
        comes(&group, NOTICED, |group| held_by(group, taker) == 2).await;
        let cycle = next_cycle(&group, taker).await;
        assert!(cycle <= ROUND, "it has just claimed: {cycle:?}");
        assert_eq!(group.moves(), moves);
    }
}
