//! How long things may take.

use std::time::Duration;

use eventhubs_checkpoint::LeaseDurations;
use eventhubs_checkpoint::processor::OnFailure;

use super::plan::{HEAVY, Settings, Tuning};

/// How long a handler that failed may wait at the longest before it is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest time between two cycles of another SDK, jitter and requests included.
const FOREIGN_CYCLE: Duration = Duration::from_secs(41);

/// How long a settled group is watched at least.
const QUIET: Duration = Duration::from_secs(480);

/// What it takes to own a partition and to take over its checkpoint.
const REQUESTS_PER_CLAIM: u64 = 4;

/// What the first attempts to adopt or to write a last checkpoint take, before the waits grow.
const QUICK_REQUESTS: u64 = 12;

/// What follows from a plan's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest time between two cycles of a settled instance, with the time that its requests may take.
    pub cycle: Duration,
    /// Until an abandoned ownership of ours is free.
    pub lifetime: Duration,
    /// The same for one of another SDK.
    pub foreign_lifetime: Duration,
    interval: Duration,
    expiry: Duration,
    sharing: Sharing,
    /// Nothing, if positions are written by their number.
    checkpoint_every: Option<Duration>,
    /// How much longer a group may need to settle because of what follows a failure or a stall.
    aftermath: Duration,
    quiet: Duration,
}

/// How many partitions an instance takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    OneByOne,
    AtOnce,
    /// One by one, and one instance may claim all unowned partitions.
    ByLoad,
}

impl Bounds {
    /// The bounds of these settings.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let tuning = &settings.tuning;
        let deadline = tuning.deadline(settings.expiry);
        let longest = (3 * settings.interval).min(settings.expiry / 2);
        Self {
            cycle: longest + deadline,
            lifetime: settings.expiry + LeaseDurations::GRACE,
            foreign_lifetime: settings.peer_expiry + LeaseDurations::GRACE,
            interval: settings.interval + settings.latency * 4,
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

    /// How long a settled group is watched, so that what waits in batches, and what two looks at the hub reveal, is
    /// handled and checkpointed at the end.
    #[must_use]
    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    /// The same where an owner of another SDK has a clock that is so far behind, for it compares the server's times
    /// with it: to it, the dead live that much longer, and nobody else takes its share.
    #[must_use]
    pub fn with_foreign_clock_lag(self, behind: Duration) -> Self {
        Self { foreign_lifetime: self.foreign_lifetime + behind, ..self }
    }

    /// How long a partition may be without an owner after that of ours died, when its `survivors` share `partitions`
    /// and nothing else goes wrong: its lifetime, the longest cycle, and one interval for each partition that a
    /// survivor must claim; all at once, if they are greedy.
    #[must_use]
    pub fn unowned_time(&self, partitions: usize, survivors: usize, foreign: bool) -> Duration {
        let lifetime = if foreign { self.foreign_lifetime } else { self.lifetime };
        let cycle = if foreign { self.cycle.max(FOREIGN_CYCLE) } else { self.cycle };
        lifetime + cycle + self.rounds(partitions, survivors)
    }

    /// The same after its owner has released it and all others that it had, for nobody has to wait for an expiry then.
    /// One more round, for shares cannot always be even.
    #[must_use]
    pub fn free(&self, released: usize, survivors: usize) -> Duration {
        self.cycle + self.rounds(released, survivors) + self.interval
    }

    /// How long a live owner of ours may take to hand a partition over, from the moment it is asked: until it looks,
    /// until its handler has stopped, and until the one that asked looks. After that it is stolen.
    #[must_use]
    pub fn handoff(&self) -> Duration {
        self.expiry / 2 + self.expiry / 4 + self.interval
    }

    /// How long a group needs from the end of all trouble until it is balanced: what was recorded in an outage lives
    /// for an expiry from its end, then it is as if the owner had just died; a handler may be waiting to be tried
    /// again.
    #[must_use]
    pub fn convergence(&self, partitions: usize, instances: usize, foreign: bool) -> Duration {
        self.expiry
            + self.unowned_time(partitions, instances, foreign)
            + 2 * self.cycle
            + LONGEST_PAUSE
            + self.aftermath
    }

    /// The most requests that an instance sends in calm times within `lasted`, if it holds `held` partitions and has
    /// gained `gained`: each is renewed as often as with owners of other SDKs in the group and checkpointed as often as
    /// the policy says; every interval two kinds of record are listed and a claim is attempted; what is gained is
    /// claimed and adopted. The presence may be written more often than in calm times, and read each time: it is one
    /// record, and has to stay valid. A failure is followed by some quick attempts, since most pass soon.
    #[must_use]
    pub fn requests(&self, held: usize, gained: usize, lasted: Duration) -> u64 {
        let times = |every: Duration| u64::try_from(lasted.as_millis().div_ceil(every.as_millis().max(1)) + 1);
        let times = |every| times(every).unwrap_or(u64::MAX);
        let Some(checkpoint_every) = self.checkpoint_every else { return u64::MAX };
        let per_partition = times(self.interval.max(self.expiry / 6)) + times(checkpoint_every);
        let presence = 2 * times(self.expiry / 8);
        let quick = QUICK_REQUESTS * (held as u64 + 1);
        quick + per_partition * held as u64 + 3 * times(self.interval) + presence + REQUESTS_PER_CLAIM * gained as u64
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
        OnFailure::Release { cool_down } => cool_down,
        _ => Duration::ZERO,
    };
    given_back + if tuning.stalls_under_heavy_load() { HEAVY } else { Duration::ZERO }
}

fn quiet(settings: &Settings) -> Duration {
    let tuning = &settings.tuning;
    let probes = 2 * tuning.probe_every.unwrap_or_default();
    (tuning.batch_wait + probes + 2 * settings.checkpoint_every + QUIET / 2).max(QUIET)
}
