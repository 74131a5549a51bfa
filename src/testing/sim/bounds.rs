//! How long things may take.

use std::time::Duration;

use super::plan::Settings;
use crate::model::LeaseTerms;

/// How long a handler that failed may wait at the longest before it is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest time between two cycles of another SDK, jitter and requests included.
const PEER_CYCLE: Duration = Duration::from_secs(41);

/// What it takes to own a partition and to take over its checkpoint.
const REQUESTS_PER_CLAIM: u64 = 4;

/// What follows from a plan's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest time between two cycles of a settled instance, with the time that its requests may take.
    pub cycle: Duration,
    /// Until an abandoned ownership of ours is free.
    pub lifetime: Duration,
    /// The same for one of another SDK.
    pub peer_lifetime: Duration,
    interval: Duration,
    expiry: Duration,
    greedy: bool,
    checkpoint_every: Duration,
}

impl Bounds {
    /// The bounds of these settings.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let deadline = Duration::from_secs(5).min(settings.expiry / 4);
        let longest = (3 * settings.interval).min(settings.expiry / 2);
        Self {
            cycle: longest + deadline,
            lifetime: settings.expiry + LeaseTerms::GRACE,
            peer_lifetime: settings.peer_expiry + LeaseTerms::GRACE,
            interval: settings.interval + settings.latency * 4,
            expiry: settings.expiry,
            greedy: settings.greedy,
            checkpoint_every: settings.checkpoint_every,
        }
    }

    /// The same where an owner of another SDK has a clock that is so far behind, for it compares the server's times with it:
    /// to it, the dead live that much longer, and nobody else takes its share.
    #[must_use]
    pub fn with_peers_behind(self, behind: Duration) -> Self {
        Self { peer_lifetime: self.peer_lifetime + behind, ..self }
    }

    /// How long a partition may be without an owner after that of ours died, when its `survivors` share `partitions` and
    /// nothing else goes wrong: its lifetime, the longest cycle, and one interval for each partition that a survivor must
    /// claim; all at once, if they are greedy.
    #[must_use]
    pub fn dark(&self, partitions: usize, survivors: usize, foreign: bool) -> Duration {
        let lifetime = if foreign { self.peer_lifetime } else { self.lifetime };
        let cycle = if foreign { self.cycle.max(PEER_CYCLE) } else { self.cycle };
        lifetime + cycle + self.rounds(partitions, survivors)
    }

    /// The same after its owner has released it and all others that it had, for nobody has to wait for an expiry then. One
    /// more round, for shares cannot always be even.
    #[must_use]
    pub fn free(&self, released: usize, survivors: usize) -> Duration {
        self.cycle + self.rounds(released, survivors) + self.interval
    }

    /// How long a live owner of ours may take to hand a partition over, from the moment it is asked: until it looks, until
    /// its handler has stopped, and until the one that asked looks. After that it is stolen.
    #[must_use]
    pub fn handoff(&self) -> Duration {
        self.expiry / 2 + self.expiry / 4 + self.interval
    }

    /// How long a group needs from the end of all trouble until it is balanced: what was recorded in an outage lives for
    /// an expiry from its end, then it is as if the owner had just died; a handler may be waiting to be tried again.
    #[must_use]
    pub fn convergence(&self, partitions: usize, instances: usize, foreign: bool) -> Duration {
        self.expiry + self.dark(partitions, instances, foreign) + 2 * self.cycle + LONGEST_PAUSE
    }

    /// The most requests that an instance sends in calm times within `lasted`, if it holds `held` partitions and has gained
    /// `gained`: each is renewed as often as beside owners of other SDKs and checkpointed as often as the policy says, the
    /// group is listed and the presence written every interval, and what is gained is claimed and adopted.
    #[must_use]
    pub fn requests(&self, held: usize, gained: usize, lasted: Duration) -> u64 {
        let times = |every: Duration| u64::try_from(lasted.as_millis().div_ceil(every.as_millis().max(1)) + 1);
        let times = |every| times(every).unwrap_or(u64::MAX);
        let per_partition = times(self.interval.max(self.expiry / 6)) + times(self.checkpoint_every);
        per_partition * held as u64 + 2 * times(self.interval) + REQUESTS_PER_CLAIM * gained as u64
    }

    fn rounds(&self, partitions: usize, instances: usize) -> Duration {
        let share = u32::try_from(partitions / instances.max(1) + 1).unwrap_or(u32::MAX);
        self.interval * if self.greedy { 1 } else { share }
    }
}
