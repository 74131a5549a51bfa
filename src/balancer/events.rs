//! What happened and why, for whoever wants to know.

use serde::Serialize;
use tokio::sync::broadcast;

use super::vitals::Stalled;
use crate::model::{OwnerId, PartitionId};
use crate::planner::{ClaimReason, ReleaseReason};
use crate::telemetry::{self, GroupMetrics};

/// How many events a slow listener may lag behind before it misses the oldest.
const KEPT: usize = 1024;

/// Something that the loop did, or noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum OwnershipEvent {
    /// A partition was claimed; from whom, the reason tells.
    Claimed {
        /// The partition.
        partition: PartitionId,
        /// The [epoch](crate::store::Lease::epoch) of the tenure that begins.
        epoch: i64,
        /// Why.
        reason: ClaimReason,
    },
    /// A partition was lost.
    Lost {
        /// The partition.
        partition: PartitionId,
        /// The owner now, where it is known.
        by: Option<OwnerId>,
    },
    /// A partition could not be renewed in time and is processed no further:
    /// [`OnLeaseExpiry::Stop`](super::OnLeaseExpiry::Stop).
    LeaseExpired {
        /// The partition.
        partition: PartitionId,
    },
    /// A partition is given back.
    Releasing {
        /// The partition.
        partition: PartitionId,
        /// Why.
        reason: ReleaseReason,
    },
    /// It was given back: others may claim it.
    Released {
        /// The partition.
        partition: PartitionId,
    },
    /// It was left for the restart of this owner: no other instance takes it before it expires.
    Kept {
        /// The partition.
        partition: PartitionId,
    },
    /// An owner has shut down and left partitions for its own restart. They are not read meanwhile.
    OwnerAway {
        /// The owner.
        owner: OwnerId,
        /// How many it left, as far as it has not taken them back, and they have not expired. With zero, none any more.
        partitions: usize,
    },
    /// A live owner was asked to hand a partition over.
    HandoffRequested {
        /// The partition.
        partition: PartitionId,
        /// Its owner.
        from: OwnerId,
    },
    /// This instance was asked to hand a partition over, and does.
    HandoffReceived {
        /// The partition.
        partition: PartitionId,
        /// Who asked.
        by: OwnerId,
    },
    /// A partition that was asked for moves without the last checkpoint of its old owner: what is behind the one before
    /// may be processed twice.
    DuplicatesPossible {
        /// The partition.
        partition: PartitionId,
        /// Why.
        cause: DuplicateCause,
    },
    /// Another instance took this one for dead, or its presence was deleted. It says at once that it is there again.
    /// What [lives by its presence](crate::model::LeaseScope::Instance) is written anew; what was taken over meanwhile
    /// is lost.
    DeclaredDead {
        /// Who did, if the record still tells.
        by: Option<OwnerId>,
    },
    /// The application stalls, or something else of it does than before; or, with nothing in it, it is well again.
    Stalled(Stalled),
    /// Partitions stay unowned because of `max_partitions`; with zero, none does any more.
    LimitReached {
        /// How many.
        unclaimed: usize,
    },
}

/// Why events may be processed twice although a partition was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum DuplicateCause {
    /// Its owner did not answer in time, and it was stolen.
    NotAcknowledged,
    /// Its owner answered, but did not release it in time, and it was stolen.
    NotReleased,
    /// It was released here before its handler had stopped: the time for that was over.
    HandlerStillRunning,
    /// It was released here, but its handler was cut short or failed at its last batch, or its last checkpoint could
    /// not be written.
    CheckpointNotWritten,
}

impl DuplicateCause {
    /// The name in metrics and when serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAcknowledged => "not_acknowledged",
            Self::NotReleased => "not_released",
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

/// The sending end.
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
                telemetry::stalled(stalled.runtime, &stalled.partitions)
            }
            OwnershipEvent::Stalled(_) => telemetry::recovered(),
            OwnershipEvent::LimitReached { unclaimed } => telemetry::capped(*unclaimed),
        }
        self.count(&event);
        // An error means that nobody listens.
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
