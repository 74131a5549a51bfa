//! Handoffs: requesting partitions from live owners, and draining partitions that other instances request.

use std::time::Duration;

use super::context::Context;
use super::events::{Note, OwnershipEvent};
use super::lease::OwnedLease;
use super::partitions::{Activity, Partitions, PendingHandoff};
use super::step::StorageRequest;
use crate::backoff::Backoff;
use crate::error::Result;
use crate::model::{OwnerId, PartitionId};
use crate::planner::{ClaimReason, PartitionOwner, PlannedHandoff, ReleaseReason, View};
use crate::store::Claim;
use crate::store::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};
use crate::telemetry::StorageOperation;

/// The requesting instance.
impl Partitions {
    pub(super) fn start_handoff_requests(&mut self, context: &mut Context, planned: Vec<PlannedHandoff>) {
        for seen in planned.into_iter().filter_map(|planned| planned.seen) {
            self.activities.insert(seen.partition.clone(), Activity::RequestingHandoff);
            context.push_request(StorageRequest::RequestHandoff(seen));
        }
    }

    pub(super) fn on_handoff_requested(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        outcome: Result<HandoffRequestOutcome<Handoff>>,
    ) {
        self.remove(partition);
        match outcome {
            Ok(HandoffRequestOutcome::Requested(handoff)) => {
                context.push_event(OwnershipEvent::HandoffRequested {
                    partition: partition.clone(),
                    from: handoff.owner().clone(),
                });
                context.call_others();
                let next_poll_at = Some(context.now + self.poll_wait(context));
                let pending = PendingHandoff { handoff, next_poll_at, failures: 0 };
                self.activities.insert(partition.clone(), Activity::AwaitingHandoff(pending));
                context.request_snapshot();
            }
            Ok(HandoffRequestOutcome::Lost) => context.bring_cycle_forward(),
            // The next cycle plans again.
            Ok(outcome) => context.push_note(Note::HandoffNotRequested(partition.clone(), outcome)),
            Err(error) => {
                self.on_indeterminate(context, StorageOperation::RequestHandoff, vec![partition.clone()], error);
            }
        }
    }

    /// Polls the handoffs that are due. An instance that claims nothing cancels them: it cannot withdraw a request, but
    /// other instances may claim the partition when its reservation for this instance ends.
    pub(super) fn start_handoff_polls(&mut self, context: &mut Context) {
        if context.claims_nothing() {
            return self.cancel_handoffs(context);
        }
        for activity in self.activities.values_mut() {
            let Activity::AwaitingHandoff(pending) = activity else { continue };
            if pending.next_poll_at.is_some_and(|at| at <= context.now) {
                pending.next_poll_at = None;
                context.push_request(StorageRequest::PollHandoff(pending.handoff.clone()));
            }
        }
    }

    pub(super) fn cancel_handoffs(&mut self, context: &mut Context) {
        let before = self.activities.len();
        self.activities.retain(|_, activity| !matches!(activity, Activity::AwaitingHandoff(_)));
        for activity in self.activities.values_mut() {
            if let Activity::Claiming { handoff, .. } = activity {
                *handoff = None;
            }
        }
        if self.activities.len() < before {
            context.request_snapshot();
        }
    }

    pub(super) fn on_handoff_polled(
        &mut self,
        context: &mut Context,
        handoff: Handoff,
        outcome: Result<HandoffStatus<Claim>>,
    ) {
        let partition = handoff.partition().clone();
        let Some(Activity::AwaitingHandoff(PendingHandoff { failures, .. })) = self.activities.get(&partition) else {
            return;
        };
        let failures = if outcome.is_err() { failures.saturating_add(1) } else { 0 };
        let timeout = handoff.time_to_acknowledge(context.settings.request_timeout);
        let had_outage = context.outage_ended.is_some_and(|ended| context.now < ended + timeout);
        let next_poll_at = Some(context.now + self.poll_wait(context));
        let mut pending = PendingHandoff { handoff, next_poll_at, failures };
        match outcome {
            Ok(HandoffStatus::Pending) => {
                self.activities.insert(partition, Activity::AwaitingHandoff(pending));
            }
            Ok(HandoffStatus::Ready(claim)) => {
                self.claim_after_handoff(context, claim, ClaimReason::HandedOver, pending);
            }
            Ok(HandoffStatus::TimedOut(claim)) if !had_outage => {
                let reason = ClaimReason::Stolen(pending.handoff.owner().clone());
                self.claim_after_handoff(context, claim, reason, pending);
            }
            // After an outage the next cycle plans again: this instance may have missed the response, or the owner may
            // have been unable to respond.
            Ok(HandoffStatus::TimedOut(_) | HandoffStatus::Canceled) => {
                self.remove(&partition);
                context.bring_cycle_forward();
                context.request_snapshot();
            }
            Err(error) => {
                let backoff = Backoff::new(self.poll_wait(context), context.settings.lease_duration());
                let wait = backoff.wait_after(failures - 1).max(context.settings.retry_after(&error));
                pending.next_poll_at = Some(context.now + wait);
                self.activities.insert(partition.clone(), Activity::AwaitingHandoff(pending));
                context.push_note(Note::Indeterminate(StorageOperation::Read, vec![partition], error.into()));
            }
        }
    }

    /// Returns the wait between two polls of one handoff.
    fn poll_wait(&self, context: &Context) -> Duration {
        context.settings.poll_wait(
            self.activities.values().filter(|activity| matches!(activity, Activity::AwaitingHandoff(_))).count(),
        )
    }

    /// The storage responds again: handoffs whose polls have failed are polled soon.
    pub(super) fn poll_failed_owners_soon(&mut self, context: &Context) {
        let soon = context.now + self.poll_wait(context);
        for activity in self.activities.values_mut() {
            if let Activity::AwaitingHandoff(pending) = activity
                && pending.failures > 0
            {
                pending.next_poll_at = pending.next_poll_at.map(|at| at.min(soon));
                pending.failures = 0;
            }
        }
    }
}

/// The owner of requested partitions.
impl Partitions {
    /// Hands over the partitions whose records name a live requesting instance in a listing. If the requesting instance
    /// has died, its request is removed, so that other instances may request the partition.
    pub(super) fn accept_handoff_requests(&mut self, context: &mut Context, view: &View<'_>) {
        for entry in view.partitions.iter().filter(|entry| entry.owner == PartitionOwner::This) {
            let requested_by = view.record_of(&entry.partition).and_then(|seen| seen.record.handoff_to.as_ref());
            let Some(by) = requested_by.filter(|by| **by != context.settings.this.owner) else { continue };
            match (&entry.handoff_to, self.activities.get_mut(&entry.partition)) {
                (Some(by), Some(Activity::Owned(owned))) => {
                    let epoch = owned.epoch();
                    self.hand_over(context, &entry.partition, epoch, by);
                }
                (None, Some(Activity::Owned(owned))) => owned.drop_handoff_request(by),
                _ => {}
            }
        }
    }

    /// Acknowledges the request of another instance and drains the partition.
    pub(super) fn hand_over(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, by: &OwnerId) {
        if !context.settings.hands_over() || context.is_ending() {
            return;
        }
        if self.lease_in_epoch(partition, epoch).is_some_and(OwnedLease::acknowledge_handoff) {
            context.push_event(OwnershipEvent::HandoffReceived { partition: partition.clone(), by: by.clone() });
            context.record_handoff_request(partition, by);
            self.drain_partition(context, partition, epoch, ReleaseReason::HandedOver);
        }
    }
}
