//! What a loop reports: ownership events, for subscribers, the log and the metrics, and notes, which are not events.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::broadcast;

use super::liveness::Stalled;
use crate::error::Error;
use crate::model::{OwnerId, PartitionId};
use crate::planner::{ClaimReason, ReleaseReason};
use crate::store::CaseConflict;
use crate::store::handoff::{Handoff, HandoffRequestOutcome};
use crate::telemetry::{self, GroupMetrics, StorageOperation, Telemetry};

/// How many events are kept for a slow subscriber. It misses older ones.
const KEPT: usize = 1024;

/// Something that the load-balancing loop did or detected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OwnershipEvent {
    /// This instance claimed a partition. The reason names the previous owner, if there was one.
    Claimed {
        /// The partition.
        partition: PartitionId,
        /// The [epoch](crate::store::Lease::epoch) that the claim began.
        epoch: i64,
        /// The reason.
        reason: ClaimReason,
    },
    /// This instance lost a partition.
    Lost {
        /// The partition.
        partition: PartitionId,
        /// The current owner, if it is known.
        by: Option<OwnerId>,
    },
    /// A lease expired before it could be renewed, and this instance stopped processing the partition. Only with
    /// [`OnLeaseExpiry::Stop`](super::OnLeaseExpiry::Stop).
    LeaseExpired {
        /// The partition.
        partition: PartitionId,
    },
    /// This instance is releasing a partition.
    Releasing {
        /// The partition.
        partition: PartitionId,
        /// The reason.
        reason: ReleaseReason,
    },
    /// This instance released a partition. Other instances may claim it.
    Released {
        /// The partition.
        partition: PartitionId,
    },
    /// This instance kept a partition for its restart. No other instance claims the partition before its lease expires.
    Kept {
        /// The partition.
        partition: PartitionId,
    },
    /// Another owner shut down and kept partitions for its restart. No instance reads them until then.
    OwnerAway {
        /// The owner.
        owner: OwnerId,
        /// How many partitions the owner keeps, without those that it reclaimed or that expired. Zero: none anymore.
        partitions: usize,
    },
    /// This instance requested the handoff of a partition from its live owner.
    HandoffRequested {
        /// The partition.
        partition: PartitionId,
        /// Its owner.
        from: OwnerId,
    },
    /// Another instance requested a partition of this one, which drains the partition.
    HandoffReceived {
        /// The partition.
        partition: PartitionId,
        /// The requesting instance.
        by: OwnerId,
    },
    /// A handoff is incomplete: the partition moves without the last checkpoint of its previous owner. The events after
    /// the previous checkpoint may be processed twice.
    DuplicatesPossible {
        /// The partition.
        partition: PartitionId,
        /// The reason.
        cause: DuplicateCause,
    },
    /// Another instance declared this one dead, or deleted its heartbeat. This instance sends a heartbeat at once, and
    /// then rewrites the leases that [the heartbeat keeps alive](crate::model::LeaseScope::Instance). Partitions that
    /// other instances claimed in the meantime are lost.
    DeclaredDead {
        /// The instance that declared this one dead, if the record still names it.
        by: Option<OwnerId>,
    },
    /// The set of stalled components changed. An empty set means that the stall is over.
    Stalled(Stalled),
    /// Partitions stay unowned because of `max_partitions`. Zero: none anymore.
    LimitReached {
        /// How many partitions.
        unclaimed: usize,
    },
}

/// Why events may be processed twice although a handoff was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum DuplicateCause {
    /// The previous owner did not acknowledge the handoff in time, and the partition was stolen.
    NotAcknowledged,
    /// This instance released the partition before its handler had stopped, because the time to stop was over.
    HandlerStillRunning,
    /// This instance released the partition, but its handler was aborted or failed in its last batch, or the last
    /// checkpoint could not be written.
    CheckpointNotWritten,
}

impl DuplicateCause {
    /// Returns the name in metrics and when serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAcknowledged => "not_acknowledged",
            Self::HandlerStillRunning => "handler_still_running",
            Self::CheckpointNotWritten => "checkpoint_not_written",
        }
    }
}

impl From<DuplicateCause> for &'static str {
    fn from(cause: DuplicateCause) -> Self {
        cause.as_str()
    }
}

/// Sends ownership events to the subscribers, the log and the metrics.
#[derive(Clone, Debug)]
pub(super) struct Events {
    sender: broadcast::Sender<OwnershipEvent>,
    metrics: GroupMetrics,
}

impl Events {
    pub(super) fn new(metrics: GroupMetrics) -> Self {
        Self { sender: broadcast::channel(KEPT).0, metrics }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<OwnershipEvent> {
        self.sender.subscribe()
    }

    pub(super) fn emit_event(&self, event: OwnershipEvent) {
        match &event {
            OwnershipEvent::Claimed { partition, reason, .. } => {
                telemetry::claim_won(partition, reason.as_str(), reason.previous_owner());
            }
            OwnershipEvent::Lost { partition, by } => telemetry::ownership_lost(partition, by.as_ref()),
            OwnershipEvent::LeaseExpired { partition } => telemetry::lease_expired(partition),
            OwnershipEvent::Releasing { partition, reason } => {
                telemetry::releasing_partition(partition, reason.as_str());
            }
            OwnershipEvent::Released { partition } => telemetry::partition_released(partition),
            OwnershipEvent::Kept { partition } => telemetry::partition_kept(partition),
            OwnershipEvent::OwnerAway { owner, partitions } => telemetry::owner_away(owner, *partitions),
            OwnershipEvent::HandoffRequested { partition, from } => telemetry::handoff_requested(partition, from),
            OwnershipEvent::HandoffReceived { partition, by } => telemetry::handoff_received(partition, by),
            OwnershipEvent::DuplicatesPossible { partition, cause } => {
                telemetry::duplicates_possible(partition, cause.as_str());
            }
            OwnershipEvent::DeclaredDead { by } => telemetry::instance_declared_dead(by.as_ref()),
            OwnershipEvent::Stalled(stalled) if stalled.any() => {
                telemetry::application_stalled(stalled.runtime, &stalled.partitions);
            }
            OwnershipEvent::Stalled(_) => telemetry::application_recovered(),
            OwnershipEvent::LimitReached { unclaimed } => telemetry::claim_limit_reached(*unclaimed),
        }
        self.count_event(&event);
        // An error means that there are no subscribers.
        let _ = self.sender.send(event);
    }

    fn count_event(&self, event: &OwnershipEvent) {
        match event {
            OwnershipEvent::Claimed { reason, .. } => self.metrics.count_claim(reason.as_str()),
            OwnershipEvent::Lost { .. } => self.metrics.count_loss("taken"),
            OwnershipEvent::LeaseExpired { .. } => self.metrics.count_loss("lease_expired"),
            OwnershipEvent::Releasing { reason, .. } => self.metrics.count_release(reason.as_str()),
            OwnershipEvent::HandoffRequested { .. } => self.metrics.count_handoff_request(),
            OwnershipEvent::DuplicatesPossible { cause, .. } => self.metrics.count_incomplete_handoff(cause.as_str()),
            OwnershipEvent::DeclaredDead { .. } => self.metrics.count_declared_dead(),
            OwnershipEvent::HandoffReceived { .. }
            | OwnershipEvent::Released { .. }
            | OwnershipEvent::Kept { .. }
            | OwnershipEvent::OwnerAway { .. }
            | OwnershipEvent::Stalled(_)
            | OwnershipEvent::LimitReached { .. } => {}
        }
    }
}

/// One thing to log or to count that is not an event.
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
    /// It is not known whether there is a live owner in the other blob-name casing.
    CaseConflictUnknown(Arc<Error>),
    /// There is one, which should give way.
    CaseConflictWaits(CaseConflict),
    /// There is one, and this instance ends.
    CaseConflictFound(CaseConflict),
    /// An owner below its share claims nothing.
    OwnerIdle(OwnerId),
    /// Leases are renewed individually from now on, because of this owner of another SDK.
    ScopeGivenUp(Option<OwnerId>),
    /// The beacon could not be read or written.
    BeaconFailed(Error),
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
    pub(super) fn log_and_count(self, store: &Telemetry) {
        match self {
            Self::CycleLate(late) => telemetry::cycle_late(late),
            Self::CycleTook(took) => store.metrics().record_cycle_duration(took),
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
            Self::BeaconFailed(error) => store.beacon_failed(&error),
            Self::HeartbeatLate => telemetry::heartbeat_late(),
            Self::HeartbeatBack => telemetry::heartbeat_back(),
            Self::SlowStart(partitions, estimate) => telemetry::slow_start(partitions, estimate),
            Self::OutageOver(silence) => telemetry::outage_over(silence),
            Self::NotReleased(unreleased) => telemetry::not_released(unreleased),
        }
    }
}
