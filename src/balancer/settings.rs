//! What does not change while a loop runs.

use std::time::Duration;

use super::config::{BalancerConfig, OnLeaseExpiry};
use crate::error::Error;
use crate::model::{Identity, LeaseDurations};
use crate::planner::ReleaseReason;
use crate::store::{Handoff, HandoffTimeouts};

/// Longer waits make no difference, and sums of them must not overflow.
const LONGEST_COOL_DOWN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The settings of a loop and of its store.
#[derive(Clone, Debug)]
pub struct Settings {
    pub this: Identity,
    pub lease_durations: LeaseDurations,
    pub request_timeout: Duration,
    pub config: BalancerConfig,
    /// How long an owner that is asked for a partition has.
    pub handoff_timeouts: HandoffTimeouts,
    /// How long handlers may take to stop.
    pub drain_timeout: Duration,
    /// The store looks at another tree of names.
    pub has_other_name_case: bool,
}

impl Settings {
    pub(super) fn lease_duration(&self) -> Duration {
        self.lease_durations.own
    }

    pub(super) fn interval(&self) -> Duration {
        self.config.load_balancing_interval
    }

    /// Only where handlers are given their time to stop: without, nothing would be gained by asking first.
    pub(super) fn hands_over(&self) -> bool {
        self.config.handoff && !self.drain_timeout.is_zero()
    }

    /// Under [`OnLeaseExpiry::Stop`], how long a lease counts: the handler must have stopped before the server can show
    /// an age of the expiry, and the server shows whole seconds.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        let strict = self.config.on_lease_expiry == OnLeaseExpiry::Stop;
        strict.then(|| self.lease_duration().saturating_sub(LeaseDurations::GRACE + self.drain_timeout))
    }

    /// The wait before the first repetition of a request that failed.
    pub(super) fn retry_pause(&self) -> Duration {
        (self.lease_duration() / 16).min(Duration::from_secs(1))
    }

    /// The wait that the server asks for, within reason: this instance must look for dead owners all the same.
    pub(super) fn asked_to_wait(&self, error: &Error) -> Duration {
        error.retry_after().unwrap_or_default().min(self.lease_duration())
    }

    /// How long a handler may take to stop and to write its last checkpoint: one that is under way, and one that meets
    /// a conflict. An instance that asked for the partition waits only for so long, and the release takes a request.
    pub(super) fn time_to_stop(&self, reason: ReleaseReason) -> Duration {
        match reason {
            ReleaseReason::HandedOver => self.handoff_timeouts.release.saturating_sub(self.request_timeout),
            _ => self.drain_timeout + 4 * self.request_timeout,
        }
    }

    /// How long releases may take.
    pub(super) fn release_limit(&self) -> Duration {
        4 * self.request_timeout
    }

    /// How long the owner that was asked has for what it is to do next.
    pub(super) fn handoff_timeout_of(&self, handoff: &Handoff) -> Duration {
        if handoff.is_acknowledged() { self.handoff_timeouts.release } else { self.handoff_timeouts.acknowledgement }
    }

    /// The wait before a partition is tried again that could not be won, or was released, `failures` times in a row:
    /// one interval at first, doubled with each failure, at most the expiry. A little more than whole intervals, so
    /// that the cycle that comes just then goes to another partition.
    pub(super) fn set_back(&self, failures: u32, at_least: Duration) -> Duration {
        let wait = self.interval().saturating_mul(2u32.saturating_pow(failures)).min(self.lease_duration());
        wait.max(at_least.min(LONGEST_COOL_DOWN)) + self.interval() / 2
    }
}
