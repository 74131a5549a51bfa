//! The smallest consumer: prints every event and checkpoints it.
//!
//! With `EVENTHUBS_CONNECTION_STRING` (of the event hub, with its `EntityPath`) and `AZURE_STORAGE_CONNECTION_STRING`
//! set, it reads a real event hub and keeps its records in the container `checkpoints`. Without them it starts an event
//! hub emulator and keeps its records in memory. It runs until Ctrl-C or SIGTERM.

use std::env;
use std::sync::Arc;

use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{ProducerClient, SendEventOptions};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::{
    AzureContainer, ConsumerGroup, EventHubSource, GroupStore, OwnerId, PartitionContext, Processor, handler_fn,
};
use eventhubs_emulator::EventHubEmulator;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Silences the official client: this crate recovers from what it logs.
    let filter = "info,azure_messaging_eventhubs=off,azure_core_amqp=off,fe2o3_amqp=off,typespec_client_core=warn";
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    let (hub, container, _emulator) = connections().await?;
    let group = ConsumerGroup::from_connection_string(&hub, "$Default")?;
    let owner = OwnerId::random()?; // better: an id that survives restarts, such as the name of the pod
    let store = GroupStore::connect(container, group.clone(), owner).await?;
    let source = EventHubSource::from_connection_string(&group, hub).connect().await?;

    let handler = handler_fn(|events: Vec<ReceivedEventData>, partition: PartitionContext| async move {
        for event in &events {
            let body = String::from_utf8_lossy(event.event_data().body().unwrap_or_default()).into_owned();
            println!("partition {}: {body}", partition.partition_id());
            partition.checkpoint(event); // requested here, written in the background
        }
        Ok(())
    });
    Processor::builder(source, store, handler).run_until_signal().await?;
    Ok(())
}

/// Returns a connection string of an event hub and a container, both from the environment or both local.
async fn connections() -> Result<(String, Arc<dyn BlobContainer>, Option<EventHubEmulator>), BoxError> {
    let variables = ["EVENTHUBS_CONNECTION_STRING", "AZURE_STORAGE_CONNECTION_STRING"];
    if variables.into_iter().any(|name| env::var(name).is_ok()) {
        let [hub, storage] = variables.map(|name| env::var(name).map_err(|error| format!("{name}: {error}")));
        return Ok((hub?, Arc::new(AzureContainer::from_connection_string(storage?, "checkpoints")?), None));
    }
    println!(
        "no EVENTHUBS_CONNECTION_STRING and AZURE_STORAGE_CONNECTION_STRING: using an emulator and records in memory"
    );
    let emulator = EventHubEmulator::builder("orders").with_partitions(2).start("127.0.0.1:0").await?;
    let producer = ProducerClient::builder().with_custom_endpoint(emulator.endpoint());
    let producer = producer.open_with_connection_string(&emulator.connection_string(), None).await?;
    for partition in ["0", "1"] {
        let to = SendEventOptions { partition_id: Some(partition.to_owned()) };
        producer.send_event(format!("hello from partition {partition}").into_bytes(), Some(to)).await?;
    }
    Ok((emulator.connection_string_with_port(), Arc::new(MemoryContainer::new()), Some(emulator)))
}
