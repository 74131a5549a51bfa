//! An event hub in memory, for tests of handlers and of the processor.
//!
//! A new reader of a partition displaces the previous one, as at the broker. Tests can cause what goes wrong at a
//! broker: links that break, stall or restart, events that expire, a hub that is recreated. Consumer groups and epochs
//! of readers are not modeled.

mod event;
mod link;
mod log;
mod partition;
#[cfg(feature = "eventhubs")]
mod received;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::clock::{SystemWallClock, WallClock, is_paused};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::source::{EventHubProperties, EventReceiver, EventSource, PartitionProperties};
use crate::source::{Positioned, StartPosition};
use crate::testing::EmptiedReport;
use crate::util::lock;
use event::BEGINNING;
pub use event::{MemoryEvent, NewEvent, PropertyValue};
use link::Link;
use log::{Content, Log};
use partition::{Control, Partition};

/// An event hub in memory. Clones are the same hub. Calls with the number of a missing partition have no effect.
#[derive(Clone, Debug)]
pub struct MemoryHub {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    /// The beginning of the hub's clock.
    began: Instant,
    began_at: OffsetDateTime,
    created_at: Mutex<OffsetDateTime>,
    partitions: Mutex<Vec<Arc<Partition>>>,
    rejects_positions: AtomicBool,
    emptied: Mutex<EmptiedReport>,
}

impl MemoryHub {
    /// Creates a hub with this many empty partitions, numbered from 0.
    #[must_use]
    pub fn new(name: impl Into<String>, partitions: u32) -> Self {
        let began_at = if is_paused() { BEGINNING } else { SystemWallClock.now() };
        let inner = Inner {
            name: name.into(),
            began: Instant::now(),
            began_at,
            created_at: Mutex::new(began_at),
            partitions: Mutex::default(),
            rejects_positions: AtomicBool::new(false),
            emptied: Mutex::default(),
        };
        let hub = Self { inner: Arc::new(inner) };
        hub.grow_to(partitions);
        hub
    }

    /// Adds partitions until there are this many.
    pub fn grow_to(&self, partitions: u32) {
        let mut known = self.partitions();
        while known.len() < partitions as usize {
            known.push(Arc::default());
        }
    }

    /// Returns the time at which an event would be enqueued now. It follows tokio's clock, so a paused runtime stops
    /// it. It starts at the local time, or on 2026-01-01 under paused time, like the clock of a
    /// [`MemoryContainer`](crate::blob::memory::MemoryContainer).
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.inner.began_at + self.inner.began.elapsed()
    }

    /// Appends an event and returns its sequence number, or `None` if there is no such partition.
    pub fn publish(&self, partition: u32, event: impl Into<NewEvent>) -> Option<i64> {
        Some(self.publish_many(partition, 1, event)?.start)
    }

    /// Appends this many events with the same content at once, and returns their sequence numbers, or `None` if there
    /// is no such partition.
    pub fn publish_many(&self, partition: u32, copies: usize, event: impl Into<NewEvent>) -> Option<Range<i64>> {
        let partition = self.partition(&partition.into())?;
        let mut log = partition.log();
        let numbers = log.append(copies, &event.into(), self.now());
        partition.end.send_replace(numbers.end);
        Some(numbers)
    }

    /// Appends an event that no reader can decode, and returns its sequence number, or `None` if there is no such
    /// partition. A link ends at it with [`ErrorKind::Undecodable`], after the events before it, and without its
    /// number, as with the official client.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn publish_undecodable(&self, partition: u32) -> Option<i64> {
        let partition = self.partition(&partition.into())?;
        let mut log = partition.log();
        let number = log.append(1, &NewEvent::new(""), self.now()).start;
        log.set_content(number, Content::Undecodable);
        partition.end.send_replace(number + 1);
        Some(number)
    }

    /// Removes the event with this sequence number, as the compaction of an event hub does: it is not delivered
    /// anymore, but if it is the last one, the partition still reports its number as the end. Returns whether it
    /// existed.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn remove_event(&self, partition: u32, sequence_number: i64) -> bool {
        let partition = self.partition(&partition.into());
        partition.is_some_and(|partition| partition.log().set_content(sequence_number, Content::Removed))
    }

    /// Breaks the link of the partition's reader. A reader that opens the partition again continues.
    pub fn break_link(&self, partition: u32) {
        self.control(partition, |control| control.breaks += 1);
    }

    /// Stalls the link of the partition's reader: it delivers nothing more, without an error, although publishing
    /// continues. The stall lasts until the link is reopened, or until a call with `false`.
    pub fn stall_link(&self, partition: u32, stalled: bool) {
        self.control(partition, |control| control.stalled = stalled.then_some(control.reader));
    }

    /// Makes the link of the partition's reader deliver everything from its *original* start again, as the official
    /// client does after it has reattached on its own.
    pub fn reattach(&self, partition: u32) {
        self.control(partition, |control| control.reattached += 1);
    }

    /// Expires the events before this sequence number. A reader that starts before it starts with it. A number beyond
    /// the last event, such as `i64::MAX`, empties the partition.
    pub fn expire_before(&self, partition: u32, sequence_number: i64) {
        if let Some(partition) = self.partition(&partition.into()) {
            partition.log().expire_before(sequence_number);
        }
    }

    /// Returns when the hub was created or recreated.
    #[must_use]
    pub fn created_at(&self) -> OffsetDateTime {
        *lock(&self.inner.created_at)
    }

    /// Deletes the hub and creates it again with the same name: all partitions are empty, sequence numbers start at 0
    /// again, the links break, and [`created_at`](Self::created_at) is now.
    pub fn recreate(&self) {
        *lock(&self.inner.created_at) = self.now();
        for partition in self.partitions().iter() {
            partition.control.send_modify(|control| {
                control.breaks += 1;
                let mut log = partition.log();
                *log = Log::default();
                partition.end.send_replace(0);
            });
        }
    }

    /// Sets whether the hub rejects a start after an event that does not exist yet, with
    /// [`ErrorKind::InvalidPosition`], as Event Hubs does. Otherwise a reader waits there without an error, as at other
    /// brokers. Default false.
    pub fn reject_positions(&self, reject: bool) {
        self.inner.rejects_positions.store(reject, Ordering::Relaxed);
    }

    /// Sets the first sequence number that emptied partitions report from now on.
    pub fn report_emptied(&self, report: EmptiedReport) {
        *lock(&self.inner.emptied) = report;
    }

    /// Returns a client of this hub.
    #[must_use]
    pub fn source(&self) -> MemorySource {
        self.source_of()
    }

    /// Returns a client of this hub whose events have another type, so that the same handler works in tests and in
    /// production. With feature `eventhubs`, a [`MemoryEvent`] converts into the event of the official client, with
    /// everything that a [`NewEvent`] has:
    ///
    /// ```
    /// # #[cfg(feature = "eventhubs")] {
    /// use azure_messaging_eventhubs::models::ReceivedEventData;
    /// use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
    ///
    /// let source = MemoryHub::new("orders", 4).source_of::<ReceivedEventData>();
    /// # let _ = source;
    /// # }
    /// ```
    #[must_use]
    pub fn source_of<E: From<MemoryEvent>>(&self) -> MemorySource<E> {
        MemorySource { hub: self.clone(), event: PhantomData }
    }

    fn partitions(&self) -> MutexGuard<'_, Vec<Arc<Partition>>> {
        lock(&self.inner.partitions)
    }

    fn partition(&self, id: &PartitionId) -> Option<Arc<Partition>> {
        let index: usize = id.as_str().parse().ok()?;
        self.partitions().get(index).cloned()
    }

    fn control(&self, partition: u32, change: impl FnOnce(&mut Control)) {
        if let Some(partition) = self.partition(&partition.into()) {
            partition.control.send_modify(change);
        }
    }
}

/// An [`EventSource`] over a [`MemoryHub`].
#[derive(Clone, Debug)]
pub struct MemorySource<E = MemoryEvent> {
    hub: MemoryHub,
    event: PhantomData<fn() -> E>,
}

impl<E> MemorySource<E> {
    /// Returns the same as [`MemoryHub::now`].
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.hub.now()
    }

    fn existing(&self, id: &PartitionId) -> Result<Arc<Partition>> {
        let missing = || Error::config(format!("hub {} has no partition {id}", self.hub.inner.name));
        self.hub.partition(id).ok_or_else(missing)
    }
}

impl<E: From<MemoryEvent> + Positioned + Send + Sync + 'static> EventSource for MemorySource<E> {
    type Event = E;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        let count = self.hub.partitions().len();
        let partitions = (0u32..).take(count).map(PartitionId::from).collect();
        Ok(EventHubProperties::new(self.hub.inner.name.clone(), partitions).with_created_at(self.hub.created_at()))
    }

    async fn partition_properties(&self, id: &PartitionId) -> Result<PartitionProperties> {
        let emptied = *lock(&self.hub.inner.emptied);
        Ok(self.existing(id)?.log().properties(emptied))
    }

    async fn open_receiver(
        &self,
        id: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        _epoch: i64,
    ) -> Result<EventReceiver<E>> {
        let partition = self.existing(id)?;
        let (next, end) = partition.log().start(&from)?;
        if next > end && self.hub.inner.rejects_positions.load(Ordering::Relaxed) {
            let message = format!("partition {id} cannot be read {from:?}: its next event will be {end}");
            return Err(Error::new(ErrorKind::InvalidPosition, message));
        }
        let (link, changes) = Link::attach(partition, from, next);
        Ok(EventReceiver::spawn(prefetch, move |sender| link.forward(changes, sender)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    fn hub_with(events: usize) -> MemoryHub {
        let hub = MemoryHub::new("hub", 1);
        assert_eq!(hub.publish_many(0, events, "x"), Some(0..i64::try_from(events).unwrap()));
        hub
    }

    async fn open(hub: &MemoryHub, from: StartPosition) -> Result<EventReceiver<MemoryEvent>> {
        hub.source().open_receiver(&0.into(), from, 4, 1).await
    }

    async fn earliest(hub: &MemoryHub) -> EventReceiver<MemoryEvent> {
        open(hub, StartPosition::Earliest).await.unwrap()
    }

    /// Returns the sequence numbers of the next events, up to the given number, or fewer if no more events arrive.
    async fn numbers(receiver: &mut EventReceiver<MemoryEvent>, events: usize) -> Vec<i64> {
        let mut numbers = Vec::new();
        while numbers.len() < events {
            let Ok(batch) = timeout(SOON, receiver.next_batch(events - numbers.len())).await else { break };
            numbers.extend(batch.unwrap().iter().map(|event| event.sequence_number));
        }
        numbers
    }

    async fn failure(receiver: &mut EventReceiver<MemoryEvent>) -> ErrorKind {
        loop {
            if let Err(error) = receiver.next_batch(100).await {
                return error.kind();
            }
        }
    }

    async fn properties(hub: &MemoryHub) -> (i64, Option<i64>) {
        let properties = hub.source().partition_properties(&0.into()).await.unwrap();
        (properties.beginning_sequence_number(), properties.last_enqueued().map(|last| last.sequence_number))
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_arrive_in_order() {
        let hub = hub_with(1_000);
        let mut receiver = earliest(&hub).await;
        assert_eq!(numbers(&mut receiver, 1_000).await, (0..1_000).collect::<Vec<_>>());
        assert_eq!(hub.publish(0, "y"), Some(1_000));
        assert_eq!(receiver.next_batch(9).await.unwrap(), [MemoryEvent::new(1_000, "y")]);
        assert_eq!(hub.publish_many(7, 3, "x"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn reading_starts_at_the_given_position() {
        let hub = hub_with(5);
        for (from, expected) in [
            (StartPosition::Earliest, vec![0, 1, 2, 3, 4]),
            (StartPosition::Latest, vec![]),
            (StartPosition::AfterSequenceNumber(2), vec![3, 4]),
            (StartPosition::AfterSequenceNumber(i64::MIN), vec![0, 1, 2, 3, 4]),
            (StartPosition::AfterOffset("20".into()), vec![3, 4]),
            (StartPosition::AfterOffset("-1".into()), vec![0, 1, 2, 3, 4]),
        ] {
            let mut receiver = open(&hub, from.clone()).await.unwrap();
            assert_eq!(numbers(&mut receiver, 5).await, expected, "{from:?}");
        }
        assert!(open(&hub, StartPosition::AfterOffset("x".into())).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn start_by_time_is_the_first_event_enqueued_later() {
        let hub = hub_with(2);
        let first = hub.now();
        tokio::time::advance(SOON).await;
        hub.publish_many(0, 3, "x");
        for (time, expected) in [
            (first - SOON, vec![0, 1, 2, 3, 4]),
            (first, vec![2, 3, 4]),
            (hub.now(), vec![]),
            (hub.now() + SOON, vec![]),
        ] {
            let mut receiver = open(&hub, StartPosition::EnqueuedAfter(time)).await.unwrap();
            assert_eq!(numbers(&mut receiver, 5).await, expected, "{time}");
        }
        let last_enqueued_at = first + SOON;
        hub.expire_before(0, 100);
        let emptied = hub.source().partition_properties(&0.into()).await.unwrap();
        assert_eq!(emptied.last_enqueued_at(), Some(last_enqueued_at), "expired events count");
        hub.recreate();
        assert_eq!(hub.source().partition_properties(&0.into()).await.unwrap().last_enqueued_at(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn expired_events_are_skipped() {
        let hub = hub_with(6);
        let mut slow = earliest(&hub).await;
        assert_eq!(numbers(&mut slow, 1).await, [0]);
        hub.expire_before(0, 100);
        assert_eq!(properties(&hub).await, (6, Some(5)));
        hub.publish_many(0, 3, "x");
        hub.expire_before(0, 7);
        hub.expire_before(0, 2);
        assert_eq!(properties(&hub).await, (7, Some(8)));
        assert_eq!(numbers(&mut slow, 5).await, [1, 2, 3, 7, 8], "three were prefetched");
        let mut late = open(&hub, StartPosition::AfterSequenceNumber(2)).await.unwrap();
        assert_eq!(numbers(&mut late, 2).await, [7, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn recreated_hub_counts_from_0_and_breaks_links() {
        let hub = hub_with(3);
        let mut receiver = earliest(&hub).await;
        assert_eq!(numbers(&mut receiver, 3).await, [0, 1, 2]);
        hub.recreate();
        assert_eq!(failure(&mut receiver).await, ErrorKind::EventSource);
        assert_eq!(properties(&hub).await, (0, None));
        assert_eq!(hub.publish(0, "x"), Some(0));
        assert_eq!(numbers(&mut earliest(&hub).await, 1).await, [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_link_delivers_nothing_until_reopened() {
        let hub = hub_with(2);
        let mut receiver = earliest(&hub).await;
        assert_eq!(numbers(&mut receiver, 2).await, [0, 1]);
        hub.stall_link(0, true);
        hub.publish_many(0, 3, "x");
        assert!(numbers(&mut receiver, 1).await.is_empty());
        let mut again = open(&hub, StartPosition::AfterSequenceNumber(1)).await.unwrap();
        assert_eq!(numbers(&mut again, 3).await, [2, 3, 4]);
        hub.stall_link(0, true);
        hub.publish(0, "x");
        assert!(numbers(&mut again, 1).await.is_empty());
        hub.stall_link(0, false);
        assert_eq!(numbers(&mut again, 1).await, [5]);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_link_can_be_displaced() {
        let hub = hub_with(0);
        let mut receiver = earliest(&hub).await;
        hub.stall_link(0, true);
        let _other = earliest(&hub).await;
        assert_eq!(failure(&mut receiver).await, ErrorKind::Fenced);
    }

    #[tokio::test(start_paused = true)]
    async fn reattached_link_restarts_at_its_original_start() {
        let hub = hub_with(5);
        let mut receiver = open(&hub, StartPosition::AfterSequenceNumber(1)).await.unwrap();
        assert_eq!(numbers(&mut receiver, 3).await, [2, 3, 4]);
        hub.reattach(0);
        hub.publish(0, "x");
        assert_eq!(numbers(&mut receiver, 4).await, [2, 3, 4, 5]);
        hub.break_link(0);
        assert_eq!(failure(&mut receiver).await, ErrorKind::EventSource);
    }

    #[tokio::test(start_paused = true)]
    async fn start_beyond_the_end_is_rejected_or_waits() {
        let hub = hub_with(3);
        let beyond = StartPosition::AfterSequenceNumber(3);
        let mut waiting = open(&hub, beyond.clone()).await.unwrap();
        hub.publish_many(0, 2, "x");
        assert_eq!(numbers(&mut waiting, 2).await, [4], "3 is not after 3");
        hub.reject_positions(true);
        for from in [StartPosition::AfterSequenceNumber(5), StartPosition::AfterOffset("50".into())] {
            assert_eq!(open(&hub, from).await.unwrap_err().kind(), ErrorKind::InvalidPosition);
        }
        for from in [beyond, StartPosition::AfterSequenceNumber(4), StartPosition::Latest, StartPosition::Earliest] {
            assert!(open(&hub, from).await.is_ok());
        }
    }
}
