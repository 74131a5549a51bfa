//! The official Rust processor, in the version of the SDK that the program with this file uses: its parts that do not
//! differ between versions.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use azure_core::time::Duration;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership, ReceivedEventData, StartPositions};
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{
    CheckpointStore, ConsumerClient, EventProcessor, ProcessorStrategy, StartLocation, StartPosition,
};
use futures::{Stream, StreamExt};
use tokio::task::{JoinHandle, spawn_local};

/// At most so many events are processed before a checkpoint.
const MAX_BATCH: usize = 50;

/// What happens to the partitions. `start` counts the starts of this process: if a partition starts again, the previous
/// start may still process what it has received.
pub trait Report: 'static {
    /// The partition starts after this checkpoint.
    fn started(&self, partition: &str, start: u64, checkpoint: Option<i64>);
    /// These events are processed, and not checkpointed yet.
    fn processed(&self, partition: &str, start: u64, sequence_numbers: &[i64]);
    fn failed(&self, partition: &str, error: String);
}

/// A store that remembers the checkpoints that its processor has listed: it lists them immediately before it starts
/// partitions. And the partitions that it has claimed: it claims all of its partitions in each cycle.
pub struct Store {
    inner: Arc<dyn CheckpointStore + Send + Sync>,
    checkpoints: Mutex<HashMap<String, Option<i64>>>,
    claimed: Mutex<Vec<String>>,
}

impl Store {
    pub fn new(inner: Arc<dyn CheckpointStore + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { inner, checkpoints: Mutex::default(), claimed: Mutex::default() })
    }

    /// Returns the partitions that the processor owns, by its last claim.
    #[allow(dead_code, reason = "only the older client is watched")]
    pub fn claimed(&self) -> Vec<String> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn checkpoint_of(&self, partition: &str) -> Option<i64> {
        let checkpoints = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        checkpoints.get(partition).copied().flatten()
    }
}

#[async_trait]
impl CheckpointStore for Store {
    async fn claim_ownership(&self, ownerships: &[Ownership]) -> azure_core::Result<Vec<Ownership>> {
        let owned = self.inner.claim_ownership(ownerships).await?;
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) =
            owned.iter().map(|ownership| ownership.partition_id.clone()).collect();
        Ok(owned)
    }

    async fn list_checkpoints(&self, namespace: &str, hub: &str, group: &str) -> azure_core::Result<Vec<Checkpoint>> {
        let listed = self.inner.list_checkpoints(namespace, hub, group).await?;
        let checkpoints = listed.iter().map(|listed| (listed.partition_id.clone(), listed.sequence_number)).collect();
        *self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner) = checkpoints;
        Ok(listed)
    }

    async fn list_ownerships(&self, namespace: &str, hub: &str, group: &str) -> azure_core::Result<Vec<Ownership>> {
        self.inner.list_ownerships(namespace, hub, group).await
    }

    async fn update_checkpoint(&self, checkpoint: Checkpoint) -> azure_core::Result<()> {
        self.inner.update_checkpoint(checkpoint).await
    }
}

/// Builds a processor that takes its share at once, and starts at the earliest event.
pub async fn build(
    consumer: ConsumerClient,
    store: Arc<Store>,
    [interval, expiry]: [Duration; 2],
) -> azure_messaging_eventhubs::Result<Arc<EventProcessor>> {
    let earliest = StartPosition { location: StartLocation::Earliest, ..Default::default() };
    EventProcessor::builder()
        .with_load_balancing_strategy(ProcessorStrategy::Greedy)
        .with_update_interval(interval)
        .with_partition_expiration_duration(expiry)
        .with_start_positions(StartPositions { default: earliest, ..Default::default() })
        .build(consumer, store)
        .await
}

/// Starts the processor, and processes its partitions on this thread, in a `LocalSet`. Ends if the processor fails.
pub fn start(
    processor: Arc<EventProcessor>,
    store: Arc<Store>,
    report: Rc<dyn Report>,
) -> JoinHandle<azure_messaging_eventhubs::Result<()>> {
    let clients = processor.clone();
    spawn_local(async move {
        while let Ok(client) = clients.next_partition_client().await {
            let checkpoint = store.checkpoint_of(client.get_partition_id());
            spawn_local(process(client, checkpoint, report.clone()));
        }
    });
    spawn_local(async move { processor.run().await })
}

/// Processes the events of a partition until its stream ends, as it does if another instance takes the partition.
async fn process(client: Arc<PartitionClient>, checkpoint: Option<i64>, report: Rc<dyn Report>) {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let (partition, start) = (client.get_partition_id().to_owned(), STARTS.fetch_add(1, Ordering::Relaxed));
    report.started(&partition, start, checkpoint);
    process_stream(&client, client.stream_events(), start, &*report).await;
    match Arc::try_unwrap(client).map(PartitionClient::close) {
        Ok(closing) => report_error(closing.await, &partition, &*report),
        Err(_) => report.failed(&partition, "the client is still in use".into()),
    }
}

async fn process_stream<E: Debug>(
    client: &PartitionClient,
    events: impl Stream<Item = Result<ReceivedEventData, E>>,
    start: u64,
    report: &dyn Report,
) {
    let partition = client.get_partition_id();
    let mut batches = pin!(events.ready_chunks(MAX_BATCH));
    while let Some(batch) = batches.next().await {
        let (events, errors): (Vec<_>, Vec<_>) = batch.into_iter().partition(Result::is_ok);
        let events: Vec<_> = events.into_iter().flatten().collect();
        if let Some(last) = events.last() {
            let numbers: Vec<_> = events.iter().filter_map(ReceivedEventData::sequence_number).collect();
            report.processed(partition, start, &numbers);
            report_error(client.update_checkpoint(last).await, partition, report);
        }
        if let Some(error) = errors.into_iter().find_map(Result::err) {
            return report.failed(partition, format!("{error:?}"));
        }
    }
}

fn report_error<E: Debug>(outcome: Result<(), E>, partition: &str, report: &dyn Report) {
    if let Err(error) = outcome {
        report.failed(partition, format!("{error:?}"));
    }
}
