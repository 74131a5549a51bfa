//! The inputs and outputs of the state, as plain data: what happened, which the driver feeds to it, and what to do
//! about it, which the driver carries out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::events::{Note, OwnershipEvent};
use super::liveness::Stalled;
use super::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::model::{Heartbeat, Incarnation, Moment, OwnerId, Ownership, PartitionId};
use crate::store::beacon::{Beacon, Lit};
use crate::store::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};
use crate::store::membership::{DeclareDeadOutcome, HeartbeatOutcome};
use crate::store::{CaseConflict, Claim, ClaimOutcome, Lease, ReleaseOutcome};

/// One input.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an input is consumed at once, and never stored")]
pub enum Happened {
    /// The loop begins with these partitions of the event hub.
    Began(Arc<[PartitionId]>),
    /// The moment that [`BalancerState::next_wake`](super::state::BalancerState::next_wake) returned has come, or an
    /// earlier one.
    Woke,
    /// The event hub has these partitions now.
    Hub(Arc<[PartitionId]>),
    /// The set of stalled components of the application changed.
    Liveness(Stalled),
    /// An outage of the storage ended at this moment, after this long.
    OutageEnded { at: Moment, silence: Duration },
    /// The application or the processor gave a command.
    Commanded(LoopCommand),
    /// An operation that was an [`Action`] has ended.
    Done(Done),
}

/// The commands of the application and of the processor.
#[derive(Clone, Debug)]
pub enum LoopCommand {
    /// Claim nothing more.
    StopClaiming,
    /// The processing of a partition has started.
    ProcessingStarted { partition: PartitionId, epoch: i64 },
    /// The processing of a partition has ended.
    ProcessingEnded { partition: PartitionId, epoch: i64, end: ProcessingEnd },
    /// Nothing processes this partition.
    Unprocessed { partition: PartitionId },
    /// Release everything and end.
    Shutdown,
    /// Keep everything for the restart of this owner, and end.
    Keep,
}

/// How the processing of an owned partition ended, which decides what the loop does with the partition.
#[derive(Clone, Debug)]
pub enum ProcessingEnd {
    /// Another owner was found to own the partition. The loop drops the partition, and writes nothing.
    Lost { by: Option<OwnerId> },
    /// The handler has stopped. The loop releases the partition, and does not claim it again before the cooldown is
    /// over. `settled`: no event that was processed will be processed again. Otherwise the loop reports possible
    /// duplicates if another instance requested the partition.
    Stopped { settled: bool, cooldown: Duration },
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
    BeaconRead(Result<Option<Beacon>>),
    BeaconLit(Result<Option<Lit>>),
    BeaconRefreshed(Result<Option<Beacon>>),
    OwnerChecked { owner: OwnerId, since_renewal: Result<Option<Duration>> },
}

/// One thing to do.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a step returns a few, which are executed at once")]
pub enum Action {
    /// Makes a request. Its outcome is fed back as [`Done`].
    Request(StorageRequest),
    /// Starts to measure the load of a partition that was won, from the load in its record.
    Measure { partition: PartitionId, recorded: Option<u64> },
    /// Publishes a snapshot.
    Publish(Arc<Snapshot>),
    /// Emits an event to the subscribers, the log and the metrics.
    Emit(OwnershipEvent),
    /// Logs or counts something that is not an event.
    Note(Note),
    /// Ends the loop because a later incarnation of this owner is running.
    Replaced(Incarnation),
    /// Ends the loop, with the numbers of partitions that were kept for the restart of this owner and that could not be
    /// released.
    Ended(LeftOwned),
    /// Ends the loop in the same way, because another application owns partitions in the other blob-name casing.
    Refused(LeftOwned, CaseConflict),
}

/// An operation on the storage.
#[derive(Debug)]
#[allow(clippy::enum_variant_names, reason = "the term is to request a handoff")]
#[allow(clippy::large_enum_variant, reason = "a step returns a few, which are executed at once")]
pub enum StorageRequest {
    /// Lists the ownerships.
    List,
    /// Lists the ownerships and the heartbeats in one request.
    ListWithHeartbeats,
    /// Lists the heartbeats.
    ListHeartbeats,
    /// Looks for a live owner in the other blob-name casing.
    FindCaseConflict,
    /// Declares the owner of a record dead, in order to make these claims.
    DeclareDead { of: Ownership, heartbeat: Option<Heartbeat>, claims: Vec<Claim> },
    /// Claims a partition.
    Claim(Claim),
    /// Renews a lease.
    Renew(Lease),
    /// Releases a lease. A release that fails is repeated until this moment; without one, until the loop ends.
    Release { lease: Lease, until: Option<Moment> },
    /// Renews a lease for the last time, and leaves it for the restart of this owner. A renewal that fails is repeated
    /// until the loop ends.
    Keep(Lease),
    /// Requests the handoff of the partition of this record.
    RequestHandoff(Ownership),
    /// Polls a requested handoff.
    PollHandoff(Handoff),
    /// Writes the heartbeat of this instance.
    SendHeartbeat,
    /// Ends the heartbeat of this instance. If `persistently`, a write that fails is repeated.
    EndHeartbeat { persistently: bool },
    /// Deletes the heartbeats among these that are stale.
    DeleteHeartbeats(Vec<Heartbeat>),
    /// Reads the beacon.
    ReadBeacon,
    /// Lights the beacon, whose last known state is this.
    LightBeacon(Option<Beacon>),
    /// Writes the beacon again, without a change.
    RefreshBeacon(Beacon),
    /// Finds out when this owner last renewed a lease, by one of its records.
    CheckOwner { owner: OwnerId, seen: Ownership },
}

/// Which partitions a loop left owned when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOwned {
    /// How many partitions were kept for the restart of this owner.
    pub kept: usize,
    /// How many partitions could neither be released nor kept. They stay owned until their leases expire.
    pub unreleased: usize,
}

/// What the storage keeps failing for an instance, with the last error of each.
#[derive(Clone, Debug, Default)]
pub struct StorageFailures {
    /// Load-balancing cycles, and since when.
    pub cycles: Option<Moment>,
    /// Writing the heartbeat, and since when.
    pub heartbeat: Option<(Moment, Arc<Error>)>,
    /// Looking for live owners in the other blob-name casing, and since when.
    pub case_check: Option<(Moment, Arc<Error>)>,
    /// Claims, by partition.
    pub claims: BTreeMap<PartitionId, Arc<Error>>,
}
