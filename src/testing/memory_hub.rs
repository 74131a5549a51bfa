//! An event hub in memory, for tests of handlers and of the processor: partitions that only grow, read in order.
//!
//! As at the broker, a new reader of a partition displaces the one before it. Not modelled: retention, consumer groups,
//! time.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{PartitionId, Position};
use crate::processor::{
    EventReceiver, EventSender, EventSource, HubProperties, PartitionProperties, Positioned, StartPosition,
};

/// An event of a [`MemoryHub`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// Its place, counted from 0.
    pub sequence_number: i64,
    /// The sequence number times 10, as text.
    pub offset: String,
    /// What was published.
    pub body: String,
}

impl Positioned for MemoryEvent {
    fn sequence_number(&self) -> Option<i64> {
        Some(self.sequence_number)
    }

    fn offset(&self) -> Option<&str> {
        Some(&self.offset)
    }
}

/// The hub. Clones are the same hub.
#[derive(Clone, Debug)]
pub struct MemoryHub {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    partitions: Mutex<Vec<Arc<Partition>>>,
}

#[derive(Debug, Default)]
struct Partition {
    events: Mutex<Vec<MemoryEvent>>,
    /// How many events there are.
    length: watch::Sender<usize>,
    /// How many readers there have been; the last is the one that reads.
    readers: watch::Sender<u64>,
    /// How often the links were broken.
    breaks: watch::Sender<u64>,
}

impl MemoryHub {
    /// A hub with this many empty partitions, numbered from 0.
    #[must_use]
    pub fn new(name: impl Into<String>, partitions: u32) -> Self {
        let hub = Self { inner: Arc::new(Inner { name: name.into(), partitions: Mutex::default() }) };
        hub.grow_to(partitions);
        hub
    }

    /// Adds partitions until there are this many.
    pub fn grow_to(&self, partitions: u32) {
        let mut known = self.inner.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        while known.len() < partitions as usize {
            known.push(Arc::default());
        }
    }

    /// Appends an event and returns its sequence number; nothing, if there is no such partition.
    pub fn publish(&self, partition: u32, body: impl Into<String>) -> Option<i64> {
        let partition = self.partition(&partition.into())?;
        let mut events = partition.events.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence_number = i64::try_from(events.len()).unwrap_or(i64::MAX);
        let offset = (sequence_number * 10).to_string();
        events.push(MemoryEvent { sequence_number, offset, body: body.into() });
        partition.length.send_replace(events.len());
        Some(sequence_number)
    }

    /// Breaks the link of whoever reads the partition. A reader that opens it again reads on.
    pub fn break_link(&self, partition: u32) {
        if let Some(partition) = self.partition(&partition.into()) {
            partition.breaks.send_modify(|breaks| *breaks += 1);
        }
    }

    /// A client of this hub.
    #[must_use]
    pub fn source(&self) -> MemorySource {
        MemorySource { hub: self.clone() }
    }

    fn partition(&self, id: &PartitionId) -> Option<Arc<Partition>> {
        let index: usize = id.as_str().parse().ok()?;
        self.inner.partitions.lock().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }
}

/// An [`EventSource`] over a [`MemoryHub`].
#[derive(Clone, Debug)]
pub struct MemorySource {
    hub: MemoryHub,
}

impl MemorySource {
    fn existing(&self, id: &PartitionId) -> Result<Arc<Partition>> {
        let missing = || Error::config(format!("hub {} has no partition {id}", self.hub.inner.name));
        self.hub.partition(id).ok_or_else(missing)
    }
}

impl EventSource for MemorySource {
    type Event = MemoryEvent;

    async fn hub(&self) -> Result<HubProperties> {
        let count = self.hub.inner.partitions.lock().unwrap_or_else(PoisonError::into_inner).len();
        let partitions = (0u32..).take(count).map(PartitionId::from).collect();
        Ok(HubProperties { event_hub: self.hub.inner.name.clone(), partitions })
    }

    async fn partition(&self, id: &PartitionId) -> Result<PartitionProperties> {
        let partition = self.existing(id)?;
        let events = partition.events.lock().unwrap_or_else(PoisonError::into_inner);
        let last = events
            .last()
            .map(|event| Position { sequence_number: event.sequence_number, offset: event.offset.clone() });
        Ok(PartitionProperties { first_sequence_number: 0, last })
    }

    async fn open(&self, id: &PartitionId, from: StartPosition, prefetch: usize) -> Result<EventReceiver<MemoryEvent>> {
        let partition = self.existing(id)?;
        let next = partition.index_of(&from)?;
        let mut readers = partition.readers.subscribe();
        partition.readers.send_modify(|readers| *readers += 1);
        let me = *readers.borrow_and_update();
        let mut breaks = partition.breaks.subscribe();
        Ok(EventReceiver::spawn(prefetch, move |sender| async move {
            let failure = tokio::select! {
                () = forward(&partition, next, &sender) => return,
                () = sender.stopped() => return,
                _ = readers.wait_for(|readers| *readers != me) => {
                    Error::new(ErrorKind::Fenced, "another reader took the partition")
                }
                _ = breaks.changed() => Error::new(ErrorKind::Source, "the link broke"),
            };
            sender.send(Err(failure)).await;
        }))
    }
}

async fn forward(partition: &Partition, mut next: usize, sender: &EventSender<MemoryEvent>) {
    let mut length = partition.length.subscribe();
    while length.wait_for(|length| *length > next).await.is_ok() {
        let event = partition.events.lock().unwrap_or_else(PoisonError::into_inner).get(next).cloned();
        let Some(event) = event else { return };
        if !sender.send(Ok(event)).await {
            return;
        }
        next += 1;
    }
}

impl Partition {
    fn index_of(&self, from: &StartPosition) -> Result<usize> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        match from {
            StartPosition::Earliest => Ok(0),
            StartPosition::Latest => Ok(events.len()),
            StartPosition::AfterSequenceNumber(seen) => Ok(events.partition_point(|e| e.sequence_number <= *seen)),
            StartPosition::AfterOffset(offset) => {
                let seen: i64 = offset.parse().map_err(|_| Error::config(format!("offset {offset:?} is no number")))?;
                Ok(events.partition_point(|event| event.sequence_number * 10 <= seen))
            }
            StartPosition::EnqueuedAfter(_) => Err(Error::config("a hub in memory knows no time of enqueuing")),
        }
    }
}
