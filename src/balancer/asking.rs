//! Planned moves: asking live owners for partitions, and letting those go that other instances ask for.

use super::action::Request;
use super::context::Context;
use super::events::OwnershipEvent;
use super::lease::OwnedLease;
use super::note::Note;
use super::partitions::{Activity, Partitions, PendingHandoff};
use super::retries::back_off;
use crate::error::Result;
use crate::model::{Moment, OwnerId, PartitionId};
use crate::planner::ReleaseReason;
use crate::planner::{ClaimReason, PartitionOwner, PlannedHandoff, View};
use crate::store::{Claim, Handoff, HandoffRequestOutcome, HandoffStatus};
use crate::telemetry::StorageOperation;

/// The instance that asks.
impl Partitions {
    pub(super) fn start_handoff_requests(&mut self, context: &mut Context, planned: Vec<PlannedHandoff>) {
        for seen in planned.into_iter().filter_map(|planned| planned.seen) {
            self.activities.insert(seen.partition.clone(), Activity::RequestingHandoff);
            context.request(Request::RequestHandoff(seen));
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
                context.emit(OwnershipEvent::HandoffRequested {
                    partition: partition.clone(),
                    from: handoff.owner().clone(),
                });
                let asked = PendingHandoff { handoff, next: Some(next_look(context)), failures: 0 };
                self.activities.insert(partition.clone(), Activity::AwaitingHandoff(asked));
                context.change();
            }
            Ok(HandoffRequestOutcome::Lost) => context.disturb(),
            // The next cycle plans again.
            Ok(refused) => context.note(Note::HandoffNotRequested(partition.clone(), refused)),
            Err(error) => {
                self.indeterminate(context, StorageOperation::RequestHandoff, vec![partition.clone()], error);
            }
        }
    }

    /// Looks at what is due. An instance that claims nothing asks for nothing: a mark cannot be taken back, but what is
    /// released for this instance goes to others when the reservation has lapsed.
    pub(super) fn start_handoff_polls(&mut self, context: &mut Context) {
        if context.claims_nothing() {
            return self.cancel_handoffs(context);
        }
        for doing in self.activities.values_mut() {
            let Activity::AwaitingHandoff(asked) = doing else { continue };
            if asked.next.is_some_and(|next| next <= context.now) {
                asked.next = None;
                let patience = context.settings.handoff_timeouts;
                context.request(Request::PollHandoff { handoff: asked.handoff.clone(), timeouts: patience });
            }
        }
    }

    pub(super) fn cancel_handoffs(&mut self, context: &mut Context) {
        let before = self.activities.len();
        self.activities.retain(|_, doing| !matches!(doing, Activity::AwaitingHandoff(_)));
        for doing in self.activities.values_mut() {
            if let Activity::Claiming { handoff: asked, .. } = doing {
                *asked = None;
            }
        }
        if self.activities.len() < before {
            context.change();
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
        let (owner, patience) = (handoff.owner().clone(), context.settings.handoff_timeout_of(&handoff));
        let asked = PendingHandoff { handoff, next: Some(next_look(context)), failures };
        match outcome {
            Ok(HandoffStatus::Pending) => {
                self.activities.insert(partition, Activity::AwaitingHandoff(asked));
            }
            Ok(HandoffStatus::Ready(claim)) => self.claim_after_handoff(context, claim, ClaimReason::HandedOver, asked),
            Ok(HandoffStatus::TimedOut(claim)) if !context.had_outage_within(patience) => {
                self.claim_after_handoff(context, claim, ClaimReason::Stolen(owner), asked);
            }
            // After an outage the next cycle plans again: the owner may have responded unseen, or been unable to.
            Ok(HandoffStatus::TimedOut(_) | HandoffStatus::Canceled) => {
                self.remove(&partition);
                context.disturb();
                context.change();
            }
            Err(error) => {
                let first = context.settings.interval() / 2;
                let pause = back_off(failures - 1, first, context.settings.lease_duration());
                let next = context.now + pause.max(context.settings.asked_to_wait(&error));
                self.activities
                    .insert(partition.clone(), Activity::AwaitingHandoff(PendingHandoff { next: Some(next), ..asked }));
                context.note(Note::Indeterminate(StorageOperation::Read, vec![partition], error));
            }
        }
    }

    /// The storage responds again: partitions whose looks have failed are looked at soon.
    pub(super) fn poll_failed_owners_soon(&mut self, context: &Context) {
        let soon = next_look(context);
        for doing in self.activities.values_mut() {
            if let Activity::AwaitingHandoff(asked) = doing
                && asked.failures > 0
            {
                (asked.next, asked.failures) = (asked.next.map(|next| next.min(soon)), 0);
            }
        }
    }
}

/// The instance that is asked.
impl Partitions {
    /// By a listing. An owner that asked and died since is not waited for: its mark is taken away, so that others may
    /// ask.
    pub(super) fn accept_handoff_requests(&mut self, context: &mut Context, view: &View<'_>) {
        for entry in view.partitions.iter().filter(|entry| entry.owner == PartitionOwner::This) {
            let mark = view.record(&entry.partition).and_then(|seen| seen.record.handoff_to.as_ref());
            let Some(asking) = mark.filter(|asking| **asking != context.settings.this.owner) else { continue };
            match (&entry.handoff_to, self.activities.get_mut(&entry.partition)) {
                (Some(by), Some(Activity::Owned(held))) => {
                    let epoch = held.epoch();
                    self.hand_over(context, &entry.partition, epoch, by);
                }
                (None, Some(Activity::Owned(held))) => held.drop_handoff_request(asking),
                _ => {}
            }
        }
    }

    /// Another instance asked for the partition.
    pub(super) fn hand_over(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, by: &OwnerId) {
        if !context.settings.hands_over() || context.is_ending() {
            return;
        }
        if self.get_of(partition, epoch).is_some_and(OwnedLease::acknowledge) {
            context.emit(OwnershipEvent::HandoffReceived { partition: partition.clone(), by: by.clone() });
            context.handoff_requested_by(partition, by);
            self.drain(context, partition, epoch, ReleaseReason::HandedOver);
        }
    }
}

/// When to look at a partition that was asked for.
fn next_look(context: &Context) -> Moment {
    context.now + context.settings.interval() / 2
}
