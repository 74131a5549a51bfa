//! What is logged or counted, but is not an event.

use std::time::Duration;

use crate::error::Error;
use crate::model::{OwnerId, PartitionId};
use crate::store::handoff::{Handoff, HandoffRequestOutcome};
use crate::telemetry::{self, StorageOperation, Telemetry};

/// One thing to log or to count.
#[derive(Debug)]
pub enum Note {
    /// A cycle began late, by this much.
    CycleLate(Duration),
    /// A cycle succeeded, and took this long.
    CycleTook(Duration),
    /// A cycle failed. The next one begins after this wait.
    CycleFailed(Error, Duration),
    /// A claim was lost to this owner, if there is one.
    ClaimLost(PartitionId, Option<OwnerId>),
    /// The outcome of an operation on these ownerships is unknown.
    Indeterminate(StorageOperation, Vec<PartitionId>, Error),
    /// The outcome of a release is unknown.
    ReleaseIndeterminate(PartitionId, Error),
    /// A handoff could not be requested.
    HandoffNotRequested(PartitionId, HandoffRequestOutcome<Handoff>),
    /// An operation on a heartbeat failed.
    HeartbeatFailed(Error),
    /// A stale heartbeat was deleted.
    HeartbeatDeleted(OwnerId),
    /// A partition is owned in the other name case.
    InOtherNameCase(PartitionId, OwnerId),
    /// An owner below its share claims nothing.
    OwnerIdle(OwnerId),
    /// Leases are renewed individually from now on, because of this owner of another SDK.
    ScopeGivenUp(Option<OwnerId>),
    /// With this many unowned partitions left to claim, one after another, the last one is claimed after this time.
    SlowStart(usize, Duration),
    /// The storage responds again after an outage of this length.
    OutageOver(Duration),
    /// This many partitions could not be released at shutdown.
    NotReleased(usize),
}

impl Note {
    /// Writes it to the log and to the metrics of a store.
    pub(super) fn report(self, store: &Telemetry) {
        match self {
            Self::CycleLate(late) => telemetry::cycle_late(late),
            Self::CycleTook(took) => store.metrics().cycle_took(took),
            Self::CycleFailed(error, pause) => store.cycle_failed(&error, pause),
            Self::ClaimLost(partition, by) => telemetry::claim_lost(&partition, by.as_ref()),
            Self::Indeterminate(operation, partitions, error) => {
                for partition in &partitions {
                    store.ownership_indeterminate(operation, partition, &error);
                }
            }
            Self::ReleaseIndeterminate(partition, error) => telemetry::release_indeterminate(&partition, &error),
            Self::HandoffNotRequested(partition, reason) => telemetry::handoff_not_requested(&partition, &reason),
            Self::HeartbeatFailed(error) => store.heartbeat_failed(&error),
            Self::HeartbeatDeleted(owner) => telemetry::stale_heartbeat_deleted(&owner),
            Self::InOtherNameCase(partition, owner) => telemetry::in_other_name_case(&partition, &owner),
            Self::OwnerIdle(owner) => telemetry::owner_idle(&owner),
            Self::ScopeGivenUp(owner) => telemetry::lease_scope_given_up(owner.as_ref()),
            Self::SlowStart(partitions, estimate) => telemetry::slow_start(partitions, estimate),
            Self::OutageOver(silence) => telemetry::outage_over(silence),
            Self::NotReleased(unreleased) => telemetry::not_released(unreleased),
        }
    }
}
