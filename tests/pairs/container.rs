//! The container of one instance. Records the accepted checkpoints in the ledger.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};

use crate::ledger::Ledger;

#[derive(Clone)]
pub struct RecordingContainer {
    pub inner: Arc<MemoryContainer>,
    pub ledger: Ledger,
    pub incarnation: usize,
}

impl fmt::Debug for RecordingContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingContainer").finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for RecordingContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let written = self.inner.write(name, metadata, condition).await?;
        if let Some((_, partition)) = name.split_once("/checkpoint/") {
            self.ledger.lock().checkpoint(self.incarnation, partition.parse().unwrap(), metadata);
        }
        Ok(written)
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.inner.delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}
