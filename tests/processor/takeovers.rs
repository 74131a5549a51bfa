//! What delays the takeover of partitions, and what does not: stalled batches, slow listings, processors on one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::{LoadBalancingStrategy, OnLeaseExpiry};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, ListResult};
use eventhubs_checkpoint::processor::{HealthIssue, PartitionContext, Processor, ProcessorConfig, handler_fn};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, Result};
use tokio::time::sleep;

use crate::intercepted::{Intercept, Intercepted};
use crate::ownership_log::OwnershipLog;
use crate::world::{Instance, World};

/// Time until a crashed owner is replaced: the lease duration, the grace period, the longest cycle, and the requests.
const TAKEOVER_TIME: Duration = Duration::from_secs(60 + 2 + 30 + 2);

/// All partitions are claimed in one cycle, and batches are considered stalled after one minute.
fn greedy(partitions: u32) -> World {
    let mut world = World::new(partitions);
    world.config = world.config.with_balancer(|balancer| {
        balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy).with_stall_timeout(Duration::from_secs(60))
    });
    world
}

async fn wait_for_shares(instances: &mut [Instance], each: usize) {
    for instance in instances {
        instance.wait_until_it_holds(each).await;
    }
}

/// One batch of this instance never ends.
async fn stall_batch(world: &World, instance: &mut Instance) {
    let partition = instance.snapshots.borrow().owned.keys().next().unwrap().to_string();
    world.hub.publish(partition.parse().unwrap(), "hang");
    instance.wait_until("stalled", |snapshot| !snapshot.stalled.partitions.is_empty()).await;
}

/// Publishes one event to each partition, and returns how many of them are handled immediately.
async fn count_handled(world: &World, partitions: u32, body: &str) -> usize {
    for partition in 0..partitions {
        world.hub.publish(partition, body);
    }
    sleep(Duration::from_secs(1)).await;
    world.log.times(body)
}

#[tokio::test(start_paused = true)]
async fn takeover_with_one_stalled_batch() {
    let world = greedy(9);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    wait_for_shares(&mut instances, 3).await;
    let [mut a, b, c] = instances;
    stall_batch(&world, &mut a).await;
    c.crash().await;
    sleep(TAKEOVER_TIME).await;
    assert_eq!(a.held() + b.held(), 9);
    assert_eq!(count_handled(&world, 9, "after").await, 8, "all except the partition with the stalled batch");
}

/// All handlers call a service that hangs.
#[tokio::test(start_paused = true)]
async fn takeover_with_stalled_batches_everywhere() {
    let world = greedy(9);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    wait_for_shares(&mut instances, 3).await;
    let [mut a, mut b, c] = instances;
    stall_batch(&world, &mut a).await;
    stall_batch(&world, &mut b).await;
    c.crash().await;
    sleep(TAKEOVER_TIME).await;
    assert_eq!(a.held() + b.held(), 9);
    assert_eq!(count_handled(&world, 9, "after").await, 7);
}

/// Every batch takes ten minutes and is considered stalled after one. That is not an error.
#[tokio::test(start_paused = true)]
async fn a_pull_consumer_with_long_batches_takes_over() {
    let world = greedy(4);
    let pulled = Processor::streams(world.hub.source(), world.store("a").await);
    let mut partitions = pulled.with_config(world.config.clone()).build().unwrap().start_streams();
    let (snapshots, log) = (partitions.handle().snapshots(), world.log.clone());
    let working = tokio::spawn(async move {
        while let Some(mut partition) = partitions.next().await {
            let log = log.clone();
            tokio::spawn(async move {
                while let Some(events) = partition.next().await {
                    for event in &events {
                        let entry =
                            ("a".into(), partition.context().partition_id().to_string(), event.body.to_string());
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
    assert_eq!(count_handled(&world, 4, "long").await, 4);
    sleep(Duration::from_secs(100)).await;
    assert!(!snapshots.borrow().stalled.partitions.is_empty());
    b.crash().await;
    sleep(TAKEOVER_TIME).await;
    assert_eq!(snapshots.borrow().owned.len(), 4);
    working.abort();
}

/// Listings take six seconds once the flag is set, which exceeds the request timeout.
struct SlowListings(Arc<AtomicBool>);

#[async_trait]
impl Intercept for SlowListings {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        if self.0.load(Ordering::Relaxed) {
            sleep(Duration::from_secs(6)).await;
        }
        inner.list(prefix).await
    }
}

#[tokio::test(start_paused = true)]
async fn takeover_with_slow_listings() {
    let (mut world, slow) = (greedy(4), Arc::new(AtomicBool::new(false)));
    let intercepted = Intercepted { inner: world.container.clone(), interceptor: SlowListings(slow.clone()) };
    world.faulty = FaultyContainer::new(Arc::new(intercepted), 11);
    let mut instances = [world.start("a").await, world.start("b").await];
    wait_for_shares(&mut instances, 2).await;
    let [a, b] = instances;
    slow.store(true, Ordering::Relaxed);
    b.crash().await;
    // The first slow listings time out.
    sleep(TAKEOVER_TIME + Duration::from_secs(30)).await;
    assert_eq!((a.held(), a.handle.health().issues), (4, vec![]));
}

#[tokio::test(start_paused = true)]
async fn failing_cycles_degrade_health() {
    let world = greedy(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(a.handle.health().issues, []);
    sleep(Duration::from_secs(70)).await;
    let degraded = a.handle.health().issues;
    let expiry = Duration::from_secs(60);
    assert!(
        matches!(degraded[..], [HealthIssue::CyclesFailing { failing_for }] if failing_for > expiry),
        "{degraded:?}"
    );
    assert_eq!(a.held(), 2, "it still renews");
    world.faulty.set_plan(FaultPlan::default());
    sleep(Duration::from_secs(31)).await;
    assert_eq!(a.handle.health().issues, []);
    a.shut_down().await.unwrap();
}

const SECOND: Duration = Duration::from_secs(1);

async fn store(expiry: Duration, deadline: Option<Duration>) -> GroupStore {
    let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
    let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
    let mut config = StoreConfig::default().with_lease_duration(expiry).with_foreign_lease_duration(expiry);
    config.request_timeout = deadline;
    builder.with_config(config).connect().await.unwrap()
}

fn build(store: GroupStore, config: ProcessorConfig) -> Result<()> {
    let handler = handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
    Processor::builder(MemoryHub::new("hub", 1).source(), store, handler).with_config(config).build().map(|_| ())
}

/// The defaults are valid with every lease duration that is valid at all. Strict leases always need the time to close a
/// link.
#[tokio::test(start_paused = true)]
async fn all_defaults_can_be_built() {
    let mut built = 0;
    let seconds = (4..60).chain([90, 120, 300, 3600, 24 * 3600]).map(|seconds| seconds * SECOND);
    for expiry in seconds {
        for deadline in [None, Some(SECOND / 100), Some(expiry / 8), Some(expiry / 4)] {
            for policy in [OnLeaseExpiry::Continue, OnLeaseExpiry::Stop] {
                let config = ProcessorConfig::default().with_balancer(|balancer| {
                    balancer
                        .with_load_balancing_interval(expiry / 6)
                        .with_on_lease_expiry(policy)
                        .with_stall_timeout(expiry)
                });
                if build(store(expiry, deadline).await, config.clone().with_drain_timeout(Duration::ZERO)).is_ok() {
                    let outcome = build(store(expiry, deadline).await, config);
                    outcome.unwrap_or_else(|error| panic!("{expiry:?} {deadline:?} {policy:?}: {error}"));
                    built += 1;
                }
            }
        }
    }
    assert!(built > 400, "{built}");
}

#[tokio::test(start_paused = true)]
async fn two_processors_on_one_store() {
    let world = World::new(2);
    let shared = world.store("a").await;
    let config = || world.config.clone();
    let handler = || handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
    let builder = || Processor::builder(world.hub.source(), shared.clone(), handler()).with_config(config());
    let never_run = builder().build().unwrap();
    let error = builder().build().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("as owner a"), "{error}");
    drop(never_run);

    // One after the other, regardless of how the first one ended.
    builder().build().unwrap().run(sleep(20 * SECOND)).await.unwrap();
    let abandoned = builder().build().unwrap();
    assert!(tokio::time::timeout(20 * SECOND, abandoned.run(std::future::pending())).await.is_err());
    let forced = builder().build().unwrap();
    let handle = forced.handle();
    let ending = async {
        sleep(20 * SECOND).await;
        handle.shutdown();
        handle.shutdown();
    };
    let (report, ()) = tokio::join!(forced.run(std::future::pending()), ending);
    report.unwrap();
    builder().build().unwrap().run(sleep(20 * SECOND)).await.unwrap();
}

/// The loop of the first processor runs on its own thread, which ends shortly after its processor.
#[tokio::test]
async fn the_next_processor_need_not_wait_for_a_thread() {
    let shared = store(60 * SECOND, None).await;
    for _ in 0..20 {
        let handler = handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
        let source = MemoryHub::new("hub", 1).source();
        let processor = Processor::builder(source, shared.clone(), handler).build().unwrap();
        processor.run(sleep(SECOND / 100)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_snapshot_blocks_nothing() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    let watching = a.handle.snapshots();
    let kept = watching.borrow();
    sleep(120 * SECOND).await;
    assert!(watching.borrow().cycles > kept.cycles);
    assert!(world.oldest().await < 40 * SECOND);
    a.shut_down().await.unwrap();
}

/// Strict leases end before they expire, earlier by the drain time. No attempt may start after that.
#[tokio::test(start_paused = true)]
async fn strict_leases_retry_before_the_drain_time() {
    for drain in [None, Some(8 * SECOND)] {
        let mut world = greedy(4);
        world.config = world
            .config
            .with_balancer(|balancer| balancer.with_on_lease_expiry(OnLeaseExpiry::Stop).with_handoff(false));
        world.config.drain_timeout = drain;
        let mut a = world.start("a").await;
        a.wait_until_it_holds(4).await;
        for round in 0..20 {
            world.faulty.set_plan(FaultPlan::always(Fault::Throttled { retry_after: Some(60 * SECOND) }));
            sleep(2 * SECOND).await;
            world.faulty.set_plan(FaultPlan::default());
            sleep(67 * SECOND).await;
            let stops = world.log.stops.lock().unwrap();
            assert!(stops.is_empty(), "drain time {drain:?}, round {round}: {stops:?}");
        }
        a.shut_down().await.unwrap();
    }
}

/// Instance `b` has requested half of 32 partitions from `a`. From then on, the storage throttles its requests.
async fn throttled_while_requesting() -> (World, Instance, World, Instance) {
    let world = greedy(32);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(32).await;
    let isolated = World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() };
    let mut b = isolated.start("b").await;
    b.wait_until("16 requests", |snapshot| snapshot.requested_handoffs.len() == 16).await;
    isolated.faulty.set_plan(FaultPlan::always(Fault::Throttled { retry_after: None }));
    (world, a, isolated, b)
}

#[tokio::test(start_paused = true)]
async fn request_checks_back_off_while_throttled() {
    let (_world, a, isolated, b) = throttled_while_requesting().await;
    sleep(120 * SECOND).await;
    let before = isolated.faulty.trace().len();
    sleep(600 * SECOND).await;
    let refused = isolated.faulty.trace().len() - before;
    isolated.faulty.set_plan(FaultPlan::always(Fault::Latency(SECOND / 1000)));
    sleep(120 * SECOND).await;
    let before = isolated.faulty.trace().len();
    sleep(600 * SECOND).await;
    let normal = isolated.faulty.trace().len() - before;
    assert_eq!((a.held(), b.held()), (16, 16));
    assert!(refused <= normal, "{refused} requests in ten minutes while throttled, {normal} otherwise");
}

/// The partitions were handed over, and claimed again by `a` when `b` did not claim them. `b` must request them again.
#[tokio::test(start_paused = true)]
async fn handoffs_are_requested_again_after_an_outage() {
    let (world, mut a, isolated, mut b) = throttled_while_requesting().await;
    sleep(300 * SECOND).await;
    a.wait_until_it_holds(32).await;
    let (mut log_a, mut log_b) = (OwnershipLog::of(&a), OwnershipLog::of(&b));
    isolated.faulty.set_plan(FaultPlan::default());
    b.wait_until_it_holds(16).await;
    sleep(120 * SECOND).await;
    let reported = [log_a.take(), log_b.take()].concat();
    let unplanned = reported.iter().filter(|reported| reported.contains("Stolen") || reported.contains("duplicates"));
    assert_eq!(unplanned.count(), 0, "{reported:?}");
    assert_eq!((a.held(), b.held(), world.log.contiguity.violations()), (16, 16, vec![]));
}
