//! What does not change while a loop runs.

use std::time::Duration;

use super::config::{BalancerConfig, LeasePolicy};
use super::events::Releasing;
use crate::error::Error;
use crate::model::{Identity, LeaseTerms};
use crate::store::{Handoff, Patience};

/// Longer waits make no difference, and sums of them must not overflow.
const LONGEST_COOL_DOWN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The settings of a loop and of its store.
#[derive(Clone, Debug)]
pub struct Settings {
    pub me: Identity,
    pub terms: LeaseTerms,
    pub request_deadline: Duration,
    pub config: BalancerConfig,
    /// How long an owner that is asked for a partition has.
    pub patience: Patience,
    /// How long handlers may take to stop.
    pub drain: Duration,
    /// The store looks at another tree of names.
    pub has_other_tree: bool,
}

impl Settings {
    pub(super) fn expiry(&self) -> Duration {
        self.terms.expiry
    }

    pub(super) fn interval(&self) -> Duration {
        self.config.interval
    }

    /// Only where handlers are given their time to stop: without, nothing would be gained by asking first.
    pub(super) fn hands_over(&self) -> bool {
        self.config.handoff && !self.drain.is_zero()
    }

    /// Under [`LeasePolicy::Strict`], how long a lease counts: the handler must have stopped before the server can show
    /// an age of the expiry, and the server shows whole seconds.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        let strict = self.config.lease_policy == LeasePolicy::Strict;
        strict.then(|| self.expiry().saturating_sub(LeaseTerms::GRACE + self.drain))
    }

    /// The wait before the first repetition of a request that failed.
    pub(super) fn retry_pause(&self) -> Duration {
        (self.expiry() / 16).min(Duration::from_secs(1))
    }

    /// The wait that the server asks for, within reason: this instance must look for dead owners all the same.
    pub(super) fn asked_to_wait(&self, error: &Error) -> Duration {
        error.retry_after().unwrap_or_default().min(self.expiry())
    }

    /// How long a handler may take to stop and to write its last checkpoint: one that is under way, and one that meets
    /// a conflict. An instance that asked for the partition waits only for so long, and the release takes a request.
    pub(super) fn time_to_stop(&self, reason: Releasing) -> Duration {
        match reason {
            Releasing::HandedOver => self.patience.release.saturating_sub(self.request_deadline),
            _ => self.drain + 4 * self.request_deadline,
        }
    }

    /// How long releases may take.
    pub(super) fn release_limit(&self) -> Duration {
        4 * self.request_deadline
    }

    /// How long the owner that was asked has for what it is to do next.
    pub(super) fn patience_with(&self, handoff: &Handoff) -> Duration {
        if handoff.is_acknowledged() { self.patience.release } else { self.patience.acknowledgement }
    }

    /// The wait before a partition is tried again that could not be won, or was released, `failures` times in a row:
    /// one interval at first, doubled with each failure, at most the expiry. A little more than whole intervals, so
    /// that the cycle that comes just then goes to another partition.
    pub(super) fn set_back(&self, failures: u32, at_least: Duration) -> Duration {
        let wait = self.interval().saturating_mul(2u32.saturating_pow(failures)).min(self.expiry());
        wait.max(at_least.min(LONGEST_COOL_DOWN)) + self.interval() / 2
    }
}
