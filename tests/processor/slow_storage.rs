//! A storage that answers each request, but slowly.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::ReleaseReason;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{ProcessorConfig, StopReason};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{Latency, Platform};
use eventhubs_checkpoint::{ConsumerGroup, LeaseScope, OwnerId};
use tokio::time::sleep;

use crate::service::{Manners, Service};
use crate::world::{Instance, Recorder, World};

const MINUTE: Duration = Duration::from_secs(60);

/// A group with the default settings, or with those for a fast failover.
#[derive(Clone, Debug)]
struct Profile {
    store: StoreConfig,
    processor: ProcessorConfig,
}

impl Profile {
    fn default_in(scope: LeaseScope) -> Self {
        let processor = ProcessorConfig::default().with_balancer(|balancer| balancer.with_lease_scope(scope));
        Self { store: StoreConfig::default(), processor }
    }

    fn fast_failover() -> Self {
        Self { store: StoreConfig::fast_failover(), processor: ProcessorConfig::fast_failover() }
    }

    fn all() -> [Self; 3] {
        [Self::default_in(LeaseScope::Partition), Self::default_in(LeaseScope::Instance), Self::fast_failover()]
    }

    /// Returns the setting, or its default.
    fn request_timeout(&self) -> Duration {
        self.store.request_timeout.unwrap_or(Duration::from_secs(5))
    }

    /// Returns an event hub with 100 events in each of four partitions.
    fn world(&self) -> World {
        let mut world = World::new(4);
        world.config = self.processor.clone();
        for partition in 0..4 {
            world.hub.publish_many(partition, 100, "event").unwrap();
        }
        world
    }

    async fn start(&self, world: &World, owner: &str, container: Arc<dyn BlobContainer>) -> Instance {
        let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
        let builder = GroupStore::builder(container, group, OwnerId::new(owner).unwrap());
        let store = builder.with_config(self.store.clone()).connect().await.unwrap();
        let handler = Recorder { owner: owner.into(), log: world.log.clone(), checkpoint: true };
        world.start_on(store, world.hub.source(), handler)
    }
}

/// An adoption is several requests in a row, and the sum of their times is longer than any of them may take.
#[tokio::test(start_paused = true)]
async fn slow_requests_do_not_keep_partitions_dark() {
    for (profile, milliseconds) in [
        (Profile::default_in(LeaseScope::Partition), [100, 1000, 2600, 4000, 4900]),
        (Profile::default_in(LeaseScope::Instance), [100, 1000, 2600, 4000, 4900]),
        (Profile::fast_failover(), [100, 500, 1100, 1500, 1900]),
    ] {
        for latency in milliseconds.map(Duration::from_millis) {
            let world = profile.world();
            let slow = Platform::new(world.container.clone(), 7).with_latency(Latency::constant(latency));
            let instance = profile.start(&world, "a", Arc::new(slow)).await;
            sleep(MINUTE).await;
            let soon = world.log.times("event");
            sleep(9 * MINUTE).await;
            assert_eq!(world.log.times("event"), 400, "{latency:?}, {soon} after a minute");
            instance.shut_down().await.unwrap();
        }
    }
}

/// From quick to almost too slow within ten minutes, in which the partitions move from one instance to another.
#[tokio::test(start_paused = true)]
async fn a_storage_that_gets_slower_stops_no_handoff() {
    for profile in Profile::all() {
        let world = profile.world();
        let last = profile.request_timeout().mul_f64(0.98);
        let slow = Platform::new(world.container.clone(), 7);
        let slow = Arc::new(slow.with_latency(Latency::growing(last / 50, last, 10 * MINUTE)));
        let a = profile.start(&world, "a", slow.clone()).await;
        sleep(9 * MINUTE).await;
        assert_eq!((a.held(), world.log.times("event")), (4, 400));
        let b = profile.start(&world, "b", slow).await;
        sleep(10 * MINUTE).await;
        assert_eq!((a.held(), b.held()), (2, 2), "{profile:?}");
        for (_, partition, stop) in &*world.log.stops.lock().unwrap() {
            let is_handed_over = matches!(stop, StopReason::Released { reason: ReleaseReason::HandedOver });
            assert!(is_handed_over, "partition {partition}, {profile:?}: {stop:?}");
        }
        a.shut_down().await.unwrap();
        sleep(10 * MINUTE).await;
        assert_eq!(b.held(), 4, "{profile:?}");
        world.log.contiguity.check();
        b.shut_down().await.unwrap();
    }
}

/// A page takes longer than a request usually may: its listing gets more time, in the clients of both SDKs.
#[tokio::test(start_paused = true)]
async fn slow_pages_do_not_stop_a_takeover() {
    for profile in Profile::all() {
        for client in 0..2 {
            let world = profile.world();
            let service = Service::on((*world.container).clone(), Manners::default());
            let container: Arc<dyn BlobContainer> = match client {
                0 => Arc::new(service.azure()),
                #[cfg(feature = "legacy-sdk")]
                1 => Arc::new(service.legacy()),
                _ => break,
            };
            let a = profile.start(&world, "a", container.clone()).await;
            let mut b = profile.start(&world, "b", container).await;
            b.wait_until_it_holds(2).await;
            service.change(|manners| manners.page_latency = profile.request_timeout().mul_f64(1.1));
            a.crash().await;
            b.wait_until_it_holds(4).await;
            b.shut_down().await.unwrap();
        }
    }
}
