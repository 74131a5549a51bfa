//! Ownership events: what happened, and why.

use serde::Serialize;
use tokio::sync::broadcast;

use super::liveness::Stalled;
use crate::model::{OwnerId, PartitionId};
use crate::planner::{ClaimReason, ReleaseReason};
use crate::telemetry::{self, GroupMetrics};

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

/// The sending half.
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

    pub(super) fn emit(&self, event: OwnershipEvent) {
        match &event {
            OwnershipEvent::Claimed { partition, reason, .. } => {
                telemetry::claim_won(partition, reason.as_str(), reason.previous_owner());
            }
            OwnershipEvent::Lost { partition, by } => telemetry::ownership_lost(partition, by.as_ref()),
            OwnershipEvent::LeaseExpired { partition } => telemetry::lease_expired(partition),
            OwnershipEvent::Releasing { partition, reason } => telemetry::releasing(partition, reason.as_str()),
            OwnershipEvent::Released { partition } => telemetry::released(partition),
            OwnershipEvent::Kept { partition } => telemetry::kept(partition),
            OwnershipEvent::OwnerAway { owner, partitions } => telemetry::owner_away(owner, *partitions),
            OwnershipEvent::HandoffRequested { partition, from } => telemetry::handoff_requested(partition, from),
            OwnershipEvent::HandoffReceived { partition, by } => telemetry::handoff_received(partition, by),
            OwnershipEvent::DuplicatesPossible { partition, cause } => {
                telemetry::duplicates_possible(partition, cause.as_str());
            }
            OwnershipEvent::DeclaredDead { by } => telemetry::declared_dead(by.as_ref()),
            OwnershipEvent::Stalled(stalled) if stalled.any() => {
                telemetry::stalled(stalled.runtime, &stalled.partitions);
            }
            OwnershipEvent::Stalled(_) => telemetry::recovered(),
            OwnershipEvent::LimitReached { unclaimed } => telemetry::capped(*unclaimed),
        }
        self.count(&event);
        // An error means that there are no subscribers.
        let _ = self.sender.send(event);
    }

    fn count(&self, event: &OwnershipEvent) {
        match event {
            OwnershipEvent::Claimed { reason, .. } => self.metrics.claimed(reason.as_str()),
            OwnershipEvent::Lost { .. } => self.metrics.lost("taken"),
            OwnershipEvent::LeaseExpired { .. } => self.metrics.lost("lease_expired"),
            OwnershipEvent::Releasing { reason, .. } => self.metrics.releasing(reason.as_str()),
            OwnershipEvent::HandoffRequested { .. } => self.metrics.handoff_requested(),
            OwnershipEvent::DuplicatesPossible { cause, .. } => self.metrics.handoff_incomplete(cause.as_str()),
            OwnershipEvent::DeclaredDead { .. } => self.metrics.declared_dead(),
            OwnershipEvent::HandoffReceived { .. }
            | OwnershipEvent::Released { .. }
            | OwnershipEvent::Kept { .. }
            | OwnershipEvent::OwnerAway { .. }
            | OwnershipEvent::Stalled(_)
            | OwnershipEvent::LimitReached { .. } => {}
        }
    }
}
