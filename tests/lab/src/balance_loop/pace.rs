//! Cycles that stretch while nothing happens, and come sooner again when something does.

use std::time::Duration;

use crate::sim::Simulation;

use super::group::{INTERVAL, LONGEST_CYCLE, MINUTE, ROUND, balanced, comes, config, group, held_by};

/// How long the next cycle of an owner takes to come.
async fn next_cycle(group: &Simulation, owner: &str) -> Duration {
    let cycles = group.handle(owner).unwrap().snapshots();
    let before = cycles.borrow().cycles;
    comes(group, LONGEST_CYCLE + ROUND, |_| cycles.borrow().cycles > before).await
}

#[tokio::test(start_paused = true)]
async fn a_group_at_rest_looks_seldom_and_any_change_makes_it_look_soon() {
    let mut group = group(11, 4, &["a", "b"]).await;
    for _ in 0..3 {
        next_cycle(&group, "a").await;
        let cycle = next_cycle(&group, "a").await;
        assert!(cycle > 27 * INTERVAL / 10 && cycle <= LONGEST_CYCLE, "{cycle:?}");
    }
    group.start("c", config()).await.unwrap();
    next_cycle(&group, "a").await;
    let cycle = next_cycle(&group, "a").await;
    assert!(cycle <= ROUND, "somebody new is there: {cycle:?}");
    group.run_for(5 * MINUTE).await;
    next_cycle(&group, "b").await;
    next_cycle(&group, "b").await;
    group.set_partitions(0..5);
    let cycle = next_cycle(&group, "b").await;
    assert!(cycle <= INTERVAL + ROUND, "the hub has changed, which it learns within ten seconds: {cycle:?}");
}

/// Half the expiry, where that is less than three intervals.
#[tokio::test(start_paused = true)]
async fn no_cycle_takes_longer_than_half_the_expiry() {
    let mut group = Simulation::new(12, 2).with_expiry(4 * INTERVAL);
    group.start("a", config()).await.unwrap();
    balanced(&group, ROUND * 2).await;
    group.run_for(5 * MINUTE).await;
    next_cycle(&group, "a").await;
    let cycle = next_cycle(&group, "a").await;
    assert!(cycle > 18 * INTERVAL / 10 && cycle <= 2 * INTERVAL + Duration::from_millis(500), "{cycle:?}");
}

#[tokio::test(start_paused = true)]
async fn what_one_gives_back_another_takes_in_its_next_cycle_however_stretched() {
    for seed in 0..10 {
        let group = group(seed, 3, &["a", "b"]).await;
        let (giver, taker) = if held_by(&group, "a") == 2 { ("a", "b") } else { ("b", "a") };
        // The worst case: the other has just looked.
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
