//! Records every write that the container accepts.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::{Error, ErrorKind, Result};

/// More polls than a request to a container in memory needs.
const TURNS: usize = 8;

/// Called with every accepted write.
type Saw = dyn Fn(&str, &Metadata) + Send + Sync;

/// A container that reports every accepted write, in the order in which the writes were applied.
#[derive(Clone)]
pub(super) struct Recorder {
    inner: Arc<dyn BlobContainer>,
    trace: Arc<Saw>,
}

impl Recorder {
    pub(super) fn new(
        inner: Arc<dyn BlobContainer>,
        trace: impl Fn(&str, &Metadata) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, trace: Arc::new(trace) })
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for Recorder {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let (recorder, name) = (self.clone(), name.to_owned());
        let (metadata, condition) = (metadata.clone(), condition.clone());
        // A write that has arrived is applied and recorded, even if its sender has ended.
        let applied = tokio::spawn(async move {
            let written = at_once(recorder.inner.write(&name, &metadata, &condition)).await?;
            (recorder.trace)(&name, &metadata);
            Ok(written)
        });
        applied.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Indeterminate, "the simulated server failed").with_source(error))
        })
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

/// Polls a write to its end without yielding to another task: no request can see it before it is recorded.
async fn at_once<T>(write: impl Future<Output = T>) -> T {
    let mut write = pin!(write);
    poll_fn(|context| {
        let turn = (0..TURNS).map(|_| write.as_mut().poll(context)).find(Poll::is_ready);
        turn.unwrap_or(Poll::Pending)
    })
    .await
}
