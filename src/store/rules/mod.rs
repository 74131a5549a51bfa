//! What to do next about the two blobs of a partition and the heartbeat of an owner, decided over plain values without
//! I/O.
//!
//! Every operation of the store is one conditional write. If its outcome is ambiguous, the store reads the current
//! state, applies the rule, and writes again or ends. The store does that in one loop, [`settle`](super::settle). The
//! exploration (a test) applies the same rules in every order of events, lost responses and late writes.
//!
//! `E` distinguishes the versions of a blob: an ETag in the store, a small number in the exploration.

mod adopt;
mod checkpoint;
mod handoff;
mod heartbeat;
mod name_case;
mod ownership;

pub use adopt::{Place, PositionFrom, Unwritten, adopting, position_from};
pub use checkpoint::{Checkpointed, checkpointing};
pub use handoff::{Handoff, HandoffRequestOutcome, HandoffStatus, HandoffView, requesting_handoff};
pub use heartbeat::{
    DeclareDeadOutcome, HeartbeatLoss, HeartbeatState, OwnHeartbeat, declaring_dead, ending_heartbeat,
    sending_heartbeat,
};
pub use name_case::{CaseConflict, CaseFacts, Choice, LiveOwner, choose_case, time_to_next_look};
pub use ownership::{Found, Goal, Settled, goal_after, next_epoch, resolve_ambiguous_write, too_young_by};

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteCondition<E> {
    /// The blob does not exist.
    Create,
    /// The blob has this version.
    IfMatch(E),
}

impl<E> WriteCondition<E> {
    pub fn version(self) -> Option<E> {
        match self {
            Self::Create => None,
            Self::IfMatch(version) => Some(version),
        }
    }
}

impl<E> From<Option<E>> for WriteCondition<E> {
    fn from(version: Option<E>) -> Self {
        version.map_or(Self::Create, Self::IfMatch)
    }
}

/// What to do after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next<E, T> {
    /// Write under this condition.
    Write(WriteCondition<E>),
    /// Nothing needs to be written: the operation has ended with this outcome.
    Done(T),
}

impl<E, T> Next<E, T> {
    /// Returns the same step with another outcome.
    pub fn map<U>(self, outcome: impl FnOnce(T) -> U) -> Next<E, U> {
        match self {
            Self::Write(under) => Next::Write(under),
            Self::Done(done) => Next::Done(outcome(done)),
        }
    }
}
