//! A container that answers every request, after the same time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use tokio::time::sleep;

use crate::intercepted::{Intercept, Intercepted};

/// How long each request takes. A change concerns the requests that begin after it.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Mutex<Duration>>);

impl Latency {
    pub fn set(&self, latency: Duration) {
        *self.0.lock().unwrap() = latency;
    }

    async fn pass(&self) {
        let latency = *self.0.lock().unwrap();
        sleep(latency).await;
    }

    /// Returns a container on `inner` with this latency.
    pub fn before(&self, inner: Arc<dyn BlobContainer>) -> Arc<dyn BlobContainer> {
        Arc::new(Intercepted { inner, interceptor: self.clone() })
    }
}

#[async_trait]
impl Intercept for Latency {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        self.pass().await;
        inner.list(prefix).await
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        self.pass().await;
        inner.get(name).await
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        self.pass().await;
        inner.write(name, metadata, condition).await
    }

    async fn delete(&self, inner: &dyn BlobContainer, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.pass().await;
        inner.delete(name, etag).await
    }

    fn with_new_connections(&self, inner: &dyn BlobContainer) -> Result<Arc<dyn BlobContainer>> {
        Ok(self.before(inner.with_new_connections()?))
    }
}
