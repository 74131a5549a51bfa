//! Events of the ownership of partitions.
//!
//! `owner_id` is a field of the span and names this instance. The field `other_owner_id` names another instance.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::Telemetry;
use super::failures::{Causes, warn_retry};
use super::requests::StorageOperation;
use super::spans::BALANCER;
use crate::error::Error;
use crate::model::{OwnerId, PartitionId};

/// Advice for the operator when [`LeaseScope::Instance`](crate::LeaseScope::Instance) is given up.
const SCOPE_ADVICE: &str = "Set the lease scope to `Partition` while instances of another SDK are in the group";

/// Advice for the operator when a start takes long.
const GREEDY_ADVICE: &str = "To claim all at once, use the load-balancing strategy `Greedy`";

impl Telemetry {
    pub(crate) fn ownership_indeterminate(&self, operation: StorageOperation, partition: &PartitionId, error: &Error) {
        warn_retry!(
            of Some(operation), BALANCER, self, error,
            "outcome of storage operation unknown; retrying", partition_id = %partition, operation = operation.as_str()
        );
    }

    pub(crate) fn heartbeat_failed(&self, error: &Error) {
        self.span().in_scope(|| {
            warn_retry!(
                BALANCER,
                self,
                error,
                "heartbeat failed; other instances may not count this one",
                operation = StorageOperation::Heartbeat.as_str()
            );
        });
    }

    pub(crate) fn beacon_failed(&self, error: &Error) {
        self.span().in_scope(|| {
            warn_retry!(
                BALANCER,
                self,
                error,
                "the beacon cannot be read or written; changes in the group are noticed later",
                operation = StorageOperation::Beacon.as_str()
            );
        });
    }

    pub(crate) fn keep_alive_failed(&self, error: &Error) {
        self.span().in_scope(|| {
            warn_retry!(
                BALANCER,
                self,
                error,
                "cannot write the heartbeat that keeps the leases of this instance alive; retrying",
                operation = StorageOperation::Heartbeat.as_str()
            );
        });
    }

    pub(crate) fn heartbeat_not_ended(&self, error: &Error) {
        self.span().in_scope(|| {
            warn_retry!(
                BALANCER,
                self,
                error,
                "failed to end the heartbeat; other instances leave a share to this one until it expires",
                operation = StorageOperation::Heartbeat.as_str()
            );
        });
    }

    pub(crate) fn ended_heartbeat_stays(&self, error: &Error) {
        self.span().in_scope(|| {
            debug!(
                target: BALANCER,
                error = %Causes(error),
                "failed to delete the ended heartbeat; no instance counts it"
            );
        });
    }

    pub(crate) fn stale_heartbeats_stay(&self, error: &Error) {
        self.span().in_scope(|| {
            warn_retry!(
                BALANCER,
                self,
                error,
                "failed to delete stale heartbeats; every listing returns them",
                operation = StorageOperation::Heartbeat.as_str()
            );
        });
    }

    pub(crate) fn loop_not_on_thread(&self, error: &Error) {
        self.span().in_scope(|| {
            warn!(
                target: BALANCER,
                error = %Causes(error),
                "container opens no connections for another runtime; load-balancing loop shares the application's runtime"
            );
        });
    }

    pub(crate) fn cycle_failed(&self, error: &Error, retry_in: Duration) {
        self.metrics().count_failed_cycle();
        warn_retry!(BALANCER, self, error, "load-balancing cycle failed; retrying", ?retry_in);
    }
}

pub(crate) fn claim_won(partition: &PartitionId, reason: &str, previous_owner: Option<&OwnerId>) {
    info!(
        target: BALANCER,
        partition_id = %partition,
        reason,
        other_owner_id = previous_owner.map(OwnerId::as_str),
        "partition claimed"
    );
}

pub(crate) fn claim_lost(partition: &PartitionId, owner: Option<&OwnerId>) {
    debug!(
        target: BALANCER,
        partition_id = %partition,
        other_owner_id = owner.map(OwnerId::as_str),
        "lost the race to claim partition"
    );
}

pub(crate) fn ownership_lost(partition: &PartitionId, owner: Option<&OwnerId>) {
    info!(
        target: BALANCER,
        partition_id = %partition,
        other_owner_id = owner.map(OwnerId::as_str),
        "partition lost"
    );
}

pub(crate) fn lease_expired(partition: &PartitionId) {
    warn!(target: BALANCER, partition_id = %partition, "lease expired before renewal; stopping partition");
}

pub(crate) fn releasing_partition(partition: &PartitionId, reason: &str) {
    info!(target: BALANCER, partition_id = %partition, reason, "releasing partition");
}

pub(crate) fn partition_released(partition: &PartitionId) {
    info!(target: BALANCER, partition_id = %partition, "partition released");
}

pub(crate) fn release_indeterminate(partition: &PartitionId, error: &Error) {
    warn!(
        target: BALANCER,
        partition_id = %partition,
        error = %Causes(error),
        "failed to release partition; it stays owned until the lease expires"
    );
}

pub(crate) fn not_released(unreleased: usize) {
    warn!(
        target: BALANCER,
        unreleased,
        "failed to release partitions in time; they stay owned until their leases expire"
    );
}

pub(crate) fn partition_kept(partition: &PartitionId) {
    info!(target: BALANCER, partition_id = %partition, "partition kept for the restart of this instance");
}

pub(crate) fn owner_away(owner: &OwnerId, partitions: usize) {
    let other_owner_id = owner.as_str();
    if partitions > 0 {
        info!(
            target: BALANCER,
            other_owner_id,
            partitions,
            "another instance shut down and kept partitions for its restart"
        );
    } else {
        info!(
            target: BALANCER,
            other_owner_id,
            "another instance restarted, or the partitions that it kept have expired"
        );
    }
}

pub(crate) fn claim_limit_reached(unclaimed: usize) {
    if unclaimed > 0 {
        warn!(
            target: BALANCER,
            unclaimed,
            "partitions stay unowned because of max_partitions: raise it, or add instances"
        );
    } else {
        info!(target: BALANCER, "max_partitions no longer leaves partitions unowned");
    }
}

pub(crate) fn owner_idle(owner: &OwnerId) {
    warn!(
        target: BALANCER,
        other_owner_id = owner.as_str(),
        "another instance does not claim unowned partitions; the other instances claim its share"
    );
}

pub(crate) fn slow_start(partitions: usize, estimate: Duration) {
    warn!(
        target: BALANCER,
        partitions,
        ?estimate,
        advice = GREEDY_ADVICE,
        "claiming unowned partitions one at a time; startup will be slow unless other instances join"
    );
}

pub(crate) fn outage_over(outage: Duration) {
    warn!(target: BALANCER, ?outage, "storage reachable again; other owners get one lease duration to renew");
}

pub(crate) fn cycle_late(delay: Duration) {
    warn!(
        target: BALANCER,
        ?delay,
        "load-balancing loop is late; its runtime was blocked or the process suspended"
    );
}

pub(crate) fn application_stalled(runtime_blocked: bool, partitions: &BTreeSet<PartitionId>) {
    warn!(
        target: BALANCER,
        runtime_blocked,
        partition_ids = partitions.iter().map(PartitionId::as_str).collect::<Vec<_>>().join(" "),
        "application stalled"
    );
}

pub(crate) fn application_recovered() {
    info!(target: BALANCER, "application recovered");
}

pub(crate) fn handoff_requested(partition: &PartitionId, owner: &OwnerId) {
    info!(target: BALANCER, partition_id = %partition, other_owner_id = owner.as_str(), "requested handoff");
}

pub(crate) fn handoff_not_requested(partition: &PartitionId, reason: &dyn fmt::Debug) {
    debug!(target: BALANCER, partition_id = %partition, ?reason, "handoff not requested");
}

pub(crate) fn handoff_received(partition: &PartitionId, by: &OwnerId) {
    info!(
        target: BALANCER,
        partition_id = %partition,
        other_owner_id = by.as_str(),
        "handoff requested by another instance; draining partition"
    );
}

pub(crate) fn duplicates_possible(partition: &PartitionId, cause: &str) {
    warn!(
        target: BALANCER,
        partition_id = %partition,
        cause,
        "handoff incomplete: the partition moves without its last checkpoint; some events may be processed twice"
    );
}

pub(crate) fn instance_declared_dead(by: Option<&OwnerId>) {
    warn!(
        target: BALANCER,
        other_owner_id = by.map(OwnerId::as_str),
        "another instance declared this one dead; re-registering"
    );
}

pub(crate) fn lease_scope_given_up(owner: Option<&OwnerId>) {
    warn!(
        target: BALANCER,
        other_owner_id = owner.map(OwnerId::as_str),
        advice = SCOPE_ADVICE,
        "another SDK is active in the group and does not honor LeaseScope::Instance; renewing partitions individually"
    );
}

pub(crate) fn heartbeat_late() {
    warn!(
        target: BALANCER,
        "no heartbeat was written for a quarter of the lease duration; renewing partitions individually until one is"
    );
}

pub(crate) fn heartbeat_back() {
    info!(target: BALANCER, "the heartbeat is written again, and keeps the leases of this instance alive");
}

pub(crate) fn stale_heartbeat_deleted(owner: &OwnerId) {
    debug!(target: BALANCER, other_owner_id = owner.as_str(), "deleted stale heartbeat");
}

pub(crate) fn other_name_case_unknown(error: &Error) {
    warn!(target: BALANCER, error = %Causes(error), "cannot look for owners in the other blob-name casing; will retry");
}

pub(crate) fn other_name_case_awaited(conflict: &dyn Display) {
    warn!(
        target: BALANCER,
        %conflict,
        "another application owns partitions in the other blob-name casing; waiting for it to end"
    );
}

pub(crate) fn other_name_case_live(conflict: &dyn Display) {
    error!(
        target: BALANCER,
        %conflict,
        "another application owns partitions in the other blob-name casing; releasing everything"
    );
}
