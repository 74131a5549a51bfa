//! Releasing partitions. A partition is *drained* first: its handler stops and its last checkpoint is written. It is
//! *released* after that. Until then its lease is renewed.

use std::time::Duration;

use super::context::{Context, LoopPhase};
use super::events::{DuplicateCause, Note, OwnershipEvent};
use super::lease::OwnedLease;
use super::partitions::{Activity, Partitions};
use super::step::StorageRequest;
use crate::model::{OwnerId, PartitionId};
use crate::planner::{PartitionOwner, ReleaseReason};
use crate::store::{ClaimOutcome, ReleaseOutcome};
use crate::telemetry::StorageOperation;

impl Partitions {
    /// Releases a partition that may be in processing: when its task reports that it has stopped, or when the time for
    /// that is over.
    pub(super) fn drain_partition(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        reason: ReleaseReason,
    ) {
        if context.settings.drain_timeout.is_zero() {
            return self.release_partition(context, partition, epoch, reason);
        }
        let until = context.now + context.settings.time_to_stop();
        if self.lease_in_epoch(partition, epoch).is_some_and(|owned| owned.plan_drain(until, reason)) {
            context.push_event(OwnershipEvent::Releasing { partition: partition.clone(), reason });
            context.request_snapshot();
        }
    }

    /// Releases a partition that is not processed.
    pub(super) fn release_partition(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        reason: ReleaseReason,
    ) {
        if self.lease_in_epoch(partition, epoch).is_some_and(|owned| !owned.is_released_next()) {
            context.push_event(OwnershipEvent::Releasing { partition: partition.clone(), reason });
            self.send_release(context, partition, epoch, reason);
        }
    }

    /// Sends the release, at once or when the current renewal has ended. In a handoff a release that fails is repeated
    /// for as long as the requesting instance waits, and at shutdown until the shutdown ends.
    pub(super) fn send_release(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        reason: ReleaseReason,
    ) {
        let Some(owned) = self.lease_in_epoch(partition, epoch) else { return };
        context.request_snapshot();
        if owned.is_renewing() {
            return owned.release_next(reason);
        }
        let settings = &context.settings;
        let until = match context.phase {
            LoopPhase::Draining | LoopPhase::Ending(_) => None,
            LoopPhase::Running if owned.is_handed_over() => Some(context.now + settings.lease_duration()),
            LoopPhase::Running => Some(context.now + settings.release_limit()),
        };
        context.push_request(StorageRequest::Release { lease: owned.lease().clone(), until });
        self.activities.insert(partition.clone(), Activity::Releasing(reason));
    }

    /// Releases a partition whose processing has stopped, because of this loop or because the processor gave up.
    pub(super) fn on_stopped(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        settled: bool,
        cooldown: Duration,
    ) {
        let Some(owned) = self.lease_in_epoch(partition, epoch) else { return };
        let drained_for = owned.drained_for();
        if !settled {
            self.report_duplicates(context, partition, epoch, DuplicateCause::CheckpointNotWritten);
        }
        // A processor that gave up must not get the partition back at once.
        if drained_for.is_none() || !cooldown.is_zero() {
            self.set_back(context, partition, context.settings.claim_cooldown(cooldown), None);
        }
        if let Some(reason) = drained_for {
            return self.send_release(context, partition, epoch, reason);
        }
        let reason =
            if context.phase == LoopPhase::Running { ReleaseReason::Requested } else { ReleaseReason::Shutdown };
        self.release_partition(context, partition, epoch, reason);
    }

    /// Releases a draining partition that nothing processes. The report may concern an earlier epoch of the partition,
    /// but there is nothing to wait for.
    pub(super) fn on_unprocessed(&mut self, context: &mut Context, partition: &PartitionId) {
        let draining = self.lease_of(partition).and_then(|owned| Some((owned.epoch(), owned.drained_for()?)));
        if let Some((epoch, reason)) = draining {
            self.send_release(context, partition, epoch, reason);
        }
    }

    /// Releases partitions whose handlers have not stopped in time.
    pub(super) fn release_overdue(&mut self, context: &mut Context) {
        let overdue = self.owned_leases().filter(|(_, owned)| owned.overdue_at().is_some_and(|at| at <= context.now));
        let overdue: Vec<_> = overdue
            .filter_map(|(partition, owned)| Some((partition.clone(), owned.epoch(), owned.release_reason()?)))
            .collect();
        for (partition, epoch, reason) in overdue {
            self.report_duplicates(context, &partition, epoch, DuplicateCause::HandlerStillRunning);
            self.send_release(context, &partition, epoch, reason);
        }
    }

    /// Reports possible duplicates of a partition that is handed over, because the requesting instance expects that no
    /// event is processed twice.
    fn report_duplicates(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, cause: DuplicateCause) {
        if self.lease_in_epoch(partition, epoch).is_some_and(|owned| owned.is_handed_over()) {
            context.push_event(OwnershipEvent::DuplicatesPossible { partition: partition.clone(), cause });
        }
    }

    pub(super) fn on_released(&mut self, context: &mut Context, partition: &PartitionId, outcome: ReleaseOutcome) {
        let handed_over =
            matches!(self.activities.remove(partition), Some(Activity::Releasing(ReleaseReason::HandedOver)))
                && context.phase == LoopPhase::Running;
        match outcome {
            ReleaseOutcome::Released => {
                // The instance that requested a partition polls it every second, and this one lists next.
                if !handed_over {
                    context.call_others();
                }
                context.push_event(OwnershipEvent::Released { partition: partition.clone() });
                context.record_owner(partition, PartitionOwner::Released);
            }
            // Another instance took it before the release was written.
            ReleaseOutcome::Lost { by } => {
                context.record_owner(partition, by.clone().map_or(PartitionOwner::Released, PartitionOwner::Other));
                context.push_event(OwnershipEvent::Lost { partition: partition.clone(), by });
            }
            ReleaseOutcome::Indeterminate(error) => {
                self.left.unreleased += usize::from(context.phase != LoopPhase::Running);
                context.push_note(Note::ReleaseIndeterminate(partition.clone(), error));
                context.bring_cycle_forward();
                context.request_snapshot();
            }
        }
    }

    /// Drops a partition because the processor found that it belongs to another owner.
    pub(super) fn on_lost(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, by: Option<OwnerId>) {
        if self.lease_in_epoch(partition, epoch).is_none() {
            return;
        }
        self.remove(partition);
        match &by {
            Some(owner) => context.record_owner(partition, PartitionOwner::Other(owner.clone())),
            None => context.request_snapshot(),
        }
        context.bring_cycle_forward();
        context.push_event(OwnershipEvent::Lost { partition: partition.clone(), by });
    }

    /// Stops partitions that could not be renewed in time. If no other instance claims them, the next cycle does.
    pub(super) fn drop_expired(&mut self, context: &mut Context) {
        let Some(lifetime) = context.settings.lease_lifetime() else { return };
        let expired =
            self.owned_leases().filter(|(_, owned)| owned.valid_from(self.kept_alive_by) + lifetime <= context.now);
        let expired: Vec<_> = expired.map(|(partition, _)| partition.clone()).collect();
        for partition in expired {
            self.remove(&partition);
            context.record_owner(&partition, PartitionOwner::Reclaimable);
            context.push_event(OwnershipEvent::LeaseExpired { partition });
        }
    }

    /// Releases all partitions: idle ones at once, and those with a renewal or a claim under way as soon as it has
    /// ended, so that no late write undoes a release.
    pub(super) fn release_all(&mut self, context: &mut Context) {
        for (partition, epoch) in self.owned_epochs() {
            self.release_partition(context, &partition, epoch, ReleaseReason::Shutdown);
        }
    }

    /// Keeps all partitions for the restart of this owner, except those that are already being released.
    pub(super) fn keep_all(&mut self, context: &mut Context) {
        for (partition, epoch) in self.owned_epochs() {
            match self.lease_of(&partition).and_then(OwnedLease::release_reason) {
                None => self.send_keep(context, &partition, epoch),
                Some(reason) => self.send_release(context, &partition, epoch, reason),
            }
        }
    }

    /// Renews a lease for the last time, at once or when the current renewal has ended.
    pub(super) fn send_keep(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64) {
        let Some(owned) = self.lease_in_epoch(partition, epoch) else { return };
        if owned.is_renewing() {
            return owned.keep_next();
        }
        context.push_request(StorageRequest::Keep(owned.lease().clone().kept()));
        self.activities.insert(partition.clone(), Activity::Keeping);
    }

    pub(super) fn on_kept(&mut self, context: &mut Context, partition: &PartitionId, outcome: ClaimOutcome) {
        self.remove(partition);
        match outcome {
            ClaimOutcome::Won(_) => {
                context.call_others();
                self.left.kept += 1;
                context.push_event(OwnershipEvent::Kept { partition: partition.clone() });
            }
            ClaimOutcome::Lost { by } => context.push_event(OwnershipEvent::Lost { partition: partition.clone(), by }),
            ClaimOutcome::Replaced { .. } => {}
            ClaimOutcome::Indeterminate(error) => {
                self.left.unreleased += 1;
                context.push_note(Note::Indeterminate(StorageOperation::Renew, vec![partition.clone()], error.into()));
            }
        }
    }
}
