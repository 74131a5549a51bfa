//! A source over a hub in memory that counts its requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use tokio::time::Instant;

/// Counts the requests for properties. While it is busy, it rejects those of partitions.
#[derive(Clone)]
pub struct Counted {
    source: MemorySource,
    pub requests: Arc<Requests>,
}

pub struct Requests {
    began: Instant,
    of_hub: AtomicUsize,
    pub of_partitions: AtomicUsize,
    per_second: Mutex<BTreeMap<u64, usize>>,
    /// How many links were opened.
    pub links: AtomicUsize,
    busy: AtomicBool,
}

impl Requests {
    fn count(&self, kind: &AtomicUsize) {
        kind.fetch_add(1, Ordering::Relaxed);
        *self.per_second.lock().unwrap().entry(self.began.elapsed().as_secs()).or_default() += 1;
    }

    /// Returns how many requests came in the busiest of the last seconds.
    pub fn most_per_second(&self, seconds: u64) -> usize {
        let since = self.began.elapsed().as_secs() - seconds;
        self.per_second.lock().unwrap().range(since..).map(|(_, requests)| *requests).max().unwrap_or_default()
    }
}

impl Counted {
    pub fn new(hub: &MemoryHub) -> Self {
        let requests = Requests {
            began: Instant::now(),
            of_hub: AtomicUsize::default(),
            of_partitions: AtomicUsize::default(),
            per_second: Mutex::default(),
            links: AtomicUsize::default(),
            busy: AtomicBool::default(),
        };
        Self { source: hub.source(), requests: Arc::new(requests) }
    }

    pub fn of_hub(&self) -> usize {
        self.requests.of_hub.load(Ordering::Relaxed)
    }

    pub fn set_busy(&self, busy: bool) {
        self.requests.busy.store(busy, Ordering::Relaxed);
    }
}

impl EventSource for Counted {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.requests.count(&self.requests.of_hub);
        self.source.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.requests.count(&self.requests.of_partitions);
        if self.requests.busy.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Throttled { retry_after: None }, "busy on request"));
        }
        self.source.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        self.requests.links.fetch_add(1, Ordering::Relaxed);
        self.source.open_receiver(partition, from, prefetch, epoch).await
    }
}
