//! Settings of the balancing loop.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::{LeaseDurations, LeaseScope};
use crate::planner::LoadBalancingStrategy;
use crate::setters::setters;
use crate::store::GroupStore;

/// What an owner does that cannot renew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLeaseExpiry {
    /// It goes on until it learns that somebody else has the partition, as the processors of all SDKs do. The default:
    /// while the storage is away, nothing stops. Two instances may both read a partition for a moment; the broker lets
    /// only the later one read, and the checkpoint of the earlier one is refused.
    #[default]
    Continue,
    /// The handler stops, its drain time included, before the lease can have expired elsewhere: two seconds before the
    /// expiry, for server times come in whole seconds. For handlers whose work must not overlap; a storage that is away
    /// for longer than the expiry stops all processing.
    Stop,
}

/// What to do with partitions whose application is not well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStall {
    /// Keep them, and say so. The default: another instance with the same application would hardly do better.
    #[default]
    Keep,
    /// Release them, so that another instance takes them. They are not taken back before the stall ends.
    Release,
}

/// How the loop works. The lease terms belong to the [`GroupStore`](crate::store::GroupStore).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BalancerConfig {
    /// Time between two cycles. Default 10 s: a sixth of the default expiry, so that several cycles may fail.
    ///
    /// While nothing changes cycles come more seldom, up to `min(3 x interval, expiry / 2)`. That is what it costs in
    /// reaction time: a settled instance notices a dead owner, a released partition or a new one that much later at
    /// most. Whoever joins looks every interval, and any change brings the next cycle forward.
    pub load_balancing_interval: Duration,
    /// How fast to take what is lacking. Default [`LoadBalancingStrategy::Balanced`].
    pub load_balancing_strategy: LoadBalancingStrategy,
    /// The most partitions that this instance holds. Default: no limit. The others do not know of it, and
    /// leave it its share until it has taken nothing for an expiry. What is unowned meanwhile, or for good if all are
    /// at their limits: [`Snapshot::unclaimed_due_to_limit`](super::Snapshot::unclaimed_due_to_limit).
    pub max_partitions: Option<usize>,
    /// What to do when a partition cannot be renewed in time. Default [`OnLeaseExpiry::Continue`].
    pub on_lease_expiry: OnLeaseExpiry,
    /// When an application counts as stalled: no heartbeat of its runtime, or one batch in the handler, for longer than
    /// this. Default 5 min: longer than any ordinary batch. With a stalled runtime an instance claims nothing. With a
    /// batch that takes too long it still claims its share of the unowned partitions, for the other instances may have
    /// the same fault; it takes nothing from live owners.
    pub stall_timeout: Duration,
    /// What to do then. Default [`OnStall::Keep`].
    pub on_stall: OnStall,
    /// Whether a partition that is to move from one live owner to another is asked for first: its handler is given its
    /// drain time and its last checkpoint, so that no event is processed twice. Default true; an owner with `false` is
    /// stolen from, as with the other SDKs, and steals. It counts in a [`Processor`](crate::processor::Processor) only:
    /// a loop alone knows of no handler to wait for.
    pub handoff: bool,
    /// How long a live owner that has answered may take to release a partition that was asked for, until it is stolen
    /// all the same. Default three quarters of the expiry. At least two drain times, 2 s for the link, and two request
    /// deadlines; and less than the expiry.
    pub handoff_timeout: Option<Duration>,
    /// What keeps the ownerships of this instance alive. Default [`LeaseScope::Partition`]: a renewal of each, as with
    /// all other SDKs. Under [`LeaseScope::Instance`] a presence record does for all together, so that a settled group
    /// costs some 370 requests an hour and instance whatever the number of its partitions, at the default interval and
    /// expiry.
    ///
    /// Not with [`LoadBalancingStrategy::Weighted`]: loads are written by renewals.
    ///
    /// Only instances of this crate honour such ownerships, whatever their own scope: to the other SDKs they look
    /// abandoned. A group in which one of those is found is told so, and goes on with [`LeaseScope::Partition`]; until
    /// then, within one stretched cycle, it may have taken partitions that it should not. To change the scope of a
    /// running group, restart its instances one by one.
    pub lease_scope: LeaseScope,
    /// Whether the processor runs the loop on a thread and a runtime of its own. Default true: a handler that blocks
    /// its runtime then costs no partition. Set it to false for tests in paused time.
    pub dedicated_thread: bool,
    pub(super) seed: Option<u64>,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            load_balancing_interval: Duration::from_secs(10),
            load_balancing_strategy: LoadBalancingStrategy::default(),
            max_partitions: None,
            on_lease_expiry: OnLeaseExpiry::default(),
            stall_timeout: Duration::from_secs(300),
            on_stall: OnStall::default(),
            handoff: true,
            handoff_timeout: None,
            lease_scope: LeaseScope::default(),
            dedicated_thread: true,
            seed: None,
        }
    }
}

impl BalancerConfig {
    setters! {
        with_load_balancing_interval(load_balancing_interval: Duration);
        with_load_balancing_strategy(load_balancing_strategy: LoadBalancingStrategy);
        with_max_partitions(max_partitions: Some(usize));
        with_on_lease_expiry(on_lease_expiry: OnLeaseExpiry);
        with_stall_timeout(stall_timeout: Duration);
        with_on_stall(on_stall: OnStall);
        with_handoff(handoff: bool);
        with_handoff_timeout(handoff_timeout: Some(Duration));
        with_lease_scope(lease_scope: LeaseScope);
        with_dedicated_thread(dedicated_thread: bool);
    }

    /// Seeds all random choices, for tests that must be repeatable. By default the operating system gives a seed.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    pub(super) fn check(&self, store: &GroupStore) -> Result<()> {
        let (interval, expiry) = (self.load_balancing_interval, store.lease_durations().own);
        if interval.is_zero() {
            return Err(Error::config("the interval is zero, but there must be time between two cycles"));
        }
        if matches!(self.load_balancing_strategy, LoadBalancingStrategy::Weighted { .. })
            && self.lease_scope == LeaseScope::Instance
        {
            return Err(Error::config(
                "the strategy is `Weighted` and the lease scope `Instance`, but loads are written by the renewal of each \
                 partition, which that scope leaves out: use `LeaseScope::Partition`, or `Balanced` or `Greedy`",
            ));
        }
        if self.stall_timeout < expiry / 2 {
            return Err(Error::config(format!(
                "the application counts as stalled after {:?}, but must be given at least half the expiry, {:?}: shorter \
                 stalls cost nothing",
                self.stall_timeout,
                expiry / 2
            )));
        }
        if expiry < interval.saturating_mul(3) {
            return Err(Error::config(format!(
                "the expiry is {expiry:?}, but must be at least three intervals of {interval:?}: \
                 with less, one slow cycle makes a live owner look dead"
            )));
        }
        self.check_drain_timeout(store, Duration::ZERO)
    }

    /// Half of the expiry passes before a renewal; that renewal, and the drain time after it, must end in time.
    pub(super) fn check_drain_timeout(&self, store: &GroupStore, drain: Duration) -> Result<()> {
        let (expiry, deadline) = (store.lease_durations().own, store.request_timeout());
        let left = time_to_drain(expiry, deadline);
        if self.on_lease_expiry == OnLeaseExpiry::Stop && left.is_none_or(|left| left < drain) {
            let grace = LeaseDurations::GRACE;
            return Err(Error::config(format!(
                "with strict leases half the expiry, the request deadline and the time to stop must end {grace:?} before the \
                 expiry, but {:?} + {deadline:?} + {drain:?} + {grace:?} is more than {expiry:?}: lengthen the expiry, or \
                 shorten the others",
                expiry / 2
            )));
        }
        Ok(())
    }

    pub(crate) fn handoff_timeout(&self, store: &GroupStore) -> Duration {
        self.handoff_timeout.unwrap_or_else(|| store.handoff_timeouts().release)
    }

    /// The time in which a partition stops, a last checkpoint that meets a conflict and the release must fit into a
    /// handoff. Without a drain time nothing is handed over.
    pub(crate) fn check_handoff(&self, store: &GroupStore, drain: Duration, stopping: Duration) -> Result<()> {
        let (timeout, deadline, expiry) =
            (self.handoff_timeout(store), store.request_timeout(), store.lease_durations().own);
        if self.handoff && !drain.is_zero() && (stopping + 2 * deadline > timeout || timeout >= expiry) {
            return Err(Error::config(format!(
                "a handoff may take {timeout:?}, but must be at least the time in which a partition stops, {stopping:?} with a \
                 drain time of {drain:?}, and two request deadlines of {deadline:?}, and less than the expiry, {expiry:?}: \
                 shorten the drain time, change `with_handoff_timeout`, lengthen the expiry, or switch handoffs off with \
                 `with_handoff(false)`"
            )));
        }
        Ok(())
    }

    /// A quarter of the expiry, or what strict leases or a handoff within its default time leave: a partition may drain
    /// twice when it stops, and close its link. With an expiry below 16 s a handoff leaves next to nothing, or less.
    /// Then it is a sixteenth of the expiry, with which a handoff is in time if the link closes quickly.
    pub(crate) fn default_drain_timeout(&self, store: &GroupStore, closing: Duration) -> Duration {
        let (expiry, deadline) = (store.lease_durations().own, store.request_timeout());
        let mut drain = expiry / 4;
        if self.handoff {
            let left = store.handoff_timeouts().release.saturating_sub(2 * deadline + closing) / 2;
            drain = drain.min(left.max(expiry / 16));
        }
        if self.on_lease_expiry == OnLeaseExpiry::Stop {
            let left = time_to_drain(expiry, deadline).unwrap_or_default();
            drain = drain.min(left.saturating_sub(closing) / 2);
        }
        drain
    }
}

/// What strict leases leave for draining; nothing if not even a renewal fits.
fn time_to_drain(expiry: Duration, request_deadline: Duration) -> Option<Duration> {
    expiry.checked_sub(expiry / 2 + request_deadline + LeaseDurations::GRACE)
}
