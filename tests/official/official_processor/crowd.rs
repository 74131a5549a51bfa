//! Official processors on a hub that speaks AMQP, each with its own client and store, and the events of their readers.
//!
//! Everything runs on one thread: the streams of the official `PartitionClient` cannot leave it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership, StartPositions};
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{CheckpointStore, ConsumerClient, EventProcessor, StartLocation, StartPosition};
use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_emulator::EventHubEmulator;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::sas::fresh_name;
use crate::support::azurite;

/// Far longer than any step here takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const INTERVAL: Duration = Duration::from_millis(500);

/// No lease expires, even if the machine stalls.
const NO_EXPIRY: Duration = Duration::from_secs(60);

type Store = Arc<dyn CheckpointStore + Send + Sync>;

/// The events of one processor's readers.
#[derive(Debug, Default)]
pub struct Seen {
    /// How often each event was processed.
    pub events: BTreeMap<String, usize>,
    /// The events at which a checkpoint was accepted.
    pub checkpoints: BTreeSet<String>,
    /// Why checkpoints were rejected.
    pub refused: Vec<Option<ErrorKind>>,
}

/// A store that records its responses to the claims of the one balancer that it serves.
struct Watched {
    inner: Store,
    holdings: watch::Sender<Holdings>,
}

/// Every cycle of the balancer ends with one.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// The partitions of the last one.
    pub last: BTreeSet<String>,
    /// The number of responses.
    pub count: usize,
}

#[async_trait]
impl CheckpointStore for Watched {
    async fn claim_ownership(&self, ownerships: &[Ownership]) -> azure_core::Result<Vec<Ownership>> {
        let claimed = self.inner.claim_ownership(ownerships).await?;
        let last = claimed.iter().map(|ownership| ownership.partition_id.clone()).collect();
        self.holdings.send_modify(|holdings| *holdings = Holdings { last, count: holdings.count + 1 });
        Ok(claimed)
    }

    async fn list_checkpoints(&self, namespace: &str, hub: &str, group: &str) -> azure_core::Result<Vec<Checkpoint>> {
        self.inner.list_checkpoints(namespace, hub, group).await
    }

    async fn list_ownerships(&self, namespace: &str, hub: &str, group: &str) -> azure_core::Result<Vec<Ownership>> {
        self.inner.list_ownerships(namespace, hub, group).await
    }

    async fn update_checkpoint(&self, checkpoint: Checkpoint) -> azure_core::Result<()> {
        self.inner.update_checkpoint(checkpoint).await
    }
}

pub struct Crowd {
    pub hub: EventHubEmulator,
    pub expiry: Duration,
}

pub struct Instance {
    pub seen: Rc<RefCell<Seen>>,
    holdings: watch::Receiver<Holdings>,
    processor: Arc<EventProcessor>,
    running: JoinHandle<azure_messaging_eventhubs::Result<()>>,
}

/// Returns a new container in Azurite, whose clock is that of the official balancer.
pub async fn azurite_container() -> Arc<AzureContainer> {
    let connection_string = azurite::shared().await.unwrap().connection_string();
    let container = Arc::new(AzureContainer::from_connection_string(connection_string, fresh_name()).unwrap());
    container.create_container().await.unwrap();
    container
}

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

impl Crowd {
    pub async fn new(partitions: u16) -> Self {
        let hub = EventHubEmulator::builder("hub").with_partitions(partitions).start("127.0.0.1:0").await.unwrap();
        Self { hub, expiry: NO_EXPIRY }
    }

    pub fn adapter(&self, container: impl BlobContainer + 'static) -> Arc<BlobCheckpointStore> {
        let config = StoreConfig::default().with_lease_duration(self.expiry);
        BlobCheckpointStore::builder(container).with_config(config).build().unwrap()
    }

    pub async fn start(&self, store: Store) -> Instance {
        self.start_as(None, store).await
    }

    pub async fn start_as(&self, application_id: Option<&str>, store: Store) -> Instance {
        let mut builder = ConsumerClient::builder().with_custom_endpoint(self.hub.endpoint());
        if let Some(id) = application_id {
            builder = builder.with_application_id(id.to_owned());
        }
        let connection_string = self.hub.connection_string();
        let opening = builder.open_with_connection_string(&connection_string, None);
        let client = timeout(TIMEOUT, opening).await.unwrap().unwrap();
        let earliest = StartPosition { location: StartLocation::Earliest, inclusive: false };
        let (holdings, watching) = watch::channel(Holdings::default());
        let building = EventProcessor::builder()
            .with_update_interval(INTERVAL.try_into().unwrap())
            .with_partition_expiration_duration(self.expiry.try_into().unwrap())
            .with_start_positions(StartPositions { default: earliest, ..StartPositions::default() })
            .build(client, Arc::new(Watched { inner: store, holdings }));
        let processor = timeout(TIMEOUT, building).await.unwrap().unwrap();
        let seen = Rc::<RefCell<Seen>>::default();
        let running = tokio::task::spawn_local(run(Arc::clone(&processor), Rc::clone(&seen)));
        Instance { seen, holdings: watching, processor, running }
    }

    /// Waits until the broker has a reader of every partition. A client that loses links while it opens others ends up
    /// with links that it can no longer open.
    pub async fn until_all_are_read(&self) {
        let is_read = |partition: &String| self.hub.open_receivers("$Default", partition) == Some(1);
        until("a reader of every partition", || self.hub.partition_ids().iter().all(is_read)).await;
    }

    /// Publishes one event per number, evenly over all partitions. On its own thread: on several threads the client can
    /// miss the response to a send, and here the readers would delay it.
    pub async fn publish(&self, numbers: Range<u32>) {
        let (endpoint, connection_string) = (self.hub.endpoint(), self.hub.connection_string());
        let partitions = self.hub.partition_ids();
        let publishing = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(crate::publishing::publish(&endpoint, &connection_string, &partitions, numbers));
        });
        publishing.await.unwrap();
    }
}

impl Instance {
    /// Returns the last response to the balancer.
    pub fn holds(&self) -> Holdings {
        self.holdings.borrow().clone()
    }

    pub fn times(&self, number: u32) -> usize {
        self.seen.borrow().events.get(&number.to_string()).copied().unwrap_or_default()
    }

    pub fn has_checkpoint(&self, number: u32) -> bool {
        self.seen.borrow().checkpoints.contains(&number.to_string())
    }

    /// Crashes without any clean-up.
    pub async fn kill(self) -> Rc<RefCell<Seen>> {
        self.running.abort();
        let _ = self.running.await;
        self.seen
    }

    /// Shuts down gracefully, as far as the official processor can.
    pub async fn shut_down(self) {
        self.processor.shutdown().await.unwrap();
        timeout(TIMEOUT, self.running).await.expect("the shutdown timed out").unwrap().unwrap();
    }
}

/// How many clients of each partition were returned.
type ClientCounts = RefCell<BTreeMap<String, usize>>;

/// Runs the processor and its readers: the part of an application.
async fn run(processor: Arc<EventProcessor>, seen: Rc<RefCell<Seen>>) -> azure_messaging_eventhubs::Result<()> {
    let (given, mut readers) = (ClientCounts::default(), FuturesUnordered::new());
    let mut running = pin!(processor.run());
    loop {
        tokio::select! {
            ended = &mut running => return ended,
            client = processor.next_partition_client() => {
                let client = client?;
                *given.borrow_mut().entry(client.get_partition_id().to_owned()).or_default() += 1;
                readers.push(read(client, &given, &seen));
            }
            Some(()) = readers.next() => {}
        }
    }
}

/// Reads until the stream ends or a checkpoint is rejected. Then the client is closed, because otherwise the partition
/// would never be returned again; but not if it has been: the official client keeps one link per partition, that of the
/// successor.
async fn read(client: Arc<PartitionClient>, given: &ClientCounts, seen: &RefCell<Seen>) {
    let partition = client.get_partition_id().to_owned();
    let own = given.borrow()[&partition];
    {
        let mut events = client.stream_events();
        while let Some(Ok(event)) = events.next().await {
            let body = String::from_utf8_lossy(event.event_data().body().unwrap_or_default()).into_owned();
            *seen.borrow_mut().events.entry(body.clone()).or_default() += 1;
            if let Err(error) = client.update_checkpoint(&event).await {
                let kind = BlobCheckpointStore::error_of(&error).map(eventhubs_checkpoint::Error::kind);
                seen.borrow_mut().refused.push(kind);
                break;
            }
            seen.borrow_mut().checkpoints.insert(body);
        }
    }
    let is_the_last = given.borrow()[&partition] == own;
    if let Some(client) = Arc::into_inner(client).filter(|_| is_the_last) {
        // With deliveries in flight it can fail; the broker drops the link nevertheless.
        let _ = client.close().await;
    }
}
