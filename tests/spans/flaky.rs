//! An event source whose requests can fail, and whose end always fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition,
};
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
    Error::new(ErrorKind::EventSource, "broken")
}

impl EventSource for Flaky {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.check()?;
        self.inner.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.check()?;
        self.inner.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        self.inner.open_receiver(partition, from, prefetch, epoch).await
    }

    async fn close(self) -> Result<()> {
        Err(broken())
    }
}
