//! A source over a hub in memory with scripted faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition, undecodable,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use futures::{StreamExt, stream};

/// The faults. None by default.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the faults are independent")]
pub struct SourceFaults {
    /// Requests for the event hub properties never return.
    pub hub_unresponsive: bool,
    /// Checks of the consumer group never return.
    pub check_unresponsive: bool,
    /// Requests for partition properties fail with this error.
    pub partition_error: Option<ErrorKind>,
    /// While set, requests for partition properties fail.
    pub partitions_unavailable: Arc<AtomicBool>,
    /// Refuses all start positions except the earliest.
    pub earliest_only: bool,
    /// Number of the next links that start one event too late.
    pub late_starts: Arc<AtomicUsize>,
    /// Number of the next links from the earliest event that start at the second one.
    pub skip_first: Arc<AtomicUsize>,
    /// Number of the next panics: of `open`, of a link that is read, or of a link that is closed.
    pub panics: Arc<AtomicUsize>,
    /// All links start here, regardless of the requested position.
    pub always_starts_at: Option<StartPosition>,
    /// The hub lacks this event, without reporting it.
    pub lacks: Option<i64>,
    /// Number of the next links that deliver nothing.
    pub mute_links: Arc<AtomicUsize>,
    /// Number of the next links that end at once at an event that cannot be decoded, and the number that they report.
    pub undecodable_links: Arc<AtomicUsize>,
    pub undecodable_number: Option<i64>,
    /// Links deliver this many events of their own without ever being pending, and then nothing.
    pub always_ready: Option<i64>,
    /// Does not report when the last event of a partition was enqueued.
    pub times_unknown: bool,
    /// Number of the next reports on a partition that lack the last event.
    pub stale_reports: Arc<AtomicUsize>,
    /// Reported first sequence numbers are too low by this much.
    pub first_too_low: i64,
    /// Number of the next failures: first of requests for the hub, then of checks.
    pub hub_failures: Arc<AtomicUsize>,
    pub check_failures: Arc<AtomicUsize>,
}

/// Counts down. Returns false if the count was 0.
fn count_down(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

pub struct ScriptedSource {
    hub: MemorySource,
    source_faults: SourceFaults,
}

impl ScriptedSource {
    pub fn new(hub: &MemoryHub, source_faults: SourceFaults) -> Self {
        Self { hub: hub.source(), source_faults }
    }

    fn reported(&self, properties: &PartitionProperties) -> PartitionProperties {
        let first = (properties.beginning_sequence_number() - self.source_faults.first_too_low).max(0);
        let time = properties.last_enqueued_at();
        let mut last = properties.last_enqueued().cloned();
        if let Some(last) = last.as_mut().filter(|_| count_down(&self.source_faults.stale_reports)) {
            last.sequence_number -= 1;
            last.offset = (last.sequence_number * 10).to_string();
        }
        let reported = PartitionProperties::new(first, last, properties.is_empty());
        match time {
            Some(time) if !self.source_faults.times_unknown => reported.with_last_enqueued_at(time),
            _ => reported,
        }
    }
}

fn requested_error(kind: ErrorKind) -> Error {
    Error::new(kind, "failed on request")
}

/// Panics immediately, or returns a link that panics.
fn panicking(how: usize) -> EventReceiver<MemoryEvent> {
    assert_ne!(how % 3, 0, "panicked on request");
    let mut polled = 0;
    EventReceiver::new(move |_| {
        stream::poll_fn(move |_| {
            polled += 1;
            assert!(how % 3 == 2 && polled == 1, "panicked on request");
            Poll::Ready(Some(Err(requested_error(ErrorKind::EventSource))))
        })
    })
}

impl EventSource for ScriptedSource {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        if count_down(&self.source_faults.hub_failures) {
            return Err(requested_error(ErrorKind::EventSource));
        }
        if self.source_faults.hub_unresponsive {
            std::future::pending().await
        } else {
            self.hub.event_hub_properties().await
        }
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        let unknown =
            self.source_faults.partitions_unavailable.load(Ordering::Relaxed).then_some(ErrorKind::EventSource);
        match self.source_faults.partition_error.or(unknown) {
            Some(kind) => Err(requested_error(kind)),
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
        if self.source_faults.earliest_only && from != StartPosition::Earliest {
            return Err(requested_error(ErrorKind::InvalidPosition));
        }
        if count_down(&self.source_faults.mute_links) {
            return Ok(EventReceiver::spawn(1, |sender| async move { sender.closed().await }));
        }
        if let Some(events) = self.source_faults.always_ready {
            let events = stream::iter(0..events).map(|number| Ok(MemoryEvent::new(number, "ready")));
            return Ok(EventReceiver::new(move |_| events.chain(stream::pending())));
        }
        if count_down(&self.source_faults.undecodable_links) {
            let error = undecodable(self.source_faults.undecodable_number, "on request");
            return Ok(EventReceiver::new(move |_| stream::iter([Err(error)])));
        }
        let fewer = |left: usize| left.checked_sub(1);
        if let Ok(left) = self.source_faults.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            return Ok(panicking(left));
        }
        let from = match self.source_faults.always_starts_at.clone().unwrap_or(from) {
            StartPosition::AfterSequenceNumber(last)
                if self.source_faults.lacks == Some(last + 1) || count_down(&self.source_faults.late_starts) =>
            {
                StartPosition::AfterSequenceNumber(last + 1)
            }
            StartPosition::Earliest if count_down(&self.source_faults.skip_first) => {
                StartPosition::AfterSequenceNumber(0)
            }
            from => from,
        };
        self.hub.open_receiver(partition, from, prefetch, epoch).await
    }

    async fn check_access(&self, _: &PartitionId) -> Result<()> {
        if count_down(&self.source_faults.check_failures) {
            return Err(requested_error(ErrorKind::EventSource));
        }
        if self.source_faults.check_unresponsive { std::future::pending().await } else { Ok(()) }
    }
}
