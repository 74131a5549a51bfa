//! Cycles become longer in the steady state, and shorter again after a change.

use std::time::Duration;

use crate::sim::Simulation;

use super::group::{INTERVAL, LONGEST_CYCLE, MINUTE, ROUND, balanced, comes, config, group, held_by};

/// Returns the time until the next cycle of an owner.
async fn next_cycle(group: &Simulation, owner: &str) -> Duration {
    let cycles = group.handle(owner).unwrap().snapshots();
    let before = cycles.borrow().cycles;
    comes(group, LONGEST_CYCLE + ROUND, |_| cycles.borrow().cycles > before).await
}

#[tokio::test(start_paused = true)]
async fn a_change_shortens_the_cycles_of_a_steady_group() {
    let mut group = group(11, 4, &["a", "b"]).await;
    for _ in 0..3 {
        next_cycle(&group, "a").await;
        let cycle = next_cycle(&group, "a").await;
        assert!(cycle > 27 * INTERVAL / 10 && cycle <= LONGEST_CYCLE, "{cycle:?}");
    }
    group.start("c", config()).await.unwrap();
    next_cycle(&group, "a").await;
    let cycle = next_cycle(&group, "a").await;
    assert!(cycle <= ROUND, "an instance has joined: {cycle:?}");
    group.run_for(5 * MINUTE).await;
    next_cycle(&group, "b").await;
    next_cycle(&group, "b").await;
    group.set_partitions(0..5);
    let cycle = next_cycle(&group, "b").await;
    assert!(cycle <= INTERVAL + ROUND, "the hub has changed, which is detected within ten seconds: {cycle:?}");
}

/// Half the lease duration, if that is less than three intervals.
#[tokio::test(start_paused = true)]
async fn no_cycle_is_longer_than_half_the_lease_duration() {
    let mut group = Simulation::new(12, 2).with_expiry(4 * INTERVAL);
    group.start("a", config()).await.unwrap();
    balanced(&group, ROUND * 2).await;
    group.run_for(5 * MINUTE).await;
    next_cycle(&group, "a").await;
    let cycle = next_cycle(&group, "a").await;
    assert!(cycle > 18 * INTERVAL / 10 && cycle <= 2 * INTERVAL + Duration::from_millis(500), "{cycle:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_claimed_in_the_next_cycle() {
    for seed in 0..10 {
        let group = group(seed, 3, &["a", "b"]).await;
        let (giver, taker) = if held_by(&group, "a") == 2 { ("a", "b") } else { ("b", "a") };
        // The worst case: the other instance has just listed.
        next_cycle(&group, taker).await;
        let handle = group.handle(giver).unwrap();
        let held = handle.snapshots().borrow().owned.clone();
        let (partition, ownership) = held.first_key_value().unwrap();
        handle.release(partition.clone(), *ownership, 10 * MINUTE);
        comes(&group, LONGEST_CYCLE, |group| held_by(group, taker) == 2).await;
        let cycle = next_cycle(&group, taker).await;
        assert!(cycle <= ROUND, "it has just claimed: {cycle:?}");
        assert_eq!(group.moves(), []);
    }
}
