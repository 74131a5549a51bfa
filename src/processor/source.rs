//! Where events come from: the port of the processor towards the event hub.

use std::future::Future;
use std::time::Duration;

use serde::Deserialize;
use time::OffsetDateTime;
use tokio::time::timeout;

use super::panics::caught;
use super::positioned::Positioned;
use super::properties::PartitionProperties;
use super::receiver::EventReceiver;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, PartitionId};

/// The epoch with which the processor opens a partition that this instance may not own. Those of ownerships are
/// greater.
pub(crate) const NO_EPOCH: i64 = 0;

/// How long the hub may take to answer a request.
const HUB_DEADLINE: Duration = Duration::from_secs(30);

/// Where to start reading a partition.
///
/// The processor resolves the start of a partition without a checkpoint to a position when it first owns the partition,
/// and records this position before it reads from there. From then on the record counts, also for an instance with
/// another start: a start such as "five seconds ago" means another place after every restart, but a restart skips
/// nothing. For some starts the processor opens links first, to look for one event.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StartPosition {
    /// At the first event there is.
    Earliest,
    /// After the last event there is: only new ones.
    Latest,
    /// After the event with this sequence number. The processor starts after the last event if that has a smaller
    /// number, and at the first event if the number has expired.
    AfterSequenceNumber(i64),
    /// After the event with this offset. If both are plain numbers, the processor starts after the last event if that
    /// has a smaller offset.
    AfterOffset(String),
    /// At the first event enqueued after this time, which must not be before 1970. If there is none yet, the processor
    /// starts after the last event, also for a time in the future.
    EnqueuedAfter(#[serde(with = "time::serde::rfc3339")] OffsetDateTime),
}

impl StartPosition {
    /// No hub holds events that were enqueued before 1970, and the official client panics at such a time.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::EnqueuedAfter(time) if *time < OffsetDateTime::UNIX_EPOCH => Err(Error::config(format!(
                "the start position is {time}, but no event was enqueued before 1970: use StartPosition::Earliest"
            ))),
            _ => Ok(()),
        }
    }
}

/// What the processor wants to know of an event hub.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventHubProperties {
    /// The name of the event hub.
    pub event_hub: String,
    /// Its partitions now. Their number may grow.
    pub partitions: Vec<PartitionId>,
}

impl EventHubProperties {
    /// The name of an event hub and its partitions.
    #[must_use]
    pub fn new(event_hub: impl Into<String>, partitions: Vec<PartitionId>) -> Self {
        Self { event_hub: event_hub.into(), partitions }
    }
}

/// An event hub, through one client. Every instance has its own.
///
/// # Errors
///
/// [`ErrorKind::Config`](crate::ErrorKind::Config) where retrying cannot help (no such hub, no such consumer group): it
/// ends the processor. [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) where the broker gave the partition to another
/// reader, or refuses it because of another reader. Anything else is tried again.
pub trait EventSource: Send + Sync + 'static {
    /// What it yields.
    type Event: Positioned + Send + 'static;

    /// The consumer group that it reads for, if the source knows it. The store must keep the records of the same one.
    fn consumer_group(&self) -> Option<&ConsumerGroup> {
        None
    }

    /// Reads the hub's name and partitions.
    fn event_hub_properties(&self) -> impl Future<Output = Result<EventHubProperties>> + Send;

    /// Reads what is in a partition.
    fn partition_properties(&self, partition: &PartitionId)
    -> impl Future<Output = Result<PartitionProperties>> + Send;

    /// Starts to read a partition, holding at most `prefetch` events ahead of the processor.
    ///
    /// `epoch` is the epoch of the ownership for which the partition is read: strictly greater than that of every
    /// earlier tenure of the partition, on any instance. Every open of a tenure has the same epoch, also one that only
    /// looks for the event to start at. A broker can use the epoch to refuse an owner that was displaced. Sources may
    /// ignore it.
    ///
    /// `epoch` is 0 if this instance may not own the partition. The processor then looks for one event, to record
    /// where the partition starts. Such an open must not displace the reader of the owner. If the broker refuses it
    /// for that reason ([`ErrorKind::Fenced`](crate::ErrorKind::Fenced)), the processor relies on the start that the
    /// owner has recorded, and otherwise tries again.
    fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> impl Future<Output = Result<EventReceiver<Self::Event>>> + Send;

    /// Finds out before anything starts whether the partition could be read: whether the consumer group exists.
    fn check_access(&self, partition: &PartitionId) -> impl Future<Output = Result<()>> + Send {
        let _ = partition;
        async { Ok(()) }
    }

    /// The processor found the partition's link silent although the hub has newer events, and is about to open it
    /// again. A source that shares a connection among links may take it for dead. By default nothing happens.
    fn connection_suspect(&self, partition: &PartitionId) {
        let _ = partition;
    }

    /// Ends the client, when all receivers are closed.
    fn close(self) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized,
    {
        async { Ok(()) }
    }
}

/// The outcome of a request to the event source, which may neither take for ever nor panic.
pub(super) async fn caught_request<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(HUB_DEADLINE, caught(request)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, format!("the event hub did not respond within {HUB_DEADLINE:?}")))
    })
}
