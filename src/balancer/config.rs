//! Settings of the balancing loop.

use std::time::Duration;

use crate::balance::Strategy;
use crate::error::{Error, Result};

/// How the loop works. The lease terms belong to the [`GroupStore`](crate::store::GroupStore).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BalancerConfig {
    /// Time between two cycles. Default 10 s: a sixth of the default expiry, so that several cycles may fail.
    pub interval: Duration,
    /// How fast to take what is lacking. Default [`Strategy::Balanced`].
    pub strategy: Strategy,
    /// Whether the processor runs the loop on a thread and a runtime of its own. Default true: a handler that blocks its
    /// runtime then costs no partition. Set it to false for tests in paused time.
    pub own_thread: bool,
    /// Seeds all random choices, for tests that must be repeatable. By default the operating system gives a seed.
    pub seed: Option<u64>,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), strategy: Strategy::default(), own_thread: true, seed: None }
    }
}

impl BalancerConfig {
    /// Sets the [`interval`](Self::interval).
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the [`strategy`](Self::strategy).
    #[must_use]
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets [`own_thread`](Self::own_thread).
    #[must_use]
    pub fn with_own_thread(mut self, own_thread: bool) -> Self {
        self.own_thread = own_thread;
        self
    }

    /// Sets the [`seed`](Self::seed).
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    pub(super) fn check(&self, expiry: Duration) -> Result<()> {
        let interval = self.interval;
        if interval.is_zero() {
            return Err(Error::config("the interval is zero, but there must be time between two cycles"));
        }
        if expiry < interval.saturating_mul(3) {
            return Err(Error::config(format!(
                "the expiry is {expiry:?}, but must be at least three intervals of {interval:?}: \
                 with less, one slow cycle makes a live owner look dead"
            )));
        }
        Ok(())
    }
}
