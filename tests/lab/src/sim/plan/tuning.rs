//! Settings that have their defaults unless a plan is drawn from the whole range that `build` accepts.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use eventhubs_checkpoint::processor::OnFailure;

use super::HEAVY;

/// Settings of all instances of this crate that are not in [`Settings`](super::Settings). The defaults are those of
/// this crate.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Tuning {
    /// The request timeout of the store.
    pub request_timeout: Option<Duration>,
    /// The maximum number of concurrent operations of the store.
    pub concurrency: NonZeroUsize,
    /// Whether partitions are shared by load. [`greedy`](super::Settings::greedy) then has no effect.
    pub weighted: bool,
    /// When an application counts as stalled.
    pub stall_timeout: Duration,
    /// How long a handler may take when its partition stops.
    pub drain: Option<Duration>,
    /// The maximum number of events of a batch.
    pub batch: usize,
    /// How long a batch waits for more events.
    pub batch_wait: Duration,
    /// How many events are prefetched.
    pub prefetch: usize,
    /// The maximum number of events in flight.
    pub max_in_flight: usize,
    /// The interval of lag checks.
    pub lag_check_interval: Option<Duration>,
    /// How long one call of the handler may take.
    pub handler_timeout: Option<Duration>,
    /// What follows a failure of the handler.
    pub on_failure: OnFailure,
    /// Whether a partition with an unusable checkpoint starts at the latest event, not at the earliest.
    pub invalid_to_latest: bool,
    /// Whether checkpoints are written some time after they were requested.
    pub checkpoints_by_time: bool,
    /// The number of events after which a checkpoint is written.
    pub checkpoint_events: Option<NonZeroU32>,
    /// Where the group starts, if different from [`latest`](super::Settings::latest).
    pub start: Option<StartAt>,
    /// Whether the hub rejects a start after an event that it does not have.
    pub hub_refuses: bool,
}

/// A start that is neither the earliest nor the latest event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartAt {
    /// After the event with this number.
    After(i64),
    /// This long before an instance starts.
    Ago(Duration),
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            request_timeout: None,
            concurrency: const { NonZeroUsize::new(32).unwrap() },
            weighted: false,
            stall_timeout: Duration::from_secs(300),
            drain: None,
            batch: 100,
            batch_wait: Duration::ZERO,
            prefetch: 300,
            max_in_flight: 1000,
            lag_check_interval: Some(Duration::from_secs(30)),
            handler_timeout: None,
            on_failure: OnFailure::default(),
            invalid_to_latest: false,
            checkpoints_by_time: true,
            checkpoint_events: None,
            start: None,
            hub_refuses: false,
        }
    }
}

impl Tuning {
    /// Returns the request timeout for this lease duration.
    #[must_use]
    pub fn deadline(&self, expiry: Duration) -> Duration {
        self.request_timeout.unwrap_or(Duration::from_secs(5).min(expiry / 4))
    }

    /// Returns whether a handler under heavy load may take long enough for a batch to count as stalled.
    pub(crate) fn stalls_under_heavy_load(&self) -> bool {
        self.stall_timeout < 2 * HEAVY
    }

    /// Returns the fraction of the usual time that a handler takes for a batch and for an event in flight: with small
    /// batches it takes less, because the group could not catch up otherwise.
    pub(crate) fn pace(&self) -> f64 {
        let most = self.batch.min(self.prefetch).min(self.max_in_flight).min(100);
        f64::from(u32::try_from(most).unwrap_or(100)) / 100.0
    }
}
