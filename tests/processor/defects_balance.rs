//! Defects of the balancing that were found in review, each under its number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::balance::Strategy;
use eventhubs_checkpoint::blob::{BlobContainer, BlobList};
use eventhubs_checkpoint::processor::{Degraded, Processor};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, Faulty, Operation};
use tokio::time::sleep;

use crate::meddled::{Meddle, Meddled};
use crate::world::{Instance, World};

/// Until a dead owner is replaced: its expiry, the grace, the longest cycle, and the requests.
const REPLACED: Duration = Duration::from_secs(60 + 2 + 30 + 2);

/// Partitions that are taken all at once, and batches that count as stuck after a minute.
fn greedy(partitions: u32) -> World {
    let mut world = World::new(partitions);
    let balancer = world.config.balancer.clone().with_strategy(Strategy::Greedy);
    world.config = world.config.with_balancer(balancer.with_stall_after(Duration::from_secs(60)));
    world
}

async fn share(instances: &mut [Instance], each: usize) {
    for instance in instances {
        instance.wait_until_it_holds(each).await;
    }
}

/// One batch of this instance never ends.
async fn get_stuck(world: &World, instance: &mut Instance) {
    let partition = instance.snapshots.borrow().held.keys().next().unwrap().to_string();
    world.hub.publish(partition.parse().unwrap(), "hang");
    instance.wait_until("stalled", |snapshot| !snapshot.stalled.partitions.is_empty()).await;
}

/// Publishes one event to each partition, and returns how many of them are handled at once.
async fn read(world: &World, partitions: u32, body: &str) -> usize {
    for partition in 0..partitions {
        world.hub.publish(partition, body);
    }
    sleep(Duration::from_secs(1)).await;
    world.log.times(body)
}

#[tokio::test(start_paused = true)]
async fn b06_a_dead_owner_is_replaced_beside_a_stuck_batch() {
    let world = greedy(9);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    share(&mut instances, 3).await;
    let [mut a, b, c] = instances;
    get_stuck(&world, &mut a).await;
    c.crash().await;
    sleep(REPLACED).await;
    assert_eq!(a.held() + b.held(), 9);
    assert_eq!(read(&world, 9, "after").await, 8, "all but the partition with the stuck batch");
}

/// As when all handlers call a service that hangs.
#[tokio::test(start_paused = true)]
async fn b06_a_dead_owner_is_replaced_with_a_stuck_batch_everywhere() {
    let world = greedy(9);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    share(&mut instances, 3).await;
    let [mut a, mut b, c] = instances;
    get_stuck(&world, &mut a).await;
    get_stuck(&world, &mut b).await;
    c.crash().await;
    sleep(REPLACED).await;
    assert_eq!(a.held() + b.held(), 9);
    assert_eq!(read(&world, 9, "after").await, 7);
}

/// Every batch takes ten minutes, which counts as stuck after one; that is no fault.
#[tokio::test(start_paused = true)]
async fn b06_a_pull_consumer_with_long_batches_takes_over() {
    let world = greedy(4);
    let pulled = Processor::pull(world.hub.source(), world.store("a").await);
    let mut partitions = pulled.config(world.config.clone()).build().unwrap().partitions();
    let (snapshots, log) = (partitions.handle().watch(), world.log.clone());
    let working = tokio::spawn(async move {
        while let Some(mut partition) = partitions.next().await {
            let log = log.clone();
            tokio::spawn(async move {
                while let Some(events) = partition.next().await {
                    for event in &events {
                        let entry = ("a".into(), partition.context().partition().to_string(), event.body.to_string());
                        log.events.lock().unwrap().push(entry);
                    }
                    sleep(Duration::from_secs(600)).await;
                    partition.context().checkpoint(events.last().unwrap());
                }
            });
        }
    });
    let mut b = world.start("b").await;
    b.wait_until_it_holds(2).await;
    assert_eq!(read(&world, 4, "long").await, 4);
    sleep(Duration::from_secs(100)).await;
    assert!(!snapshots.borrow().stalled.partitions.is_empty());
    b.crash().await;
    sleep(REPLACED).await;
    assert_eq!(snapshots.borrow().held.len(), 4);
    working.abort();
}

/// Listings take six seconds once the switch is set, which is more than a request may take.
struct SlowListings(Arc<AtomicBool>);

#[async_trait]
impl Meddle for SlowListings {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<BlobList> {
        if self.0.load(Ordering::Relaxed) {
            sleep(Duration::from_secs(6)).await;
        }
        inner.list(prefix).await
    }
}

#[tokio::test(start_paused = true)]
async fn b10_a_dead_owner_is_replaced_although_listings_are_slow() {
    let (mut world, slow) = (greedy(4), Arc::new(AtomicBool::new(false)));
    let meddled = Meddled { inner: world.container.clone(), meddler: SlowListings(slow.clone()) };
    world.faulty = Faulty::new(Arc::new(meddled), 11);
    let mut instances = [world.start("a").await, world.start("b").await];
    share(&mut instances, 2).await;
    let [a, b] = instances;
    slow.store(true, Ordering::Relaxed);
    b.crash().await;
    // The first listings that take so long are given up.
    sleep(REPLACED + Duration::from_secs(30)).await;
    assert_eq!((a.held(), a.handle.health().degraded), (4, vec![]));
}

#[tokio::test(start_paused = true)]
async fn b10_failing_cycles_are_ill_health() {
    let world = greedy(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, Operation::List, Fault::Unreachable));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(a.handle.health().degraded, []);
    sleep(Duration::from_secs(70)).await;
    let degraded = a.handle.health().degraded;
    let expiry = Duration::from_secs(60);
    assert!(matches!(degraded[..], [Degraded::Blind { blind_for }] if blind_for > expiry), "{degraded:?}");
    assert_eq!(a.held(), 2, "it renews");
    world.faulty.set_plan(FaultPlan::default());
    sleep(Duration::from_secs(31)).await;
    assert_eq!(a.handle.health().degraded, []);
    a.shut_down().await.unwrap();
}
