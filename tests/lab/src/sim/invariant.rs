//! What must always hold.

use std::fmt;
use std::time::Duration;

use crate::history::Rule;

/// Holds at every moment, or at the end of every plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// I1: after a new owner's adoption no checkpoint of an earlier owner is accepted. Foreign owners adopt nothing.
    Fenced,
    /// I2: no write of this crate moves a checkpoint back, except for a reset or after the hub was recreated.
    CheckpointMonotonic,
    /// I3: no checkpoint passes an event that was not processed since the last reset, unless retention removed it.
    NothingSkipped,
    /// I4: no handler is notified of a lost partition while the record named its instance, in its epoch, all the time.
    NoSpuriousLoss,
    /// I5: after the last fault, every partition is owned and processed, in fair shares, within the bound.
    Converges,
    /// After that, no partition moves. Nor does a reset move a partition, if nothing else disturbs it.
    Sticky,
    /// Every event that was published and still exists has been processed and checkpointed.
    CaughtUp,
    /// I7: only a later incarnation with the same name replaces an instance, which then ends.
    NewestIncarnationWins,
    /// Under strict leases no handler is still running when another owner takes over its expired lease.
    StrictLease,
    /// No instance takes a partition from another one of this crate that renews it in time, without having requested a
    /// handoff.
    LiveOwnerKeeps,
    /// An instance whose runtime is blocked takes no partition after a moment, because it could not start it.
    BlockedGainsNothing,
    /// A partition whose owner crashed is claimed within the bound; a partition that its owner released at shutdown is
    /// claimed sooner.
    NoUnownedPartition,
    /// While some of the requests fail, or runtimes are blocked, every partition that can be owned is read, later by no
    /// more than the factors of [`proportion`](crate::proportion::factors).
    NoUnreadPartition,
    /// Starts and stops of a partition's handler alternate in one instance, and one batch is handled at a time.
    OneHandler,
    /// After one start of a partition, a handler of this crate gets every event once and in order, except for events
    /// that retention removed before they were read.
    Continuous,
    /// Within one start of a partition, single events that a handler processes in an order never run at once, and begin
    /// in that order.
    KeyOrder,
    /// While the storage rejects requests, an instance of this crate sends no more requests than without faults.
    Restrained,
    /// An ownership that this crate writes names its writer or no owner, and always has the key `ownerid`.
    OwnRecord,
    /// E1, E2: of two ownerships that processed events, the later one has the greater epoch.
    EpochGrows,
    /// An application that keeps its own positions, and commits as
    /// [`OwnPositions::Fenced`](super::OwnPositions::Fenced) says, counts no event twice.
    CountedOnce,
    /// No owner of this crate starts a partition while its checkpoint says that it is paused.
    Paused,
    /// What an operator reports of a reset is true and stays true. No owner of this crate requests a handoff from an
    /// operator, or takes a partition from it before its lease has expired.
    Operator,
    /// A shutdown without faults leaves nothing undone.
    CleanShutdown,
    /// The [exploration](crate::explored) contains every write of this crate, and every start of a partition.
    Explored,
    /// After an instance has ended, none of its tasks and none of its memory remain.
    NoLeaks,
}

impl Invariant {
    /// All invariants.
    pub const ALL: [Self; 25] = [
        Self::Fenced,
        Self::CheckpointMonotonic,
        Self::NothingSkipped,
        Self::NoSpuriousLoss,
        Self::Converges,
        Self::Sticky,
        Self::CaughtUp,
        Self::NewestIncarnationWins,
        Self::StrictLease,
        Self::LiveOwnerKeeps,
        Self::BlockedGainsNothing,
        Self::NoUnownedPartition,
        Self::NoUnreadPartition,
        Self::OneHandler,
        Self::Continuous,
        Self::KeyOrder,
        Self::Restrained,
        Self::OwnRecord,
        Self::EpochGrows,
        Self::CountedOnce,
        Self::Paused,
        Self::Operator,
        Self::CleanShutdown,
        Self::Explored,
        Self::NoLeaks,
    ];
}

impl From<Rule> for Invariant {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Fenced => Self::Fenced,
            Rule::CheckpointMonotonic => Self::CheckpointMonotonic,
            Rule::NothingSkipped => Self::NothingSkipped,
            Rule::NothingLost => Self::CaughtUp,
            Rule::NoSpuriousLoss => Self::NoSpuriousLoss,
            Rule::Continuous => Self::Continuous,
            Rule::EpochGrows => Self::EpochGrows,
        }
    }
}

/// An invariant did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: Invariant,
    /// Time since the beginning of the plan.
    pub at: Duration,
    /// How it was violated.
    pub description: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {:.3} s: {}", self.invariant, self.at.as_secs_f64(), self.description)
    }
}
