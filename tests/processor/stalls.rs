//! Stalled applications: hanging batches, and runtimes and threads that are blocked. What the loop reports, and what
//! happens to their partitions and to those of others.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{HealthIssue, PartitionContext, Processor, ProcessorConfig, handler_fn};
use eventhubs_checkpoint::store::Ownership;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use tokio::runtime::{self, Runtime};
use tokio::time::{Instant, sleep, timeout};

use crate::captured::Captured;
use crate::intercepted::Intercept;
use crate::support::{SECOND, TAKEOVER_TIME, greedy, intercept};
use crate::world::{Instance, World};

const STALL_AFTER: Duration = Duration::from_secs(60);

fn two_partitions() -> World {
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
    let world = two_partitions();
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
    let world = two_partitions();
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

/// Returns a [`greedy`] group that considers batches stalled after one minute.
fn stalling(partitions: u32) -> World {
    let mut world = greedy(partitions);
    world.config = world.config.with_balancer(|balancer| balancer.with_stall_timeout(STALL_AFTER));
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
    let world = stalling(9);
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
    let world = stalling(9);
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
    let world = stalling(4);
    let pulled = Processor::streams(world.hub.source(), world.store("a").await);
    let mut partitions = pulled.with_config(world.config.clone()).start().unwrap();
    let (snapshots, log) = (partitions.handle().snapshots(), world.log.clone());
    let working = tokio::spawn(async move {
        while let Some(mut partition) = partitions.next().await {
            let log = log.clone();
            tokio::spawn(async move {
                while let Some(events) = partition.next().await {
                    for event in &events {
                        let entry = (
                            "a".into(),
                            partition.context().partition_id().to_string(),
                            event.text().unwrap().to_owned(),
                        );
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

/// While nothing polls the processor, it is as if its runtime were blocked.
#[tokio::test(start_paused = true)]
async fn an_instance_claims_no_faster_than_it_starts() {
    let world = World::new(12);
    let builder = Processor::builder(world.hub.source(), world.store("a").await, world.recorder("a"));
    let processor = builder.with_config(world.config.clone()).build().unwrap();
    let (handle, mut snapshots) = (processor.handle(), processor.handle().snapshots());
    let mut running = pin!(processor.run(pending()));
    tokio::select! {
        _ = &mut running => unreachable!("it was not requested to stop"),
        first = snapshots.wait_for(|snapshot| !snapshot.owned.is_empty()) => drop(first.unwrap()),
    }
    sleep(8 * SECOND).await;
    let owned = snapshots.borrow().owned.len();
    assert!(owned <= 4, "{owned} claimed, {} started", handle.partitions().len());
    assert!(!snapshots.borrow().stalled.runtime);
    sleep(60 * SECOND).await;
    assert_eq!(snapshots.borrow().owned.len(), owned);
    assert_eq!(handle.health().issues, [HealthIssue::RuntimeStalled]);

    let all = snapshots.wait_for(|snapshot| snapshot.owned.len() == 12);
    tokio::select! {
        _ = &mut running => unreachable!("it was not requested to stop"),
        all = timeout(60 * SECOND, all) => drop(all.expect("it goes on").unwrap()),
    }
}

/// The balancing loop on its own thread: blocking the application's runtime loses no partition.
mod dedicated_thread {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(4);

    fn world() -> World {
        let mut world = World::new(2);
        world.expiry = EXPIRY;
        world.config = ProcessorConfig::default().with_balancer(|balancer| {
            balancer.with_load_balancing_interval(Duration::from_secs(1)).with_stall_timeout(EXPIRY)
        });
        world
    }

    fn two_workers() -> Runtime {
        runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }

    /// Waits for a condition in real time.
    async fn until(what: &str, condition: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition().await {
            assert!(Instant::now() < deadline, "timed out: {what}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ownerships(world: &World) -> Vec<Ownership> {
        world.store("observer").await.list_ownerships().await.unwrap().records
    }

    #[test]
    fn blocked_workers_lose_no_partition() {
        let world = world();
        let application = two_workers();
        // Dropped before the runtime, which waits for its workers.
        let (end, ended) = mpsc::channel::<()>();
        let (blocked, ended) = (Arc::new(AtomicUsize::new(0)), Mutex::new(ended));
        let counted = blocked.clone();
        let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            // The first one holds the lock until the end, and the other one waits for it.
            let _ = ended.lock().unwrap().recv();
            async { Ok(()) }
        });
        let hub = world.hub.clone();
        let within = world.clone();
        let instance = application.block_on(async move {
            let mut instance = within.start_with("a", hub.source(), handler).await;
            instance.wait_until_it_holds(2).await;
            instance
        });

        // An observer on its own runtime sees whether the leases are renewed after they would have expired.
        two_workers().block_on(async {
            let epochs =
                async || ownerships(&world).await.into_iter().map(|seen| seen.record.epoch).collect::<Vec<_>>();
            let claimed = epochs().await;
            world.hub.publish(0, "x");
            world.hub.publish(1, "y");
            until("both workers are blocked", async || blocked.load(Ordering::Relaxed) == 2).await;
            let is_stalled = async || {
                let snapshot = instance.snapshots.borrow();
                snapshot.stalled.runtime && snapshot.stalled.partitions.len() == 2
            };
            until("blocked for a lease duration", is_stalled).await;
            let before = ownerships(&world).await;
            let is_renewed = |now: &Ownership| before.iter().all(|before| before.etag != now.etag);
            until("all leases are renewed", async || ownerships(&world).await.iter().all(is_renewed)).await;
            assert!(world.owners().await.values().all(|owner| owner == "a"));
            assert_eq!(epochs().await, claimed, "lost and claimed again");
        });
        drop(end);
        application.block_on(instance.shut_down()).unwrap();
    }

    #[test]
    fn dropping_the_runtime_releases_nothing() {
        let world = world();
        let application = two_workers();
        let within = world.clone();
        // Kept until the end: dropping it would request a shutdown.
        let _instance = application.block_on(async move {
            let mut instance = within.start("a").await;
            instance.wait_until_it_holds(2).await;
            instance
        });
        application.shutdown_background();
        two_workers().block_on(async {
            until("no lease is renewed", async || world.oldest().await > EXPIRY).await;
            assert!(world.owners().await.values().all(|owner| owner == "a"), "released although it crashed");
        });
    }

    /// A container whose client cannot be copied for another runtime.
    struct OneClient;

    impl Intercept for OneClient {
        fn with_new_connections(&self, _inner: &dyn BlobContainer) -> Result<Arc<dyn BlobContainer>> {
            Err(Error::new(ErrorKind::Config, "there is one client"))
        }
    }

    #[tokio::test]
    async fn without_new_connections_it_shares_the_runtime() {
        let (log, _guard) = Captured::begin();
        let mut world = world();
        intercept(&mut world, OneClient);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        world.hub.publish(0, "x");
        world.log.wait_for("x", |log| log.times("x") == 1).await;
        a.shut_down().await.unwrap();
        assert!(log.text().contains("load-balancing loop shares the application's runtime"), "{}", log.text());
        // The log of another thread is not captured.
        assert_eq!(log.text().matches("partition claimed").count(), 2, "{}", log.text());
    }
}
