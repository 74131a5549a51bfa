//! Whether an instance is well.

use std::time::Duration;

use serde::Serialize;

use super::dropped::HeldCheckpoint;
use super::status::{PartitionState, PartitionStatus};
use crate::balancer::{LivenessTracker, Snapshot};
use crate::model::{OwnerId, PartitionId};

/// How an instance is, fit for a readiness probe and a status page.
///
/// An instance that is degraded is still ready: what is not well is mostly the storage, the hub or one partition, and a
/// restart would move partitions without mending anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Whether it takes part in the group: it has seen who owns what, and is not coming to its end.
    pub ready: bool,
    /// What is not well. Nothing, if all is.
    pub issues: Vec<HealthIssue>,
}

/// Something that is not well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
#[non_exhaustive]
pub enum HealthIssue {
    /// The storage has not answered well for longer than half the expiry and a request, and has failed meanwhile.
    StorageUnavailable {
        /// For how long.
        silent_for: Duration,
    },
    /// No load-balancing cycle has succeeded for longer than the expiry: this instance does not see who owns what, and
    /// takes over nothing. What it holds it renews.
    CyclesFailing {
        /// For how long.
        blind_for: Duration,
    },
    /// Something blocks the application's runtime.
    RuntimeStalled,
    /// The handler has had one batch for too long.
    HandlerStalled {
        /// The partition.
        partition: PartitionId,
        /// For how long.
        stuck_for: Duration,
    },
    /// As many events are in flight as may be, and none was finished for long.
    InFlightFull {
        /// The partition.
        partition: PartitionId,
        /// How many are.
        in_flight: usize,
    },
    /// The hub has newer events, and the link delivers none.
    LinkStalled {
        /// The partition.
        partition: PartitionId,
    },
    /// It has not come to reading for long: the storage, the handler's `started` or the event source keeps it.
    Starting {
        /// The partition.
        partition: PartitionId,
        /// For how long.
        starting_for: Duration,
    },
    /// It fails again and again.
    Failing {
        /// The partition.
        partition: PartitionId,
        /// What goes wrong.
        error: Option<String>,
    },
    /// It is parked after a failure of its handler.
    Parked {
        /// The partition.
        partition: PartitionId,
        /// What went wrong.
        error: Option<String>,
    },
    /// Its last checkpoint could not be written, and will be tried again.
    CheckpointFailing {
        /// The partition.
        partition: PartitionId,
        /// What went wrong.
        error: String,
    },
    /// A [`TrackedEvent`](super::TrackedEvent) was dropped before its event was finished. The checkpoint stays before that event
    /// until the partition starts again; then the event and all after it are delivered again.
    CheckpointHeld {
        /// The partition.
        partition: PartitionId,
        /// Time since the first such token was dropped.
        held_for: Duration,
        /// The sequence number of the first event whose token was dropped.
        event: i64,
        /// The sequence number of the durable checkpoint.
        checkpoint: Option<i64>,
        /// How far, in sequence numbers, the last finished event is after `event`. About so many finished events are
        /// processed again.
        finished_after: u64,
    },
    /// An owner has shut down and left partitions for its own restart: they are not read until it is back, or they
    /// expire.
    OwnerAway {
        /// The owner.
        owner: OwnerId,
        /// How many.
        partitions: usize,
    },
    /// Partitions stay unowned because of `max_partitions`.
    Unclaimed {
        /// How many.
        partitions: usize,
    },
}

/// What the verdict goes by.
pub(super) struct Signs<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) storage_unavailable: Option<Duration>,
    /// How long no cycle has succeeded, if that is too long.
    pub(super) cycles_failing: Option<Duration>,
    pub(super) partitions: &'a [PartitionStatus],
    pub(super) checkpoint_failures: Vec<(PartitionId, String)>,
    pub(super) held: Vec<(PartitionId, HeldCheckpoint)>,
    pub(super) ending: bool,
    pub(super) liveness: &'a LivenessTracker,
}

pub(super) fn of(signs: &Signs<'_>) -> Health {
    let mut degraded = Vec::new();
    degraded.extend(signs.storage_unavailable.map(|silent_for| HealthIssue::StorageUnavailable { silent_for }));
    let blind = signs.cycles_failing.filter(|_| !signs.ending);
    degraded.extend(blind.map(|blind_for| HealthIssue::CyclesFailing { blind_for }));
    degraded.extend(signs.snapshot.stalled.runtime.then_some(HealthIssue::RuntimeStalled));
    degraded.extend(signs.partitions.iter().filter_map(|status| complaint(status, signs.liveness)));
    degraded.extend(signs.checkpoint_failures.iter().map(|(partition, error)| HealthIssue::CheckpointFailing {
        partition: partition.clone(),
        error: error.clone(),
    }));
    degraded.extend(signs.held.iter().map(|(partition, held)| HealthIssue::CheckpointHeld {
        partition: partition.clone(),
        held_for: held.held_for,
        event: held.event,
        checkpoint: held.checkpoint,
        finished_after: held.finished_after,
    }));
    let away = signs.snapshot.away().into_iter();
    degraded.extend(away.map(|(owner, partitions)| HealthIssue::OwnerAway { owner, partitions }));
    let unclaimed = signs.snapshot.unclaimed_due_to_limit;
    degraded.extend((unclaimed > 0).then_some(HealthIssue::Unclaimed { partitions: unclaimed }));
    Health { ready: signs.snapshot.cycles > 0 && !signs.ending, issues: degraded }
}

fn complaint(status: &PartitionStatus, vitals: &LivenessTracker) -> Option<HealthIssue> {
    let (partition, error) = (status.partition.clone(), status.last_error.clone());
    match status.state {
        PartitionState::HandlerStalled => Some(HealthIssue::HandlerStalled { partition, stuck_for: status.state_for }),
        PartitionState::InFlightFull => Some(HealthIssue::InFlightFull { partition, in_flight: status.in_flight }),
        PartitionState::LinkStalled => Some(HealthIssue::LinkStalled { partition }),
        PartitionState::Parked => Some(HealthIssue::Parked { partition, error }),
        PartitionState::Failing => Some(HealthIssue::Failing { partition, error }),
        // Between two attempts.
        PartitionState::Adopting | PartitionState::Starting | PartitionState::Opening if error.is_some() => {
            Some(HealthIssue::Failing { partition, error })
        }
        PartitionState::Adopting | PartitionState::Starting | PartitionState::Opening
            if vitals.is_too_long(status.state_for) =>
        {
            Some(HealthIssue::Starting { partition, starting_for: status.state_for })
        }
        _ => None,
    }
}
