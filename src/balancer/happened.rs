//! The inputs of the state, as data that the driver feeds to it.

use std::sync::Arc;
use std::time::Duration;

use super::liveness::Stalled;
use crate::error::Result;
use crate::model::{Heartbeat, Moment, OwnerId, Ownership, PartitionId};
use crate::store::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};
use crate::store::membership::{DeclareDeadOutcome, HeartbeatOutcome};
use crate::store::{CaseConflict, Claim, ClaimOutcome, ReleaseOutcome};

/// One input.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an input is consumed at once, and never stored")]
pub enum Happened {
    /// The loop begins with these partitions of the event hub.
    Began(Arc<[PartitionId]>),
    /// The moment that [`State::next_wake`](super::state::State::next_wake) returned has come, or an earlier one.
    Woke,
    /// The event hub has these partitions now.
    Hub(Arc<[PartitionId]>),
    /// The set of stalled components of the application changed.
    Liveness(Stalled),
    /// An outage of the storage ended at this moment, after this long.
    OutageEnded { at: Moment, silence: Duration },
    /// The application or the processor gave a command.
    Commanded(Command),
    /// An operation that was an [`Action`](super::action::Action) has ended.
    Done(Done),
}

/// The commands of the application and of the processor.
#[derive(Clone, Debug)]
pub enum Command {
    /// Claim nothing more.
    StopClaiming,
    /// Another owner was found to own a partition.
    MarkLost { partition: PartitionId, epoch: i64, by: Option<OwnerId> },
    /// The processing of a partition has stopped: release the partition, and do not claim it before the cooldown is
    /// over. `settled`: its last checkpoint is written.
    Release { partition: PartitionId, epoch: i64, cooldown: Duration, settled: bool },
    /// The processing of a partition has started.
    Started { partition: PartitionId, epoch: i64 },
    /// Nothing processes this partition.
    Unprocessed { partition: PartitionId },
    /// Release everything and end.
    Shutdown,
    /// Keep everything for the restart of this owner, and end.
    Keep,
}

/// The outcome of an operation on the storage.
#[derive(Debug)]
pub enum Done {
    Listed(Result<Vec<Ownership>>),
    ListedWithHeartbeats(Result<(Vec<Ownership>, Vec<Heartbeat>)>),
    HeartbeatsListed(Result<Vec<Heartbeat>>),
    CaseConflictFound(Result<Option<CaseConflict>>),
    DeclaredDead { claims: Vec<Claim>, outcome: Result<DeclareDeadOutcome> },
    Claimed { partition: PartitionId, outcome: ClaimOutcome },
    Renewed { partition: PartitionId, epoch: i64, outcome: ClaimOutcome },
    Released { partition: PartitionId, outcome: ReleaseOutcome },
    Kept { partition: PartitionId, outcome: ClaimOutcome },
    HandoffRequested { partition: PartitionId, outcome: Result<HandoffRequestOutcome<Handoff>> },
    HandoffPolled { handoff: Handoff, outcome: Result<HandoffStatus<Claim>> },
    HeartbeatSent(Result<HeartbeatOutcome>),
    HeartbeatEnded(Result<()>),
    HeartbeatsDeleted(Result<Vec<OwnerId>>),
}
