//! Every event of this crate names the event hub, the consumer group and the instance, by its span. A test binary of
//! its own, because the events of a dedicated thread are only seen by a subscriber of the whole process.

#[path = "../common/scoped.rs"]
mod scoped;
#[path = "../common/world.rs"]
mod world;

mod dedicated;
mod flaky;
mod handlers;
mod inline;
mod stores;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use eventhubs_checkpoint::store::{GroupStore, GroupStoreBuilder, StoreConfig};
use eventhubs_checkpoint::testing::faulty::Target;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;

use crate::flaky::Flaky;
use crate::handlers::Application;
use crate::scoped::{Instance, Scoped};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Captures what this thread logs, until the guard is dropped.
fn capture() -> (Scoped, DefaultGuard) {
    // With several dispatchers in the process, no callsite is disabled for all of them because of one thread.
    dedicated::of_the_process();
    let scoped = Scoped::default();
    let guard = tracing::dispatcher::set_default(&Dispatch::new(tracing_subscriber::registry().with(scoped.clone())));
    (scoped, guard)
}

/// A consumer group with its own event hub and storage.
struct Group {
    world: World,
    name: ConsumerGroup,
    /// Whether requests to the event hub fail.
    hub_fails: Arc<AtomicBool>,
}

impl Group {
    fn new(event_hub: &str, name: &str, partitions: u32) -> Self {
        let world = World::on(MemoryHub::new(event_hub, partitions));
        let group = ConsumerGroup::new("ns.servicebus.windows.net", event_hub, name).unwrap();
        Self { world, name: group, hub_fails: Arc::default() }
    }

    fn instance(&self, owner: &str) -> Instance {
        Instance::new(&self.name, owner)
    }

    fn builder(&self, owner: &str) -> GroupStoreBuilder {
        let container = Arc::new(self.world.faulty.clone());
        GroupStore::builder(container, self.name.clone(), OwnerId::new(owner).unwrap())
            .with_config(StoreConfig::default().with_lease_duration(self.world.expiry))
    }

    async fn start(&self, owner: &str) -> (world::Instance, Application) {
        let application = Application::new(self.instance(owner));
        let store = self.builder(owner).with_seed(owner.len() as u64).connect().await.unwrap();
        let source = Flaky { inner: self.world.hub.source(), fails: Arc::clone(&self.hub_fails) };
        (self.world.start_on(store, source, application.clone()), application)
    }
}

/// The ownerships.
fn ownerships() -> Target {
    Target::any().named("/ownership/")
}
