//! What is logged or counted, but is not an event.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::model::{OwnerId, PartitionId};
use crate::store::CaseConflict;
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
    Indeterminate(StorageOperation, Vec<PartitionId>, Arc<Error>),
    /// The outcome of a release is unknown.
    ReleaseIndeterminate(PartitionId, Error),
    /// A handoff could not be requested.
    HandoffNotRequested(PartitionId, HandoffRequestOutcome<Handoff>),
    /// The heartbeat of this instance could not be written.
    HeartbeatFailed(Arc<Error>),
    /// The heartbeat that keeps the leases of this instance alive could not be written.
    KeepAliveFailed(Arc<Error>),
    /// The heartbeat of this instance could not be ended.
    HeartbeatNotEnded(Error),
    /// Stale heartbeats could not be deleted.
    StaleHeartbeatsStay(Error),
    /// A stale heartbeat was deleted.
    HeartbeatDeleted(OwnerId),
    /// It is not known whether there is a live owner in the other name case.
    CaseConflictUnknown(Arc<Error>),
    /// There is one, which should give way.
    CaseConflictWaits(CaseConflict),
    /// There is one, and this instance ends.
    CaseConflictFound(CaseConflict),
    /// An owner below its share claims nothing.
    OwnerIdle(OwnerId),
    /// Leases are renewed individually from now on, because of this owner of another SDK.
    ScopeGivenUp(Option<OwnerId>),
    /// Leases are renewed individually until a heartbeat is written again.
    HeartbeatLate,
    /// The heartbeat keeps the leases alive again.
    HeartbeatBack,
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
            Self::KeepAliveFailed(error) => store.keep_alive_failed(&error),
            Self::HeartbeatNotEnded(error) => store.heartbeat_not_ended(&error),
            Self::StaleHeartbeatsStay(error) => store.stale_heartbeats_stay(&error),
            Self::HeartbeatDeleted(owner) => telemetry::stale_heartbeat_deleted(&owner),
            Self::CaseConflictUnknown(error) => telemetry::other_name_case_unknown(&error),
            Self::CaseConflictWaits(conflict) => telemetry::other_name_case_awaited(&conflict),
            Self::CaseConflictFound(conflict) => telemetry::other_name_case_live(&conflict),
            Self::OwnerIdle(owner) => telemetry::owner_idle(&owner),
            Self::ScopeGivenUp(owner) => telemetry::lease_scope_given_up(owner.as_ref()),
            Self::HeartbeatLate => telemetry::heartbeat_late(),
            Self::HeartbeatBack => telemetry::heartbeat_back(),
            Self::SlowStart(partitions, estimate) => telemetry::slow_start(partitions, estimate),
            Self::OutageOver(silence) => telemetry::outage_over(silence),
            Self::NotReleased(unreleased) => telemetry::not_released(unreleased),
        }
    }
}
