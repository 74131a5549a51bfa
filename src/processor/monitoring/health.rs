//! The health of an instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::ErrorSummary;
use super::status::{ObservedPartition, PartitionState, PartitionStatus};
use crate::balancer::{LivenessTracker, Snapshot};
use crate::error::Error;
use crate::model::{OwnerId, PartitionId, Pause};

/// The health of an instance, for a readiness probe and a status page.
///
/// An instance with issues is still ready: most issues are problems of the storage, the event hub or one partition, and
/// a restart would move partitions without solving them.
///
/// Serializes with durations as numbers of seconds, and each issue with its name as `kind`.
///
/// ```
/// use eventhubs_checkpoint::ProcessorHandle;
/// use eventhubs_checkpoint::processor::HealthIssue;
///
/// /// The status of the responses to probes of Kubernetes.
/// fn probe(handle: &ProcessorHandle) -> (u16, u16) {
///     let health = handle.health();
///     let is_alive = !health.issues.iter().any(|issue| matches!(issue, HealthIssue::RuntimeStalled));
///     (if health.ready { 200 } else { 503 }, if is_alive { 200 } else { 503 })
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Whether the instance takes part in the group: it has read who owns which partition, and it is not shutting down.
    pub ready: bool,
    /// Current issues; empty if healthy.
    pub issues: Vec<HealthIssue>,
}

/// A problem that the instance reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum HealthIssue {
    /// The storage has been unavailable for longer than half the lease duration and one request timeout. This instance
    /// keeps its partitions meanwhile, unless [`OnLeaseExpiry::Stop`](crate::balancer::OnLeaseExpiry::Stop) is set.
    StorageUnavailable {
        /// Time since the last successful response.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        unavailable_for: Duration,
    },
    /// No load-balancing cycle has succeeded for longer than the lease duration: this instance does not know which
    /// instance owns which partition, and claims none. It renews the leases of its own partitions.
    CyclesFailing {
        /// Time since the last successful cycle.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        failing_for: Duration,
    },
    /// The heartbeat of this instance could not be written for longer than the lease duration. This instance renews
    /// each of its leases individually meanwhile, and the others do not count it while it owns nothing.
    HeartbeatFailing {
        /// How long it has been failing.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        failing_for: Duration,
        /// The last error.
        error: ErrorSummary,
    },
    /// This instance, whose leases are live, could not look for live owners in the other casing of the blob names for
    /// longer than the lease duration. It claims no partition meanwhile: another instance may own the same ones.
    CaseCheckFailing {
        /// How long it has been failing.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        failing_for: Duration,
        /// The last error.
        error: ErrorSummary,
    },
    /// No instance owns the partition, and the storage has failed the last claims of this instance, at least two.
    ClaimFailing {
        /// The partition.
        partition: PartitionId,
        /// The last error.
        error: ErrorSummary,
    },
    /// The application's runtime has not run for more than 10 s: all its workers are blocked. This instance claims no
    /// partition meanwhile.
    RuntimeStalled,
    /// A call of the handler, or an attempt at a [single event](crate::processor::each_event), has taken longer than
    /// [`stall_timeout`](crate::processor::BalancerConfig::stall_timeout).
    HandlerStalled {
        /// The partition.
        partition: PartitionId,
        /// How long the call has taken.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        stalled_for: Duration,
    },
    /// [`max_in_flight`](crate::processor::ProcessorConfig::max_in_flight) events, or
    /// [`max_in_flight_bytes`](crate::processor::ProcessorConfig::max_in_flight_bytes), are in flight, and none was
    /// finished for longer than `stall_timeout`.
    InFlightFull {
        /// The partition.
        partition: PartitionId,
        /// The number of events in flight.
        in_flight: usize,
    },
    /// The event hub has newer events, and the receiver delivers none. The processor reopens it if this continues.
    LinkStalled {
        /// The partition.
        partition: PartitionId,
    },
    /// The partition has not been read yet for longer than `stall_timeout`: the storage, the handler's `started` or the
    /// event source has not completed.
    Starting {
        /// The partition.
        partition: PartitionId,
        /// How long it has been starting.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        starting_for: Duration,
    },
    /// The partition fails repeatedly.
    Failing {
        /// The partition.
        partition: PartitionId,
        /// The last error.
        error: Option<ErrorSummary>,
    },
    /// The partition is parked after a failure of its handler, in this instance or an earlier owner.
    Parked {
        /// The partition.
        partition: PartitionId,
        /// The last error of this instance.
        error: Option<ErrorSummary>,
        /// What the checkpoint shows. `None` until that is recorded.
        pause: Option<Pause>,
    },
    /// An [operator](crate::admin::Operator::pause) has paused the partition.
    Paused {
        /// The partition.
        partition: PartitionId,
        /// Why, and until when.
        pause: Pause,
    },
    /// The last checkpoint could not be written. The processor retries.
    CheckpointFailing {
        /// The partition.
        partition: PartitionId,
        /// The last error.
        error: ErrorSummary,
    },
    /// A [`TrackedEvent`](crate::processor::TrackedEvent) was dropped unfinished. The checkpoint stays before its event
    /// until the partition restarts; then this event and all later ones are redelivered.
    CheckpointHeld {
        /// The partition.
        partition: PartitionId,
        /// Time since the first such drop.
        #[serde(serialize_with = "crate::util::serialize_seconds")]
        held_for: Duration,
        /// The sequence number of the first event that was dropped unfinished.
        event: i64,
        /// The sequence number of the durable checkpoint.
        checkpoint: Option<i64>,
        /// How far, in sequence numbers, the last finished event is after `event`. About this many finished events will
        /// be redelivered.
        finished_after: u64,
    },
    /// Another owner has shut down and kept partitions for its restart. They are not read until it restarts, or until
    /// their leases expire.
    OwnerAway {
        /// The owner.
        owner: OwnerId,
        /// The number of its partitions.
        partitions: usize,
    },
    /// Partitions stay unowned because of [`max_partitions`](crate::processor::BalancerConfig::max_partitions).
    Unclaimed {
        /// The number of partitions.
        partitions: usize,
    },
}

/// The state that determines the health.
pub(crate) struct HealthInputs<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) storage_unavailable: Option<Duration>,
    /// How long no cycle has succeeded, if that is too long.
    pub(crate) cycles_failing: Option<Duration>,
    /// How long the heartbeat could not be written, if that is too long.
    pub(crate) heartbeat_failing: Option<(Duration, Arc<Error>)>,
    /// How long it could not look for live owners in the other blob-name casing, if that is too long.
    pub(crate) case_check_failing: Option<(Duration, Arc<Error>)>,
    /// The partitions that the storage has not let this instance claim.
    pub(crate) unclaimable: BTreeMap<PartitionId, Arc<Error>>,
    pub(crate) partitions: &'a [ObservedPartition],
    pub(crate) ending: bool,
    pub(crate) liveness: &'a LivenessTracker,
}

pub(crate) fn assess_health(inputs: &HealthInputs<'_>) -> Health {
    let mut issues = Vec::new();
    issues
        .extend(inputs.storage_unavailable.map(|unavailable_for| HealthIssue::StorageUnavailable { unavailable_for }));
    if !inputs.ending {
        issues.extend(inputs.cycles_failing.map(|failing_for| HealthIssue::CyclesFailing { failing_for }));
        issues.extend(storage_failures(inputs));
    }
    issues.extend(inputs.snapshot.stalled.runtime.then_some(HealthIssue::RuntimeStalled));
    for ObservedPartition { status, checkpoint_failure, held } in inputs.partitions {
        let partition = &status.partition;
        issues.extend(partition_issue(status, inputs.liveness));
        issues.extend(
            checkpoint_failure
                .clone()
                .map(|error| HealthIssue::CheckpointFailing { partition: partition.clone(), error }),
        );
        issues.extend(held.map(|held| HealthIssue::CheckpointHeld {
            partition: partition.clone(),
            held_for: held.held_for,
            event: held.event,
            checkpoint: held.checkpoint,
            finished_after: held.finished_after,
        }));
    }
    for (owner, partitions) in inputs.snapshot.away() {
        issues.push(HealthIssue::OwnerAway { owner, partitions });
    }
    let unclaimed = inputs.snapshot.unclaimed_due_to_limit;
    issues.extend((unclaimed > 0).then_some(HealthIssue::Unclaimed { partitions: unclaimed }));
    Health { ready: inputs.snapshot.cycles > 0 && !inputs.ending, issues }
}

/// Returns what the storage keeps failing for this instance.
fn storage_failures(inputs: &HealthInputs<'_>) -> impl Iterator<Item = HealthIssue> {
    let heartbeat = inputs.heartbeat_failing.as_ref().map(|(failing_for, error)| HealthIssue::HeartbeatFailing {
        failing_for: *failing_for,
        error: ErrorSummary::from_error(error),
    });
    let case_check = inputs.case_check_failing.as_ref().map(|(failing_for, error)| HealthIssue::CaseCheckFailing {
        failing_for: *failing_for,
        error: ErrorSummary::from_error(error),
    });
    let claims = inputs.unclaimable.iter().map(|(partition, error)| HealthIssue::ClaimFailing {
        partition: partition.clone(),
        error: ErrorSummary::from_error(error),
    });
    heartbeat.into_iter().chain(case_check).chain(claims)
}

fn partition_issue(status: &PartitionStatus, liveness: &LivenessTracker) -> Option<HealthIssue> {
    let partition = status.partition.clone();
    let error = status.last_error.clone();
    match status.state {
        PartitionState::HandlerStalled => {
            Some(HealthIssue::HandlerStalled { partition, stalled_for: status.state_for })
        }
        PartitionState::InFlightFull => Some(HealthIssue::InFlightFull { partition, in_flight: status.in_flight }),
        PartitionState::LinkStalled => Some(HealthIssue::LinkStalled { partition }),
        PartitionState::Paused => status.pause.clone().map(|pause| HealthIssue::Paused { partition, pause }),
        PartitionState::Parked => Some(HealthIssue::Parked { partition, error, pause: status.pause.clone() }),
        PartitionState::Failing => Some(HealthIssue::Failing { partition, error }),
        // The partition waits between two attempts.
        PartitionState::Adopting | PartitionState::Starting | PartitionState::Opening if error.is_some() => {
            Some(HealthIssue::Failing { partition, error })
        }
        PartitionState::Adopting | PartitionState::Starting | PartitionState::Opening
            if liveness.is_too_long(status.state_for) =>
        {
            Some(HealthIssue::Starting { partition, starting_for: status.state_for })
        }
        _ => None,
    }
}
