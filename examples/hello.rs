//! The smallest consumer: prints every event. Runs until Ctrl-C or SIGTERM.

use std::sync::Arc;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::{
    AzureContainer, EventContext, EventHubSource, GroupStore, LOG_FILTER, OwnerId, Processor, StoreConfig, each_event,
    event_handler_fn,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Silences the official client: this crate recovers from what it logs.
    tracing_subscriber::fmt().with_env_filter(LOG_FILTER).with_writer(std::io::stderr).init();

    // EVENTHUBS_CONNECTION_STRING, with the EntityPath of the event hub, and AZURE_STORAGE_CONNECTION_STRING.
    let source = EventHubSource::from_env("$Default")?.connect().await?;
    let container = AzureContainer::from_env("checkpoints")?;
    // Better: an id that survives restarts, such as the name of the pod.
    let owner = OwnerId::random()?;
    let config = StoreConfig::default().with_create_container(true);
    let store = GroupStore::builder(container, source.group().clone(), owner).with_config(config).connect().await?;

    let handler = each_event(event_handler_fn(|event: Arc<ReceivedEventData>, partition: EventContext| async move {
        let body = String::from_utf8_lossy(event.event_data().body().unwrap_or_default());
        println!("partition {}: {body}", partition.partition_id());
        Ok(()) // the checkpoint follows in the background; failures are retried
    }));
    Processor::builder(source, store, handler).run_until_signal().await?;
    Ok(())
}
