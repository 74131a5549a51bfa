//! A `BlobContainer` of your own: a folder, for instances on one machine, and held to the conformance suite by
//! `cargo test --example own_container`.

use std::sync::Arc;
use std::{fs, io};

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ListResult, Metadata, ResponseInfo, WriteResult,
    normalize_metadata,
};
use eventhubs_checkpoint::store::{Claim, ClaimOutcome, GroupStore};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, Result};

#[path = "own_container/files.rs"]
mod files;

use files::{Folder, broken};

#[async_trait]
impl BlobContainer for Folder {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.request(|turn| {
            let mut names = turn.names()?;
            names.retain(|name| name.starts_with(prefix));
            names.sort();
            let blobs = names.iter().map(|name| turn.read(name)).collect::<Result<_>>()?;
            Ok(ListResult::new(blobs, turn.answer))
        })
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.request(|turn| turn.read(name))
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let metadata = normalize_metadata(metadata)?;
        self.request(|turn| {
            turn.check(name, condition)?;
            let etag = turn.store(name, metadata)?;
            Ok(WriteResult::new(etag, turn.answer.server_time, turn.answer))
        })
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        if *condition == Condition::Create {
            return Err(Error::new(ErrorKind::Rejected, "a deletion cannot create"));
        }
        self.request(|turn| {
            turn.read(name)?;
            turn.check(name, condition)?;
            turn.remove(name)?;
            Ok(turn.answer)
        })
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.request(|_| match fs::create_dir(&self.path) {
            Ok(()) => Ok(ContainerCreation::Created),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(ContainerCreation::Existed),
            Err(error) => Err(broken(error)),
        })
    }

    /// There are no connections to keep apart.
    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let folder = Folder::temporary()?;
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    for owner in ["worker-1", "worker-2"] {
        let builder = GroupStore::builder(Arc::new(folder.clone()), group.clone(), OwnerId::new(owner)?);
        let store = builder.with_create_container(true).connect().await?;
        let (partition, outcome) = store.claim_all(vec![Claim::unowned(0.into())]).await.remove(0);
        println!("{owner} has partition {partition}: {}", matches!(outcome, ClaimOutcome::Won(_)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    eventhubs_checkpoint::conformance_tests!(Arc::new(Folder::temporary()?));
}
