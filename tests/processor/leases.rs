//! How long a lease is valid: strict leases, and suspended machines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, OnLeaseExpiry};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{PartitionContext, Processor, ProcessorConfig, StopReason, handler_fn};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::testing::{LeaseClock, SystemLeaseClock};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, LeaseScope, OwnerId, PartitionId, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::ownership_log::OwnershipLog;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

fn strict(world: World) -> World {
    World {
        config: world.config.clone().with_balancer(|balancer| balancer.with_on_lease_expiry(OnLeaseExpiry::Stop)),
        ..world
    }
}

/// The storage accepts no writes from the returned time on.
fn block_writes(world: &World) -> Instant {
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::RequestLost));
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn a_strict_owner_stops_before_its_lease_expires() {
    let world = strict(World::new(1));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    // A running batch gets its drain time, and is then cancelled.
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    block_writes(&world);
    assert!(matches!(world.first_stop().await, StopReason::LeaseExpired));
    assert!(world.oldest().await <= Duration::from_secs(58), "stopped at an age of {:?}", world.oldest().await);
    assert_eq!(world.owners().await["0"], "a", "no other instance owns it, and it was not released");

    world.faulty.set_plan(FaultPlan::default());
    world.log.wait_for("hang, again", |log| log.times("hang") == 2).await;
    a.crash().await;
}

#[tokio::test(start_paused = true)]
async fn without_strict_leases_an_owner_continues() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "before");
    world.log.wait_for("before", |log| log.times("before") == 1).await;
    let since = block_writes(&world);
    sleep(Duration::from_secs(300)).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    assert!(since.elapsed() < Duration::from_secs(301));
    assert!(world.log.stops.lock().unwrap().is_empty());
    a.crash().await;
}

async fn store_with_lease(expiry: Duration) -> GroupStore {
    let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
    let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
    builder.with_config(StoreConfig::default().with_lease_duration(expiry)).connect().await.unwrap()
}

#[tokio::test]
async fn strict_leases_need_time_to_renew_and_to_stop() {
    let config = |interval| {
        BalancerConfig::default().with_load_balancing_interval(interval).with_on_lease_expiry(OnLeaseExpiry::Stop)
    };
    let balancer = |store, interval| {
        let (_, partitions) = watch::channel(Arc::<[PartitionId]>::from([]));
        Balancer::new(store, config(interval), partitions).map(|_| ())
    };
    let refused = balancer(store_with_lease(4 * SECOND).await, SECOND).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("2s + 1s + 0ns + 2s is more than 4s"), "{refused}");
    balancer(store_with_lease(8 * SECOND).await, SECOND).unwrap();

    let processor = |store, config: ProcessorConfig| -> Result<()> {
        let handler = handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
        let source = World::new(1).hub.source();
        Processor::builder(source, store, handler).with_config(config).build().map(|_| ())
    };
    let strict = ProcessorConfig::default().with_balancer(|balancer| {
        balancer.with_load_balancing_interval(SECOND).with_on_lease_expiry(OnLeaseExpiry::Stop)
    });
    processor(store_with_lease(20 * SECOND).await, strict.clone()).unwrap();
    // The batch, the call of `stopped`, and the closing of the link.
    let refused = processor(store_with_lease(20 * SECOND).await, strict.with_drain_timeout(SECOND)).unwrap_err();
    assert!(refused.to_string().contains("10s + 5s + 4s + 2s is more than 20s"), "{refused}");
}

/// A clock that jumps like that of a suspended machine.
#[derive(Debug, Default)]
struct SuspendableClock {
    awake: SystemLeaseClock,
    suspended_seconds: AtomicU64,
}

impl LeaseClock for SuspendableClock {
    fn now(&self) -> Duration {
        self.awake.now() + Duration::from_secs(self.suspended_seconds.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_directly_after_a_suspension() {
    let clock = Arc::new(SuspendableClock::default());
    let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
    let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
    let store = builder.with_lease_clock(clock.clone()).connect().await.unwrap();
    let (_partitions, named) = watch::channel(Arc::from([PartitionId::from(0)]));
    let (balancer, handle) = Balancer::new(store.clone(), BalancerConfig::default(), named).unwrap();
    let running = tokio::spawn(balancer.run());
    let mut snapshots = handle.snapshots();
    snapshots.wait_for(|snapshot| snapshot.owned.len() == 1).await.unwrap();

    let age = async || store.list_ownerships().await.unwrap().records[0].age;
    sleep(Duration::from_secs(10)).await;
    assert!(age().await >= 9 * SECOND);
    clock.suspended_seconds.fetch_add(40, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    assert!(age().await <= 5 * SECOND, "not renewed after the suspension: {:?}", age().await);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn instance_leases_end_if_a_foreign_owner_appears() {
    let world = World::new(3);
    let world = World {
        config: world.config.clone().with_balancer(|balancer| balancer.with_lease_scope(LeaseScope::Instance)),
        ..world
    };
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    sleep(10 * world.expiry).await;
    assert!(world.oldest().await > 9 * world.expiry, "no record is renewed individually");
    assert_eq!(a.snapshots.borrow().lease_scope, LeaseScope::Instance);

    world.give_to("python").await;
    a.wait_until("the fallback", |snapshot| snapshot.lease_scope == LeaseScope::Partition).await;
    sleep(SECOND).await;
    let listing = world.store("observer").await.list_ownerships().await.unwrap();
    let own = listing.records.iter().filter(|seen| seen.record.incarnation.is_some());
    assert!(own.clone().all(|seen| seen.record.scope == LeaseScope::Partition && seen.age < 5 * SECOND));
    assert_eq!(own.count(), 2);
    sleep(10 * world.expiry).await;
    assert!(world.oldest().await <= world.expiry / 2 + SECOND);
    assert_eq!(a.held(), 3, "the foreign owner has expired, and the scope stays as it is");
    assert_eq!(a.snapshots.borrow().lease_scope, LeaseScope::Partition);
    a.crash().await;
}

/// Each judges the other by what its records say: the default settings beside those for a fast failover.
#[tokio::test(start_paused = true)]
async fn instances_with_other_lease_durations_keep_theirs() {
    let slow = World::new(16);
    let config = ProcessorConfig::fast_failover().with_balancer(|balancer| balancer.with_seed(2));
    let fast = World { expiry: 14 * SECOND, config, ..slow.clone() };
    let mut a = slow.start("a").await;
    let mut b = fast.start("b").await;
    a.wait_until_it_holds(8).await;
    b.wait_until_it_holds(8).await;
    let mut logs = [&a, &b].map(OwnershipLog::of);
    sleep(3600 * SECOND).await;
    assert_eq!(logs.each_mut().map(OwnershipLog::take), [[""; 0]; 2]);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}
