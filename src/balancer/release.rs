//! Letting partitions go: a partition is *drained*, so that its handler stops and its last checkpoint is written, and
//! then *released*. Meanwhile it is renewed.

use std::time::Duration;

use super::action::Request;
use super::context::{Context, Phase};
use super::events::{DuplicateCause, OwnershipEvent};
use super::handle::LeftOwned;
use super::lease::OwnedLease;
use super::note::Note;
use super::partitions::{Activity, Partitions, is_at_work};
use crate::model::{OwnerId, PartitionId};
use crate::planner::PartitionOwner;
use crate::planner::ReleaseReason;
use crate::store::{ClaimOutcome, ReleaseOutcome};
use crate::telemetry::StorageOperation;

impl Partitions {
    /// Releases a partition that may be processed: it is released when its task reports that it stopped, or when the
    /// time for that is over.
    pub(super) fn drain(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, reason: ReleaseReason) {
        if context.settings.drain_timeout.is_zero() {
            return self.release(context, partition, epoch, reason);
        }
        let until = context.now + context.settings.time_to_stop(reason);
        if self.get_of(partition, epoch).is_some_and(|held| held.drain(until)) {
            context.emit(OwnershipEvent::Releasing { partition: partition.clone(), reason });
            context.change();
        }
    }

    /// Releases a partition that is not processed.
    pub(super) fn release(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        reason: ReleaseReason,
    ) {
        if self.get_of(partition, epoch).is_some_and(|held| !held.is_released_next()) {
            context.emit(OwnershipEvent::Releasing { partition: partition.clone(), reason });
            self.send_release(context, partition, epoch);
        }
    }

    /// Sends the release, now or when the renewal that is under way has ended. In a handoff it is repeated until the
    /// other instance waits no longer; at the end of the loop, until that gives up.
    pub(super) fn send_release(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64) {
        let Some(held) = self.get_of(partition, epoch) else { return };
        context.change();
        if held.is_renewing() {
            return held.release_next();
        }
        let settings = &context.settings;
        let handed_over = held.drains_until().filter(|_| held.is_handed_over());
        let until = match (handed_over, context.phase) {
            (_, Phase::Draining | Phase::Ending(_)) => None,
            (Some(stops_by), Phase::Running) => Some(stops_by + settings.request_timeout),
            (None, Phase::Running) => Some(context.now + settings.release_limit()),
        };
        context.request(Request::Release { lease: held.lease().clone(), until });
        self.activities.insert(partition.clone(), Activity::Releasing);
    }

    /// Its processing has stopped: it was asked to, or does not want to go on.
    pub(super) fn on_stopped(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        cooldown: Duration,
        settled: bool,
    ) {
        let Some(held) = self.get_of(partition, epoch) else { return };
        let was_asked_to = held.is_draining();
        if !settled {
            self.tell_duplicates(context, partition, epoch, DuplicateCause::CheckpointNotWritten);
        }
        // A processor that does not want to go on does not want the partition again at once.
        if !was_asked_to || !cooldown.is_zero() {
            self.set_back(context, partition, cooldown);
        }
        if was_asked_to {
            return self.send_release(context, partition, epoch);
        }
        let reason = if context.phase == Phase::Running { ReleaseReason::Requested } else { ReleaseReason::Shutdown };
        self.release(context, partition, epoch, reason);
    }

    /// Its processing has stopped, perhaps that of an earlier tenure: nothing is left to wait for.
    pub(super) fn on_unprocessed(&mut self, context: &mut Context, partition: &PartitionId) {
        let draining = self.get(partition).filter(|held| held.is_draining()).map(OwnedLease::epoch);
        if let Some(epoch) = draining {
            self.send_release(context, partition, epoch);
        }
    }

    /// Releases what handlers have not stopped to process in time.
    pub(super) fn release_overdue(&mut self, context: &mut Context) {
        let is_overdue = |held: &OwnedLease| held.overdue_at().is_some_and(|until| until <= context.now);
        let overdue = self.owned().filter(|(_, held)| is_overdue(held));
        let overdue: Vec<_> = overdue.map(|(partition, held)| (partition.clone(), held.epoch())).collect();
        for (partition, epoch) in overdue {
            self.tell_duplicates(context, &partition, epoch, DuplicateCause::HandlerStillRunning);
            self.send_release(context, &partition, epoch);
        }
    }

    /// Of a partition that another instance asked for: it counts on it that no event is processed twice.
    fn tell_duplicates(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, cause: DuplicateCause) {
        if self.get_of(partition, epoch).is_some_and(|held| held.is_handed_over()) {
            context.emit(OwnershipEvent::DuplicatesPossible { partition: partition.clone(), cause });
        }
    }

    pub(super) fn on_released(&mut self, context: &mut Context, partition: &PartitionId, outcome: ReleaseOutcome) {
        self.remove(partition);
        match outcome {
            ReleaseOutcome::Released => {
                context.emit(OwnershipEvent::Released { partition: partition.clone() });
                context.owner_is(partition, PartitionOwner::Released);
            }
            // Another instance took it before the release was written.
            ReleaseOutcome::Lost { by } => {
                context.owner_is(partition, by.clone().map_or(PartitionOwner::Released, PartitionOwner::Other));
                context.emit(OwnershipEvent::Lost { partition: partition.clone(), by });
            }
            ReleaseOutcome::Indeterminate(error) => {
                self.left.unreleased += usize::from(context.phase != Phase::Running);
                context.note(Note::ReleaseIndeterminate(partition.clone(), error));
                context.disturb();
                context.change();
            }
        }
    }

    /// The processor learned that the partition belongs to another owner.
    pub(super) fn on_lost(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, by: Option<OwnerId>) {
        if self.get_of(partition, epoch).is_none() {
            return;
        }
        self.remove(partition);
        match &by {
            Some(owner) => context.owner_is(partition, PartitionOwner::Other(owner.clone())),
            None => context.change(),
        }
        context.disturb();
        context.emit(OwnershipEvent::Lost { partition: partition.clone(), by });
    }

    /// Stops what cannot be renewed in time. If no other instance takes it, the next cycle does.
    pub(super) fn drop_expired(&mut self, context: &mut Context) {
        let Some(lifetime) = context.settings.lifetime() else { return };
        let live_by = self.kept_alive_by;
        let outlived = self.owned().filter(|(_, held)| held.valid_from(live_by) + lifetime <= context.now);
        let outlived: Vec<_> = outlived.map(|(partition, _)| partition.clone()).collect();
        for partition in outlived {
            self.remove(&partition);
            context.owner_is(&partition, PartitionOwner::Reclaimable);
            context.emit(OwnershipEvent::LeaseExpired { partition });
        }
    }

    /// Releases everything: what is idle at once, what is being renewed or claimed as soon as that has ended, so that
    /// no late write undoes a release.
    pub(super) fn release_all(&mut self, context: &mut Context) {
        for (partition, epoch) in self.epochs() {
            self.release(context, &partition, epoch, ReleaseReason::Shutdown);
        }
    }

    /// Leaves everything for the restart of this owner, but for what is about to be released.
    pub(super) fn keep_all(&mut self, context: &mut Context) {
        for (partition, epoch) in self.epochs() {
            if self.get(&partition).is_some_and(OwnedLease::is_kept) {
                self.send_keep(context, &partition, epoch);
            } else {
                self.send_release(context, &partition, epoch);
            }
        }
    }

    /// Renews it for the last time, now or when the renewal that is under way has ended.
    pub(super) fn send_keep(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64) {
        let Some(held) = self.get_of(partition, epoch) else { return };
        if held.is_renewing() {
            return held.keep_next();
        }
        context.request(Request::Keep(held.lease().clone().kept()));
        self.activities.insert(partition.clone(), Activity::Keeping);
    }

    pub(super) fn on_kept(&mut self, context: &mut Context, partition: &PartitionId, outcome: ClaimOutcome) {
        self.remove(partition);
        match outcome {
            ClaimOutcome::Won(_) => {
                self.left.kept += 1;
                context.emit(OwnershipEvent::Kept { partition: partition.clone() });
            }
            ClaimOutcome::Lost { by } => context.emit(OwnershipEvent::Lost { partition: partition.clone(), by }),
            ClaimOutcome::Replaced { .. } => {}
            ClaimOutcome::Indeterminate(error) => {
                self.left.unreleased += 1;
                context.note(Note::Indeterminate(StorageOperation::Renew, vec![partition.clone()], error));
            }
        }
    }

    /// What the loop leaves, if it ends now.
    pub(super) fn left(&self) -> LeftOwned {
        let at_work = self.activities.values().filter(|doing| is_at_work(doing)).count();
        LeftOwned { unreleased: self.left.unreleased + at_work, ..self.left }
    }
}
