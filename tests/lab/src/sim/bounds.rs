//! Upper bounds on how long things may take.

use std::time::Duration;

use eventhubs_checkpoint::processor::OnFailure;
use eventhubs_checkpoint::store::protocol::LeaseDurations;

use super::plan::{HEAVY, Settings, Tuning};

/// By how much an owner may misjudge the clock of the storage, which tells when a pause ends.
pub(super) const CLOCK_ERROR: Duration = Duration::from_secs(5);

/// The longest wait before a failed handler is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest time between two cycles of another SDK, including jitter and requests.
const FOREIGN_CYCLE: Duration = Duration::from_secs(41);

/// The minimum time for which a settled group is watched.
const QUIET: Duration = Duration::from_secs(480);

/// In a calm group, the time from one listing to the next, in lease durations.
const CALM_LISTINGS: u32 = 5;

/// Requests that it takes to own a partition and to take over its checkpoint.
const REQUESTS_PER_CLAIM: u64 = 4;

/// Requests that the first attempts to adopt a partition or to write a last checkpoint take, before the waits grow.
const QUICK_REQUESTS: u64 = 12;

/// Bounds that follow from a plan's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest time between two cycles of a settled instance, including the time that its requests may take.
    pub cycle: Duration,
    /// The time until an abandoned lease of this crate expires.
    pub lifetime: Duration,
    /// The time until an abandoned lease of another SDK expires.
    pub foreign_lifetime: Duration,
    /// The lease duration.
    pub expiry: Duration,
    interval: Duration,
    sharing: Sharing,
    /// `None` if checkpoints are written after a number of events.
    checkpoint_every: Option<Duration>,
    /// Extra time that a group may need to settle after a failure or a stall.
    aftermath: Duration,
    quiet: Duration,
}

/// How many partitions an instance claims in one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    OneByOne,
    AtOnce,
    /// One per cycle, and one instance may claim all unowned partitions.
    ByLoad,
}

impl Bounds {
    /// Returns the bounds of these settings.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let tuning = &settings.tuning;
        let deadline = tuning.deadline(settings.expiry);
        let longest = (3 * settings.interval).min(settings.expiry / 2);
        Self {
            cycle: longest.max(settings.notice_delay) + deadline.max(settings.slowness * 4),
            lifetime: settings.expiry + LeaseDurations::GRACE,
            foreign_lifetime: settings.foreign_lease_duration + LeaseDurations::GRACE,
            interval: settings.interval + (settings.latency + settings.slowness) * 4,
            expiry: settings.expiry,
            sharing: match settings.greedy {
                _ if tuning.weighted => Sharing::ByLoad,
                true => Sharing::AtOnce,
                false => Sharing::OneByOne,
            },
            checkpoint_every: tuning.checkpoint_events.is_none().then_some(settings.checkpoint_every),
            aftermath: aftermath(tuning),
            quiet: quiet(settings),
        }
    }

    /// Returns how long a settled group is watched, so that everything is processed and checkpointed at the end: events
    /// that wait in batches, and events that only two lag checks reveal.
    #[must_use]
    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    /// Returns the bounds for a group with an owner of another SDK whose clock is behind by this much. That owner
    /// compares the server's times with its own clock: it considers expired leases valid for that much longer, and no
    /// other instance takes its share.
    #[must_use]
    pub fn with_foreign_clock_lag(self, behind: Duration) -> Self {
        Self { foreign_lifetime: self.foreign_lifetime + behind, ..self }
    }

    /// Returns how long a partition may be unowned after an owner of this crate crashed, if its `survivors` share
    /// `partitions` and nothing else goes wrong: its lifetime, the longest cycle, and one interval for each partition
    /// that a survivor must claim, or one interval in total if the survivors are greedy.
    #[must_use]
    pub fn unowned_time(&self, partitions: usize, survivors: usize, foreign: bool) -> Duration {
        let lifetime = if foreign { self.foreign_lifetime } else { self.lifetime };
        let cycle = if foreign { self.cycle.max(FOREIGN_CYCLE) } else { self.cycle };
        lifetime + cycle + self.rounds(partitions, survivors)
    }

    /// Returns how much longer a partition may be unowned if its owner was an operator. If the operator is killed after
    /// its claim and before it lights the beacon, no instance is notified. With one lease per instance, the former
    /// owner then continues to process the partition until the next listing.
    #[must_use]
    pub fn unnoticed_claim(&self) -> Duration {
        CALM_LISTINGS * self.expiry
    }

    /// Returns how long a partition may be unowned after its owner has released it together with all its other
    /// partitions; in that case no instance waits for an expiry. One more round is included, because shares are not
    /// always even.
    #[must_use]
    pub fn free(&self, released: usize, survivors: usize) -> Duration {
        self.cycle + self.rounds(released, survivors) + self.interval
    }

    /// Returns within which time an instance reads again which partitions the hub has: 30 intervals.
    #[must_use]
    pub fn discovery(&self) -> Duration {
        30 * self.interval
    }

    /// Returns how long a live owner of this crate may take to hand over a partition after a handoff request: until it
    /// reads the request, until its handler has stopped, and until the claiming instance polls again. After that the
    /// partition is stolen.
    #[must_use]
    pub fn handoff(&self) -> Duration {
        self.expiry / 2 + self.expiry / 4 + self.interval
    }

    /// Returns how long a group needs after the last fault until it is balanced. A record that was written during an
    /// outage is valid for one lease duration after the end of the outage; then the case is the same as a crash of its
    /// owner. A handler may be waiting for its next attempt.
    #[must_use]
    pub fn convergence(&self, partitions: usize, instances: usize, foreign: bool) -> Duration {
        self.expiry
            + self.unowned_time(partitions, instances, foreign)
            + 2 * self.cycle
            + LONGEST_PAUSE
            + self.aftermath
    }

    /// Returns the maximum number of requests that an instance sends within `lasted` without faults, if it holds `held`
    /// partitions and has gained `gained`. Each read of the beacon may be followed by two listings, and it may report a
    /// change each second. Each held partition is renewed as often as in a group with owners of other SDKs and is
    /// checkpointed as often as the policy requires. Every interval, two kinds of record are listed and one claim is
    /// attempted. Each gained partition is claimed and adopted. The heartbeat may be written more often than without
    /// faults, and is read each time, because it is one record that must stay valid. A failure is followed by some
    /// quick attempts, because most failures are short: for the heartbeat, and for each partition that the instance
    /// holds or gains.
    #[must_use]
    pub fn requests(&self, held: usize, gained: usize, lasted: Duration) -> u64 {
        let times = |every: Duration| u64::try_from(lasted.as_millis().div_ceil(every.as_millis().max(1)) + 1);
        let times = |every| times(every).unwrap_or(u64::MAX);
        let Some(checkpoint_every) = self.checkpoint_every else { return u64::MAX };
        let per_partition = times(self.interval.max(self.expiry / 6)) + times(checkpoint_every);
        let heartbeat = 2 * times(self.expiry / 16);
        let reads = times(self.interval.min(Duration::from_secs(3)));
        let beacon = 3 * reads + 3 * times(Duration::from_secs(1));
        let (held, gained) = (held as u64, gained as u64);
        let quick = QUICK_REQUESTS * (held + gained + 1);
        quick + per_partition * held + 3 * times(self.interval) + heartbeat + beacon + REQUESTS_PER_CLAIM * gained
    }

    fn rounds(&self, partitions: usize, instances: usize) -> Duration {
        let rounds = match self.sharing {
            Sharing::OneByOne => partitions / instances.max(1) + 1,
            Sharing::AtOnce => 1,
            Sharing::ByLoad => partitions + 1,
        };
        self.interval * u32::try_from(rounds).unwrap_or(u32::MAX)
    }
}

fn aftermath(tuning: &Tuning) -> Duration {
    let given_back = match tuning.on_failure {
        OnFailure::Release { cooldown } => cooldown,
        _ => Duration::ZERO,
    };
    given_back + if tuning.stalls_under_heavy_load() { HEAVY } else { Duration::ZERO }
}

fn quiet(settings: &Settings) -> Duration {
    let tuning = &settings.tuning;
    let probes = 2 * tuning.lag_check_interval.unwrap_or_default();
    (tuning.batch_wait + probes + 2 * settings.checkpoint_every + QUIET / 2).max(QUIET)
}
