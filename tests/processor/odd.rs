//! A source over a hub in memory that does otherwise where it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use eventhubs_checkpoint::processor::{EventReceiver, EventSource, HubProperties, PartitionProperties, StartPosition};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use futures::stream;

/// What goes wrong. Nothing, unless said.
#[derive(Clone, Debug, Default)]
pub struct Oddities {
    /// Never tells of the hub.
    pub silent_hub: bool,
    /// Never tells whether the consumer group exists.
    pub silent_check: bool,
    /// Tells nothing of partitions, but this.
    pub partitions_fail: Option<ErrorKind>,
    /// The same, for as long as it is set.
    pub partitions_unknown: Arc<AtomicBool>,
    /// Refuses to start anywhere but at the beginning.
    pub earliest_only: bool,
    /// So many of the next links begin an event too late.
    pub begin_late: Arc<AtomicUsize>,
    /// So many of the next openings panic, or their links do: when they are read, or when they are closed.
    pub panics: Arc<AtomicUsize>,
    /// All links begin here, wherever they are opened.
    pub begins_at: Option<StartPosition>,
    /// The hub lacks this event, and says nothing of it.
    pub lacks: Option<i64>,
}

pub struct Odd {
    hub: MemorySource,
    oddities: Oddities,
}

impl Odd {
    pub fn new(hub: &MemoryHub, oddities: Oddities) -> Self {
        Self { hub: hub.source(), oddities }
    }
}

fn told(kind: ErrorKind) -> Error {
    Error::new(kind, "told to fail")
}

/// Panics at once, or has a link that does.
fn panicking(how: usize) -> EventReceiver<MemoryEvent> {
    assert_ne!(how % 3, 0, "told to panic");
    let mut polled = 0;
    EventReceiver::new(move |_| {
        stream::poll_fn(move |_| {
            polled += 1;
            assert!(how % 3 == 2 && polled == 1, "told to panic");
            Poll::Ready(Some(Err(told(ErrorKind::Source))))
        })
    })
}

impl EventSource for Odd {
    type Event = MemoryEvent;

    async fn hub(&self) -> Result<HubProperties> {
        if self.oddities.silent_hub { std::future::pending().await } else { self.hub.hub().await }
    }

    async fn partition(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        let unknown = self.oddities.partitions_unknown.load(Ordering::Relaxed).then_some(ErrorKind::Source);
        match self.oddities.partitions_fail.or(unknown) {
            Some(kind) => Err(told(kind)),
            None => self.hub.partition(partition).await,
        }
    }

    async fn open(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
    ) -> Result<EventReceiver<MemoryEvent>> {
        if self.oddities.earliest_only && from != StartPosition::Earliest {
            return Err(told(ErrorKind::InvalidPosition));
        }
        let fewer = |left: usize| left.checked_sub(1);
        if let Ok(left) = self.oddities.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            return Ok(panicking(left));
        }
        let from = match self.oddities.begins_at.clone().unwrap_or(from) {
            StartPosition::AfterSequenceNumber(last)
                if self.oddities.lacks == Some(last + 1)
                    || self.oddities.begin_late.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() =>
            {
                StartPosition::AfterSequenceNumber(last + 1)
            }
            from => from,
        };
        self.hub.open(partition, from, prefetch).await
    }

    async fn check(&self, _: &PartitionId) -> Result<()> {
        if self.oddities.silent_check { std::future::pending().await } else { Ok(()) }
    }
}
