//! What the balancer decides to do: data, which the driver executes.

use std::sync::Arc;

use super::events::OwnershipEvent;
use super::handle::LeftOwned;
use super::note::Note;
use super::snapshot::Snapshot;
use crate::model::{Heartbeat, Incarnation, Moment, Ownership, PartitionId};
use crate::store::{Claim, Handoff, HandoffTimeouts, Lease};

/// One thing to do.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a step returns a few, which are executed at once")]
pub enum Action {
    /// Makes a request. What comes of it is fed back as [`Done`](super::happened::Done).
    Request(Request),
    /// From here on, claims by partition: an owner of another SDK has been seen.
    FallBack,
    /// Starts to measure the load of a partition that was won, from what its record says.
    Measure { partition: PartitionId, recorded: Option<u64> },
    /// Publishes a snapshot.
    Publish(Arc<Snapshot>),
    /// Tells subscribers, the log and the metrics what happened.
    Emit(OwnershipEvent),
    /// Logs or counts what is no event.
    Note(Note),
    /// Ends the loop: a later incarnation of this owner is at work.
    Replaced(Incarnation),
    /// Ends the loop. So many partitions are left for the restart of this owner, and so many could not be released.
    Ended(LeftOwned),
}

/// An operation on the storage.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a step returns a few, which are executed at once")]
pub enum Request {
    /// Lists the ownerships.
    List,
    /// Lists presences, ownerships in the other tree of names, or both.
    ListOthers { heartbeats: bool, other_name_case: bool },
    /// Declares the owner of a record dead, in order to make these claims.
    DeclareDead { of: Ownership, heartbeat: Option<Heartbeat>, claims: Vec<Claim> },
    /// Claims a partition.
    Claim(Claim),
    /// Renews a lease.
    Renew(Lease),
    /// Releases a lease. A release that fails is repeated until this moment, or for as long as the loop runs.
    Release { lease: Lease, until: Option<Moment> },
    /// Renews a lease for the last time, and leaves it for the restart of this owner. A renewal that fails is repeated
    /// for as long as the loop runs.
    Keep(Lease),
    /// Asks the owner of a record for its partition.
    RequestHandoff(Ownership),
    /// Looks at a partition that was asked for.
    PollHandoff { handoff: Handoff, timeouts: HandoffTimeouts },
    /// Writes the presence of this instance.
    SendHeartbeat,
    /// Deletes the presence of this instance; if that fails, again and again, or not.
    RemoveHeartbeat { persistently: bool },
    /// Deletes those of these presences that are long dead.
    DeleteHeartbeats(Vec<Heartbeat>),
}
