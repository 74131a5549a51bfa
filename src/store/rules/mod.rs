//! What to do next about the two blobs of a partition and the heartbeat of an owner, decided over plain values without
//! I/O.
//!
//! Every operation of the store is one conditional write in the end. If its outcome is ambiguous, the store reads the
//! current state, and writes again or ends. What is read before a write, in which order, and what the responses mean is
//! decided here: an operation of several requests is a value that says which request is next. The store sends them, in
//! one loop, [`settle`](super::settle). The exploration (a test) drives the same values in every order of events, lost
//! responses and late writes.
//!
//! `V` distinguishes the versions of a blob: an ETag in the store, a small number in the exploration.

mod checkpoint;
mod handoff;
mod heartbeat;
mod name_case;
mod ownership;

pub use checkpoint::{AdoptionStep, CheckpointPlace, CheckpointStep, Checkpointed, PositionFrom, Unwritten};
pub use handoff::{Handoff, HandoffRequestOutcome, HandoffStatus, HandoffView, decide_handoff_request};
pub use heartbeat::{
    DeclareDeadOutcome, FoundHeartbeat, HeartbeatLoss, HeartbeatState, decide_declaration, decide_heartbeat,
    decide_heartbeat_end,
};
pub use name_case::{CaseConflict, CaseFacts, Choice, LiveOwner, choose_case, time_to_next_look};
pub use ownership::{FoundOwnership, Goal, OwnershipOperation, OwnershipStep, Settled, next_epoch, too_young_by};

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteCondition<V> {
    /// The blob does not exist.
    Create,
    /// The blob has this version.
    IfMatch(V),
}

impl<V> WriteCondition<V> {
    pub fn version(self) -> Option<V> {
        match self {
            Self::Create => None,
            Self::IfMatch(version) => Some(version),
        }
    }
}

impl<V> From<Option<V>> for WriteCondition<V> {
    fn from(version: Option<V>) -> Self {
        version.map_or(Self::Create, Self::IfMatch)
    }
}
