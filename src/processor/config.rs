//! Settings of the processor.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::policies::{CheckpointPolicy, OnEarlierStart, OnFailure, OnShutdown, OnUndecodable};
use super::shutdown::stopping_time;
use super::start::invalid::OnInvalidCheckpoint;
use crate::balancer::{BalancerConfig, LoadBalancingStrategy};
use crate::error::{Error, Result};
use crate::model::{LeaseScope, PartitionId};
use crate::source::{CLOSE_LIMIT, EndPosition, StartPosition};
use crate::store::{LeaseTimes, StoreConfig};
use crate::util::{deserialize_or_never, serialize_or_never, setters};

/// The longest duration that a setting accepts, so that sums of such durations cannot overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How a [`Processor`](super::Processor) works.
///
/// An application can keep these settings in its own configuration file: durations are written as in `90s` or `2m`, and
/// settings that are left out have their defaults. `lag_check_interval` and the `interval` of `checkpoint_policy` may
/// also be `never`. Serialization writes the same, for example to log the settings; it fails for
/// [`OnInvalidCheckpoint::Custom`]. Minor versions add fields, so end a literal with `..ProcessorConfig::default()`, or
/// use the setters.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::processor::ProcessorConfig;
///
/// let config: ProcessorConfig = serde_json::from_str(
///     r#"{ "max_batch_size": 500, "drain_timeout": "20s", "balancer": { "max_partitions": 8 } }"#,
/// )?;
/// assert_eq!(config.drain_timeout, Some(Duration::from_secs(20)));
/// assert_eq!(config.balancer.max_partitions, Some(8));
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Memory
///
/// A partition holds at most `max_batch_size` events in its handler and as many ready for the next call,
/// `max_in_flight` tracked events or `max_in_flight_bytes` of them, and at most `prefetch` events in its source. At the
/// limits the processor does not read the source, and the broker waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessorConfig {
    /// See [`with_balancer`](Self::with_balancer).
    // Not flattened: with `flatten`, serde ignores unknown fields, but a misspelled setting must be rejected.
    pub balancer: BalancerConfig,
    /// See [`with_start_position`](Self::with_start_position).
    pub start_position: StartPosition,
    /// See [`with_start_position_of`](Self::with_start_position_of).
    pub start_positions: BTreeMap<PartitionId, StartPosition>,
    /// See [`with_end_position`](Self::with_end_position).
    pub end_position: Option<EndPosition>,
    /// See [`with_end_position_of`](Self::with_end_position_of).
    pub end_positions: BTreeMap<PartitionId, EndPosition>,
    /// See [`with_on_invalid_checkpoint`](Self::with_on_invalid_checkpoint).
    pub on_invalid_checkpoint: OnInvalidCheckpoint,
    /// See [`with_on_undecodable`](Self::with_on_undecodable).
    pub on_undecodable: OnUndecodable,
    /// See [`with_on_earlier_start`](Self::with_on_earlier_start).
    pub on_earlier_start: OnEarlierStart,
    /// See [`with_checkpoint_policy`](Self::with_checkpoint_policy).
    pub checkpoint_policy: CheckpointPolicy,
    /// See [`with_on_failure`](Self::with_on_failure).
    pub on_failure: OnFailure,
    /// See [`with_handler_timeout`](Self::with_handler_timeout).
    #[serde(with = "humantime_serde")]
    pub handler_timeout: Option<Duration>,
    /// See [`with_max_batch_size`](Self::with_max_batch_size).
    pub max_batch_size: usize,
    /// See [`with_max_batch_wait`](Self::with_max_batch_wait).
    #[serde(with = "humantime_serde")]
    pub max_batch_wait: Duration,
    /// See [`with_idle_interval`](Self::with_idle_interval).
    #[serde(with = "humantime_serde")]
    pub idle_interval: Option<Duration>,
    /// See [`with_prefetch`](Self::with_prefetch).
    pub prefetch: usize,
    /// See [`with_max_in_flight`](Self::with_max_in_flight).
    pub max_in_flight: usize,
    /// See [`with_max_in_flight_bytes`](Self::with_max_in_flight_bytes).
    pub max_in_flight_bytes: usize,
    /// See [`with_lag_check_interval`](Self::with_lag_check_interval).
    #[serde(serialize_with = "serialize_or_never", deserialize_with = "deserialize_or_never")]
    pub lag_check_interval: Option<Duration>,
    /// See [`with_drain_timeout`](Self::with_drain_timeout).
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Option<Duration>,
    /// See [`with_shutdown_timeout`](Self::with_shutdown_timeout).
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Option<Duration>,
    /// See [`with_on_shutdown`](Self::with_on_shutdown).
    pub on_shutdown: OnShutdown,
}

impl Default for ProcessorConfig {
    fn default() -> Self {
        Self {
            balancer: BalancerConfig::default(),
            start_position: StartPosition::Earliest,
            start_positions: BTreeMap::new(),
            end_position: None,
            end_positions: BTreeMap::new(),
            on_invalid_checkpoint: OnInvalidCheckpoint::default(),
            on_undecodable: OnUndecodable::default(),
            on_earlier_start: OnEarlierStart::default(),
            checkpoint_policy: CheckpointPolicy::default(),
            on_failure: OnFailure::default(),
            handler_timeout: None,
            max_batch_size: 100,
            max_batch_wait: Duration::ZERO,
            idle_interval: None,
            prefetch: 300,
            max_in_flight: 1000,
            max_in_flight_bytes: 64 << 20,
            lag_check_interval: Some(Duration::from_secs(30)),
            drain_timeout: None,
            shutdown_timeout: None,
            on_shutdown: OnShutdown::default(),
        }
    }
}

impl ProcessorConfig {
    /// Returns the settings with which the partitions of a crashed instance are read again within 20 s: a
    /// load-balancing interval of 4 s, [`LeaseScope::Instance`], and [`LoadBalancingStrategy::Greedy`]. Use it together
    /// with [`StoreConfig::fast_failover`](crate::store::StoreConfig::fast_failover). Instances with and without it may
    /// run side by side, so an ordinary rolling deployment introduces it and takes it back. The 20 s are promised once
    /// all instances use it.
    ///
    /// A group of this crate with 32 partitions and 4 instances then sends about 11,800 requests per hour to the
    /// storage, without checkpoints; with the defaults it sends 9,500. Each instance sends about 2,900, for up to 2000
    /// partitions. More of them are listings, so they cost 1.4 times as much: see [`cost`](crate::cost). While the
    /// storage responds late or not at all it sends more, so that no live instance loses its partitions; see "Thousands
    /// of partitions" in [storage](crate::guide::storage). An instance that is cut off from the storage, or frozen, for
    /// more than 16 s loses its partitions.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::ProcessorConfig;
    /// use eventhubs_checkpoint::store::StoreConfig;
    ///
    /// let (config, store) = (ProcessorConfig::fast_failover(), StoreConfig::fast_failover());
    /// assert!(store.lease_duration >= 3 * config.balancer.load_balancing_interval);
    /// ```
    #[must_use]
    pub fn fast_failover() -> Self {
        Self::default().with_balancer(|balancer| {
            balancer
                .with_load_balancing_interval(Duration::from_secs(4))
                .with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
                .with_lease_scope(LeaseScope::Instance)
        })
    }

    /// Changes how partitions are shared with the other instances and how their leases are kept, which the settings of
    /// the [load-balancing loop](crate::balancer) determine. What the change does not set stays as it is.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::{LoadBalancingStrategy, ProcessorConfig};
    ///
    /// let config = ProcessorConfig::fast_failover().with_balancer(|balancer| balancer.with_max_partitions(8));
    /// assert_eq!(config.balancer.max_partitions, Some(8));
    /// assert_eq!(config.balancer.load_balancing_strategy, LoadBalancingStrategy::Greedy);
    /// ```
    #[must_use]
    pub fn with_balancer(mut self, change: impl FnOnce(BalancerConfig) -> BalancerConfig) -> Self {
        self.balancer = change(self.balancer);
        self
    }

    setters! {
        /// Sets where a partition without a checkpoint starts. Default [`StartPosition::Earliest`], so that no event is
        /// skipped; some other SDKs start at the latest event.
        ///
        /// With [`StartPosition::Latest`] the first instance records the start of every partition when it starts. If a
        /// processor of another SDK already reads a partition, at an earlier event and without a checkpoint, its first
        /// checkpoint replaces that start.
        ///
        /// A partition that is added to the event hub after the group had started nevertheless starts at the earliest
        /// event: a running group wants every event of a new partition, including those that were sent before the group
        /// noticed it. The processor recognizes new partitions by their missing checkpoints, which instances of this
        /// crate record in the order of the partitions. Instances of other SDKs do not. If one of them owns a new
        /// partition before an instance of this crate starts, the new partitions before it count as old. In a group
        /// that is shared with other SDKs, start at the earliest event.
        #[doc(alias = "auto.offset.reset")]
        #[doc(alias = "initial_offset")]
        with_start_position(start_position: StartPosition);
        /// Sets where the processor ends by itself: for a backfill, a replay, or a test. Default: never.
        ///
        /// Events after the end are not processed. When all events up to it are processed, no tracked one is open, and
        /// the last requested checkpoint is written, the partition stops with
        /// [`StopReason::EndReached`](super::StopReason::EndReached). A partition that an operator has paused, or that
        /// is parked, does not end.
        ///
        /// [`Processor::run`](super::Processor::run) returns when this instance owns all partitions, or all that
        /// [`Static`](crate::balancer::LoadBalancingStrategy::Static) assigns to it, and they have ended. It keeps them
        /// until then. If several instances share the group, each returns when its own partitions
        /// have ended and all others have had live owners for a lease duration and three load-balancing intervals. The
        /// instances that still run claim what it releases, and find it at its end if the handler has checkpointed the
        /// last event. An instance that fails must be started again, as a Kubernetes Job does: it continues, or takes
        /// over what others have left. When all instances have returned `Ok`, every partition was processed to its end,
        /// except for those that [`Static`](crate::balancer::LoadBalancingStrategy::Static) assigns to no instance. A
        /// partition that stays unowned because of
        /// [`max_partitions`](crate::balancer::BalancerConfig::with_max_partitions) keeps all of them waiting.
        ///
        /// The end counts from the checkpoint: to process events again, use a new consumer group, or reset the
        /// checkpoints first. Events without sequence numbers have no end.
        #[doc(alias = "endingOffsets")]
        #[doc(alias = "backfill")]
        #[doc(alias = "bounded")]
        with_end_position(end_position: Some(EndPosition));
        /// Sets what to do if a partition cannot be read from its checkpoint. Default
        /// [`OnInvalidCheckpoint::Earliest`].
        with_on_invalid_checkpoint(on_invalid_checkpoint: OnInvalidCheckpoint);
        /// Sets what to do if the application returns a start position before the checkpoint. Default
        /// [`OnEarlierStart::Accept`].
        with_on_earlier_start(on_earlier_start: OnEarlierStart);
        /// Sets what to do with an event that the source cannot decode. Default [`OnUndecodable::Fail`].
        with_on_undecodable(on_undecodable: OnUndecodable);
        /// Sets when requested checkpoints are written. Default: see [`CheckpointPolicy`].
        with_checkpoint_policy(checkpoint_policy: CheckpointPolicy);
        /// Sets what to do with a partition whose handler failed. Default [`OnFailure::Restart`].
        with_on_failure(on_failure: OnFailure);
        /// Sets how long one call of [`Handler::handle`](super::Handler::handle) or
        /// [`start_position`](super::Handler::start_position) may take. The processor drops a call that takes longer,
        /// which counts as a failure. Default: no limit, because only the application knows whether its work may be
        /// dropped halfway. [`BalancerConfig::with_stall_timeout`] only reports.
        with_handler_timeout(handler_timeout: Some(Duration));
        /// Sets the maximum number of events in one call of the handler. Default 100.
        with_max_batch_size(max_batch_size: usize);
        /// Sets how long a batch that is not full waits for more events. Default: it does not wait.
        with_max_batch_wait(max_batch_wait: Duration);
        /// Sets after how long without a call the handler is called with an empty batch, as long as the partition is
        /// read and not paused: for example to write the result of a time window. Default: never. Streams yield an
        /// empty batch, and [`each_event`](super::each_event) does nothing.
        ///
        /// Such a call has the same timeouts as any other, and its failure restarts the partition, so that the events
        /// after the checkpoint are delivered again. Once the handler accepts them, their failures are forgotten, so
        /// [`DeadLetterPolicy`](super::dead_letters::DeadLetterPolicy) never moves an event that fails only in empty
        /// batches: use [`PartitionContext::dead_letter`](super::PartitionContext::dead_letter).
        #[doc(alias = "max_wait_time")]
        #[doc(alias = "maximum_wait_time")]
        #[doc(alias = "tick")]
        with_idle_interval(idle_interval: Some(Duration));
        /// Sets how many events per partition are read ahead of the handler. Default 300, as in the official client.
        with_prefetch(prefetch: usize);
        /// Sets the maximum number of events per partition that are [tracked](super::PartitionContext::track) and not
        /// finished, dropped ones included. At the limit no more events are delivered. Default 1000.
        ///
        /// It does not limit how many events are redelivered after a restart: one event that is not finished holds the
        /// checkpoint back, while any number of later events is finished. See
        /// [`HealthIssue::CheckpointHeld`](super::HealthIssue::CheckpointHeld).
        with_max_in_flight(max_in_flight: usize);
        /// Sets the maximum size, in bytes, of the events per partition that are tracked and not finished, without
        /// those that were dropped. At the limit no more events are delivered, so one more batch may be in memory, and
        /// the events that are [read ahead](Self::with_prefetch). Default 64 MiB, which is about 1000 events of 64 KiB.
        /// The size of an event is what the source [reports](crate::source::Positioned::byte_size): the body, for an
        /// event hub.
        with_max_in_flight_bytes(max_in_flight_bytes: usize);
        /// Sets how often each owned partition is compared with the event hub, to determine the lag and to find a
        /// receiver that delivers nothing although there are events. The processor reopens such a receiver after two
        /// comparisons. Default 30 s, at one request to the event hub each.
        with_lag_check_interval(lag_check_interval: Some(Duration));
        /// Sets how long a handler may take to finish its batch when its partition stops, and again for
        /// [`Handler::stopped`](super::Handler::stopped). Default 15 s, or less if
        /// [`OnLeaseExpiry::Stop`](crate::balancer::OnLeaseExpiry::Stop) requires it. It may be longer than the lease
        /// duration: the lease is renewed meanwhile.
        with_drain_timeout(drain_timeout: Some(Duration));
        /// Sets how long a shutdown may take in all. Default: no limit of its own;
        /// [Kubernetes](crate::guide::kubernetes) has the sum of the limits of its phases, 94 s with the default
        /// settings.
        ///
        /// When the time is over, [`Processor::run`](super::Processor::run) returns as after a second request, with
        /// [`ShutdownReport::forced`](super::ShutdownReport::forced): what was not written or released by then waits
        /// for the expiry of its lease. Set it a few seconds below the grace period after which the process is killed,
        /// so that the application can still end in order, and set a drain timeout that is well below it.
        with_shutdown_timeout(shutdown_timeout: Some(Duration));
        /// Sets what happens to the owned partitions at shutdown. Default [`OnShutdown::Release`].
        with_on_shutdown(on_shutdown: OnShutdown);
    }

    /// Sets where one partition starts if it has no checkpoint, also a partition that is added later, instead of
    /// [`start_position`](Self::with_start_position). An id that the event hub does not have has no effect.
    #[doc(alias = "seek")]
    #[must_use]
    pub fn with_start_position_of(mut self, partition_id: PartitionId, start_position: StartPosition) -> Self {
        self.start_positions.insert(partition_id, start_position);
        self
    }

    /// Sets where one partition ends, instead of [`end_position`](Self::with_end_position). An instance that owns a
    /// partition without an end does not return. An id that the event hub does not have has no effect.
    #[must_use]
    pub fn with_end_position_of(mut self, partition_id: PartitionId, end_position: EndPosition) -> Self {
        self.end_positions.insert(partition_id, end_position);
        self
    }

    /// Turns [`lag_check_interval`](Self::with_lag_check_interval) off: no lag is known, and a stalled receiver is not
    /// detected.
    #[must_use]
    pub fn without_lag_checks(mut self) -> Self {
        self.lag_check_interval = None;
        self
    }

    pub(super) fn has_end_position(&self) -> bool {
        self.end_position.is_some() || !self.end_positions.is_empty()
    }

    /// Returns where a partition starts that has no checkpoint and belonged to the event hub when the group started.
    pub(super) fn start_position_of(&self, partition: &PartitionId) -> &StartPosition {
        self.start_positions.get(partition).unwrap_or(&self.start_position)
    }

    /// Returns where a partition starts that has no checkpoint and was added after the group had started.
    pub(super) fn start_position_of_new(&self, partition: &PartitionId) -> &StartPosition {
        self.start_positions.get(partition).unwrap_or(&StartPosition::Earliest)
    }

    /// Checks the settings of the processor and of its store without sending a request: for example when a
    /// configuration file is read, or in a test of that file. [`connect`](crate::store::GroupStoreBuilder::connect) and
    /// [`ProcessorBuilder::build`](super::ProcessorBuilder::build) make the same checks.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::ProcessorConfig;
    /// use eventhubs_checkpoint::store::StoreConfig;
    ///
    /// let config: ProcessorConfig = serde_json::from_str(r#"{ "balancer": { "load_balancing_interval": "30s" } }"#)?;
    /// let error = config.check_settings(&StoreConfig::default()).unwrap_err();
    /// assert!(error.to_string().contains("`with_lease_duration` is 60s (the default), but must be at least three times"));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting is invalid: the message names the setter, which is
    /// `with_x` for the setting `x` of a file, and the rule.
    pub fn check_settings(&self, store: &StoreConfig) -> Result<()> {
        store.check_settings()?;
        self.check_for(store.lease_times())
    }

    /// Checks these settings for a store with these times.
    pub(super) fn check_for(&self, times: LeaseTimes) -> Result<()> {
        self.check_values()?;
        self.balancer.check_settings(times)?;
        self.balancer.check_drain_timeout(times, stopping_time(self.effective_drain_timeout(times)))
    }

    /// Returns what [`with_drain_timeout`](Self::with_drain_timeout) sets, or its default.
    pub(crate) fn effective_drain_timeout(&self, times: LeaseTimes) -> Duration {
        self.drain_timeout.unwrap_or_else(|| self.balancer.default_drain_timeout(times, CLOSE_LIMIT))
    }

    fn check_values(&self) -> Result<()> {
        self.start_position.check_time("`with_start_position`")?;
        for (partition, start_position) in &self.start_positions {
            start_position.check_time(&format!("`with_start_position_of` for partition {partition}"))?;
        }
        if self.has_end_position() && self.lag_check_interval.is_none() {
            return Err(Error::config(
                "`with_end_position` and `with_end_position_of` need lag checks, which find the end of a partition: \
                 remove `without_lag_checks`, or `never` from `lag_check_interval`",
            ));
        }
        for (setter, count) in [
            ("with_max_batch_size", self.max_batch_size),
            ("with_prefetch", self.prefetch),
            ("with_max_in_flight", self.max_in_flight),
            ("with_max_in_flight_bytes", self.max_in_flight_bytes),
            (
                "CheckpointPolicy::with_max_events",
                self.checkpoint_policy.max_events.map_or(1, |events| events as usize),
            ),
        ] {
            if count == 0 {
                return Err(Error::config(format!("`{setter}` is 0, but must be at least 1")));
            }
        }
        for (setter, duration) in [
            ("with_drain_timeout", self.drain_timeout),
            ("CheckpointPolicy::with_interval", self.checkpoint_policy.interval),
            ("with_handler_timeout", self.handler_timeout),
            ("with_shutdown_timeout", self.shutdown_timeout),
            ("with_max_batch_wait", Some(self.max_batch_wait)),
            ("with_idle_interval", self.idle_interval),
            ("with_lag_check_interval", self.lag_check_interval),
        ] {
            if let Some(long) = duration.filter(|duration| *duration > LONGEST) {
                return Err(Error::config(format!("`{setter}` is {long:?}, but must be at most a day")));
            }
        }
        for (setter, duration, remedy) in [
            ("CheckpointPolicy::with_interval", self.checkpoint_policy.interval, "use `without_interval`"),
            ("with_handler_timeout", self.handler_timeout, "omit it for no limit"),
            ("with_idle_interval", self.idle_interval, "omit it for no empty batches"),
            ("with_shutdown_timeout", self.shutdown_timeout, "omit it for no limit of its own"),
            ("with_lag_check_interval", self.lag_check_interval, "use `without_lag_checks`"),
        ] {
            if duration == Some(Duration::ZERO) {
                return Err(Error::config(format!("`{setter}` is 0s, but must be more than zero: {remedy}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;
    use crate::tests::hostile::hostile_text;

    fn read(json: &str) -> Result<ProcessorConfig, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn refused(config: &ProcessorConfig) -> String {
        config.check_settings(&StoreConfig::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_file_names_partitions_by_text_or_number() {
        let config = read(
            r#"{
                "balancer": { "load_balancing_strategy": { "static": { "partitions": [0, "1"] } } },
                "start_positions": { "1": "latest" }
            }"#,
        )
        .unwrap();
        let both = crate::balancer::Assignment::partitions([0, 1].map(PartitionId::from));
        assert_eq!(config.balancer.load_balancing_strategy, LoadBalancingStrategy::Static(both));
        assert_eq!(*config.start_position_of(&PartitionId::from(1)), StartPosition::Latest);
    }

    #[test]
    fn settings_read_back_as_they_were_written() {
        let assigned = LoadBalancingStrategy::Static(crate::balancer::Assignment::index(1, 3).unwrap());
        let config = ProcessorConfig {
            max_batch_size: 500,
            on_failure: OnFailure::Release { cooldown: Duration::from_secs(90) },
            end_position: Some(EndPosition::Latest),
            on_invalid_checkpoint: OnInvalidCheckpoint::Latest,
            checkpoint_policy: CheckpointPolicy::default().with_max_events(100).without_interval(),
            start_positions: [(0.into(), StartPosition::EnqueuedAfter(datetime!(2026-01-01 0:00 UTC)))].into(),
            lag_check_interval: None,
            balancer: BalancerConfig { load_balancing_strategy: assigned, ..BalancerConfig::default() },
            ..ProcessorConfig::default()
        };
        for config in [config, ProcessorConfig::default(), ProcessorConfig::fast_failover()] {
            let written = serde_json::to_string(&config).unwrap();
            assert_eq!(read(&written), Ok(config), "{written}");
        }
        let store = StoreConfig::fast_failover().with_create_container(true);
        let written = serde_json::to_string(&store).unwrap();
        assert_eq!(serde_json::from_str::<StoreConfig>(&written).unwrap(), store, "{written}");
    }

    /// A choice is a function of the application, which no file can contain.
    #[test]
    fn a_choice_of_the_application_is_not_written() {
        let choice = OnInvalidCheckpoint::custom(|_| StartPosition::Latest);
        let config = ProcessorConfig::default().with_on_invalid_checkpoint(choice);
        assert!(serde_json::to_string(&config).is_err());
        assert_eq!(config.clone(), config);
        assert_ne!(config, ProcessorConfig::default());
    }

    #[test]
    fn a_file_turns_intervals_off_with_never() {
        let config =
            read(r#"{ "lag_check_interval": "never", "checkpoint_policy": { "interval": "never" } }"#).unwrap();
        assert_eq!((config.lag_check_interval, config.checkpoint_policy.interval), (None, None));
        let config = read(r#"{ "lag_check_interval": "2m" }"#).unwrap();
        assert_eq!(config.lag_check_interval, Some(Duration::from_secs(120)));
        assert_eq!(config.checkpoint_policy.interval, Some(Duration::from_secs(5)));
    }

    #[test]
    fn a_file_may_omit_the_threshold() {
        let config = read(r#"{ "balancer": { "load_balancing_strategy": { "weighted": {} } } }"#).unwrap();
        assert_eq!(config.balancer.load_balancing_strategy, LoadBalancingStrategy::weighted());
    }

    #[test]
    fn a_file_sets_only_what_it_names_of_the_balancer() {
        let text =
            r#"{ "balancer": { "load_balancing_interval": "5s", "stall_timeout": "2m", "lease_scope": "instance" } }"#;
        let balancer = read(text).unwrap().balancer;
        assert_eq!(balancer.load_balancing_interval, Duration::from_secs(5));
        assert_eq!((balancer.stall_timeout, balancer.lease_scope), (Duration::from_secs(120), LeaseScope::Instance));
        assert_eq!((balancer.handoff, balancer.max_partitions), (true, None));
    }

    #[test]
    fn a_file_with_a_mistake_is_rejected() {
        for (json, expected) in [
            (r#"{ "prefech": 1 }"#, "prefech"),
            (r#"{ "max_partitions": 1 }"#, "max_partitions"),
            (r#"{ "balancer": { "max_partition": 1 } }"#, "max_partition"),
            (r#"{ "balancer": { "stall_timeout": 300 } }"#, "300"),
            (r#"{ "checkpoint_policy": { "every": 1 } }"#, "every"),
            (r#"{ "on_failure": { "release": { "cooldown": "1m", "after": 3 } } }"#, "after"),
            (r#"{ "balancer": { "load_balancing_strategy": { "weighted": { "threshold": 5 } } } }"#, "threshold"),
            (r#"{ "balancer": { "load_balancing_strategy": { "static": { "index": 0 } } } }"#, "`index` and `of`"),
            (r#"{ "balancer": { "load_balancing_strategy": { "static": { "index": 3, "of": 3 } } } }"#, "3"),
            (r#"{ "drain_timeout": 20 }"#, "20"),
            (r#"{ "lag_check_interval": "soon" }"#, "number"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn an_error_names_the_setter() {
        let config = ProcessorConfig::default;
        let ancient = StartPosition::EnqueuedAfter(datetime!(1969-07-20 20:17 UTC));
        for (config, expected) in [
            (config().with_start_position(ancient.clone()), "`with_start_position` is 1969"),
            (config().with_start_position_of(7.into(), ancient), "`with_start_position_of` for partition 7"),
            (config().with_drain_timeout(Duration::MAX), "`with_drain_timeout` is"),
            (config().with_shutdown_timeout(Duration::ZERO), "`with_shutdown_timeout` is 0s"),
            (
                config().with_checkpoint_policy(CheckpointPolicy::default().with_max_events(0)),
                "`CheckpointPolicy::with_max_events` is 0",
            ),
        ] {
            assert!(refused(&config).contains(expected), "{}", refused(&config));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(
            text in hostile_text(&[
                r#"{ "checkpoint_policy": { "interval": "90s" }, "balancer": { "load_balancing_strategy": { "weighted": {} } } }"#,
                r#"{ "start_position": { "enqueued_after": "2026-01-01T00:00:00Z" }, "max_batch_size": 10, "handler_timeout": "5m" }"#,
            ])
        ) {
            if let Ok(Err(refused)) = read(&text).map(|config| config.check_settings(&StoreConfig::default())) {
                let message = refused.to_string();
                let setters = ["`with_", "`CheckpointPolicy::with_"];
                prop_assert!(setters.iter().any(|setter| message.contains(setter)), "{}", message);
            }
        }
    }
}
