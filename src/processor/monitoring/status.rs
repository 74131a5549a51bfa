//! The status of a partition: its state, its progress and its lag at one time.

use std::time::Duration;

use serde::Serialize;

use super::ErrorSummary;
use crate::model::{PartitionId, Pause};
use crate::processor::checkpoints::pending::HeldCheckpoint;
use crate::source::Lag;

/// What the processor does with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum PartitionState {
    /// It takes over the checkpoint.
    Adopting,
    /// The handler's `started` is running.
    Starting,
    /// It opens the receiver.
    Opening,
    /// It waits for events, and has received all events of the event hub that it knows of.
    Idle,
    /// It waits for events, although the event hub has newer ones. It reopens the receiver if this continues.
    LinkStalled,
    /// The handler has a batch, or is asked about an event that cannot be decoded.
    Handling,
    /// A call of the handler, or an attempt at a [single event](crate::processor::each_event), has taken longer than
    /// [`stall_timeout`](crate::balancer::BalancerConfig::stall_timeout).
    HandlerStalled,
    /// [`max_in_flight`](crate::processor::ProcessorConfig::max_in_flight) events, or
    /// [`max_in_flight_bytes`](crate::processor::ProcessorConfig::max_in_flight_bytes), are in flight, and none was
    /// finished for longer than `stall_timeout`.
    InFlightFull,
    /// It is paused: by the application, or by the [pause](PartitionStatus::pause) in its checkpoint.
    Paused,
    /// It failed, and waits before the next attempt.
    Failing,
    /// The handler failed, and the partition stays stopped until the application or an operator resumes it.
    Parked,
    /// It is stopping.
    Stopping,
}

impl PartitionState {
    /// All states, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::Adopting,
        Self::Starting,
        Self::Opening,
        Self::Idle,
        Self::LinkStalled,
        Self::Handling,
        Self::HandlerStalled,
        Self::InFlightFull,
        Self::Paused,
        Self::Failing,
        Self::Parked,
        Self::Stopping,
    ];

    /// Returns the name in metrics and in serialized form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adopting => "adopting",
            Self::Starting => "starting",
            Self::Opening => "opening",
            Self::Idle => "idle",
            Self::LinkStalled => "link_stalled",
            Self::Handling => "handling",
            Self::HandlerStalled => "handler_stalled",
            Self::InFlightFull => "in_flight_full",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Parked => "parked",
            Self::Stopping => "stopping",
        }
    }
}

impl From<PartitionState> for &'static str {
    fn from(state: PartitionState) -> Self {
        state.as_str()
    }
}

/// The status of one partition that this instance owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The partition.
    pub partition: PartitionId,
    /// What the processor does with it.
    pub state: PartitionState,
    /// How long it has been in this state. If the handler is stalled: how long the call has taken.
    #[serde(serialize_with = "crate::util::serialize_seconds")]
    pub state_for: Duration,
    /// The sequence number of the last event that the handler has processed: of the last batch that it accepted, or in
    /// the current or a failed batch the one up to which it has requested a checkpoint or finished all tracked events.
    pub handled: Option<i64>,
    /// The sequence number of the last durable checkpoint.
    pub checkpoint: Option<i64>,
    /// The sequence number of the last event in the event hub, as of the last lag check.
    pub last_enqueued: Option<i64>,
    /// How many events wait to be processed.
    pub lag: Lag,
    /// The age of the oldest unprocessed event, as of the last lag check; 0 if none waits. It is an upper bound: the
    /// shortest time since the first event of the handler's batch was enqueued, since the last processed event was
    /// enqueued, or since the last lag check whose events are all processed. If none of these is known, it is the time
    /// since this instance won the partition, or since the partition started elsewhere because the checkpoint was
    /// invalid. It grows while lag checks fail. `None` without lag checks, and before the first one.
    #[serde(rename = "seconds_behind", serialize_with = "crate::util::serialize_optional_seconds")]
    pub behind: Option<Duration>,
    /// How many events are tracked and not finished.
    pub in_flight: usize,
    /// What the events in flight wait for, if [`each_event`](crate::processor::each_event) processes them concurrently.
    pub events: Option<EventCounts>,
    /// How many failures it has had since this instance won it: of the handler, of the receiver, or of taking over the
    /// checkpoint.
    pub failures: u64,
    /// How many events it moved to the [dead letters](crate::processor::ProcessorBuilder::with_dead_letters) since this
    /// instance won it.
    pub dead_letters: u64,
    /// How many events it skipped since this instance won it, because the source cannot decode them; see
    /// [`OnUndecodable::Skip`](crate::processor::OnUndecodable).
    pub undecodable: u64,
    /// Why and until when it is paused, if its checkpoint shows that; see
    /// [`Operator::pause`](crate::admin::Operator::pause). `None` for a pause of this instance only.
    pub pause: Option<Pause>,
    /// The last error; `None` once a batch was handled after it.
    pub last_error: Option<ErrorSummary>,
}

/// How many of the events in flight are in each state; see [`each_event`](crate::processor::each_event).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventCounts {
    /// Events that the handler is processing now.
    pub running: usize,
    /// Events that wait for an earlier event of their key, or because the concurrency limit is reached.
    pub waiting: usize,
    /// Events that failed and wait for their next attempt.
    pub retrying: usize,
}

/// What is known of a partition at one time.
#[derive(Debug)]
pub(crate) struct ObservedPartition {
    pub(crate) status: PartitionStatus,
    /// Why the last checkpoint could not be written, if none was since.
    pub(crate) checkpoint_failure: Option<ErrorSummary>,
    /// The checkpoint that a dropped token holds back.
    pub(crate) held: Option<HeldCheckpoint>,
}
