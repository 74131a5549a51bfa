//! A source over a hub in memory that does otherwise where it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use eventhubs_checkpoint::processor::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use futures::stream;

/// What goes wrong. Nothing, unless said.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each can go wrong by itself")]
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
    /// So many of the next links that are opened at the earliest event begin with the second one.
    pub skip_first: Arc<AtomicUsize>,
    /// So many of the next openings panic, or their links do: when they are read, or when they are closed.
    pub panics: Arc<AtomicUsize>,
    /// All links begin here, wherever they are opened.
    pub begins_at: Option<StartPosition>,
    /// The hub lacks this event, and says nothing of it.
    pub lacks: Option<i64>,
    /// So many of the next links deliver nothing.
    pub mute: Arc<AtomicUsize>,
    /// Does not report when the last event of a partition was enqueued.
    pub times_unknown: bool,
    /// In so many of the next reports on a partition the last event is missing.
    pub stale: Arc<AtomicUsize>,
    /// Reports as the first event of a partition one that is so far before it.
    pub first_behind: i64,
    /// So many of the next requests for the hub fail, and then so many checks.
    pub hub_busy: Arc<AtomicUsize>,
    pub check_busy: Arc<AtomicUsize>,
}

/// Counts down. False if it was at 0.
fn counts(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

pub struct Odd {
    hub: MemorySource,
    oddities: Oddities,
}

impl Odd {
    pub fn new(hub: &MemoryHub, oddities: Oddities) -> Self {
        Self { hub: hub.source(), oddities }
    }

    fn reported(&self, properties: &PartitionProperties) -> PartitionProperties {
        let first = (properties.beginning_sequence_number() - self.oddities.first_behind).max(0);
        let time = properties.last_enqueued_at();
        let mut last = properties.last_enqueued().cloned();
        if let Some(last) = last.as_mut().filter(|_| counts(&self.oddities.stale)) {
            last.sequence_number -= 1;
            last.offset = (last.sequence_number * 10).to_string();
        }
        let reported = PartitionProperties::new(first, last, properties.is_empty());
        match time {
            Some(time) if !self.oddities.times_unknown => reported.with_last_enqueued_at(time),
            _ => reported,
        }
    }
}

fn told(kind: ErrorKind) -> Error {
    Error::new(kind, "failed on request")
}

/// Panics at once, or has a link that does.
fn panicking(how: usize) -> EventReceiver<MemoryEvent> {
    assert_ne!(how % 3, 0, "panicked on request");
    let mut polled = 0;
    EventReceiver::new(move |_| {
        stream::poll_fn(move |_| {
            polled += 1;
            assert!(how % 3 == 2 && polled == 1, "panicked on request");
            Poll::Ready(Some(Err(told(ErrorKind::EventSource))))
        })
    })
}

impl EventSource for Odd {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        if counts(&self.oddities.hub_busy) {
            return Err(told(ErrorKind::EventSource));
        }
        if self.oddities.silent_hub { std::future::pending().await } else { self.hub.event_hub_properties().await }
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        let unknown = self.oddities.partitions_unknown.load(Ordering::Relaxed).then_some(ErrorKind::EventSource);
        match self.oddities.partitions_fail.or(unknown) {
            Some(kind) => Err(told(kind)),
            None => Ok(self.reported(&self.hub.partition_properties(partition).await?)),
        }
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        if self.oddities.earliest_only && from != StartPosition::Earliest {
            return Err(told(ErrorKind::InvalidPosition));
        }
        if counts(&self.oddities.mute) {
            return Ok(EventReceiver::spawn(1, |sender| async move { sender.closed().await }));
        }
        let fewer = |left: usize| left.checked_sub(1);
        if let Ok(left) = self.oddities.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            return Ok(panicking(left));
        }
        let from = match self.oddities.begins_at.clone().unwrap_or(from) {
            StartPosition::AfterSequenceNumber(last)
                if self.oddities.lacks == Some(last + 1) || counts(&self.oddities.begin_late) =>
            {
                StartPosition::AfterSequenceNumber(last + 1)
            }
            StartPosition::Earliest if counts(&self.oddities.skip_first) => StartPosition::AfterSequenceNumber(0),
            from => from,
        };
        self.hub.open_receiver(partition, from, prefetch, epoch).await
    }

    async fn check_access(&self, _: &PartitionId) -> Result<()> {
        if counts(&self.oddities.check_busy) {
            return Err(told(ErrorKind::EventSource));
        }
        if self.oddities.silent_check { std::future::pending().await } else { Ok(()) }
    }
}
