//! Claiming partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::events::{DuplicateCause, Note, OwnershipEvent};
use super::partitions::{Activity, Partitions, PendingHandoff, Setback};
use super::step::{Action, StorageRequest};
use crate::error::{Error, Result};
use crate::model::{Heartbeat, PartitionId};
use crate::planner::{ClaimReason, PartitionOwner, PlannedClaim, ReleaseReason};
use crate::store::membership::DeclareDeadOutcome;
use crate::store::{Claim, ClaimOutcome, Lease};
use crate::telemetry::StorageOperation;

impl Partitions {
    /// Claims what was planned. If the heartbeat of an expired owner keeps its leases alive, the owner is declared dead
    /// before any of its partitions is claimed.
    pub(super) fn start_claims(&mut self, context: &mut Context, planned: Vec<PlannedClaim>, heartbeats: &[Heartbeat]) {
        let mut expired: BTreeMap<_, (_, Vec<_>)> = BTreeMap::new();
        for PlannedClaim { partition, reason, over } in planned {
            self.activities.insert(partition.clone(), Activity::Claiming { reason: reason.clone(), handoff: None });
            let is_expired = matches!(reason, ClaimReason::Expired(_) | ClaimReason::Reclaimed);
            match over {
                None => self.request_claim(context, Claim::unowned(partition)),
                Some(seen) if is_expired && seen.is_kept_alive_by_heartbeat(&context.settings.this) => {
                    let owner_key = (seen.record.owner.clone(), seen.record.incarnation.clone());
                    let claim = Claim::over(&seen);
                    expired.entry(owner_key).or_insert((seen, Vec::new())).1.push(claim);
                }
                Some(seen) => self.request_claim(context, Claim::over(&seen)),
            }
        }
        for (of, claims) in expired.into_values() {
            let owner = of.record.owner.as_ref();
            let heartbeat = heartbeats.iter().find(|seen| Some(&seen.record.owner) == owner).cloned();
            context.push_request(StorageRequest::DeclareDead { of, heartbeat, claims });
        }
    }

    /// Requests a claim that says how this instance keeps its leases alive and whether it hands partitions over.
    fn request_claim(&self, context: &mut Context, claim: Claim) {
        let claim = claim.with_cooperative(context.settings.hands_over()).with_lease_scope(self.kept_alive_by.scope);
        context.push_request(StorageRequest::Claim(claim));
    }

    /// Claims a partition after a handoff. The owner is not declared dead even if it did not respond, because then it
    /// would lose all its partitions. The owner detects the loss of this one in its next listing.
    pub(super) fn claim_after_handoff(
        &mut self,
        context: &mut Context,
        claim: Claim,
        reason: ClaimReason,
        pending: PendingHandoff,
    ) {
        let partition = claim.partition().clone();
        if context.claims_nothing() || !self.may_claim(context) {
            self.activities.insert(partition, Activity::AwaitingHandoff(pending));
            return;
        }
        self.activities.insert(partition, Activity::Claiming { reason, handoff: Some(pending) });
        self.request_claim(context, claim);
    }

    /// Claims the partitions of an owner that was declared dead.
    pub(super) fn on_declared_dead(
        &mut self,
        context: &mut Context,
        claims: Vec<Claim>,
        outcome: Result<DeclareDeadOutcome>,
    ) {
        if matches!(outcome, Ok(DeclareDeadOutcome::Declared)) && !context.claims_nothing() {
            return claims.into_iter().for_each(|claim| self.request_claim(context, claim));
        }
        let partitions: Vec<_> = claims.iter().map(|claim| claim.partition().clone()).collect();
        for partition in &partitions {
            self.remove(partition);
        }
        match outcome {
            Ok(_) => context.bring_cycle_forward(),
            Err(error) => self.on_indeterminate(context, StorageOperation::Heartbeat, partitions, error),
        }
    }

    pub(super) fn on_claimed(&mut self, context: &mut Context, partition: &PartitionId, outcome: ClaimOutcome) {
        let Some(Activity::Claiming { reason, handoff: pending }) = self.activities.remove(partition) else { return };
        match outcome {
            ClaimOutcome::Won(lease) => self.on_won(context, lease, reason, pending.is_some()),
            ClaimOutcome::Lost { by } => {
                context.push_note(Note::ClaimLost(partition.clone(), by.clone()));
                // Usually the next listing shows the owner that has won the partition, and until then it is not
                // avoided. If it was lost before and still has no owner, its next claim is postponed.
                if self.setbacks.contains_key(partition) {
                    self.set_back(context, partition, Duration::ZERO, None);
                } else {
                    self.setbacks.insert(partition.clone(), Setback { failures: 1, until: context.now, error: None });
                }
                context.record_owner(partition, by.map_or(PartitionOwner::Released, PartitionOwner::Other));
                self.resume_polling(partition, pending);
            }
            ClaimOutcome::Replaced { by } => context.end_as_replaced(by),
            ClaimOutcome::Indeterminate(error) => {
                self.on_indeterminate(context, StorageOperation::Claim, vec![partition.clone()], error);
                self.resume_polling(partition, pending);
            }
        }
    }

    fn on_won(&mut self, context: &mut Context, lease: Lease, reason: ClaimReason, requested: bool) {
        let partition = lease.partition().clone();
        let epoch = lease.epoch();
        // The storage has decided about the partition.
        self.setbacks.remove(&partition);
        context.record_won_claim();
        if matches!(reason, ClaimReason::Stolen(_)) {
            // The owner should detect the loss soon. One that did not respond may still be processing the partition.
            context.call_others();
            if requested {
                context.push_event(OwnershipEvent::DuplicatesPossible {
                    partition: partition.clone(),
                    cause: DuplicateCause::NotAcknowledged,
                });
            }
        }
        context.push_action(Action::Measure { partition: partition.clone(), recorded: lease.record().load });
        self.add_lease(context, lease);
        context.record_owner(&partition, PartitionOwner::This);
        context.push_event(OwnershipEvent::Claimed { partition: partition.clone(), epoch, reason });
        if context.is_ending() {
            self.release_partition(context, &partition, epoch, ReleaseReason::Shutdown);
        }
    }

    /// Continues with claims that waited for the start of this partition.
    pub(super) fn on_started(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64) {
        if let Some(owned) = self.lease_in_epoch(partition, epoch) {
            owned.not_started_since = None;
        }
        if context.start_overdue {
            context.bring_cycle_forward();
        }
    }

    /// Resumes polling a handoff whose claim was not won.
    fn resume_polling(&mut self, partition: &PartitionId, pending: Option<PendingHandoff>) {
        if let Some(pending) = pending {
            self.activities.insert(partition.clone(), Activity::AwaitingHandoff(pending));
        }
    }

    /// The outcome of an operation that was to win these partitions is unknown.
    pub(super) fn on_indeterminate(
        &mut self,
        context: &mut Context,
        operation: StorageOperation,
        partitions: Vec<PartitionId>,
        error: Error,
    ) {
        let wait = context.settings.retry_after(&error);
        let error = Arc::new(error);
        context.record_failed_claim();
        for partition in &partitions {
            self.set_back(context, partition, wait, Some(Arc::clone(&error)));
        }
        context.push_note(Note::Indeterminate(operation, partitions, error));
    }
}
