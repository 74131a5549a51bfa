//! A processor of the official SDK 0.15 with its blob checkpoint store 0.9, which reports by JSON lines.
//!
//! processor <settings as JSON> takes its share of the partitions. It reports its owner id first, then the events
//! that it processes, before their checkpoint, and its errors. Before the events of a partition, it reports after which
//! checkpoint it starts. It shuts down when its standard input ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::Url;
use azure_core::time::{Duration, OffsetDateTime};
use azure_messaging_eventhubs::models::{Checkpoint, Ownership, ReceivedEventData, StartPositions};
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{
    CheckpointStore, ConsumerClient, EventProcessor, ProcessorStrategy, StartLocation, StartPosition,
};
use azure_messaging_eventhubs_checkpointstore_blob::BlobCheckpointStore;
use azure_storage_blob::BlobContainerClient;
use futures::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::{LocalSet, spawn_local};

/// At most so many events are processed before a checkpoint.
const MAX_BATCH: usize = 50;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(Deserialize)]
struct Settings {
    /// `amqp` instead of `amqps` means that there is no TLS.
    endpoint: String,
    namespace: String,
    event_hub_name: String,
    consumer_group: String,
    /// A shared access signature of the event hub, because this version has no connection strings.
    event_hub_token: String,
    /// Includes a shared access signature, because the client sends tokens over HTTPS only.
    container_url: String,
    owner: String,
    interval_seconds: i64,
    expiry_seconds: i64,
}

fn report(line: Value) {
    println!("{line}");
}

fn failed(partition: &str, error: impl std::fmt::Debug) {
    report(json!({ "failed": format!("partition {partition}: {error:?}") }));
}

/// A shared access signature, which the service accepts in place of a token.
#[derive(Debug)]
struct SharedAccessSignature(String);

#[async_trait::async_trait]
impl TokenCredential for SharedAccessSignature {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        Ok(AccessToken::new(self.0.clone(), OffsetDateTime::now_utc() + Duration::hours(1)))
    }
}

/// The store of the SDK. Remembers the checkpoints that the processor has listed: it lists them immediately before it
/// starts partitions.
struct Store {
    inner: Arc<BlobCheckpointStore>,
    checkpoints: Mutex<HashMap<String, Option<i64>>>,
}

impl Store {
    fn checkpoint_of(&self, partition: &str) -> Option<i64> {
        let checkpoints = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        checkpoints.get(partition).copied().flatten()
    }
}

#[async_trait::async_trait]
impl CheckpointStore for Store {
    async fn claim_ownership(&self, ownerships: &[Ownership]) -> azure_core::Result<Vec<Ownership>> {
        self.inner.claim_ownership(ownerships).await
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

async fn processor(settings: &Settings, store: Arc<Store>) -> Result<Arc<EventProcessor>> {
    let consumer = ConsumerClient::builder()
        .with_custom_endpoint(settings.endpoint.clone())
        .with_consumer_group(settings.consumer_group.clone())
        // The name under which it owns partitions.
        .with_application_id(settings.owner.clone())
        .open(
            &settings.namespace,
            settings.event_hub_name.clone(),
            Arc::new(SharedAccessSignature(settings.event_hub_token.clone())),
        )
        .await?;
    let earliest = StartPosition { location: StartLocation::Earliest, ..Default::default() };
    let processor = EventProcessor::builder()
        .with_load_balancing_strategy(ProcessorStrategy::Greedy)
        .with_update_interval(Duration::seconds(settings.interval_seconds))
        .with_partition_expiration_duration(Duration::seconds(settings.expiry_seconds))
        .with_start_positions(StartPositions { default: earliest, ..Default::default() })
        .build(consumer, store)
        .await?;
    Ok(processor)
}

/// Processes the events of a partition until its stream ends, as it does if another instance takes the partition.
async fn process(client: Arc<PartitionClient>, checkpoint: Option<i64>) {
    let partition = client.get_partition_id().to_owned();
    report(json!({ "started": partition, "checkpoint": checkpoint }));
    process_stream(&client, &partition, client.stream_events()).await;
    let Ok(client) = Arc::try_unwrap(client) else { return failed(&partition, "the client is still in use") };
    if let Err(error) = client.close().await {
        failed(&partition, error);
    }
}

async fn process_stream<E: std::fmt::Debug>(
    client: &PartitionClient,
    partition: &str,
    events: impl Stream<Item = Result<ReceivedEventData, E>>,
) {
    let mut batches = std::pin::pin!(events.ready_chunks(MAX_BATCH));
    while let Some(batch) = batches.next().await {
        let (events, errors): (Vec<_>, Vec<_>) = batch.into_iter().partition(Result::is_ok);
        let events: Vec<_> = events.into_iter().flatten().collect();
        if let Some(last) = events.last() {
            let numbers: Vec<_> = events.iter().filter_map(ReceivedEventData::sequence_number).collect();
            report(json!({ "processed": numbers, "partition": partition }));
            if let Err(error) = client.update_checkpoint(last).await {
                failed(partition, error);
            }
        }
        if let Some(error) = errors.into_iter().find_map(Result::err) {
            return failed(partition, error);
        }
    }
}

async fn run(settings: Settings) -> Result<()> {
    let container = BlobContainerClient::new(Url::parse(&settings.container_url)?, None, None)?;
    let store = Arc::new(Store { inner: BlobCheckpointStore::new(container), checkpoints: Mutex::default() });
    let processor = processor(&settings, store.clone()).await?;
    report(
        json!({ "versions": "Rust azure_messaging_eventhubs 0.15, azure_messaging_eventhubs_checkpointstore_blob 0.9" }),
    );
    report(json!({ "owner": settings.owner }));
    let clients = processor.clone();
    spawn_local(async move {
        while let Ok(client) = clients.next_partition_client().await {
            let checkpoint = store.checkpoint_of(client.get_partition_id());
            spawn_local(process(client, checkpoint));
        }
    });
    let running = processor.clone();
    let running = spawn_local(async move { running.run().await });
    let shutdown = async {
        let mut rest = Vec::new();
        // An error means that nothing will come any more, either.
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    };
    tokio::select! {
        ended = running => Ok(ended??),
        () = shutdown => Ok(processor.shutdown().await?),
    }
}

/// One thread, because the client can hang on several.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let settings = std::env::args().nth(1).unwrap_or_default();
    let ended = match serde_json::from_str(&settings) {
        Ok(settings) => LocalSet::new().run_until(run(settings)).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = &ended {
        eprintln!("{error}");
    }
    // The runtime would wait for the read of the standard input.
    std::process::exit(i32::from(ended.is_err()));
}
