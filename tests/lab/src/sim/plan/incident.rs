//! What happens during a run.

use std::time::Duration;

use super::{FailureRule, StorageFault, Terms};

/// An incident.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// Time since the beginning.
    pub at: Duration,
    /// What happens.
    pub kind: IncidentKind,
}

/// What can happen. Each incident ends everything that it begins, so that any incident may be removed from a plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum IncidentKind {
    /// An instance crashes without any clean-up, and restarts later.
    Crash {
        /// Which member.
        member: u32,
        /// How long it is down.
        down: Duration,
    },
    /// An instance is shut down, has time for it, and restarts.
    Restart {
        /// Which member.
        member: u32,
        /// How long it is down.
        down: Duration,
    },
    /// All instances are restarted, one after another.
    Deployment {
        /// Time between two instances.
        gap: Duration,
        /// How long each is down.
        down: Duration,
    },
    /// As a deployment, but each instance has these settings from its restart on.
    Rollout {
        /// The settings.
        terms: Terms,
        /// Time between two instances.
        gap: Duration,
        /// How long each is down.
        down: Duration,
    },
    /// A process is frozen.
    Freeze {
        /// Which member.
        member: u32,
        /// For how long.
        lasts: Duration,
    },
    /// A process is frozen; meanwhile another one with its name is started in its place and stays.
    Replace {
        /// Which member.
        member: u32,
        /// For how long.
        lasts: Duration,
    },
    /// Requests to the storage fail.
    Storage {
        /// The member whose requests fail; `None` means all members.
        member: Option<u32>,
        /// How they fail.
        storage_fault: StorageFault,
        /// For how long.
        lasts: Duration,
    },
    /// Some requests to the storage fail for a long time, in addition to all other faults.
    Failures {
        /// Which requests, and how.
        rule: FailureRule,
        /// For how long.
        lasts: Duration,
    },
    /// The link of the reader of a partition breaks.
    LinkBreaks(u32),
    /// The link delivers nothing for a while, or until it is opened again.
    LinkStalls {
        /// The partition.
        partition: u32,
        /// For how long.
        lasts: Duration,
    },
    /// The link delivers all events again.
    LinkReattaches(u32),
    /// Retention removes all events of a partition except the last ones.
    Expiry {
        /// The partition.
        partition: u32,
        /// How many events remain.
        keep: u32,
    },
    /// The hub is deleted and recreated, and at once has as many events as the producers of all of the time before
    /// could have sent, or as few.
    HubRecreated {
        /// The events of partition 0, in thousandths of those that the deleted hub had; the other partitions get other
        /// numbers.
        per_mille: u32,
    },
    /// The hub gets more partitions.
    Growth(u32),
    /// An operator resets checkpoints.
    Reset(Reset),
    /// An instance releases a partition, with a cooldown.
    Release {
        /// Which member.
        member: u32,
        /// Which of its partitions, modulo their number.
        index: u32,
        /// How long it does not claim the partition again.
        cooldown: Duration,
    },
    /// The owner of a partition pauses and resumes it.
    Pause {
        /// Which member.
        member: u32,
        /// Which of its partitions, modulo their number.
        index: u32,
        /// For how long.
        lasts: Duration,
    },
    /// The application's runtime of an instance is blocked, but not its load-balancing loop.
    Block {
        /// Which member.
        member: u32,
        /// For how long.
        lasts: Duration,
    },
    /// The handlers of an instance take very long.
    HeavyLoad {
        /// Which member.
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
    /// How many partitions, modulo their number.
    pub count: u32,
    /// The new position of the first one: this many thousandths of the existing events count as processed. The other
    /// partitions get other positions.
    pub per_mille: u32,
    /// Whether it resets while owners of other SDKs are active.
    pub with_foreign: bool,
    /// How long it waits for those owners.
    pub settle: Duration,
    /// The faults of its requests; `None`: the faults that apply to all instances.
    pub storage_fault: Option<StorageFault>,
    /// When it is killed, counted from its start, unless it has ended.
    pub killed_after: Option<Duration>,
    /// For how long it pauses the partitions before it resets them, if it does.
    pub paused_for: Option<Duration>,
}

impl Reset {
    /// Returns whether no fault of its own affects it.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.storage_fault.is_none() && self.killed_after.is_none()
    }
}

impl IncidentKind {
    /// Returns the name under which it is counted.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::Restart { .. } => "restart",
            Self::Deployment { .. } => "rolling deployment",
            Self::Rollout { .. } => "rollout of settings",
            Self::Freeze { .. } => "freeze",
            Self::Replace { .. } => "replaced while frozen",
            Self::Storage { storage_fault, .. } => storage_fault.name(),
            Self::Failures { .. } => "failing requests",
            Self::LinkBreaks(_) => "link breaks",
            Self::LinkStalls { .. } => "stalled link",
            Self::LinkReattaches(_) => "link reattaches",
            Self::Expiry { .. } => "retention",
            Self::HubRecreated { .. } => "hub recreated",
            Self::Growth(_) => "growth",
            Self::Reset(_) => "reset",
            Self::Release { .. } => "release with cooldown",
            Self::Pause { .. } => "pause",
            Self::Block { .. } => "blocked runtime",
            Self::HeavyLoad { .. } => "heavy load",
        }
    }

    /// Returns how long it lasts; zero for an instantaneous incident.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        match self {
            Self::Freeze { lasts, .. }
            | Self::Replace { lasts, .. }
            | Self::Storage { lasts, .. }
            | Self::Failures { lasts, .. }
            | Self::LinkStalls { lasts, .. }
            | Self::Pause { lasts, .. }
            | Self::Block { lasts, .. }
            | Self::HeavyLoad { lasts, .. } => *lasts,
            Self::Crash { down, .. } | Self::Restart { down, .. } => *down,
            _ => Duration::ZERO,
        }
    }
}
