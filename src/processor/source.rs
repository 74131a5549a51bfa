//! Where events come from: the port of the processor towards the event hub.

use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::batch::Gathered;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{PartitionId, Position};

/// An event that knows its place in the partition.
pub trait Positioned {
    /// Grows with every event of the partition.
    fn sequence_number(&self) -> Option<i64>;

    /// Text whose meaning only the service knows.
    fn offset(&self) -> Option<&str>;

    /// Both, if both are there.
    fn position(&self) -> Option<Position> {
        Some(Position { sequence_number: self.sequence_number()?, offset: self.offset()?.to_owned() })
    }

    /// Bytes of the body, as far as known; for the byte limit of a batch.
    fn size(&self) -> usize {
        0
    }
}

/// Where to start reading a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartPosition {
    /// At the first event there is.
    Earliest,
    /// After the last event there is: only new ones.
    Latest,
    /// After the event with this sequence number.
    AfterSequenceNumber(i64),
    /// After the event with this offset.
    AfterOffset(String),
    /// At the first event enqueued after this time.
    EnqueuedAfter(OffsetDateTime),
}

/// What the processor wants to know of an event hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubProperties {
    /// The name of the event hub.
    pub event_hub: String,
    /// Its partitions now. Their number may grow.
    pub partitions: Vec<PartitionId>,
}

/// What the processor wants to know of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionProperties {
    /// The sequence number of the first event that can still be read.
    pub first_sequence_number: i64,
    /// The place of the last event, or nothing if there never was one.
    pub last: Option<Position>,
}

impl PartitionProperties {
    /// The numbers of a start at the earliest or the latest event, as a checkpoint records them: the place *before* the
    /// first event to be read. `-1` is how the service names the place before everything.
    pub(crate) fn pin(&self, start: &StartPosition) -> Option<Position> {
        let beginning = |sequence_number| Position { sequence_number, offset: "-1".to_owned() };
        match start {
            StartPosition::Earliest => Some(beginning((self.first_sequence_number - 1).max(-1))),
            StartPosition::Latest => Some(self.last.clone().unwrap_or_else(|| beginning(-1))),
            StartPosition::AfterSequenceNumber(_) | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => {
                None
            }
        }
    }
}

/// An event hub, through one client. Every instance has its own.
///
/// # Errors
///
/// [`ErrorKind::Config`] where retrying cannot help (no such hub, no such consumer group): it ends the processor.
/// [`ErrorKind::Fenced`] where the broker gave the partition to another reader. Anything else is tried again.
pub trait EventSource: Send + Sync + 'static {
    /// What it yields.
    type Event: Positioned + Send + 'static;

    /// Reads the hub's name and partitions.
    fn hub(&self) -> impl Future<Output = Result<HubProperties>> + Send;

    /// Reads what is in a partition.
    fn partition(&self, partition: &PartitionId) -> impl Future<Output = Result<PartitionProperties>> + Send;

    /// Starts to read a partition, holding at most `prefetch` events ahead of the processor.
    fn open(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
    ) -> impl Future<Output = Result<EventReceiver<Self::Event>>> + Send;

    /// Finds out before anything starts whether the partition could be read: whether the consumer group exists.
    fn check(&self, partition: &PartitionId) -> impl Future<Output = Result<()>> + Send {
        let _ = partition;
        async { Ok(()) }
    }

    /// Ends the client, when all receivers are closed.
    fn close(self) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized,
    {
        async { Ok(()) }
    }
}

/// The forwarding end of a receiver: what a source's own task writes to.
#[derive(Debug)]
pub struct EventSender<E> {
    events: mpsc::Sender<Result<E>>,
}

impl<E> EventSender<E> {
    /// Hands on an event or the error that ends the reading; waits while the processor is busy. False: nobody wants any
    /// more, close the link.
    pub async fn send(&self, event: Result<E>) -> bool {
        let Ok(room) = self.events.reserve().await else { return false };
        room.send(event);
        true
    }

    /// Hands on several events at once, in their order; waits while the processor is busy. False: nobody wants any more,
    /// close the link.
    pub async fn send_all(&self, events: Vec<E>) -> bool {
        let mut events = events.into_iter();
        while events.len() > 0 {
            // More than there is room for would wait until all of them fit.
            let room = self.events.capacity().clamp(1, events.len());
            let Ok(permits) = self.events.reserve_many(room).await else { return false };
            permits.zip(&mut events).for_each(|(permit, event)| permit.send(Ok(event)));
        }
        true
    }

    /// Waits until the processor takes more, and answers how many events at once. 0: nobody wants any more.
    pub async fn room(&self) -> usize {
        match self.events.reserve().await {
            Ok(_permit) => self.events.capacity() + 1,
            Err(_) => 0,
        }
    }

    /// Ready when nobody wants any more.
    pub async fn stopped(&self) {
        self.events.closed().await;
    }
}

/// Reads one partition. The source's own task forwards into a bounded channel, for the streams of clients often borrow
/// what made them. Dropping the receiver makes that task close the link, too, but nobody waits for it.
#[derive(Debug)]
pub struct EventReceiver<E> {
    events: mpsc::Receiver<Result<E>>,
    /// Told after the events before it.
    pub(super) failure: Option<Error>,
    pub(super) gathered: Gathered<E>,
    forwarding: JoinHandle<()>,
}

impl<E: Send + 'static> EventReceiver<E> {
    /// Starts a task that forwards events until [`EventSender::stopped`], and closes its link then.
    pub fn spawn<F>(prefetch: usize, forward: impl FnOnce(EventSender<E>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, events) = mpsc::channel(prefetch.max(1));
        let forwarding = tokio::spawn(forward(EventSender { events: sender }));
        Self { events, failure: None, gathered: Gathered::default(), forwarding }
    }

    /// Waits for the next event and returns it with those that are here already, at most `limit`.
    ///
    /// # Errors
    ///
    /// What the source reported, after all events before it; [`ErrorKind::Source`] if it just ended.
    pub async fn next_batch(&mut self, limit: usize) -> Result<Vec<E>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let limit = limit.max(1);
        let mut received = Vec::with_capacity(self.events.len().clamp(1, limit));
        if self.events.recv_many(&mut received, limit).await == 0 {
            return Err(Error::new(ErrorKind::Source, "the event source ended"));
        }
        // Collected in place: events are large, and a second vector of them costs more than all else here.
        let mut failure = None;
        let until_failure = received.into_iter().map_while(|event| event.map_err(|error| failure = Some(error)).ok());
        let events: Vec<E> = until_failure.collect();
        match failure {
            Some(failure) if events.is_empty() => Err(failure),
            failure => {
                self.failure = failure;
                Ok(events)
            }
        }
    }

    /// Stops reading and waits until the link is closed, at most for `limit`.
    pub async fn close(self, limit: Duration) {
        let Self { events, mut forwarding, .. } = self;
        drop(events);
        if timeout(limit, &mut forwarding).await.is_err() {
            forwarding.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(first: i64, last: Option<i64>) -> PartitionProperties {
        let last = last.map(|sequence_number| Position { sequence_number, offset: format!("o{sequence_number}") });
        PartitionProperties { first_sequence_number: first, last }
    }

    #[test]
    fn a_start_is_pinned_to_the_place_before_the_first_event_to_be_read() {
        let pin = |properties: PartitionProperties, start| {
            properties.pin(&start).map(|position| (position.sequence_number, position.offset))
        };
        let at = |number, offset: &str| Some((number, offset.to_owned()));
        assert_eq!(pin(properties(0, None), StartPosition::Earliest), at(-1, "-1"));
        assert_eq!(pin(properties(7, Some(9)), StartPosition::Earliest), at(6, "-1"));
        assert_eq!(pin(properties(0, None), StartPosition::Latest), at(-1, "-1"));
        assert_eq!(pin(properties(7, Some(9)), StartPosition::Latest), at(9, "o9"));
        assert_eq!(pin(properties(7, Some(9)), StartPosition::AfterSequenceNumber(8)), None);
    }

    #[tokio::test]
    async fn events_before_an_error_come_before_it() {
        let mut receiver = EventReceiver::spawn(8, |sender| async move {
            for number in 0..3 {
                sender.send(Ok(number)).await;
            }
            sender.send(Err(Error::new(ErrorKind::Source, "broken"))).await;
        });
        (&mut receiver.forwarding).await.unwrap();
        assert_eq!(receiver.next_batch(2).await.unwrap(), [0, 1]);
        assert_eq!(receiver.next_batch(2).await.unwrap(), [2]);
        assert_eq!(receiver.next_batch(2).await.unwrap_err().to_string(), "broken");
    }

    #[tokio::test]
    async fn many_events_at_once_wait_for_room_and_keep_their_order() {
        let mut receiver = EventReceiver::spawn(3, |sender| async move {
            assert_eq!(sender.room().await, 3);
            assert!(sender.send(Ok(0)).await);
            assert_eq!(sender.room().await, 2);
            assert!(sender.send_all((1..10).collect()).await);
            sender.stopped().await;
            assert_eq!(sender.room().await, 0);
            assert!(!sender.send_all(vec![10]).await);
        });
        let mut numbers = Vec::new();
        while numbers.len() < 10 {
            let batch = receiver.next_batch(100).await.unwrap();
            assert!(batch.len() <= 3, "more than the prefetch was held");
            numbers.extend(batch);
        }
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        drop(receiver.events);
        receiver.forwarding.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn closing_stops_the_forwarding_task_and_does_not_wait_for_ever() {
        let receiver = EventReceiver::<()>::spawn(1, |sender| async move { sender.stopped().await });
        receiver.close(Duration::from_secs(1)).await;
        let deaf = EventReceiver::<()>::spawn(1, |_sender| std::future::pending());
        deaf.close(Duration::from_secs(1)).await;
    }
}
