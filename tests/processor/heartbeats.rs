//! Who owns nothing says that it is there, as long as it is.

use std::time::Duration;

use eventhubs_checkpoint::store::GroupStore;
use tokio::time::sleep;

use crate::ownership_log::{owner_of_all, record};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// How long ago an owner said so last.
async fn heartbeat_age(observer: &GroupStore, owner: &str) -> Option<Duration> {
    let listing = observer.list_heartbeats().await.unwrap();
    let seen = listing.records.into_iter().find(|seen| seen.record.owner.as_str() == owner)?;
    Some(seen.age)
}

#[tokio::test(start_paused = true)]
async fn who_owns_nothing_is_present_until_it_ends() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, Duration::ZERO).await;
    let observer = world.store("observer").await;
    let b = world.start("b").await;
    sleep(SECOND).await;
    for _ in 0..300 {
        let heartbeat_age = heartbeat_age(&observer, "b").await.expect("it is not there");
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
async fn who_has_lost_its_last_partition_is_present_at_once() {
    let world = World::new(1);
    let mut a = owner_of_all(&world, 1, Duration::ZERO).await;
    sleep(120 * SECOND).await;
    let observer = world.store("observer").await;
    assert!(
        heartbeat_age(&observer, "a").await.is_some_and(|heartbeat_age| heartbeat_age > 60 * SECOND),
        "what it owns says enough"
    );
    world.give_to("python").await;
    a.wait_until_it_holds(0).await;
    sleep(SECOND).await;
    assert!(heartbeat_age(&observer, "a").await.is_some_and(|heartbeat_age| heartbeat_age <= SECOND));
    a.shut_down().await.unwrap();
}

/// Ten expiries after it was last written; by whoever next looks at who is there.
#[tokio::test(start_paused = true)]
async fn the_presence_of_one_that_is_long_gone_is_cleared_by_who_comes() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, Duration::ZERO).await;
    world.store("ghost").await.send_heartbeat().await.unwrap();
    for (wait, owner, kept) in [(590, "b", true), (20, "c", false)] {
        sleep(wait * SECOND).await;
        // There is a partition for it, and it looks who else is there before it takes it.
        world.hub.grow_to(if kept { 2 } else { 3 });
        let mut joining = world.start(owner).await;
        joining.wait_until_it_holds(1).await;
        assert_eq!(record(&world, "presence/ghost").await.is_some(), kept);
        joining.shut_down().await.unwrap();
    }
    a.shut_down().await.unwrap();
}
