//! Reads an event hub with the credential that also reads a secret.

use azure_identity::DeveloperToolsCredential;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_security_keyvault_secrets::SecretClient;
use eventhubs_checkpoint::{
    AzureContainer, ConsumerGroup, EventHubSource, GroupStore, OwnerId, PartitionContext, Processor, handler_fn,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let credential = DeveloperToolsCredential::new(None)?;
    let secrets = SecretClient::new("https://example.vault.azure.net", credential.clone(), None)?;
    let key = secrets.get_secret("key", None).await?.into_model()?.value.unwrap_or_default();

    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    let container =
        AzureContainer::from_credential("https://example.blob.core.windows.net/checkpoints", credential.clone())?;
    let store = GroupStore::connect(container, group.clone(), OwnerId::random()?).await?;
    let source = EventHubSource::from_credential(&group, credential).connect().await?;
    let handler = handler_fn(move |events: Vec<ReceivedEventData>, partition: PartitionContext| {
        println!("{} events, and a key of {} bytes", events.len(), key.len());
        events.iter().for_each(|event| partition.checkpoint(event));
        std::future::ready(Ok(()))
    });
    Processor::builder(source, store, handler).run_until_signal().await?;
    Ok(())
}
