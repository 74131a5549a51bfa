//! Stalled applications: how the loop reports them, and what happens to their partitions.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use tokio::time::sleep;

use crate::world::{Instance, World};

const STALL_AFTER: Duration = Duration::from_secs(60);

fn world() -> World {
    let world = World::new(2);
    let config = world
        .config
        .clone()
        .with_balancer(|balancer| balancer.with_stall_timeout(STALL_AFTER))
        .with_drain_timeout(Duration::from_secs(1));
    World { config, ..world }
}

/// Starts an instance with both partitions. A batch of the first one never ends.
async fn start_with_stalled_batch(world: &World) -> Instance {
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    a.wait_until("stalled", |snapshot| snapshot.stalled.any()).await;
    let stalled = a.snapshots.borrow().stalled.clone();
    assert_eq!((stalled.runtime, stalled.partitions), (false, [PartitionId::from(0)].into()));
    a
}

#[tokio::test(start_paused = true)]
async fn a_stalled_partition_is_reported_and_kept() {
    let world = world();
    let a = start_with_stalled_batch(&world).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(a.held(), 2);
    assert!(world.oldest().await < Duration::from_secs(60));
    world.hub.publish(1, "elsewhere");
    world.log.wait_for("elsewhere", |log| log.times("elsewhere") == 1).await;
    a.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_batch_does_not_prevent_claims() {
    let world = world();
    let a = start_with_stalled_batch(&world).await;
    let b = world.start("b").await;
    world.hub.grow_to(4);
    sleep(Duration::from_secs(300)).await;
    assert_eq!((a.held(), b.held()), (2, 2), "each has claimed its share");
    b.crash().await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(a.held(), 4);
    let c = world.start("c").await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!((a.held(), c.held()), (2, 2), "it still hands over");
    world.hub.grow_to(5);
    let mut d = world.start("d").await;
    d.wait_until_it_holds(1).await;
    a.crash().await;
}
