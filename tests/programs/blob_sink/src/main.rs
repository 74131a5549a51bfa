//! Writes each batch into a blob, in an account whose name is a secret.

use std::sync::Arc;

use azure_core::http::{RequestContent, Url};
use azure_identity::DeveloperToolsCredential;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_security_keyvault_secrets::SecretClient;
use azure_storage_blob::BlobContainerClient;
use eventhubs_checkpoint::{
    AzureContainer, ConsumerGroup, EventHubSource, GroupStore, OwnerId, PartitionContext, Processor, handler_fn,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let credential = DeveloperToolsCredential::new(None)?;
    let secrets = SecretClient::new("https://example.vault.azure.net", credential.clone(), None)?;
    let account = secrets.get_secret("account", None).await?.into_model()?.value.unwrap_or_default();
    let url = Url::parse(&format!("https://{account}.blob.core.windows.net/archive"))?;
    let archive = Arc::new(BlobContainerClient::new(url, Some(credential.clone()), None)?);

    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    let container = AzureContainer::from_credential(
        format!("https://{account}.blob.core.windows.net/checkpoints"),
        credential.clone(),
    )?;
    let store = GroupStore::connect(container, group.clone(), OwnerId::random()?).await?;
    let source = EventHubSource::from_credential(&group, credential).connect().await?;
    let handler = handler_fn(move |events: Vec<ReceivedEventData>, partition: PartitionContext| {
        let archive = archive.clone();
        async move {
            let Some(last) = events.last() else { return Ok(()) };
            let bodies: Vec<u8> =
                events.iter().flat_map(|event| event.event_data().body().unwrap_or_default().to_vec()).collect();
            let name = format!("{}/{}", partition.partition_id(), last.sequence_number().unwrap_or_default());
            archive.blob_client(&name).upload(RequestContent::from(bodies), None).await?;
            partition.checkpoint(last);
            Ok(())
        }
    });
    Processor::builder(source, store, handler).run_until_signal().await?;
    Ok(())
}
