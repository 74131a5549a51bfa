//! A custom `BlobContainer`: a folder, for instances on one machine. `cargo test --example own_container` runs the
//! conformance suite on it.

use std::fs;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
    validate_metadata,
};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Result};

#[path = "own_container/files.rs"]
mod files;

use files::{Folder, unknown_outcome};

#[async_trait]
impl BlobContainer for Folder {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.run_request(|request| {
            let mut names = request.list_names()?;
            names.retain(|name| name.starts_with(prefix));
            names.sort();
            let blobs = names.iter().map(|name| request.read(name)).collect::<Result<_>>()?;
            Ok(ListResult::new(blobs, request.response))
        })
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.run_request(|request| request.read(name))
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        validate_metadata(metadata)?;
        self.run_request(|request| {
            request.check(name, condition)?;
            let etag = request.store(name, metadata.clone())?;
            Ok(WriteResult::new(etag, request.response))
        })
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.run_request(|request| {
            request.read(name)?;
            request.check(name, &Condition::IfMatch(etag.clone()))?;
            request.remove(name)?;
            Ok(request.response)
        })
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.run_request(|_| match fs::create_dir(&self.path) {
            Ok(()) => Ok(ContainerCreation::Created),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(ContainerCreation::Existed),
            Err(error) => Err(unknown_outcome(error)),
        })
    }

    /// A folder has no connections.
    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let folder = Folder::temporary()?;
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    for owner in ["worker-1", "worker-2"] {
        let store = GroupStore::builder(Arc::new(folder.clone()), group.clone(), OwnerId::new(owner)?)
            .with_config(StoreConfig::default().with_create_container(true))
            .connect()
            .await?;
        let (partition, outcome) = store.claim_all(vec![Claim::unowned(0.into())]).await.remove(0);
        println!("{owner} claimed partition {partition}: {}", matches!(outcome, ClaimOutcome::Won(_)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    eventhubs_checkpoint::conformance_tests!(Arc::new(Folder::temporary()?));
}
