//! The records of this crate, through an existing client of `azure_storage_blobs` 0.21.
//!
//! `cargo run --features legacy-sdk --example legacy_sdk` runs against an Azurite that it starts.

use std::sync::Arc;

use azure_storage::{CloudLocation, ConnectionString};
use azure_storage_blobs::prelude::{BlobServiceClient, ClientBuilder};
use eventhubs_checkpoint::blob::legacy::{self, LegacyContainer};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

mod support;

use support::azurite;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let text = azurite::shared().await?.connection_string();
    let settings = ConnectionString::new(&text)?;
    let credentials = settings.storage_credentials()?;
    let location = CloudLocation::Custom {
        account: settings.account_name.ok_or("no account")?.to_owned(),
        uri: settings.blob_endpoint.ok_or("no endpoint")?.to_owned(),
    };

    // The application creates its client as before. Only the options are new: with them the client keeps its
    // connections and does not retry, because only the caller knows what a lost response may mean.
    let connect = move || -> BlobServiceClient {
        ClientBuilder::with_location(location.clone(), credentials.clone())
            .client_options(legacy::client_options())
            .blob_service_client()
    };
    let application = connect();

    // A balancer renews leases on its own runtime, where it needs its own connections.
    let container = LegacyContainer::builder(application.container_client("leases"))
        .with_client_factory(move || connect().container_client("leases"))
        .build()?;

    // The store does not depend on the backend: a `Processor` works as with any other.
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    let store = GroupStore::builder(Arc::new(container), group, OwnerId::new("worker-1")?)
        .with_config(StoreConfig::default().with_create_container(true))
        .connect()
        .await?;
    for (partition, outcome) in store.claim_all((0..4).map(|id| Claim::unowned(id.into())).collect()).await {
        println!("partition {partition} claimed: {}", matches!(outcome, ClaimOutcome::Won(_)));
    }

    // The application can still use its client.
    let properties = application.container_client("leases").get_properties().await?;
    println!("container {} was last changed at {}", properties.container.name, properties.container.last_modified);
    Ok(())
}
