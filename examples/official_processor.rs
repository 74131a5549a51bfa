//! The official `EventProcessor` with this crate's checkpoint store. `--help` lists the options.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;

use azure_messaging_eventhubs::models::StartPositions;
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{
    ConsumerClient, EventProcessor, ProducerClient, RetryOptions, StartLocation, StartPosition,
};
use clap::Parser;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_emulator::EventHubEmulator;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;

#[path = "support/signals.rs"]
mod signals;

/// Runs the official `EventProcessor` with records of this crate. Without arguments it demonstrates itself with an
/// event hub and a blob service in this process. With a real event hub it runs until Ctrl-C or SIGTERM. Start as many
/// processes as you like.
#[derive(Parser)]
struct Args {
    /// The connection string of the storage account.
    #[arg(long, env = "AZURE_STORAGE_CONNECTION_STRING", hide_env_values = true, value_name = "STORAGE")]
    storage: Option<String>,
    /// The container for the records. It must exist.
    #[arg(long, default_value = "checkpoints", value_name = "NAME")]
    container: String,
    /// The connection string of the event hub, with its EntityPath.
    #[arg(long, env = "EVENTHUBS_CONNECTION_STRING", hide_env_values = true, value_name = "HUB")]
    hub: Option<String>,
    /// Connects to this address instead of the namespace: `amqp://127.0.0.1:PORT` for an emulator.
    #[arg(long, env = "EVENTHUBS_ENDPOINT", value_name = "ADDRESS")]
    hub_endpoint: Option<String>,
}

/// Runs on one thread, because the streams of a `PartitionClient` cannot be sent to another thread.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let Some(hub) = args.hub else { return demonstrate().await };
    let storage = args.storage.ok_or("a real event hub needs storage that other processes can reach: set --storage")?;
    let store = BlobCheckpointStore::new(AzureContainer::from_connection_string(storage, args.container)?);
    process_until(&hub, args.hub_endpoint, store, &watch::Sender::new(0), signals::asked_to_end()).await
}

/// Runs the processor and its readers until `stop` is ready.
async fn process_until(
    hub: &str,
    endpoint: Option<String>,
    store: Arc<BlobCheckpointStore>,
    processed: &watch::Sender<usize>,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    // With retries, one detached link would disturb all partitions.
    let retries = RetryOptions { max_retries: 0, ..RetryOptions::default() };
    let mut builder = ConsumerClient::builder().with_retry_options(retries);
    if let Some(endpoint) = endpoint {
        builder = builder.with_custom_endpoint(endpoint);
    }
    let consumer = builder.open_with_connection_string(hub, None).await?;
    let earliest = StartPosition { location: StartLocation::Earliest, inclusive: false };
    let start = StartPositions { default: earliest, ..StartPositions::default() };
    let processor = EventProcessor::builder().with_start_positions(start).build(consumer, store.clone()).await?;
    let mut readers = FuturesUnordered::new();
    let mut running = pin!(processor.run());
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            ended = &mut running => break ended?,
            () = &mut stop => break,
            client = processor.next_partition_client() => readers.push(read_partition(client?, processed)),
            Some(()) = readers.next() => {}
        }
    }
    // The processor does not release its partitions itself.
    println!("processed {} events, released {} partitions", *processed.borrow(), store.release_all().await.len());
    Ok(())
}

/// Reads one partition until it is lost. The client must be closed, because the processor otherwise provides no new
/// client for the partition. A client that was passed on should not be closed: see the documentation of the store.
async fn read_partition(client: Arc<PartitionClient>, processed: &watch::Sender<usize>) {
    let mut events = client.stream_events();
    while let Some(Ok(event)) = events.next().await {
        processed.send_modify(|count| *count += 1);
        if let Err(error) = client.update_checkpoint(&event).await {
            eprintln!("partition {}: {error}", client.get_partition_id());
            break;
        }
    }
    drop(events);
    let Some(client) = Arc::into_inner(client) else { return };
    client.close().await.unwrap_or_else(|error| eprintln!("failed to close a link cleanly: {error}"));
}

async fn demonstrate() -> Result<(), Box<dyn Error>> {
    let hub = EventHubEmulator::builder("hub").start("127.0.0.1:0").await?;
    let builder = ProducerClient::builder().with_custom_endpoint(hub.endpoint());
    let producer = builder.open_with_connection_string(&hub.connection_string(), None).await?;
    for number in 0..40 {
        producer.send_event(number.to_string(), None).await?;
    }
    let store = BlobCheckpointStore::new(MemoryContainer::new());
    let processed = watch::Sender::new(0);
    let mut counting = processed.subscribe();
    let all = async { drop(counting.wait_for(|count| *count == 40).await) };
    process_until(&hub.connection_string(), Some(hub.endpoint()), store, &processed, all).await
}
