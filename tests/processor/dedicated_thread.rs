//! The balancing loop on its own thread: blocking the application's runtime loses no partition.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{PartitionContext, ProcessorConfig, handler_fn};
use eventhubs_checkpoint::store::{GroupStore, Ownership, StoreConfig};
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
        let epochs = async || ownerships(&world).await.into_iter().map(|seen| seen.record.epoch).collect::<Vec<_>>();
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
