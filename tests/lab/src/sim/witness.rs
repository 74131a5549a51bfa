//! Sees every write that the container accepts, and by whom.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Answer, Blob, BlobContainer, BlobList, Condition, ContainerCreation, Metadata, Written,
};
use eventhubs_checkpoint::{Error, ErrorKind, Result};

use super::observer::Observer;

/// More than a request to a container in memory waits for.
const TURNS: usize = 8;

/// The container as one life reaches it.
#[derive(Clone)]
pub(super) struct Witness {
    pub(super) inner: Arc<dyn BlobContainer>,
    pub(super) observer: Observer,
    pub(super) life: usize,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").field("life", &self.life).finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for Witness {
    async fn list(&self, prefix: &str) -> Result<BlobList> {
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<Written> {
        let (witness, name) = (self.clone(), name.to_owned());
        let (metadata, condition) = (metadata.clone(), condition.clone());
        // What has arrived is applied and told, whatever becomes of its sender.
        let applied = tokio::spawn(async move {
            let written = at_once(witness.inner.write(&name, &metadata, &condition)).await?;
            witness.observer.lock().written(witness.life, &name, &metadata, &condition);
            Ok(written)
        });
        applied.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unknown, "the simulated server failed").with_source(error))
        })
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<Answer> {
        self.inner.delete(name, condition).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn isolated(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}

/// A write that waits for nothing but its turn, without letting anybody else have theirs: nobody sees it before it is told.
async fn at_once<T>(write: impl Future<Output = T>) -> T {
    let mut write = pin!(write);
    poll_fn(|context| {
        let turn = (0..TURNS).map(|_| write.as_mut().poll(context)).find(Poll::is_ready);
        turn.unwrap_or(Poll::Pending)
    })
    .await
}
