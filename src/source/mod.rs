//! The port between the processor and an event hub, for other sources than [`EventHubSource`](crate::EventHubSource):
//! implement [`EventSource`].
//!
//! The port returns `impl Future` instead of boxed futures, because a processor has one source whose type is known. A
//! [`BlobContainer`](crate::blob::BlobContainer) is used as a trait object, so its futures are boxed.

pub(crate) mod batch;
mod event;
pub(crate) mod offset_format;
pub(crate) mod positions;
pub(crate) mod properties;
pub(crate) mod receiver;

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, PartitionId};
use crate::util::panic_message;

pub(crate) use event::undecodable_number;
pub use event::{Positioned, TraceContext, undecodable};
pub(crate) use offset_format::{BEFORE_EVERYTHING, OffsetFormat, names_another_event};
pub(crate) use positions::resolve_start;
pub use properties::{EventHubProperties, Lag, LagState, PartitionProperties};
pub(crate) use properties::{is_of_former_hub, whole_seconds};
#[cfg(feature = "eventhubs")]
pub(crate) use receiver::BatchLimit;
pub use receiver::{EventReceiver, EventSender, StopSignal};

/// The epoch with which the processor opens a partition that this instance may not own. The epochs of owners are
/// greater.
pub(crate) const NO_EPOCH: i64 = 0;

/// How long the event hub may take to respond to a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a receiver may take to close. A late close does no harm: the broker admits the next reader anyway.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Where to start reading a partition that has no checkpoint, or for which the application
/// [chooses a position](crate::processor::Handler::start_position).
///
/// The processor resolves the start to a position when it first owns the partition, and records this position before it
/// reads from there. From then on the recorded position counts, also for an instance with another start setting: "five
/// seconds ago" is a different position after every restart, but a restart must skip nothing. For some starts the
/// processor first opens receivers to find one event.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::time::OffsetDateTime;
/// use eventhubs_checkpoint::{ProcessorConfig, StartPosition};
///
/// let an_hour_ago = OffsetDateTime::now_utc() - Duration::from_secs(3600);
/// let config = ProcessorConfig::default()
///     .with_start_position(StartPosition::EnqueuedAfter(an_hour_ago))
///     .with_start_position_of(3.into(), StartPosition::Latest);
/// # let _ = config;
/// ```
#[doc(alias = "seek")]
#[doc(alias = "EventPosition")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StartPosition {
    /// At the first available event.
    Earliest,
    /// After the last event; skips all existing events.
    Latest,
    /// After the event with this sequence number. The processor starts after the last event if that has a smaller
    /// number, and at the first event if the number has expired.
    AfterSequenceNumber(i64),
    /// After the event with this offset. If the last event has a smaller offset, and both offsets are plain numbers,
    /// the processor starts after the last event.
    AfterOffset(String),
    /// At the first event enqueued after this time, which must not be before 1970. If there is no such event yet, the
    /// processor starts after the last event, also for a time in the future.
    EnqueuedAfter(#[serde(with = "time::serde::rfc3339")] OffsetDateTime),
}

impl StartPosition {
    /// Rejects times before 1970: no event hub holds events from before, and the official client panics at such a time.
    pub(crate) fn check_time(&self, setter: &str) -> Result<()> {
        match self {
            Self::EnqueuedAfter(time) if *time < OffsetDateTime::UNIX_EPOCH => Err(Error::config(format!(
                "{setter} is {time}, but no event was enqueued before 1970: use `StartPosition::Earliest`"
            ))),
            _ => Ok(()),
        }
    }
}

/// The last event of a partition that a processor with an end processes: see
/// [`ProcessorConfig::with_end_position`](crate::processor::ProcessorConfig::with_end_position).
///
/// Events that have expired, and events that the event hub reports and no link delivers for ten minutes, are not
/// awaited.
#[doc(alias = "endingOffsets")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndPosition {
    /// The last event that the event hub has when this instance starts to process the partition.
    Latest,
    /// The event with this sequence number, or the last one before it if the partition does not have it anymore. An
    /// event that does not exist yet is awaited.
    SequenceNumber(i64),
    /// The last event before the first one that was enqueued after this time. If the time has not come, the processor
    /// waits for it, and then a minute longer, because clocks differ.
    EnqueuedUntil(#[serde(with = "time::serde::rfc3339")] OffsetDateTime),
}

/// An event hub, accessed through one client. Every instance has its own source.
///
/// # Errors
///
/// - [`ErrorKind::Config`] if a retry cannot help, because the event hub or the consumer group does not exist. It ends
///   the processor.
/// - [`ErrorKind::Fenced`] if the broker has given the partition to another reader, or rejects the receiver because of
///   another reader.
/// - [`undecodable`] if the source cannot decode an event: [`OnUndecodable`](crate::processor::OnUndecodable)
///   determines what follows.
/// - Any other error: the processor retries.
pub trait EventSource: Send + Sync + 'static {
    /// The type of its events.
    type Event: Positioned + Send + Sync + 'static;

    /// Returns the consumer group that the source reads for, if the source knows it. The store must keep the records of
    /// the same consumer group. Default: unknown.
    fn consumer_group(&self) -> Option<&ConsumerGroup> {
        None
    }

    /// Reads the name and the partitions of the event hub.
    fn event_hub_properties(&self) -> impl Future<Output = Result<EventHubProperties>> + Send;

    /// Reads the range of events in a partition.
    fn partition_properties(&self, partition: &PartitionId)
    -> impl Future<Output = Result<PartitionProperties>> + Send;

    /// Starts to read a partition. The receiver may hold at most `prefetch` events that the processor has not taken.
    ///
    /// `epoch` is the epoch of the ownership for which the partition is read. It is strictly greater than the epoch of
    /// every earlier ownership of the partition, on any instance. Within one ownership all receivers have the same
    /// epoch, also a receiver that only finds the event to start at. A broker can use the epoch to reject a previous
    /// owner. Sources may ignore it.
    ///
    /// `epoch` is 0 if this instance may not own the partition. The processor then looks for one event, to record where
    /// the partition starts. Such a receiver must not displace the receiver of the owner. If the broker rejects it for
    /// that reason ([`ErrorKind::Fenced`]), the processor relies on the start that the owner
    /// has recorded, and otherwise retries.
    fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> impl Future<Output = Result<EventReceiver<Self::Event>>> + Send;

    /// Checks, before anything starts, whether the partition can be read: for instance, whether the consumer group
    /// exists. Default: checks nothing.
    fn check_access(&self, partition: &PartitionId) -> impl Future<Output = Result<()>> + Send {
        let _ = partition;
        async { Ok(()) }
    }

    /// Reports that the receiver of the partition delivers nothing although the event hub has newer events. The
    /// processor is about to reopen it. A source whose receivers share a connection may consider the connection broken.
    /// Default: does nothing.
    fn connection_suspect(&self, partition: &PartitionId) {
        let _ = partition;
    }

    /// Closes the client. All receivers are closed before. Default: does nothing.
    fn close(self) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized,
    {
        async { Ok(()) }
    }
}

/// Returns the outcome of a request to the event source. A panic and a timeout are errors, which protects the processor
/// from its source.
pub(crate) async fn guard_request<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(REQUEST_TIMEOUT, catch_panic(request)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::EventSource, format!("the event hub did not respond within {REQUEST_TIMEOUT:?}")))
    })
}

/// Returns the outcome of a request to the event source. A panic is an error.
async fn catch_panic<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(request).catch_unwind().await.unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

/// Does the same for one poll. Results that the poll wrote before the panic remain.
fn catch_panic_in<T>(poll: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(poll)).map_err(|panic| panic_error(&*panic))
}

fn panic_error(panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::EventSource, format!("the event source panicked: {}", panic_message(panic)))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// It is not the storage, whose failures have waits of their own.
    #[tokio::test(start_paused = true)]
    async fn a_silent_event_hub_is_a_failure_of_the_source() {
        let error = guard_request(pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EventSource);
    }
}
