//! Who takes part, and everything that will go wrong: decided before anything starts.

mod draw;
mod storage_fault;
mod tuning;
mod wild;

use std::time::Duration;

#[cfg(test)]
pub(super) use self::draw::reset;
pub use self::storage_fault::StorageFault;
pub use self::tuning::{StartAt, Tuning};
use super::foreign::Sdk;
use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::processor::OnFailure;

/// How much longer a handler under heavy load takes for a batch.
pub(super) const HEAVY: Duration = Duration::from_secs(60);

/// How large the plans are that are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// How many instances there are, foreign ones included. Default 6.
    pub instances: u32,
    /// How many partitions the hub begins with. Default 24.
    pub partitions: u32,
    /// How long things go wrong, in virtual time; the calm after it comes on top. Default 1 h.
    pub storm: Duration,
    /// Every how often something goes wrong, on average. Default 3 min.
    pub incident_every: Duration,
    /// Whether owners of other SDKs may take part. Default yes.
    pub foreign: bool,
    /// Whether the storage is a [`Platform`](eventhubs_checkpoint::testing::faulty::Platform), and names of owners may
    /// end with dots. The plan of a seed is otherwise the same. Default no.
    pub platform: bool,
    /// Whether all settings are drawn from the whole range that `build` accepts, and not only some of them near their
    /// defaults. The plan of a seed is otherwise the same. Default no.
    pub wild: bool,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            instances: 6,
            partitions: 24,
            storm: Duration::from_secs(60 * 60),
            incident_every: Duration::from_secs(180),
            foreign: true,
            platform: false,
            wild: false,
        }
    }
}

/// All that is to happen. Two runs of the same plan are the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it was drawn from. Whatever is random while it runs depends on this alone.
    pub seed: u64,
    /// Whether the storage is a [`Platform`](eventhubs_checkpoint::testing::faulty::Platform).
    pub platform: bool,
    /// How many partitions the hub begins with.
    pub partitions: u32,
    /// What all of ours have in common.
    pub settings: Settings,
    /// The instances. Those of them that are down come back by themselves.
    pub members: Vec<Member>,
    /// How much is published, partition by partition; those added later begin with the first again.
    pub loads: Vec<Load>,
    /// How long things go wrong.
    pub storm: Duration,
    /// What goes wrong, in order of time.
    pub incidents: Vec<Incident>,
}

impl Plan {
    /// How far the slowest wall clock of the owners of other SDKs is behind.
    #[must_use]
    pub fn foreign_clock_lag(&self) -> Duration {
        let foreign = self.members.iter().filter(|member| matches!(member.role, Role::Foreign(_)));
        let behind = foreign.map(|member| member.skew_seconds.min(0).unsigned_abs()).max();
        Duration::from_secs(behind.unwrap_or(0))
    }

    /// Whether partitions may move although nothing goes wrong: loads change, or a handler that fails gives its
    /// partition back.
    pub(super) fn moves_in_calm(&self) -> bool {
        let tuning = &self.settings.tuning;
        let fails =
            self.members.iter().any(|member| member.failures_per_mille > 0) || tuning.handler_deadline.is_some();
        tuning.weighted || (fails && matches!(tuning.on_failure, OnFailure::Release { .. }))
    }
}

/// What all instances of ours have in common.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    /// The age at which an ownership counts as abandoned.
    pub expiry: Duration,
    /// The same for other SDKs.
    pub peer_expiry: Duration,
    /// Between two cycles.
    pub interval: Duration,
    /// Everything that is lacking at once, or one partition per interval.
    pub greedy: bool,
    /// Whether handlers stop before their lease can have expired elsewhere.
    pub strict: bool,
    /// Whether the group starts at the latest event, not at the earliest.
    pub latest: bool,
    /// The longest time until a checkpoint is written.
    pub checkpoint_every: Duration,
    /// Whether partitions are asked for before they are stolen.
    pub handoff: bool,
    /// Whether an instance that ends leaves its partitions for its own restart.
    pub keep: bool,
    /// What keeps ownerships alive.
    pub lease_scope: LeaseScope,
    /// Whether an instance that comes back has the name that it had.
    pub stable_names: bool,
    /// The longest time that a request takes when all is well.
    pub latency: Duration,
    /// What is at its default unless [`Scale::wild`] is set.
    pub tuning: Tuning,
}

/// What users get if they set nothing, and requests that take up to 50 ms.
impl Default for Settings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            expiry: seconds(60),
            peer_expiry: seconds(180),
            interval: seconds(10),
            greedy: false,
            strict: false,
            latest: false,
            checkpoint_every: seconds(5),
            handoff: true,
            keep: false,
            lease_scope: LeaseScope::default(),
            stable_names: true,
            latency: Duration::from_millis(50),
            tuning: Tuning::default(),
        }
    }
}

/// Someone who takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Whose code it runs.
    pub role: Role,
    /// The number in its name.
    pub number: u32,
    /// How many dots its name ends with. Two members with one number differ in this.
    pub dots: usize,
    /// When it comes up first.
    pub starts_at: Duration,
    /// How many seconds its wall clock is ahead of the server's.
    pub skew_seconds: i64,
    /// The longest time that its handler takes for a batch.
    pub work: Duration,
    /// Whether it tracks events and finishes them out of order.
    pub tracks: bool,
    /// Of a thousand batches, how many its handler fails at.
    pub failures_per_mille: u32,
}

/// Whose code a member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// This crate's processor.
    CrateProcessor,
    /// An owner that behaves like that of another SDK. It leaves before the calm.
    Foreign(Sdk),
    /// Whatever the [`InstanceFactory`](super::Cast) makes of this number.
    Guest(u32),
}

/// How much is published to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Between two bursts, on average.
    pub every: Duration,
    /// How many events at once at the most.
    pub burst: u32,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// When, counted from the beginning.
    pub at: Duration,
    /// What.
    pub kind: IncidentKind,
}

/// What can happen. Each is whole in itself: what it begins, it ends, so that any of them may be left out of a plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum IncidentKind {
    /// An instance dies without any clean-up, and comes back after a time.
    Crash {
        /// Which.
        member: u32,
        /// For how long it is away.
        down: Duration,
    },
    /// An instance is told to end, has its time for it, and comes back.
    Restart {
        /// Which.
        member: u32,
        /// For how long it is away.
        down: Duration,
    },
    /// All instances are restarted, one after another.
    Deployment {
        /// Between two of them.
        gap: Duration,
        /// For how long each is away.
        down: Duration,
    },
    /// A process does not run for a while.
    Freeze {
        /// Which.
        member: u32,
        /// For how long.
        lasts: Duration,
    },
    /// The same, and meanwhile another one under its name is started in its place, which stays.
    Replace {
        /// Which.
        member: u32,
        /// For how long.
        lasts: Duration,
    },
    /// Requests to the storage fail.
    Storage {
        /// Whose; nothing: everybody's.
        member: Option<u32>,
        /// How.
        storage_fault: StorageFault,
        /// For how long.
        lasts: Duration,
    },
    /// The link of whoever reads a partition breaks.
    LinkBreaks(u32),
    /// It delivers nothing for a while, or until it is opened anew.
    LinkStalls {
        /// The partition.
        partition: u32,
        /// For how long.
        lasts: Duration,
    },
    /// It delivers everything again.
    LinkReattaches(u32),
    /// Retention takes all events of a partition but so many.
    Expiry {
        /// The partition.
        partition: u32,
        /// How many stay.
        keep: u32,
    },
    /// The hub is deleted and made anew.
    HubRecreated,
    /// The hub gets more partitions.
    Growth(u32),
    /// An operator puts checkpoints elsewhere.
    Reset(Reset),
    /// An instance gives a partition back, with a cool-down.
    Release {
        /// Which.
        member: u32,
        /// Which of its partitions, counted round.
        index: u32,
        /// For how long it does not take it again.
        cool_down: Duration,
    },
    /// A partition is paused by its owner, and resumed.
    Pause {
        /// Which.
        member: u32,
        /// Which of its partitions, counted round.
        index: u32,
        /// For how long.
        lasts: Duration,
    },
    /// The handlers of an instance take very long.
    HeavyLoad {
        /// Which.
        member: u32,
        /// For how long.
        lasts: Duration,
    },
}

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The first partition.
    pub partition: u32,
    /// How many, counted round.
    pub count: u32,
    /// Where to put the first one: so many thousandths of the events that the hub has count as processed. The others
    /// are put elsewhere.
    pub per_mille: u32,
    /// Whether it works beside owners of other SDKs, too.
    pub with_foreign: bool,
    /// How long it waits for those.
    pub settle: Duration,
    /// What is wrong with its requests; `None`: what is wrong with those of all instances.
    pub storage_fault: Option<StorageFault>,
    /// When it is killed, counted from its start, unless it has ended.
    pub killed_after: Option<Duration>,
}

impl Reset {
    /// Whether nothing goes wrong with it by itself.
    pub(super) fn is_undisturbed(&self) -> bool {
        self.storage_fault.is_none() && self.killed_after.is_none()
    }
}

impl IncidentKind {
    /// Its name, to count it by.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::Restart { .. } => "restart",
            Self::Deployment { .. } => "rolling deployment",
            Self::Freeze { .. } => "freeze",
            Self::Replace { .. } => "replaced while frozen",
            Self::Storage { storage_fault, .. } => storage_fault.name(),
            Self::LinkBreaks(_) => "link breaks",
            Self::LinkStalls { .. } => "silent link",
            Self::LinkReattaches(_) => "link reattaches",
            Self::Expiry { .. } => "retention",
            Self::HubRecreated => "hub made anew",
            Self::Growth(_) => "growth",
            Self::Reset(_) => "reset",
            Self::Release { .. } => "release with cool-down",
            Self::Pause { .. } => "pause",
            Self::HeavyLoad { .. } => "heavy load",
        }
    }

    /// How long it goes on; nothing for what happens at once.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        match self {
            Self::Freeze { lasts, .. }
            | Self::Replace { lasts, .. }
            | Self::Storage { lasts, .. }
            | Self::LinkStalls { lasts, .. }
            | Self::Pause { lasts, .. }
            | Self::HeavyLoad { lasts, .. } => *lasts,
            Self::Crash { down, .. } | Self::Restart { down, .. } => *down,
            _ => Duration::ZERO,
        }
    }
}
