//! What must never be.

use std::fmt;
use std::time::Duration;

use crate::history::Rule;

/// Something that holds at every moment, or at the end of every plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// I1: after a new owner's adoption no checkpoint of an earlier owner is accepted. Foreign owners adopt nothing.
    Fenced,
    /// I2: no write of ours moves a checkpoint back, but for a reset, and where the hub was made anew.
    CheckpointMonotonic,
    /// I3: no checkpoint passes an event that nobody processed since the last reset, unless retention took it.
    NothingSkipped,
    /// I4: no handler is told that its partition is lost while the record was its own all the time.
    NoSpuriousLoss,
    /// I5: when nothing goes wrong any more, every partition is owned and processed, in fair shares, within the bound.
    Converges,
    /// Then nothing moves any more. Nor does anything because of a reset that nothing else disturbs.
    Sticky,
    /// And everything that was published and is still there has been processed, and checkpointed.
    CaughtUp,
    /// I7: only a later life under the same name replaces an instance; and then it ends.
    NewestIncarnationWins,
    /// Under strict leases no handler still runs when its lease is taken over because it has expired.
    StrictLease,
    /// A partition whose owner died is claimed within the bound; one that was released by an owner that ends, sooner.
    NoUnownedPartition,
    /// Starts and stops of a partition's handler alternate in one instance, and one batch is handled at a time.
    OneHandler,
    /// In one start of a partition the handler of ours gets every event once and in order, but for those that retention
    /// took before they were read.
    Continuous,
    /// While the storage refuses requests, an instance of ours sends no more of them than in calm times.
    Restrained,
    /// What ours writes to an ownership names its writer, or nobody; and the key `ownerid` is always there.
    OwnRecord,
    /// Nothing of ours is written without a condition.
    Conditional,
    /// E1, E2: of two tenures that processed the one that was won later has the greater epoch.
    EpochGrows,
    /// What an operator reports of a reset is so, and stays so. No owner of ours asks it for a partition, or takes one
    /// from it before its ownership has expired.
    Operator,
    /// A shutdown in calm leaves nothing undone.
    CleanShutdown,
    /// When an instance is gone, no task and no memory of it is left.
    NoLeaks,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Fenced,
        Self::CheckpointMonotonic,
        Self::NothingSkipped,
        Self::NoSpuriousLoss,
        Self::Converges,
        Self::Sticky,
        Self::CaughtUp,
        Self::NewestIncarnationWins,
        Self::StrictLease,
        Self::NoUnownedPartition,
        Self::OneHandler,
        Self::Continuous,
        Self::Restrained,
        Self::OwnRecord,
        Self::Conditional,
        Self::EpochGrows,
        Self::Operator,
        Self::CleanShutdown,
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
    /// Which.
    pub invariant: Invariant,
    /// When, counted from the beginning.
    pub at: Duration,
    /// How.
    pub description: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {:.3} s: {}", self.invariant, self.at.as_secs_f64(), self.description)
    }
}
