//! An event source whose requests can fail, and whose end always fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eventhubs_checkpoint::processor::{EventReceiver, EventSource, HubProperties, PartitionProperties, StartPosition};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};

pub struct Flaky {
    pub inner: MemorySource,
    pub fails: Arc<AtomicBool>,
}

impl Flaky {
    fn check(&self) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) { Err(broken()) } else { Ok(()) }
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Source, "broken")
}

impl EventSource for Flaky {
    type Event = MemoryEvent;

    async fn hub(&self) -> Result<HubProperties> {
        self.check()?;
        self.inner.hub().await
    }

    async fn partition(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.check()?;
        self.inner.partition(partition).await
    }

    async fn open(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        self.inner.open(partition, from, prefetch, epoch).await
    }

    async fn close(self) -> Result<()> {
        Err(broken())
    }
}
