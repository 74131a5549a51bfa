//! Settings of the balancing loop: those that an application chooses, and the times that follow from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pacing::Pacing;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::model::{Identity, LeaseDurations, LeaseScope};
use crate::planner::LoadBalancingStrategy;
use crate::store::{LeaseTimes, time_to_next_look};
use crate::util::{setters, show_setting};

/// How long handlers may take to finish, by default: Kubernetes kills a pod after 30 s, in which a handler may drain
/// and then take as long in `stopped`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// How often the beacon is read, by default. What a group reads more often than that costs more than it saves by rare
/// listings.
const BEACON_INTERVAL: Duration = Duration::from_secs(3);

/// A blob admits 500 requests per second. With this wait per instance, the reads of a large group need a fifth of that.
const BEACON_WAIT_PER_INSTANCE: Duration = Duration::from_millis(10);

/// The heartbeat is written this often per lease duration: several writes may fail before other instances take over
/// what it keeps alive.
const HEARTBEATS_PER_LEASE_DURATION: u32 = 4;

/// Each lease is renewed up to a tenth earlier than at the age of its renewal, so that leases which were won together
/// are not renewed together.
const AVERAGE_SPREAD: f64 = 0.95;

/// The first instance that reads a beacon of this age, in lease durations, refreshes it.
const AVERAGE_REFRESH: f64 = 0.55;

/// The most partitions for which ownerships and heartbeats are listed together. Such a listing also contains the
/// checkpoints. One response holds 5000 blobs.
pub(crate) const MOST_LISTED_TOGETHER: usize = 2000;

/// The longest cooldown. Longer ones make no difference, and sums of them must not overflow.
const LONGEST_COOLDOWN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What an instance does if it cannot renew an ownership before its lease expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnLeaseExpiry {
    /// Continue until another instance owns the partition, as the processors of all SDKs do. The default: an outage of
    /// the storage stops nothing. Two instances may read a partition at the same time for a moment; the broker
    /// disconnects the earlier reader, and the checkpoints of the previous owner are rejected.
    #[default]
    Continue,
    /// Stop the handler, its drain timeout included, before another instance can claim the partition: two seconds
    /// before the lease expires, because server times have a resolution of one second. For handlers whose work must not
    /// overlap. An outage of the storage that is longer than the lease duration stops all processing.
    ///
    /// Two things can defeat it. Nothing stops a handler that blocks its thread. And the clock of the leases must run:
    /// on Linux and Android it includes the time that the machine was suspended; on macOS and Windows it may not, and
    /// while a hypervisor pauses or migrates the virtual machine, it stands still anywhere. In both cases the handler
    /// may continue after the lease has expired. Where that must not matter, store the
    /// [epoch](crate::processor::PartitionContext::epoch) with each result.
    Stop,
}

/// How the load-balancing loop works. The lease durations belong to the [`GroupStore`](crate::store::GroupStore).
///
/// The [`balancer`](crate::processor::ProcessorConfig::with_balancer) of a processor's settings. An application with
/// its own reader passes them to [`Balancer::new`](super::Balancer::new). In files, durations are written as in `90s`
/// or `2m`, and settings that are left out have their defaults. Minor versions add fields, so end a literal with
/// `..BalancerConfig::default()`, or use the setters.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::ProcessorConfig;
///
/// let config = ProcessorConfig::default().with_balancer(|balancer| {
///     balancer.with_load_balancing_interval(Duration::from_secs(5)).with_max_partitions(8)
/// });
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BalancerConfig {
    /// See [`with_load_balancing_interval`](Self::with_load_balancing_interval).
    #[serde(with = "humantime_serde")]
    pub load_balancing_interval: Duration,
    /// See [`with_beacon_interval`](Self::with_beacon_interval).
    #[serde(with = "humantime_serde")]
    pub beacon_interval: Option<Duration>,
    /// See [`with_load_balancing_strategy`](Self::with_load_balancing_strategy).
    pub load_balancing_strategy: LoadBalancingStrategy,
    /// See [`with_max_partitions`](Self::with_max_partitions).
    pub max_partitions: Option<usize>,
    /// See [`with_on_lease_expiry`](Self::with_on_lease_expiry).
    pub on_lease_expiry: OnLeaseExpiry,
    /// See [`with_stall_timeout`](Self::with_stall_timeout).
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// See [`with_handoff`](Self::with_handoff).
    pub handoff: bool,
    /// See [`with_lease_scope`](Self::with_lease_scope).
    pub lease_scope: LeaseScope,
    #[doc(hidden)]
    #[serde(skip)]
    pub seed: Option<u64>,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            load_balancing_interval: Duration::from_secs(10),
            beacon_interval: None,
            load_balancing_strategy: LoadBalancingStrategy::default(),
            max_partitions: None,
            on_lease_expiry: OnLeaseExpiry::default(),
            stall_timeout: Duration::from_secs(300),
            handoff: true,
            lease_scope: LeaseScope::default(),
            seed: None,
        }
    }
}

impl BalancerConfig {
    setters! {
        /// Sets the time between two load-balancing cycles. Default 10 s, a sixth of the default lease duration, so
        /// that several cycles may fail. The lease duration must be at least three intervals.
        ///
        /// A change of the [beacon](Self::with_beacon_interval) begins a cycle within about a second, in a group of
        /// hundreds within a few, and so does a lease that was not renewed in time. While nothing changes, the loop
        /// waits longer, up to five lease durations, as long as the beacon works. Otherwise, up to the lesser of three
        /// intervals and half the lease duration. While the instance claims unowned partitions, a cycle comes about
        /// every second, and while another SDK is active in the group, every interval.
        #[doc(alias = "load_balancing_update_interval")]
        with_load_balancing_interval(load_balancing_interval: Duration);
        /// Sets how often this instance reads the beacon of the group, by which other instances say that something has
        /// changed: a partition was released or requested, an instance joined or died. Default 3 s, or the
        /// load-balancing interval if that is shorter: a released partition is usually read again within 5 s. At most
        /// the load-balancing interval.
        ///
        /// A read costs a twelfth of a listing. A group of more than 300 instances reads less often, because one blob
        /// admits 500 requests per second.
        with_beacon_interval(beacon_interval: Some(Duration));
        /// Sets how this instance claims its share. Default [`LoadBalancingStrategy::Balanced`], one partition after
        /// another; [`LoadBalancingStrategy::Greedy`] claims all at once.
        #[doc(alias = "rebalance")]
        with_load_balancing_strategy(load_balancing_strategy: LoadBalancingStrategy);
        /// Sets the maximum number of partitions that this instance owns. Default: no limit.
        ///
        /// Other instances do not know the limit. They leave this instance its share until it has claimed nothing for a
        /// lease duration. [`Snapshot::unclaimed_due_to_limit`](super::Snapshot::unclaimed_due_to_limit) counts the
        /// partitions that stay unowned.
        with_max_partitions(max_partitions: Some(usize));
        /// Sets whether this instance continues to process a partition whose lease it cannot renew in time. Default
        /// [`OnLeaseExpiry::Continue`].
        with_on_lease_expiry(on_lease_expiry: OnLeaseExpiry);
        /// Sets the time after which a handler counts as stalled: it has had one batch for longer than this. Default 5
        /// min, longer than usual batches. At least half the lease duration.
        ///
        /// While a handler is stalled, the instance claims its share of unowned partitions, because other instances may
        /// have the same problem, but steals none. It keeps the stalled partitions and reports the stall, because
        /// another instance of the same application would probably stall, too.
        /// [`ProcessorConfig::with_handler_timeout`](crate::processor::ProcessorConfig::with_handler_timeout) ends a
        /// call of the handler that takes too long.
        ///
        /// A blocked runtime is another matter, with a fixed limit: after 10 s the instance counts as
        /// [stalled](super::reports::Stalled::runtime) and claims nothing.
        with_stall_timeout(stall_timeout: Duration);
        /// Sets whether partitions move between live owners by handoff: the claiming instance requests the partition,
        /// and the owner stops its handler and writes the last checkpoint before it releases the partition, so that no
        /// event is processed twice. Default true. With false, other instances steal from this one, and this one
        /// steals, as with the other SDKs.
        ///
        /// The claiming instance waits for as long as the owner renews its lease and drains, which may take longer than
        /// a lease duration. An owner that does not acknowledge the request within half its lease duration and one
        /// request is stolen from.
        ///
        /// Handoffs need a [`Processor`](crate::processor::Processor): a balancer alone has no handler to wait for.
        with_handoff(handoff: bool);
        /// Sets what keeps the leases of this instance alive. Default [`LeaseScope::Partition`]: one renewal per
        /// partition, as with all other SDKs. With [`LeaseScope::Instance`] one heartbeat keeps all of them alive: a
        /// balanced instance sends about 1,600 requests per hour for up to 2000 partitions, of which 12 are listings.
        /// What that saves: [`cost`](crate::cost).
        ///
        /// Not together with [`LoadBalancingStrategy::Weighted`], which writes loads with the renewals.
        ///
        /// If the heartbeat cannot be written, each lease is renewed individually before it expires, until the
        /// heartbeat can be written again.
        ///
        /// Only instances of this crate honor such leases; other SDKs consider them expired. If an instance finds
        /// another SDK in the group, it reports that and continues with [`LeaseScope::Partition`]. Until then, within
        /// at most five lease durations, it may have claimed more than its share. To change the scope of a running
        /// group, restart its instances one by one.
        with_lease_scope(lease_scope: LeaseScope);
    }

    /// Seeds all random choices, for repeatable tests. Default: a seed from the operating system.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Returns the wait between two reads of the beacon by one of this many instances.
    pub(super) fn beacon_read_wait(&self, instances: u32) -> Duration {
        self.beacon_interval
            .unwrap_or_else(|| BEACON_INTERVAL.min(self.load_balancing_interval))
            .max(BEACON_WAIT_PER_INSTANCE * instances)
    }

    /// Returns how long an instance waits between its requests while nothing changes in its group. The estimate of the
    /// [`cost`](crate::cost) rests on it.
    pub(crate) fn steady_pace(&self, times: LeaseTimes, drain_timeout: Duration, instances: u32) -> SteadyPace {
        SteadyPace {
            renewal: self.renewal_age(times, drain_timeout).mul_f64(AVERAGE_SPREAD),
            listing: Pacing::average_calm_wait(times.lease_duration),
            beacon_read: self.beacon_read_wait(instances),
            beacon_refresh: times.lease_duration.mul_f64(AVERAGE_REFRESH),
            owner_look: times.lease_duration.mul_f64(AVERAGE_SPREAD),
            heartbeat: heartbeat_wait(times.lease_duration),
            case_look: time_to_next_look(false, times.lease_duration),
        }
    }

    /// Returns the age at which a lease ends with [`OnLeaseExpiry::Stop`]. The handler must have stopped before the
    /// server can show an age of the lease duration, and the server shows whole seconds.
    fn lease_lifetime(&self, times: LeaseTimes, drain_timeout: Duration) -> Option<Duration> {
        let strict = self.on_lease_expiry == OnLeaseExpiry::Stop;
        strict.then(|| times.lease_duration.saturating_sub(LeaseDurations::GRACE + drain_timeout))
    }

    /// Returns the age at which a lease is renewed: half the lease duration. With [`OnLeaseExpiry::Stop`] the lease
    /// ends earlier, and a renewal that meets the request of another instance needs three requests, each of which may
    /// take almost the request timeout, so it begins earlier, too, but not before a third of that time.
    fn renewal_age(&self, times: LeaseTimes, drain_timeout: Duration) -> Duration {
        let half = times.lease_duration / 2;
        let Some(lifetime) = self.lease_lifetime(times, drain_timeout) else { return half };
        half.min(lifetime.saturating_sub(3 * times.request_timeout).max(lifetime / 3))
    }

    pub(crate) fn check_settings(&self, times: LeaseTimes) -> Result<()> {
        let interval = self.load_balancing_interval;
        let lease = times.lease_duration;
        if interval.is_zero() {
            return Err(Error::config("`with_load_balancing_interval` is 0s, but must be more than zero"));
        }
        if matches!(self.load_balancing_strategy, LoadBalancingStrategy::Weighted { .. })
            && self.lease_scope == LeaseScope::Instance
        {
            return Err(Error::config(
                "`with_load_balancing_strategy` is `Weighted` and `with_lease_scope` is `Instance`, but loads are written \
                 with the renewal of each partition, which that scope omits: use `LeaseScope::Partition`, or `Balanced` or \
                 `Greedy`",
            ));
        }
        if let LoadBalancingStrategy::Weighted { threshold_percent: threshold @ 101.. } = self.load_balancing_strategy {
            return Err(Error::config(format!(
                "`with_load_balancing_strategy` is `Weighted` with a threshold of {threshold} percent, but it must be at \
                 most 100: otherwise nothing is balanced"
            )));
        }
        if self.stall_timeout < lease / 2 {
            return Err(Error::config(format!(
                "`with_stall_timeout` is {}, but must be at least half of `with_lease_duration`, {}: shorter stalls cost \
                 no partition",
                show_setting(self.stall_timeout, Self::default().stall_timeout),
                times.show_lease_duration()
            )));
        }
        if let Some(beacon) = self.beacon_interval
            && (beacon.is_zero() || beacon > interval)
        {
            return Err(Error::config(format!(
                "`with_beacon_interval` is {beacon:?}, but must be more than zero and at most \
                 `with_load_balancing_interval`, {}",
                show_setting(interval, Self::default().load_balancing_interval)
            )));
        }
        if lease < interval.saturating_mul(3) {
            return Err(Error::config(format!(
                "`with_lease_duration` is {}, but must be at least three times `with_load_balancing_interval`, {}: \
                 otherwise one slow cycle makes a live owner look expired",
                times.show_lease_duration(),
                show_setting(interval, Self::default().load_balancing_interval)
            )));
        }
        self.check_drain_timeout(times, Duration::ZERO)
    }

    /// A renewal begins at the latest when half of the lease duration has passed. The renewal and the time to stop
    /// after it must end before the lease expires.
    pub(crate) fn check_drain_timeout(&self, times: LeaseTimes, stopping: Duration) -> Result<()> {
        if self.on_lease_expiry == OnLeaseExpiry::Stop && time_to_drain(times).is_none_or(|left| left < stopping) {
            let grace = LeaseDurations::GRACE;
            return Err(Error::config(format!(
                "`with_on_lease_expiry` is `Stop`, so half of `with_lease_duration`, `with_request_timeout`, the time to \
                 stop and {grace:?} must not exceed `with_lease_duration`, but {:?} + {:?} + {stopping:?} + {grace:?} \
                 is more than {}: increase `with_lease_duration`, or reduce `with_drain_timeout` or \
                 `with_request_timeout`",
                times.lease_duration / 2,
                times.request_timeout,
                times.show_lease_duration()
            )));
        }
        Ok(())
    }

    /// Returns [`DRAIN_TIMEOUT`], or less if [`OnLeaseExpiry::Stop`] leaves less: a partition that stops may drain
    /// twice, and closes its receiver.
    pub(crate) fn default_drain_timeout(&self, times: LeaseTimes, closing: Duration) -> Duration {
        if self.on_lease_expiry == OnLeaseExpiry::Continue {
            return DRAIN_TIMEOUT;
        }
        let left = time_to_drain(times).unwrap_or_default();
        DRAIN_TIMEOUT.min(left.saturating_sub(closing) / 2)
    }
}

/// Returns the time that [`OnLeaseExpiry::Stop`] leaves for draining; `None` if not even a renewal fits.
fn time_to_drain(LeaseTimes { lease_duration, request_timeout }: LeaseTimes) -> Option<Duration> {
    lease_duration.checked_sub(lease_duration / 2 + request_timeout + LeaseDurations::GRACE)
}

/// Returns the wait between two heartbeats.
pub(super) fn heartbeat_wait(lease_duration: Duration) -> Duration {
    lease_duration / HEARTBEATS_PER_LEASE_DURATION
}

/// How long an instance waits, on average, between two requests of the same kind while nothing changes in its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyPace {
    /// Between two renewals of one lease.
    pub(crate) renewal: Duration,
    /// Between two cycles.
    pub(crate) listing: Duration,
    /// Between two reads of the beacon.
    pub(crate) beacon_read: Duration,
    /// Between two writes of the beacon by any instance, which keep it young.
    pub(crate) beacon_refresh: Duration,
    /// Between two looks at the same owner.
    pub(crate) owner_look: Duration,
    /// Between two heartbeats, if the instance needs one.
    pub(crate) heartbeat: Duration,
    /// Between two listings of the other blob-name casing, if the names of the group have uppercase letters.
    pub(crate) case_look: Duration,
}

/// The settings of a loop and of its store.
#[allow(missing_docs, reason = "private, but for tests")]
#[derive(Clone, Debug)]
pub struct LoopSettings {
    pub this: Identity,
    pub lease_durations: LeaseDurations,
    pub request_timeout: Duration,
    pub config: BalancerConfig,
    /// How long handlers may take to stop.
    pub drain_timeout: Duration,
    /// Whether the application reports each partition that it has started to process. A balancer alone does not know
    /// when its application does, so it does not wait for that.
    pub reports_starts: bool,
    /// Whether the names of the group differ in the other blob-name casing.
    pub has_other_name_case: bool,
}

impl LoopSettings {
    pub(super) fn lease_duration(&self) -> Duration {
        self.lease_durations.own
    }

    pub(super) fn interval(&self) -> Duration {
        self.config.load_balancing_interval
    }

    /// Whether partitions move by handoff. Only if handlers have time to stop: otherwise a request has no advantage
    /// over a steal.
    pub(super) fn hands_over(&self) -> bool {
        self.config.handoff && !self.drain_timeout.is_zero()
    }

    fn lease_times(&self) -> LeaseTimes {
        LeaseTimes { lease_duration: self.lease_duration(), request_timeout: self.request_timeout }
    }

    /// Returns the age at which a lease ends with [`OnLeaseExpiry::Stop`].
    pub(super) fn lease_lifetime(&self) -> Option<Duration> {
        self.config.lease_lifetime(self.lease_times(), self.drain_timeout)
    }

    /// Returns the age at which a lease is renewed.
    pub(super) fn renewal_age(&self) -> Duration {
        self.config.renewal_age(self.lease_times(), self.drain_timeout)
    }

    /// Returns the wait before the first retry of a request that failed.
    pub(super) fn first_retry_wait(&self) -> Duration {
        (self.lease_duration() / 16).min(Duration::from_secs(1))
    }

    /// Returns the wait that the server asks for, up to the lease duration: this instance must still look for expired
    /// owners.
    pub(super) fn retry_after(&self, error: &Error) -> Duration {
        error.retry_after().unwrap_or_default().min(self.lease_duration())
    }

    /// Returns the wait between two polls of a handoff, if this instance has requested this many partitions: a second,
    /// but half an interval if that would be hundreds of requests per second.
    pub(super) fn poll_wait(&self, requested: usize) -> Duration {
        Duration::from_millis(50)
            .saturating_mul(u32::try_from(requested).unwrap_or(u32::MAX))
            .max(Duration::from_secs(1))
            .min(self.interval() / 2)
    }

    /// Returns how long a handler may take to stop and to write its last checkpoint: one that is under way, and one
    /// after a conflict. An instance that requested the partition waits as long as the lease is renewed.
    pub(super) fn time_to_stop(&self) -> Duration {
        self.drain_timeout + 4 * self.request_timeout
    }

    /// Returns how long releases may take.
    pub(super) fn release_limit(&self) -> Duration {
        4 * self.request_timeout
    }

    /// Returns the wait before a partition is claimed again that could not be won `failures` times in a row: a quarter
    /// of an interval at first, doubled with each failure, and at most the lease duration.
    pub(super) fn setback_wait(&self, failures: u32, at_least: Duration) -> Duration {
        let wait = Backoff::new(self.interval() / 4, self.lease_duration()).wait_after(failures);
        wait.max(at_least.min(LONGEST_COOLDOWN))
    }

    /// Returns the wait before this instance claims a partition again that it has released: at least one interval and a
    /// half, so that another instance can claim it.
    pub(super) fn claim_cooldown(&self, wanted: Duration) -> Duration {
        wanted.min(LONGEST_COOLDOWN).max(self.interval()) + self.interval() / 2
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::model::{Incarnation, OwnerId};

    /// In seconds, for a lease duration, a request timeout, and how long a handler may take to stop.
    fn renewal_age(on_lease_expiry: OnLeaseExpiry, lease: u64, timeout: u64, drain: u64) -> u64 {
        let lease = Duration::from_secs(lease);
        let incarnation = Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1);
        let settings = LoopSettings {
            this: Identity::new(OwnerId::new("a").unwrap(), incarnation),
            lease_durations: LeaseDurations::new(lease, 3 * lease),
            request_timeout: Duration::from_secs(timeout),
            config: BalancerConfig::default().with_on_lease_expiry(on_lease_expiry),
            drain_timeout: Duration::from_secs(drain),
            reports_starts: false,
            has_other_name_case: false,
        };
        settings.renewal_age().as_secs()
    }

    /// Otherwise each request of a handoff would cost the lease if the storage is slow.
    #[test]
    fn a_renewal_has_time_for_three_slow_requests() {
        use OnLeaseExpiry::{Continue, Stop};
        for (on_lease_expiry, lease, timeout, drain, age) in [
            (Continue, 60, 5, 20, 30),
            (Stop, 60, 5, 20, 23),
            (Stop, 60, 1, 5, 30),
            (Stop, 30, 5, 4, 9),
            (Stop, 20, 5, 3, 5),
        ] {
            assert_eq!(renewal_age(on_lease_expiry, lease, timeout, drain), age, "{on_lease_expiry:?} {lease} s");
        }
    }
}
