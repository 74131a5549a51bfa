//! The official `EventProcessor` on the Event Hubs emulator.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang. The tasks are
//! local ones, because the processor's stream of events cannot be sent to another thread.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use azure_core::http::Etag;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership, StartPositions};
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{
    CheckpointStore, ConsumerClient, EventProcessor, ProducerClient, StartLocation, StartPosition,
};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_emulator::EventHubEmulator;
use futures::StreamExt;
use time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::sleep;

use crate::hub_client::{producer, send, within};

/// The load-balancing interval of a processor; its shutdown takes that long, too.
const INTERVAL: Duration = Duration::milliseconds(500);
/// Far longer than any pause between two renewals.
const EXPIRY: Duration = Duration::seconds(120);

/// The lease duration of this crate's store, which repeats a listing for that long: the first times after about 0.5 s
/// and 1.5 s.
const LEASE: std::time::Duration = std::time::Duration::from_secs(8);

/// The records of the only group of these tests, by partition.
#[derive(Default)]
struct MemoryStore {
    ownerships: Mutex<BTreeMap<String, Ownership>>,
    checkpoints: Mutex<BTreeMap<String, Checkpoint>>,
}

#[async_trait]
impl CheckpointStore for MemoryStore {
    /// Leaves out partitions that another owner claimed first.
    async fn claim_ownership(&self, wanted: &[Ownership]) -> azure_core::Result<Vec<Ownership>> {
        let mut known = self.ownerships.lock().unwrap();
        let mut claimed = Vec::new();
        for ownership in wanted {
            let etag = known.get(&ownership.partition_id).and_then(|known| known.etag.clone());
            if etag != ownership.etag {
                continue;
            }
            let version = etag.map_or(0, |etag| etag.to_string().parse::<u64>().unwrap()) + 1;
            let mut ownership = ownership.clone();
            ownership.etag = Some(Etag::from(version.to_string()));
            ownership.last_modified_time = Some(SystemWallClock.now());
            known.insert(ownership.partition_id.clone(), ownership.clone());
            claimed.push(ownership);
        }
        Ok(claimed)
    }

    async fn list_checkpoints(&self, _: &str, _: &str, _: &str) -> azure_core::Result<Vec<Checkpoint>> {
        Ok(self.checkpoints.lock().unwrap().values().cloned().collect())
    }

    async fn list_ownerships(&self, _: &str, _: &str, _: &str) -> azure_core::Result<Vec<Ownership>> {
        Ok(self.ownerships.lock().unwrap().values().cloned().collect())
    }

    async fn update_checkpoint(&self, checkpoint: Checkpoint) -> azure_core::Result<()> {
        self.checkpoints.lock().unwrap().insert(checkpoint.partition_id.clone(), checkpoint);
        Ok(())
    }
}

/// What the owner of this name does and did.
#[derive(Clone, Debug, Default)]
struct Reader {
    /// How many partitions it reads.
    partitions: usize,
    /// The numbers that it has read.
    seen: BTreeSet<usize>,
}

type Readers = BTreeMap<&'static str, Reader>;

#[derive(Clone)]
struct World {
    hub: EventHubEmulator,
    store: Arc<dyn CheckpointStore + Send + Sync>,
    readers: Arc<watch::Sender<Readers>>,
}

impl World {
    async fn new(partitions: u16) -> Self {
        Self::with_store(partitions, Arc::new(MemoryStore::default())).await
    }

    async fn with_store(partitions: u16, store: Arc<dyn CheckpointStore + Send + Sync>) -> Self {
        let hub = EventHubEmulator::builder("hub").with_partitions(partitions).start("127.0.0.1:0").await.unwrap();
        Self { hub, store, readers: Arc::default() }
    }

    async fn start(&self, owner: &'static str) -> Instance {
        let connection_string = self.hub.connection_string();
        let opening = ConsumerClient::builder()
            .with_application_id(owner.to_owned())
            .with_custom_endpoint(self.hub.endpoint())
            .open_with_connection_string(&connection_string, None);
        let consumer = within("opening a consumer", opening).await.unwrap();
        let default = StartPosition { location: StartLocation::Earliest, inclusive: false };
        let building = EventProcessor::builder()
            .with_update_interval(INTERVAL)
            .with_partition_expiration_duration(EXPIRY)
            .with_start_positions(StartPositions { default, ..StartPositions::default() })
            .build(consumer, self.store.clone());
        let processor = within("building a processor", building).await.unwrap();
        let (running, reading) = (processor.clone(), read_all(processor.clone(), owner, self.readers.clone()));
        Instance { processor, running: spawn_local(async move { running.run().await }), reading: spawn_local(reading) }
    }

    /// Publishes one event per number, evenly over all partitions.
    async fn publish(&self, producer: &ProducerClient, numbers: Range<usize>) {
        let ids = self.hub.partition_ids();
        for (index, id) in ids.iter().enumerate() {
            let bodies = numbers.clone().filter(|number| number % ids.len() == index).map(|number| number.to_string());
            send(producer, id, bodies.map(String::into_bytes)).await;
        }
    }

    async fn wait_for_all(&self, numbers: Range<usize>) {
        let mut readers = self.readers.subscribe();
        let seen = |number: &usize, readers: &Readers| readers.values().any(|reader| reader.seen.contains(number));
        let all = readers.wait_for(|readers| numbers.clone().all(|number| seen(&number, readers)));
        within("reading all events", all).await.unwrap();
    }

    /// Waits until these owners, in the order of their names, read this many partitions.
    async fn wait_for_shares(&self, expected: &[(&'static str, usize)]) {
        let mut readers = self.readers.subscribe();
        let shared = readers.wait_for(|readers| {
            readers.iter().map(|(owner, reader)| (*owner, reader.partitions)).eq(expected.iter().copied())
        });
        within("sharing the partitions", shared).await.unwrap();
    }
}

struct Instance {
    processor: Arc<EventProcessor>,
    running: JoinHandle<azure_messaging_eventhubs::Result<()>>,
    reading: JoinHandle<()>,
}

impl Instance {
    async fn shut_down(self) {
        self.processor.shutdown().await.unwrap();
        within("the processor's end", self.running).await.unwrap().unwrap();
        self.reading.abort();
    }
}

async fn read_all(processor: Arc<EventProcessor>, owner: &'static str, readers: Arc<watch::Sender<Readers>>) {
    while let Ok(partition) = processor.next_partition_client().await {
        spawn_local(read(partition, owner, readers.clone()));
    }
}

/// Reads until the partition is lost.
async fn read(partition: Arc<PartitionClient>, owner: &'static str, readers: Arc<watch::Sender<Readers>>) {
    let note = |change: &dyn Fn(&mut Reader)| readers.send_modify(|readers| change(readers.entry(owner).or_default()));
    note(&|reader| reader.partitions += 1);
    let mut events = partition.stream_events();
    while let Some(Ok(event)) = events.next().await {
        let number: usize = str::from_utf8(event.event_data().body().unwrap()).unwrap().parse().unwrap();
        note(&|reader| reader.seen.extend([number]));
        partition.update_checkpoint(&event).await.unwrap();
    }
    drop(events);
    note(&|reader| reader.partitions -= 1);
    // A client that is not closed is never returned again.
    if let Some(partition) = Arc::into_inner(partition) {
        let _ = partition.close().await;
    }
}

#[tokio::test]
async fn one_processor_reads_all_and_two_share() {
    let test = Box::pin(async {
        let world = World::new(4).await;
        let producer = producer(&world.hub).await;
        world.publish(&producer, 0..40).await;
        let first = world.start("first").await;
        world.wait_for_all(0..40).await;
        world.wait_for_shares(&[("first", 4)]).await;

        let second = world.start("second").await;
        world.wait_for_shares(&[("first", 2), ("second", 2)]).await;
        world.publish(&producer, 40..80).await;
        world.wait_for_all(0..80).await;

        let readers = world.readers.borrow().clone();
        for (owner, reader) in &readers {
            assert_eq!(reader.seen.range(40..).count(), 20, "{owner} of {readers:?}");
        }
        for id in world.hub.partition_ids() {
            assert_eq!(world.hub.open_receivers("$Default", &id), Some(1), "partition {id}");
        }
        first.shut_down().await;
        second.shut_down().await;
    });
    LocalSet::new().run_until(test).await;
}

/// One partition only: the client 0.16 sets up all links of its connection again as soon as one of them fails, and if
/// several fail at once it may end up with `Link name is not unique` or with stopped sessions, forever.
#[tokio::test]
async fn a_processor_recovers_from_a_detach_and_a_cut() {
    let test = Box::pin(async {
        let world = World::new(1).await;
        world.publish(&producer(&world.hub).await, 0..4).await;
        let only = world.start("only").await;
        world.wait_for_all(0..4).await;

        assert_eq!(world.hub.detach_receivers("$Default", "0"), Some(1));
        world.publish(&producer(&world.hub).await, 4..8).await;
        world.wait_for_all(0..8).await;

        assert!(world.hub.cut_connections() >= 1);
        world.publish(&producer(&world.hub).await, 8..12).await;
        world.wait_for_all(0..12).await;
        only.shut_down().await;
    });
    LocalSet::new().run_until(test).await;
}

/// It ends after three failed attempts at one listing.
#[tokio::test]
async fn a_processor_outlives_an_outage_of_the_storage() {
    let test = Box::pin(async {
        let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
        let config = StoreConfig::default().with_lease_duration(LEASE);
        let store = BlobCheckpointStore::builder(faulty.clone()).with_config(config).build().unwrap();
        let world = World::with_store(2, store.clone()).await;
        let producer = producer(&world.hub).await;
        world.publish(&producer, 0..8).await;
        let only = world.start("only").await;
        world.wait_for_all(0..8).await;
        world.wait_for_shares(&[("only", 2)]).await;
        faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
        within("three failed listings", failures(&faulty, 3)).await;
        assert!(!only.running.is_finished());
        faulty.set_plan(FaultPlan::default());
        world.publish(&producer, 8..16).await;
        world.wait_for_all(0..16).await;
        let renewed = store.list_ownerships("localhost", "hub", "$Default").await.unwrap();
        assert_eq!(renewed.len(), 2);
        only.shut_down().await;
        assert_eq!(store.release_all().await.len(), 2);
    });
    LocalSet::new().run_until(test).await;
}

async fn failures(faulty: &FaultyContainer, expected: usize) {
    while faulty.trace().len() < expected {
        sleep(std::time::Duration::from_millis(10)).await;
    }
}
