//! Renewals: each lease when it is due, or all together by the presence of this instance.

use std::time::Duration;

use rand::RngExt;

use super::leases::AfterRenewal;
use super::retries::{asked_for, back_off, last_chance};
use super::{Balancer, Ended, Event, replaced};
use crate::balance::{Holder, Moment, Strategy};
use crate::error::{Error, Result};
use crate::model::PartitionId;
use crate::store::{ClaimOutcome, Lease};
use crate::telemetry::Operation;

impl Balancer {
    pub(super) fn start_renewals(&mut self) {
        let (age, now, expiry) = (self.renewal_age(), self.store.lease_time(), self.store.terms().expiry);
        for lease in self.leases.start_renewals(age, now, expiry) {
            let store = self.store.clone();
            let lease = self.with_load(lease);
            self.operations.spawn(async move {
                let (partition, epoch) = (lease.partition().clone(), lease.epoch());
                Ended::Renewed { partition, epoch, outcome: store.renew_one(&lease).await }
            });
        }
    }

    /// Only where it is asked for: other strategies need not know.
    pub(super) fn with_load(&self, lease: Lease) -> Lease {
        let weighted = matches!(self.config.strategy, Strategy::Weighted { .. });
        let load = weighted.then(|| self.loads.of(lease.partition())).flatten();
        lease.with_load(load)
    }

    pub(super) fn renewed(&mut self, partition: &PartitionId, before: i64, outcome: ClaimOutcome) -> Result<()> {
        let after = self.leases.end_renewal(partition, before);
        if after == AfterRenewal::Gone {
            return Ok(());
        }
        match outcome {
            ClaimOutcome::Won(lease) => {
                let epoch = lease.epoch();
                let known = self.leases.asked_for_by(partition, epoch).cloned();
                let given_back = self.leases.is_surrendered(partition, before);
                self.hold(lease);
                if given_back && epoch != before {
                    // The record had vanished: the checkpoints of the tenure before are refused.
                    self.release_now(partition, epoch);
                } else {
                    self.answer_renewal(partition, epoch, known.as_ref());
                }
            }
            ClaimOutcome::Lost { by } => {
                self.leases.storage_answers();
                self.leases.remove(partition);
                self.publish_holder(partition, by.clone().map_or(Holder::Released, Holder::Live));
                self.events.tell(Event::Lost { partition: partition.clone(), by });
            }
            ClaimOutcome::Replaced { by } => return Err(replaced(&self.store.identity().owner, &by)),
            ClaimOutcome::Undecided(error) => {
                self.store.telemetry().ownership_undecided(Operation::Renew, partition, &error);
                let (failures, valid_from) = self.leases.failing_since(partition).unwrap_or_default();
                let not_before = self.try_again_at(failures, valid_from, &error);
                self.leases.postpone(partition, not_before);
            }
        }
        if after == AfterRenewal::ToRelease
            && let Some(epoch) = self.leases.epochs().get(partition)
        {
            self.release_now(partition, *epoch);
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, lease: Lease) {
        let partition = lease.partition().clone();
        let epoch = lease.epoch();
        let spread = self.rng.random_range(0.9..1.0);
        self.leases.hold(lease, spread, self.store.lease_time(), self.retry_pause());
        if self.snapshot.borrow().held.get(&partition) != Some(&epoch) {
            self.publish_holder(&partition, Holder::Me);
        }
    }

    /// Owners of other SDKs compare ages with their own wall clocks and their own expiry: while one is seen, every
    /// interval.
    pub(super) fn renewal_age(&self) -> Duration {
        let expiry = self.store.terms().expiry;
        if self.foreign_owner { self.config.interval.max(expiry / 6) } else { expiry / 2 }
    }

    /// When a renewal, or an announcement, is tried again that failed after so many failures, with a little jitter.
    /// What it keeps alive counts from `valid_from`, and must not run out while the server's wish is granted.
    pub(super) fn try_again_at(&mut self, failures: u32, valid_from: Moment, error: &Error) -> Moment {
        let (expiry, now) = (self.store.terms().expiry, self.store.lease_time());
        let wait = back_off(failures, self.retry_pause(), expiry / 8).mul_f64(self.rng.random_range(1.0..1.25));
        let lifetime = self.lifetime().unwrap_or(expiry);
        let last_chance = last_chance(self.renewal_age(), lifetime, self.store.request_deadline());
        asked_for(self.asked_to_wait(error), now + wait, now, valid_from + last_chance)
    }
}
