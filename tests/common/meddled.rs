//! A container whose requests and answers somebody meddles with.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ListResult, Metadata, ResponseInfo, WriteResult,
};

/// What becomes of a request to `inner`: it is made and answered, unless said otherwise.
#[async_trait]
pub trait Meddle: Send + Sync + 'static {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        inner.list(prefix).await
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        inner.get(name).await
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        inner.write(name, metadata, condition).await
    }

    async fn delete(&self, inner: &dyn BlobContainer, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        inner.delete(name, condition).await
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
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.meddler.list(&self.inner, prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.meddler.get(&self.inner, name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        self.meddler.write(&self.inner, name, metadata, condition).await
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        self.meddler.delete(&self.inner, name, condition).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        self.inner.with_new_connections()
    }
}
