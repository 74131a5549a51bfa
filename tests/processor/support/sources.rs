//! Sources over a hub in memory: one with scripted faults, and one that counts its requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition, undecodable,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use super::SECOND;
use crate::world::{Instance, World};

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
    /// While set, requests for partition properties take 20 s.
    pub partitions_slow: Arc<AtomicBool>,
    /// Refuses all start positions except the earliest.
    pub earliest_only: bool,
    /// Refuses all starts after a sequence number.
    pub numbers_refused: bool,
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
    /// Number of the next links that break before they deliver anything.
    pub broken_links: Arc<AtomicUsize>,
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

/// Counts down. Returns the count before, or `None` if it was 0.
fn count_down(left: &AtomicUsize) -> Option<usize> {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok()
}

pub struct ScriptedSource {
    hub: MemorySource,
    faults: SourceFaults,
}

impl ScriptedSource {
    pub fn new(hub: &MemoryHub, faults: SourceFaults) -> Self {
        Self { hub: hub.source(), faults }
    }

    fn reported(&self, properties: &PartitionProperties) -> PartitionProperties {
        let first = (properties.beginning_sequence_number() - self.faults.first_too_low).max(0);
        let mut last = properties.last_enqueued().cloned();
        if let Some(last) = last.as_mut().filter(|_| count_down(&self.faults.stale_reports).is_some()) {
            last.sequence_number -= 1;
            last.offset = (last.sequence_number * 10).to_string();
        }
        let reported = PartitionProperties::new(first, last, properties.is_empty());
        match properties.last_enqueued_at() {
            Some(time) if !self.faults.times_unknown => reported.with_last_enqueued_at(time),
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
        if count_down(&self.faults.hub_failures).is_some() {
            return Err(requested_error(ErrorKind::EventSource));
        }
        if self.faults.hub_unresponsive { std::future::pending().await } else { self.hub.event_hub_properties().await }
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        if self.faults.partitions_slow.load(Ordering::Relaxed) {
            sleep(20 * SECOND).await;
        }
        let unavailable = self.faults.partitions_unavailable.load(Ordering::Relaxed).then_some(ErrorKind::EventSource);
        match self.faults.partition_error.or(unavailable) {
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
        let is_refused = self.faults.earliest_only && from != StartPosition::Earliest
            || self.faults.numbers_refused && matches!(from, StartPosition::AfterSequenceNumber(_));
        if is_refused {
            return Err(requested_error(ErrorKind::InvalidPosition));
        }
        if count_down(&self.faults.broken_links).is_some() {
            let error = requested_error(ErrorKind::EventSource);
            return Ok(EventReceiver::new(move |_| stream::iter([Err(error)])));
        }
        if count_down(&self.faults.mute_links).is_some() {
            return Ok(EventReceiver::spawn(1, |sender| async move { sender.closed().await }));
        }
        if let Some(events) = self.faults.always_ready {
            let events = stream::iter(0..events).map(|number| Ok(MemoryEvent::new(number, "ready")));
            return Ok(EventReceiver::new(move |_| events.chain(stream::pending())));
        }
        if count_down(&self.faults.undecodable_links).is_some() {
            let error = undecodable(self.faults.undecodable_number, "on request");
            return Ok(EventReceiver::new(move |_| stream::iter([Err(error)])));
        }
        if let Some(how) = count_down(&self.faults.panics) {
            return Ok(panicking(how));
        }
        let from = match self.faults.always_starts_at.clone().unwrap_or(from) {
            StartPosition::AfterSequenceNumber(last)
                if self.faults.lacks == Some(last + 1) || count_down(&self.faults.late_starts).is_some() =>
            {
                StartPosition::AfterSequenceNumber(last + 1)
            }
            StartPosition::Earliest if count_down(&self.faults.skip_first).is_some() => {
                StartPosition::AfterSequenceNumber(0)
            }
            from => from,
        };
        self.hub.open_receiver(partition, from, prefetch, epoch).await
    }

    async fn check_access(&self, _: &PartitionId) -> Result<()> {
        if count_down(&self.faults.check_failures).is_some() {
            return Err(requested_error(ErrorKind::EventSource));
        }
        if self.faults.check_unresponsive { std::future::pending().await } else { Ok(()) }
    }
}

/// Starts an instance on a source with these faults.
pub async fn start_scripted(world: &World, owner: &str, faults: SourceFaults) -> Instance {
    world.start_with(owner, ScriptedSource::new(&world.hub, faults), world.recorder(owner)).await
}

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
