//! What to do next about the two blobs of a partition and the heartbeat of an owner, decided over plain values without
//! I/O.
//!
//! Every operation of the store is one conditional write. If its outcome is ambiguous, the store reads the current
//! state, applies the rule, and writes again or ends. The store does that in one loop, [`settle`](super::settle). The
//! exploration (a test) applies the same rules in every order of events, lost responses and late writes.
//!
//! `E` distinguishes the versions of a blob: an ETag in the store, a small number in the exploration.

mod checkpoint;
mod handoff;
mod heartbeat;
mod name_case;
mod ownership;

pub use checkpoint::{
    CheckpointPlace, Checkpointed, PositionFrom, Unwritten, decide_adoption, decide_checkpoint, position_from,
};
pub use handoff::{Handoff, HandoffRequestOutcome, HandoffStatus, HandoffView, decide_handoff_request};
pub use heartbeat::{
    DeclareDeadOutcome, FoundHeartbeat, HeartbeatLoss, HeartbeatState, decide_declaration, decide_heartbeat,
    decide_heartbeat_end,
};
pub use name_case::{CaseConflict, CaseFacts, Choice, LiveOwner, choose_case, time_to_next_look};
pub use ownership::{FoundOwnership, Goal, Settled, decide_ownership, goal_after, next_epoch, too_young_by};

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
pub enum SettleStep<E, T> {
    /// Write under this condition.
    Write(WriteCondition<E>),
    /// Nothing needs to be written: the operation has ended with this outcome.
    Done(T),
}

impl<E, T> SettleStep<E, T> {
    /// Returns the same step with another outcome.
    pub fn map<U>(self, outcome: impl FnOnce(T) -> U) -> SettleStep<E, U> {
        match self {
            Self::Write(under) => SettleStep::Write(under),
            Self::Done(done) => SettleStep::Done(outcome(done)),
        }
    }
}
