//! What the balancer decides to do, as data that the driver executes.

use std::sync::Arc;

use super::events::OwnershipEvent;
use super::handle::LeftOwned;
use super::note::Note;
use super::snapshot::Snapshot;
use crate::model::{Heartbeat, Incarnation, Moment, Ownership, PartitionId};
use crate::store::handoff::Handoff;
use crate::store::{CaseConflict, Claim, Lease};

/// One thing to do.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a step returns a few, which are executed at once")]
pub enum Action {
    /// Makes a request. Its outcome is fed back as [`Done`](super::happened::Done).
    Request(Request),
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
    /// Ends the loop in the same way, because another application owns partitions in the other name case.
    Refused(LeftOwned, CaseConflict),
}

/// An operation on the storage.
#[derive(Debug)]
#[allow(clippy::enum_variant_names, reason = "the term is to request a handoff")]
#[allow(clippy::large_enum_variant, reason = "a step returns a few, which are executed at once")]
pub enum Request {
    /// Lists the ownerships.
    List,
    /// Lists the ownerships and the heartbeats in one request.
    ListWithHeartbeats,
    /// Lists the heartbeats.
    ListHeartbeats,
    /// Looks for a live owner in the other name case.
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
    /// Deletes those of these heartbeats that are stale.
    DeleteHeartbeats(Vec<Heartbeat>),
}
