//! The requests, sent by this crate.

use std::sync::Arc;

use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::blob::{BlobContainer, Condition, ETag, Metadata};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

use crate::Result;
use crate::work::{
    ACCOUNT, API_VERSION, CONSUMER_GROUP, CONTAINER, ETAG, EVENT_HUB, METADATA, NAMESPACE, OWNER, PARTITIONS, prefix,
};

/// A key with the length of Azure's account keys.
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

pub(crate) struct Azure {
    container: Arc<dyn BlobContainer>,
    prefix: String,
    metadata: Metadata,
    unchanged: Condition,
}

impl Azure {
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let access = Access::account_key(format!("http://{address}/{ACCOUNT}"), ACCOUNT, KEY, CONTAINER);
        let container = AzureContainer::builder(access).with_api_version(API_VERSION).build()?;
        let metadata = METADATA.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let unchanged = Condition::IfMatch(ETag::new(ETAG));
        Ok(Self { container: Arc::new(container), prefix: prefix(), metadata, unchanged })
    }

    pub(crate) async fn list(&self) -> Result<()> {
        let blobs = self.container.list(&self.prefix).await?.blobs;
        if blobs.len() == PARTITIONS as usize && blobs.iter().all(|blob| blob.metadata.len() == METADATA.len()) {
            return Ok(());
        }
        Err(format!("the listing has {} blobs, or some lack metadata", blobs.len()).into())
    }

    pub(crate) async fn claim(&self, partition: u32) -> Result<()> {
        self.write(partition, &Condition::Create).await
    }

    pub(crate) async fn renew(&self, partition: u32) -> Result<()> {
        self.write(partition, &self.unchanged).await
    }

    async fn write(&self, partition: u32, condition: &Condition) -> Result<()> {
        let name = format!("{}{partition}", self.prefix);
        self.container.write(&name, &self.metadata, condition).await?;
        Ok(())
    }

    /// Returns a store, which claims with its default concurrency.
    pub(crate) async fn store(&self) -> Result<GroupStore> {
        let group = ConsumerGroup::new(NAMESPACE, EVENT_HUB, CONSUMER_GROUP)?;
        Ok(GroupStore::builder(self.container.clone(), group, OwnerId::new(OWNER)?)
            .with_config(StoreConfig::default().with_verify_storage(false))
            .connect()
            .await?)
    }
}

pub(crate) async fn claim_all(store: &GroupStore) -> Result<()> {
    let outcomes = store.claim_all((0..PARTITIONS).map(|partition| Claim::unowned(partition.into())).collect()).await;
    let won = outcomes.iter().filter(|(_, outcome)| matches!(outcome, ClaimOutcome::Won(_))).count();
    if won == PARTITIONS as usize { Ok(()) } else { Err(format!("won {won} of {PARTITIONS}").into()) }
}
