//! What the processor does in cases that only the application can decide: when it writes checkpoints, when it moves an
//! event to the dead letters, and what follows a failure, an event that cannot be decoded, and a shutdown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::util::{deserialize_or_never, serialize_or_never, setters};

/// When the processor writes the positions that [`PartitionContext::checkpoint`](super::PartitionContext::checkpoint)
/// requests.
///
/// Each write is one request to the storage. Events after the last written position are redelivered after a crash.
///
/// The processor also writes the last requested position when the partition stops, and repeats that write until the
/// time of the shutdown or of the handoff is over.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::{CheckpointPolicy, ProcessorConfig};
///
/// let rare = CheckpointPolicy::default().with_interval(Duration::from_secs(60)).with_max_events(10_000);
/// let by_number_only = CheckpointPolicy::default().with_max_events(100).without_interval();
/// let config = ProcessorConfig::default().with_checkpoint_policy(rare);
/// # let _ = (config, by_number_only);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// See [`with_max_events`](Self::with_max_events).
    pub max_events: Option<u32>,
    /// See [`with_interval`](Self::with_interval).
    #[serde(serialize_with = "serialize_or_never", deserialize_with = "deserialize_or_never")]
    pub interval: Option<Duration>,
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self { max_events: None, interval: Some(Duration::from_secs(5)) }
    }
}

impl CheckpointPolicy {
    setters! {
        /// Writes as soon as this many events lie between the last written position and the requested one. Default: no
        /// such limit. The [interval](Self::with_interval) stays, unless [`without_interval`](Self::without_interval).
        #[doc(alias = "every")]
        with_max_events(max_events: Some(u32));
        /// Writes at the latest this long after the request. Default 5 s: a crash redelivers some seconds of events, at
        /// twelve requests per minute and partition.
        ///
        /// After a failed write, the processor waits this long, but at least 1 s and at most 30 s, before it repeats
        /// the write. It then doubles the wait up to half the lease duration, or waits as long as the server requests.
        /// A backend that rejects requests therefore receives no more of them than one that accepts them, unless the
        /// interval is longer than 30 s.
        #[doc(alias = "auto.commit.interval.ms")]
        with_interval(interval: Some(Duration));
    }

    /// Removes [`interval`](Self::with_interval): the time since a request does not matter. Without
    /// [`max_events`](Self::with_max_events), positions are then written only when the partition stops.
    #[must_use]
    pub fn without_interval(mut self) -> Self {
        self.interval = None;
        self
    }
}

/// What the processor does with a partition whose handler failed: returned an error, panicked, or timed out. Other
/// partitions are not affected. If the failing event is to be moved to the
/// [dead letters](super::ProcessorBuilder::with_dead_letters), the partition restarts at once instead.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::{OnFailure, ProcessorConfig};
///
/// let parked = ProcessorConfig::default().with_on_failure(OnFailure::Park);
/// let released = ProcessorConfig::default()
///     .with_on_failure(OnFailure::Release { cooldown: Duration::from_secs(600) });
/// # let _ = (parked, released);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum OnFailure {
    /// Restart it from its checkpoint. The default: most failures are temporary. [`Health`](super::Health) reports an
    /// event that always fails; the processor never skips it.
    ///
    /// If new events were finished since the last restart, the wait is 100 ms, so that events which fail once each
    /// delay the others little. Otherwise it grows from 250 ms to 30 s, until new events are finished. Jitter shortens
    /// each wait by up to a quarter.
    #[default]
    Restart,
    /// Release it, and do not claim it for a while: another instance may succeed.
    Release {
        /// How long this instance does not claim the partition: at least one load-balancing interval, at most a year,
        /// and half an interval more in either case.
        #[serde(with = "humantime_serde")]
        cooldown: Duration,
    },
    /// Park it: keep the ownership, but process no events until
    /// [`ProcessorHandle::resume`](super::ProcessorHandle::resume), or an operator resumes it:
    /// [`Operator::resume`](crate::admin::Operator::resume), `ehcp resume`. The checkpoint stores this with the error,
    /// so that no other instance fails at the same event after a restart or a move of the partition.
    Park,
}

/// When a failing event is moved to the dead letters.
///
/// The attempts and the time distinguish an event that can never be processed from an outage, for example
/// of a database, in which no event can be processed. They count for one event: the next failing event needs its own.
///
/// A [permanent](super::EventError::permanent) error is certain: its event is moved at once.
///
/// Attempts are counted in the memory of the owner. After the partition moved to another instance, the count starts
/// again, so with [`OnFailure::Release`] a policy of several attempts is never met.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
///
/// // For a database whose outages last up to half an hour.
/// let policy = DeadLetterPolicy::default().with_max_attempts(10).with_min_failing_time(Duration::from_secs(1800));
/// # let _ = policy;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetterPolicy {
    /// How many attempts must have failed at the event. Default 5. 0 counts as 1.
    #[doc(alias = "max_delivery_count")]
    pub max_attempts: u32,
    /// How long the attempts must have failed at the event, from the first failure to the last one. Default 60 s, so
    /// that a restart of a database moves nothing.
    #[serde(with = "humantime_serde")]
    pub min_failing_time: Duration,
    /// Whether [`each_event`](super::each_event) moves only events that an
    /// [`EventError`](super::EventError) names. Default false. Handlers of batches always have to name the
    /// event.
    pub named_only: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, min_failing_time: Duration::from_secs(60), named_only: false }
    }
}

impl DeadLetterPolicy {
    /// Sets how many attempts at the event must have failed before it is moved. Default 5; 0 counts as 1.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets how long the attempts at the event must have failed, from the first failure to the last one. Default 60 s.
    #[must_use]
    pub fn with_min_failing_time(mut self, time: Duration) -> Self {
        self.min_failing_time = time;
        self
    }

    /// Sets whether [`each_event`](super::each_event) moves only events that an
    /// [`EventError`](super::EventError) names.
    ///
    /// Otherwise, it moves at most one of the others within each `min_failing_time`: in an outage that is longer, each
    /// partition moves one event in each such period. Choose the time longer than the outages that the handler should
    /// survive, or let the handler name the events.
    #[must_use]
    pub fn with_named_only(mut self, named_only: bool) -> Self {
        self.named_only = named_only;
        self
    }

    /// Returns whether an event that has failed so often and so long is moved.
    pub(super) fn is_met(&self, attempts: u32, failing_for: Duration, permanent: bool) -> bool {
        permanent || (attempts >= self.max_attempts && failing_for >= self.min_failing_time)
    }
}

/// What the processor does if [`Handler::start_position`](super::Handler::start_position) returns a position before the
/// checkpoint, so that events are processed again. Each such start is logged at `warn` and counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnEarlierStart {
    /// Start there. The default: the application changes its position to process events again.
    #[default]
    Accept,
    /// Fail, as if the call had returned an error: [`OnFailure`] determines what follows. For an application that never
    /// moves its position backward. An earlier position then means that an instance reads another database than the
    /// others, or an old copy of it.
    Fail,
}

/// What the processor does with an event that the source cannot decode.
///
/// The official client cannot decode some events that other SDKs write and read, for example an event with a list among
/// its application properties (Azure/azure-sdk-for-js#31067), or with `null` as its body. Such an event comes back
/// whenever the partition is read, and no event after it arrives.
///
/// ```
/// use eventhubs_checkpoint::processor::{OnUndecodable, ProcessorConfig};
///
/// let config = ProcessorConfig::default().with_on_undecodable(OnUndecodable::Skip);
/// # let _ = config;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnUndecodable {
    /// The partition fails until the event expires, or an operator moves the checkpoint past it. It is retried with
    /// growing waits; the error names the event and the command. The default: no event is skipped unless the
    /// application says so.
    ///
    /// The official client does not report the number of the event, so it is inferred: two links in a row must end
    /// before the same event.
    #[default]
    Fail,
    /// Skip the event. The processor logs and counts it, and the sink of [dead
    /// letters](super::ProcessorBuilder::with_dead_letters) stores what is known of it. Then the checkpoint passes it,
    /// once it covers all events before, with an empty offset: other SDKs may not be able to start there.
    ///
    /// In an event hub with compaction, the numbers before the event may be skipped one after another, each as an
    /// event of its own: nothing tells a number that compaction has removed from one that cannot be decoded.
    Skip,
}

/// What the processor does with its partitions when it shuts down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnShutdown {
    /// Release them, so that other instances can claim them at once. The default.
    #[default]
    Release,
    /// Keep them for the next start under the same owner ID, as static members of a Kafka consumer group do: the
    /// processor renews each ownership once more, and the next incarnation of this owner claims them in its first
    /// cycle. No partition moves to another instance, and no events are read until then. If the instance does not
    /// return within the lease duration, the other instances claim its partitions, as after a crash.
    ///
    /// For deployments that restart one instance after the other faster than the lease duration, under stable owner IDs
    /// such as the pod names of a `StatefulSet`. Not for scaling down. Handlers finish and last checkpoints are written
    /// as with [`Release`](Self::Release). Other SDKs see a live owner until their own expiration interval has passed,
    /// but may steal from it to balance.
    #[doc(alias = "group.instance.id")]
    Keep,
}
