//! A container whose answers somebody meddles with.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Answer, Blob, BlobContainer, BlobList, Condition, ContainerCreation, Metadata, Written,
};

/// What to do to requests and answers; nothing, unless said.
#[async_trait]
pub trait Meddle: Send + Sync + 'static {
    /// With a listing that was just made.
    async fn listed(&self, list: BlobList) -> BlobList {
        list
    }

    /// Between a read and the use of its answer.
    async fn read(&self) {}

    /// With the condition of a write, or the write itself.
    fn condition(&self, condition: &Condition) -> Result<Condition> {
        Ok(condition.clone())
    }
}

pub struct Meddled<M> {
    pub inner: Arc<dyn BlobContainer>,
    pub meddler: M,
}

impl<M> fmt::Debug for Meddled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meddled").field(&self.inner).finish()
    }
}

#[async_trait]
impl<M: Meddle> BlobContainer for Meddled<M> {
    async fn list(&self, prefix: &str) -> Result<BlobList> {
        Ok(self.meddler.listed(self.inner.list(prefix).await?).await)
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        let blob = self.inner.get(name).await;
        self.meddler.read().await;
        blob
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<Written> {
        self.inner.write(name, metadata, &self.meddler.condition(condition)?).await
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<Answer> {
        self.inner.delete(name, condition).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn isolated(&self) -> Result<Arc<dyn BlobContainer>> {
        self.inner.isolated()
    }
}
