//! The smallest consumer with Microsoft Entra ID: no connection string, no key.
//!
//! ```sh
//! az login
//! cargo run --example entra -- NAMESPACE.servicebus.windows.net EVENT_HUB https://ACCOUNT.blob.core.windows.net/CONTAINER
//! ```
//!
//! SECURITY.md lists the roles that you need.

use std::env;
use std::sync::Arc;

use azure_identity::DeveloperToolsCredential;
use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::{
    AzureContainer, ConsumerGroup, EventContext, EventHubSource, GroupStore, LOG_FILTER, OwnerId, Processor,
    each_event, event_handler_fn,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    tracing_subscriber::fmt().with_env_filter(LOG_FILTER).with_writer(std::io::stderr).init();
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [namespace, event_hub, container_url] = &arguments[..] else {
        return Err("usage: entra NAMESPACE.servicebus.windows.net EVENT_HUB CONTAINER_URL".into());
    };

    // In Azure: ManagedIdentityCredential, or WorkloadIdentityCredential in a pod.
    let credential = DeveloperToolsCredential::new(None)?;
    let group = ConsumerGroup::new(namespace, event_hub, ConsumerGroup::DEFAULT_NAME)?;
    let source = EventHubSource::from_credential(&group, credential.clone()).connect().await?;
    let container = AzureContainer::from_credential(container_url, credential)?;
    let store = GroupStore::connect(container, group, OwnerId::random()?).await?;

    let handler = each_event(event_handler_fn(|event: Arc<ReceivedEventData>, partition: EventContext| async move {
        let body = String::from_utf8_lossy(event.event_data().body().unwrap_or_default());
        println!("partition {}: {body}", partition.partition_id());
        Ok(())
    }));
    Processor::builder(source, store, handler).run_until_signal().await?;
    Ok(())
}
