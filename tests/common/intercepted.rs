//! A container whose requests and responses a test intercepts.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};

/// Decides what happens to a request to `inner`: by default it is made and its response returned.
#[async_trait]
pub trait Intercept: Send + Sync + 'static {
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

    async fn delete(&self, inner: &dyn BlobContainer, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        inner.delete(name, etag).await
    }

    async fn create_container(&self, inner: &dyn BlobContainer) -> Result<ContainerCreation> {
        inner.create_container().await
    }

    fn with_new_connections(&self, inner: &dyn BlobContainer) -> Result<Arc<dyn BlobContainer>> {
        inner.with_new_connections()
    }
}

pub struct Intercepted<M> {
    pub inner: Arc<dyn BlobContainer>,
    pub interceptor: M,
}

impl<M> fmt::Debug for Intercepted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Intercepted").field(&self.inner).finish()
    }
}

#[async_trait]
impl<M: Intercept> BlobContainer for Intercepted<M> {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.interceptor.list(&self.inner, prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.interceptor.get(&self.inner, name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        self.interceptor.write(&self.inner, name, metadata, condition).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.interceptor.delete(&self.inner, name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.interceptor.create_container(&self.inner).await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        self.interceptor.with_new_connections(&self.inner)
    }
}
