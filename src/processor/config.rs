//! Settings of the processor.

use std::num::NonZeroU32;
use std::time::Duration;

use super::source::StartPosition;
use crate::balancer::BalancerConfig;
use crate::error::{Error, Result};

/// Longer times are mistakes, and their sums could overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// When positions marked by [`PartitionContext::checkpoint`](super::PartitionContext::checkpoint) are written down.
///
/// Each write is one storage request; what is not written yet comes again after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointPolicy {
    /// As soon as this many events lie between the last written position and the marked one. Default: no such limit.
    pub every_events: Option<NonZeroU32>,
    /// At the latest this long after it was marked. Default 5 s: some seconds of repeated events after a crash, at a
    /// dozen requests a minute and partition.
    pub every: Option<Duration>,
    /// When the partition is stopped in an orderly way. Default: yes.
    pub on_close: bool,
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self { every_events: None, every: Some(Duration::from_secs(5)), on_close: true }
    }
}

impl CheckpointPolicy {
    /// Sets [`every_events`](Self::every_events).
    #[must_use]
    pub fn with_every_events(mut self, events: NonZeroU32) -> Self {
        self.every_events = Some(events);
        self
    }

    /// Sets [`every`](Self::every).
    #[must_use]
    pub fn with_every(mut self, every: Duration) -> Self {
        self.every = Some(every);
        self
    }

    /// Takes [`every`](Self::every) away: the time since a mark does not matter.
    #[must_use]
    pub fn without_every(mut self) -> Self {
        self.every = None;
        self
    }

    /// Sets [`on_close`](Self::on_close).
    #[must_use]
    pub fn with_on_close(mut self, on_close: bool) -> Self {
        self.on_close = on_close;
        self
    }
}

/// How the processor works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessorConfig {
    /// How partitions are shared.
    pub balancer: BalancerConfig,
    /// Where a partition without a checkpoint starts. Default [`StartPosition::Earliest`]: nothing is lost.
    pub start: StartPosition,
    /// When checkpoints are written.
    pub checkpoints: CheckpointPolicy,
    /// The most events a handler gets at once. Default 100.
    pub batch: usize,
    /// How many events of a partition are held ahead of the handler. Default 300, as the official client does.
    pub prefetch: usize,
    /// How long a handler may take to finish its batch when its partition stops. Default: a quarter of the expiry.
    pub drain: Option<Duration>,
}

impl Default for ProcessorConfig {
    fn default() -> Self {
        Self {
            balancer: BalancerConfig::default(),
            start: StartPosition::Earliest,
            checkpoints: CheckpointPolicy::default(),
            batch: 100,
            prefetch: 300,
            drain: None,
        }
    }
}

impl ProcessorConfig {
    /// Sets how partitions are shared.
    #[must_use]
    pub fn with_balancer(mut self, balancer: BalancerConfig) -> Self {
        self.balancer = balancer;
        self
    }

    /// Sets where a partition without a checkpoint starts.
    #[must_use]
    pub fn with_start(mut self, start: StartPosition) -> Self {
        self.start = start;
        self
    }

    /// Sets when checkpoints are written.
    #[must_use]
    pub fn with_checkpoints(mut self, checkpoints: CheckpointPolicy) -> Self {
        self.checkpoints = checkpoints;
        self
    }

    /// Sets the most events a handler gets at once.
    #[must_use]
    pub fn with_batch(mut self, events: usize) -> Self {
        self.batch = events;
        self
    }

    /// Sets how many events of a partition are held ahead of the handler.
    #[must_use]
    pub fn with_prefetch(mut self, events: usize) -> Self {
        self.prefetch = events;
        self
    }

    /// Sets how long a handler may take to finish its batch when its partition stops.
    #[must_use]
    pub fn with_drain(mut self, drain: Duration) -> Self {
        self.drain = Some(drain);
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.batch == 0 {
            return Err(Error::config("the batch is 0, but a handler must get at least one event at once"));
        }
        if self.prefetch == 0 {
            return Err(Error::config("the prefetch is 0, but at least one event must be held ahead of the handler"));
        }
        if let Some(long) = [self.drain, self.checkpoints.every].into_iter().flatten().find(|time| *time > LONGEST) {
            return Err(Error::config(format!(
                "a drain time or checkpoint time is {long:?}, but must be at most a day"
            )));
        }
        if self.checkpoints.every.is_some_and(|every| every.is_zero()) {
            return Err(Error::config("the checkpoint policy says every 0s; leave it out, or give a time"));
        }
        Ok(())
    }
}
