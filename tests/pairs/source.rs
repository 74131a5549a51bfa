//! The hub, with the time at which each event was enqueued.

use std::time::Duration;

use eventhubs_checkpoint::processor::{EventReceiver, EventSource, HubProperties, PartitionProperties, StartPosition};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use eventhubs_checkpoint::{PartitionId, Result};
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::ledger::Ledger;

/// The hub's clock.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    /// When it showed [`EPOCH`].
    pub began: Instant,
}

/// The beginning of 2026, as at the hub in memory.
const EPOCH: i64 = 1_767_225_600;

impl Calendar {
    /// What the clock showed so long ago.
    pub fn ago(self, time: Duration) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(EPOCH).unwrap() + self.began.elapsed() - time
    }

    fn moment(self, shown: OffsetDateTime) -> Instant {
        let since = shown - OffsetDateTime::from_unix_timestamp(EPOCH).unwrap();
        self.began + Duration::try_from(since).unwrap_or_default()
    }
}

/// A client of the hub.
#[derive(Clone)]
pub struct TimedSource {
    pub inner: MemorySource,
    pub ledger: Ledger,
    pub calendar: Calendar,
}

impl EventSource for TimedSource {
    type Event = MemoryEvent;

    async fn hub(&self) -> Result<HubProperties> {
        self.inner.hub().await
    }

    async fn partition(&self, id: &PartitionId) -> Result<PartitionProperties> {
        self.inner.partition(id).await
    }

    async fn open(&self, id: &PartitionId, from: StartPosition, prefetch: usize) -> Result<EventReceiver<MemoryEvent>> {
        let from = match from {
            StartPosition::EnqueuedAfter(time) => {
                let partition = id.as_str().parse().unwrap();
                let first = self.ledger.lock().first_after(partition, self.calendar.moment(time));
                StartPosition::AfterSequenceNumber(first - 1)
            }
            from => from,
        };
        self.inner.open(id, from, prefetch).await
    }
}
