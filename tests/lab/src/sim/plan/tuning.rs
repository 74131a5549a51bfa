//! Settings that are at their defaults unless a plan is drawn from the whole range that `build` accepts.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use eventhubs_checkpoint::balancer::OnStall;
use eventhubs_checkpoint::processor::OnFailure;

use super::HEAVY;

/// Settings of all instances of ours that are not in [`Settings`](super::Settings). The default is what users get if
/// they set nothing.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Tuning {
    /// Of the store: how long a request may take.
    pub request_deadline: Option<Duration>,
    /// Of the store: how many operations may be under way at once.
    pub concurrency: NonZeroUsize,
    /// Whether partitions are shared by load. Then [`greedy`](super::Settings::greedy) does not count.
    pub weighted: bool,
    /// When an application counts as stalled.
    pub stall_after: Duration,
    /// What follows.
    pub on_stall: OnStall,
    /// How long a handoff may take.
    pub handoff_timeout: Option<Duration>,
    /// How long a handler may take when its partition stops.
    pub drain: Option<Duration>,
    /// The most events of a batch.
    pub batch: usize,
    /// How long a batch waits.
    pub batch_wait: Duration,
    /// How many events are held ahead.
    pub prefetch: usize,
    /// The most events that are tracked and not finished.
    pub max_in_flight: usize,
    /// How often partitions are compared with the hub.
    pub probe_every: Option<Duration>,
    /// How long one call of the handler may take.
    pub handler_deadline: Option<Duration>,
    /// What follows a failure of the handler.
    pub on_failure: OnFailure,
    /// Whether a checkpoint that is not usable makes a partition start at the latest event, not at the earliest.
    pub invalid_to_latest: bool,
    /// Whether positions are written some time after they were marked.
    pub checkpoints_by_time: bool,
    /// After how many events positions are written.
    pub checkpoint_events: Option<NonZeroU32>,
    /// Whether positions are written when a partition stops.
    pub checkpoints_on_close: bool,
    /// Where the group starts, if not as [`latest`](super::Settings::latest) says.
    pub start: Option<StartAt>,
    /// Whether the hub refuses to start after an event that it does not have.
    pub hub_refuses: bool,
}

/// A start that is neither the earliest nor the latest event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartAt {
    /// After the event with this number.
    After(i64),
    /// So long before an instance comes up.
    Ago(Duration),
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            request_deadline: None,
            concurrency: const { NonZeroUsize::new(32).unwrap() },
            weighted: false,
            stall_after: Duration::from_secs(300),
            on_stall: OnStall::default(),
            handoff_timeout: None,
            drain: None,
            batch: 100,
            batch_wait: Duration::ZERO,
            prefetch: 300,
            max_in_flight: 1000,
            probe_every: Some(Duration::from_secs(30)),
            handler_deadline: None,
            on_failure: OnFailure::default(),
            invalid_to_latest: false,
            checkpoints_by_time: true,
            checkpoint_events: None,
            checkpoints_on_close: true,
            start: None,
            hub_refuses: false,
        }
    }
}

impl Tuning {
    /// How long a request may take, with this expiry.
    #[must_use]
    pub fn deadline(&self, expiry: Duration) -> Duration {
        self.request_deadline.unwrap_or(Duration::from_secs(5).min(expiry / 4))
    }

    /// Whether a handler under heavy load may take so long for a batch that it counts as stalled.
    pub(crate) fn stalls_under_heavy_load(&self) -> bool {
        self.stall_after < 2 * HEAVY
    }

    /// Which part of the usual time a handler takes for a batch, and for an event in flight: with small batches it
    /// takes less, or a group would never catch up.
    pub(crate) fn pace(&self) -> f64 {
        let most = self.batch.min(self.prefetch).min(self.max_in_flight).min(100);
        f64::from(u32::try_from(most).unwrap_or(100)) / 100.0
    }
}
