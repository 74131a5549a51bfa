//! An instance without partitions sends a heartbeat while it is running.

use std::time::Duration;

use eventhubs_checkpoint::store::GroupStore;
use tokio::time::sleep;

use crate::ownership_log::{owner_of_all, record};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the age of the owner's heartbeat.
async fn heartbeat_age(observer: &GroupStore, owner: &str) -> Option<Duration> {
    let listing = observer.list_heartbeats().await.unwrap();
    let seen = listing.records.into_iter().find(|seen| seen.record.owner.as_str() == owner)?;
    Some(seen.age)
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_partitions_sends_heartbeats() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, Duration::ZERO).await;
    let observer = world.store("observer").await;
    let b = world.start("b").await;
    sleep(SECOND).await;
    for _ in 0..300 {
        let heartbeat_age = heartbeat_age(&observer, "b").await.expect("no heartbeat");
        assert!(heartbeat_age <= 31 * SECOND, "{heartbeat_age:?}");
        sleep(SECOND).await;
    }
    assert_eq!((a.held(), b.held()), (1, 0));
    b.shut_down().await.unwrap();
    assert_eq!(heartbeat_age(&observer, "b").await, None);
    a.shut_down().await.unwrap();
    assert_eq!(heartbeat_age(&observer, "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn losing_the_last_partition_sends_a_heartbeat() {
    let world = World::new(1);
    let mut a = owner_of_all(&world, 1, Duration::ZERO).await;
    sleep(120 * SECOND).await;
    let observer = world.store("observer").await;
    assert!(
        heartbeat_age(&observer, "a").await.is_some_and(|heartbeat_age| heartbeat_age > 60 * SECOND),
        "its ownership record is sufficient"
    );
    world.give_to("python").await;
    a.wait_until_it_holds(0).await;
    sleep(SECOND).await;
    assert!(heartbeat_age(&observer, "a").await.is_some_and(|heartbeat_age| heartbeat_age <= SECOND));
    a.shut_down().await.unwrap();
}

/// Ten lease durations after the last heartbeat, by the next instance that lists the heartbeats.
#[tokio::test(start_paused = true)]
async fn the_heartbeat_of_a_removed_instance_is_deleted() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, Duration::ZERO).await;
    let _ = world.store("ghost").await.send_heartbeat().await.unwrap();
    for (wait, owner, kept) in [(590, "b", true), (20, "c", false)] {
        sleep(wait * SECOND).await;
        // A partition is free for the new instance, which lists the heartbeats before it claims.
        world.hub.grow_to(if kept { 2 } else { 3 });
        let mut joining = world.start(owner).await;
        joining.wait_until_it_holds(1).await;
        assert_eq!(record(&world, "heartbeat/ghost").await.is_some(), kept);
        joining.shut_down().await.unwrap();
    }
    a.shut_down().await.unwrap();
}
