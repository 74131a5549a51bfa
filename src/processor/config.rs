//! Settings of the processor.

use std::num::NonZeroU32;
use std::time::Duration;

use super::source::StartPosition;
use super::start::OnInvalidCheckpoint;
use crate::balancer::BalancerConfig;
use crate::error::{Error, Result};
use crate::setters::setters;

/// Longer times are mistakes, and their sums could overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// When positions marked by [`PartitionContext::checkpoint`](super::PartitionContext::checkpoint) are written down.
///
/// Each write is one storage request; what is not written yet comes again after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointPolicy {
    /// As soon as this many events lie between the last written position and the marked one. Default: no such limit.
    pub max_events: Option<NonZeroU32>,
    /// At the latest this long after it was marked. Default 5 s: some seconds of repeated events after a crash, at a
    /// dozen requests a minute and partition.
    ///
    /// A write that fails is tried again after this time, at least 1 s, then after twice that, and so on up to half the
    /// expiry; or later, if the server asks for it. So a storage that refuses gets no more requests than one that
    /// accepts.
    pub interval: Option<Duration>,
    /// When the partition is stopped in an orderly way. Default: yes. This last write is tried again until the time of
    /// the end, or of the handoff, is over.
    ///
    /// After a failure of the handler the marked position is always written. Else a handler that fails more often than
    /// [`every`](Self::interval) would make no progress: each restart would go back to the same checkpoint.
    pub on_stop: bool,
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self { max_events: None, interval: Some(Duration::from_secs(5)), on_stop: true }
    }
}

impl CheckpointPolicy {
    setters! {
        with_max_events(max_events: Some(NonZeroU32));
        with_interval(interval: Some(Duration));
        with_on_stop(on_stop: bool);
    }

    /// Takes [`every`](Self::interval) away: the time since a mark does not matter.
    #[must_use]
    pub fn without_interval(mut self) -> Self {
        self.interval = None;
        self
    }
}

/// What becomes of a partition whose handler failed: returned an error, panicked, or took longer than its deadline.
/// Others are not affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// It starts again from its checkpoint, after a wait that grows from a quarter of a second to half a minute as long
    /// as no new event is handled. The default: most failures pass, and an event that never can be handled is seen in
    /// the [`Health`](super::Health) and skipped by nobody.
    #[default]
    Restart,
    /// It is given back, and not taken again for a while: another instance may do better.
    Release {
        /// For how long not.
        cool_down: Duration,
    },
    /// It is parked: still owned, so that nobody else fails at it, but not processed until
    /// [`ProcessorHandle::resume`](super::ProcessorHandle::resume).
    Park,
}

/// How the processor works.
///
/// # Memory
///
/// A partition holds at most `batch` events in its handler and as many ready for the next call, `max_in_flight` that
/// are tracked, and what its source holds ahead, which is at most `prefetch`. At the limits the source is not read, and
/// the broker waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessorConfig {
    /// How partitions are shared.
    pub balancer: BalancerConfig,
    /// Where a partition without a checkpoint starts. Default [`StartPosition::Earliest`]: nothing is lost.
    ///
    /// With [`StartPosition::Latest`] the first instance writes the start of every partition down as it begins. An
    /// owner that is not of this crate's [`Processor`](super::Processor) may be at work there already, at an earlier
    /// event and without a checkpoint. Its first checkpoint replaces the start, so that the next owner goes on from
    /// there.
    pub start_position: StartPosition,
    /// Where a partition starts that was added to the hub after the group had begun, if `start` is
    /// [`StartPosition::Latest`]. Default [`StartPosition::Earliest`]: a group that has begun wants every event from
    /// then on, and those that came between the growth of the hub and the moment this instance noticed it are among
    /// them.
    ///
    /// What was added is told by the checkpoints, which this crate writes in order. Owners of other SDKs do not: where
    /// one has claimed an added partition before an instance of this crate comes up, those before it look like some
    /// that the group began with, and start at the latest event. Beside other SDKs start at the earliest.
    pub new_partition_start_position: StartPosition,
    /// What to do with a checkpoint from which reading cannot go on. Default [`OnInvalidCheckpoint::Earliest`].
    pub on_invalid_checkpoint: OnInvalidCheckpoint,
    /// When checkpoints are written.
    pub checkpoint_policy: CheckpointPolicy,
    /// What becomes of a partition whose handler failed. Default [`OnFailure::Restart`].
    pub on_failure: OnFailure,
    /// How long one call of [`Handler::handle`](super::Handler::handle) may take; longer ones are dropped, which counts
    /// as a failure. Default: no limit, for only the application knows what may be dropped half-way. See also
    /// [`BalancerConfig::stall_timeout`], which only tells.
    pub handler_timeout: Option<Duration>,
    /// The most events a handler gets at once. Default 100.
    pub max_batch_size: usize,
    /// The most bytes a handler gets at once, of bodies; a single larger event still comes. Default: no limit.
    pub max_batch_bytes: Option<usize>,
    /// How long a batch that is not full waits for more events. Default: not at all.
    pub max_batch_wait: Duration,
    /// How many events of a partition are held ahead of the handler. Default 300, as the official client does.
    pub prefetch: usize,
    /// The most events that are [tracked](super::PartitionContext::track) and not finished, those with dropped tokens
    /// included. With more, nothing further is delivered. Default 1000.
    ///
    /// It does not bound how many events are processed again after a restart: one event that stays open holds it back,
    /// while any number of later ones is finished. See [`HealthIssue::CheckpointHeld`](super::HealthIssue::CheckpointHeld).
    pub max_in_flight: usize,
    /// How often each partition held is compared with the hub: for the lag, and to find a link that delivers nothing
    /// although there are events. Such a link is opened again after two comparisons. Default 30 s, at a request to the
    /// hub each; nothing switches both off.
    pub lag_check_interval: Option<Duration>,
    /// How long a handler may take to finish its batch when its partition stops, and again in the call of `stopped`.
    /// Default: a quarter of the expiry, or what strict leases or the default [handoff
    /// timeout](field@BalancerConfig::handoff_timeout) leave, which is less with an expiry below 48 s.
    pub drain_timeout: Option<Duration>,
    /// What becomes of the partitions when the processor is asked to end. Default [`OnShutdown::Release`].
    pub on_shutdown: OnShutdown,
}

/// What becomes of the partitions of an instance that shuts down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnShutdown {
    /// It releases them, so that the other instances take them at once. The default.
    #[default]
    Release,
    /// It leaves them for its own restart under the same owner id, as static members of a Kafka consumer group do: each
    /// is renewed once more, and the next incarnation of this owner takes it back in its first cycle. No partition moves
    /// to another instance, and none is read until then. An instance that does not come back within the lease duration
    /// counts as crashed: the other instances take its partitions then.
    ///
    /// For deployments that restart one instance after another under stable owner ids, such as the pod names of a
    /// `StatefulSet`, faster than the lease duration. Not for scaling down. Handlers finish and last checkpoints are
    /// written as with [`Release`](Self::Release). Owners of other SDKs see a live owner until it expires by their own
    /// terms, but may steal from it to even out.
    Keep,
}

impl Default for ProcessorConfig {
    fn default() -> Self {
        Self {
            balancer: BalancerConfig::default(),
            start_position: StartPosition::Earliest,
            new_partition_start_position: StartPosition::Earliest,
            on_invalid_checkpoint: OnInvalidCheckpoint::default(),
            checkpoint_policy: CheckpointPolicy::default(),
            on_failure: OnFailure::default(),
            handler_timeout: None,
            max_batch_size: 100,
            max_batch_bytes: None,
            max_batch_wait: Duration::ZERO,
            prefetch: 300,
            max_in_flight: 1000,
            lag_check_interval: Some(Duration::from_secs(30)),
            drain_timeout: None,
            on_shutdown: OnShutdown::default(),
        }
    }
}

impl ProcessorConfig {
    setters! {
        with_balancer(balancer: BalancerConfig);
        with_start_position(start_position: StartPosition);
        with_new_partition_start_position(new_partition_start_position: StartPosition);
        with_on_invalid_checkpoint(on_invalid_checkpoint: OnInvalidCheckpoint);
        with_checkpoint_policy(checkpoint_policy: CheckpointPolicy);
        with_on_failure(on_failure: OnFailure);
        with_handler_timeout(handler_timeout: Some(Duration));
        with_max_batch_size(max_batch_size: usize);
        with_max_batch_bytes(max_batch_bytes: Some(usize));
        with_max_batch_wait(max_batch_wait: Duration);
        with_prefetch(prefetch: usize);
        with_max_in_flight(max_in_flight: usize);
        with_lag_check_interval(lag_check_interval: Some(Duration));
        with_drain_timeout(drain_timeout: Some(Duration));
        with_on_shutdown(on_shutdown: OnShutdown);
    }

    /// Takes [`lag_check_interval`](Self::lag_check_interval) away: no lag is known, and a silent link is not noticed.
    #[must_use]
    pub fn without_lag_checks(mut self) -> Self {
        self.lag_check_interval = None;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        self.start_position.check()?;
        self.new_partition_start_position.check()?;
        let counts = [
            (self.max_batch_size, "the batch is 0, but a handler must get at least one event at once"),
            (self.max_batch_bytes.unwrap_or(1), "the batch has 0 bytes; leave the limit out, or give a size"),
            (self.prefetch, "the prefetch is 0, but at least one event must be held ahead of the handler"),
            (self.max_in_flight, "0 events may be in flight, but with none nothing can be tracked"),
        ];
        if let Some((_, complaint)) = counts.into_iter().find(|(count, _)| *count == 0) {
            return Err(Error::config(complaint));
        }
        let times = [
            ("drain time", self.drain_timeout),
            ("checkpoint time", self.checkpoint_policy.interval),
            ("handler deadline", self.handler_timeout),
            ("batch wait", Some(self.max_batch_wait)),
            ("time between probes", self.lag_check_interval),
        ];
        if let Some((what, Some(long))) = times.into_iter().find(|(_, time)| time.is_some_and(|time| time > LONGEST)) {
            return Err(Error::config(format!("the {what} is {long:?}, but must be at most a day")));
        }
        let never_zero = [
            (self.checkpoint_policy.interval, "the checkpoint policy says every 0s; leave it out, or give a time"),
            (self.handler_timeout, "the handler deadline is 0s; leave it out, or give a time"),
            (self.lag_check_interval, "partitions are probed every 0s; leave it out, or give a time"),
        ];
        match never_zero.into_iter().find(|(time, _)| time.is_some_and(|time| time.is_zero())) {
            Some((_, complaint)) => Err(Error::config(complaint)),
            None => Ok(()),
        }
    }
}
