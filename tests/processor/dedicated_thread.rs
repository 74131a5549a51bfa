//! The balancing loop on its own thread: blocking the application's runtime loses no partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{PartitionContext, ProcessorConfig, handler_fn};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, Result};
use tokio::runtime::{self, Runtime};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::intercepted::{Intercept, Intercepted};
use crate::world::{Recorder, World};

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

#[test]
fn b7_blocked_workers_lose_no_partition() {
    let world = world();
    let application = two_workers();
    let blocking = Arc::new(AtomicBool::new(false));
    let blocked = blocking.clone();
    #[expect(clippy::disallowed_methods, reason = "the test blocks the runtime on purpose")]
    let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
        blocked.store(true, Ordering::Relaxed);
        thread::sleep(3 * EXPIRY);
        async { Ok(()) }
    });
    let hub = world.hub.clone();
    let within = world.clone();
    let instance = application.block_on(async move {
        let mut instance = within.start_with("a", hub.source(), handler).await;
        instance.wait_until_it_holds(2).await;
        instance
    });

    // A competing observer on its own runtime sees every lease that is not renewed.
    let rival = two_workers();
    rival.block_on(async {
        world.hub.publish(0, "x");
        world.hub.publish(1, "y");
        while !blocking.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(10)).await;
        }
        let until = Instant::now() + 3 * EXPIRY - Duration::from_millis(500);
        while Instant::now() < until {
            assert!(world.oldest().await < EXPIRY, "not renewed");
            sleep(Duration::from_millis(200)).await;
        }
        assert!(world.owners().await.values().all(|owner| owner == "a"));
        let stalled = instance.snapshots.borrow().stalled.clone();
        assert!(stalled.runtime && stalled.partitions.len() == 2, "not detected: {stalled:?}");
    });
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
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let deadline = Instant::now() + 3 * EXPIRY;
        while world.oldest().await <= EXPIRY {
            assert!(Instant::now() < deadline, "still renewed");
            sleep(Duration::from_millis(200)).await;
        }
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
    let world = world();
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let container = Intercepted { inner: world.container.clone(), interceptor: OneClient };
    let builder = GroupStore::builder(container, group, OwnerId::new("a").unwrap());
    let store = builder.with_config(StoreConfig::default().with_lease_duration(EXPIRY)).connect().await.unwrap();
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_on(store, world.hub.source(), recorder);
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    a.shut_down().await.unwrap();
    assert!(log.text().contains("load-balancing loop shares the application's runtime"), "{}", log.text());
    // The log of another thread is not captured.
    assert_eq!(log.text().matches("partition claimed").count(), 2, "{}", log.text());
}
