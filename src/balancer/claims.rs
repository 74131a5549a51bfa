//! Claims: from what was planned to what was won.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::events::{Event, Releasing};
use super::{Balancer, Ended, LONGEST_COOL_DOWN, OnStall, Setback, replaced};
use crate::balance::{ClaimReason, Holder, PlannedClaim};
use crate::error::{Error, Result};
use crate::model::PartitionId;
use crate::store::{Claim, ClaimOutcome, Ownership, Verdict};
use crate::telemetry::{self, Operation};

impl Balancer {
    /// Whoever lives by its presence is declared dead before anything is claimed from it as abandoned.
    pub(super) fn start_claims(&mut self, planned: Vec<PlannedClaim>, listed: &[Ownership]) {
        let listed: BTreeMap<_, _> = listed.iter().map(|seen| (&seen.partition, seen)).collect();
        let mut abandoned: BTreeMap<_, (&Ownership, Vec<_>)> = BTreeMap::new();
        for PlannedClaim { partition, reason } in planned {
            self.claiming.insert(partition.clone());
            let Some(&seen) = listed.get(&partition) else {
                self.start_claim(Claim::unowned(partition), reason);
                continue;
            };
            let claim = Claim::over(seen);
            let is_abandoned = matches!(reason, ClaimReason::Expired(_) | ClaimReason::Reclaimed);
            if is_abandoned && seen.lives_by_presence(&self.store) {
                let life = (&seen.record.owner, &seen.record.incarnation);
                abandoned.entry(life).or_insert((seen, Vec::new())).1.push((claim, reason));
            } else {
                self.start_claim(claim, reason);
            }
        }
        for (seen, claims) in abandoned.into_values() {
            self.declare_dead(seen.clone(), claims);
        }
    }

    fn declare_dead(&mut self, of: Ownership, claims: Vec<(Claim, ClaimReason)>) {
        let presence = of.record.owner.as_ref().and_then(|owner| self.presences.of(owner)).cloned();
        let store = self.store.clone();
        self.operations.spawn(async move {
            let outcome = store.declare_dead(&of, presence.as_ref()).await;
            Ended::Judged { claims, outcome }
        });
    }

    pub(super) fn judged(&mut self, claims: Vec<(Claim, ClaimReason)>, outcome: &Result<Verdict>) {
        let claims_nothing = self.ending || self.claims_nothing();
        for (claim, reason) in claims {
            match outcome {
                Ok(Verdict::Dead) if !claims_nothing => {
                    self.start_claim(claim, reason);
                    continue;
                }
                Ok(_) => self.look_soon(),
                Err(error) => self.undecided(Operation::Presence, claim.partition(), error),
            }
            self.claiming.remove(claim.partition());
        }
    }

    pub(super) fn start_claim(&mut self, claim: Claim, reason: ClaimReason) {
        let store = self.store.clone();
        self.operations.spawn(async move {
            let outcome = store.claim_one(&claim).await;
            Ended::Claimed { partition: claim.partition().clone(), reason, outcome }
        });
    }

    pub(super) fn claimed(
        &mut self,
        partition: &PartitionId,
        reason: &ClaimReason,
        outcome: ClaimOutcome,
    ) -> Result<()> {
        self.claiming.remove(partition);
        match outcome {
            ClaimOutcome::Won(lease) => {
                self.setbacks.remove(partition);
                self.got(partition, reason);
                self.loads.begin(partition, lease.record().load);
                let epoch = lease.epoch();
                self.hold(lease);
                self.events.tell(Event::Claimed { partition: partition.clone(), epoch, reason: reason.clone() });
                let stalled =
                    self.config.on_stall == OnStall::Release && self.snapshot.borrow().stalled.affects(partition);
                if self.ending {
                    self.release(partition, epoch, Releasing::Shutdown);
                } else if stalled {
                    self.release(partition, epoch, Releasing::Stalled);
                }
            }
            ClaimOutcome::Lost { by } => {
                telemetry::claim_lost(partition, by.as_ref());
                self.setbacks.remove(partition);
                self.publish_holder(partition, by.map_or(Holder::Released, Holder::Live));
            }
            ClaimOutcome::Replaced { by } => return Err(replaced(&self.store.identity().owner, &by)),
            ClaimOutcome::Undecided(error) => self.undecided(Operation::Claim, partition, &error),
        }
        Ok(())
    }

    /// The outcome of an operation that was to win the partition is not known.
    pub(super) fn undecided(&mut self, operation: Operation, partition: &PartitionId, error: &Error) {
        self.store.telemetry().ownership_undecided(operation, partition, error);
        self.set_back(partition, self.asked_to_wait(error));
    }

    /// One interval at first, doubled with each further failure, at most the expiry.
    pub(super) fn set_back(&mut self, partition: &PartitionId, at_least: Duration) {
        let failures = self.setbacks.get(partition).map_or(0, |setback| setback.failures);
        let wait = self.config.interval.saturating_mul(2u32.saturating_pow(failures)).min(self.store.terms().expiry);
        // A little more than whole intervals, so that the cycle that comes just then goes to another partition.
        let until = Instant::now() + wait.max(at_least.min(LONGEST_COOL_DOWN)) + self.config.interval / 2;
        self.setbacks.insert(partition.clone(), Setback { failures: failures.saturating_add(1), until });
    }
}
