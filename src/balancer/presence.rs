//! Being there: an instance says so, that others may count it while it owns nothing, and that its ownerships live by
//! that if its lease scope is [`Instance`](LeaseScope::Instance).

use std::time::Duration;

use tokio::time::Instant;

use super::events::Event;
use super::{Balancer, Ended, replaced};
use crate::balance::{Attendance, Moment};
use crate::error::Result;
use crate::model::{LeaseScope, OwnerId};
use crate::store::{Announced, Presence};
use crate::telemetry;

impl Balancer {
    /// Who would not claim a share must not be given one. What lives by the presence needs it in any case.
    fn is_to_be_present(&self) -> bool {
        if self.ending {
            return false;
        }
        let takes_part = !self.claims_nothing() && self.config.max_partitions != Some(0);
        let is_to_be_counted = self.lives_by_presence() || (self.hands_over() && self.leases.is_empty());
        self.leases.any_by_presence() || (takes_part && is_to_be_counted)
    }

    pub(super) fn lives_by_presence(&self) -> bool {
        self.leases.scope() == LeaseScope::Instance
    }

    /// Whether what is claimed now would live.
    pub(super) fn may_claim(&self) -> bool {
        let expiry = self.store.terms().expiry;
        !self.lives_by_presence() || self.leases.is_present(expiry, self.store.lease_time())
    }

    /// On the lease clock, for leases may live by it.
    pub(super) fn next_announcement(&self) -> Option<Moment> {
        let due = self.is_to_be_present() && !self.presences.is_busy();
        due.then(|| self.presences.next.unwrap_or(Moment::ZERO))
    }

    pub(super) fn keep_presence(&mut self) {
        if self.presences.is_busy() {
            return;
        }
        if !self.is_to_be_present() {
            self.presences.next = None;
            // What is owned says the same, as long as it is; only who takes no part must not be counted.
            if self.claims_nothing() {
                self.withdraw();
            }
        } else if self.next_announcement().is_some_and(|due| due <= self.store.lease_time()) {
            self.announce();
        }
    }

    pub(super) fn announce(&mut self) {
        self.presences.under_way += 1;
        self.presences.announced = true;
        let (store, sent) = (self.store.clone(), self.store.lease_time());
        self.operations.spawn(async move { Ended::Announced { sent, outcome: store.announce().await } });
    }

    /// At the end it is repeated as long as that may take: while the presence is there, others leave it a share.
    pub(super) fn withdraw(&mut self) {
        if std::mem::take(&mut self.presences.announced) {
            self.presences.under_way += 1;
            let store = self.store.clone();
            let mut attempts = store.attempts((!self.draining).then(Instant::now));
            self.operations.spawn(async move {
                loop {
                    match store.withdraw().await {
                        Err(error) if attempts.again_after(&error).await => {}
                        outcome => return Ended::Withdrawn(outcome),
                    }
                }
            });
        }
    }

    pub(super) fn announced(&mut self, sent: Moment, outcome: Result<Announced>) -> Result<()> {
        self.presences.under_way -= 1;
        match outcome {
            Ok(Announced::Present) => {
                self.leases.present_since(sent);
                self.presences.failures = 0;
                self.presences.next = Some(sent + self.store.terms().expiry / 2);
            }
            Ok(Announced::DeclaredDead { by }) => {
                self.leases.declared_dead();
                self.presences.next = None;
                self.events.tell(Event::DeclaredDead { by });
            }
            Ok(Announced::Replaced { by }) => return Err(replaced(&self.store.identity().owner, &by)),
            Err(error) => {
                self.store.telemetry().presence_failed(&error);
                let failures = self.presences.failures;
                self.presences.failures = failures.saturating_add(1);
                let valid_from = self.leases.last_present().unwrap_or_default();
                self.presences.next = Some(self.try_again_at(failures, valid_from, &error));
            }
        }
        // The first cycle waits for the first announcement: who lists next is to count this instance.
        if !std::mem::replace(&mut self.presences.begun, true) {
            self.next_cycle = Some(Instant::now());
        }
        Ok(())
    }

    pub(super) fn withdrawn(&mut self, outcome: Result<()>) {
        self.presences.under_way -= 1;
        if let Err(error) = outcome {
            self.store.telemetry().presence_failed(&error);
        }
    }

    pub(super) fn presences_listed(&mut self, presences: Vec<Presence>) {
        let long_gone = 10 * self.store.terms().expiry;
        if presences.iter().any(|seen| seen.age_now() > long_gone) {
            let (store, seen) = (self.store.clone(), presences.clone());
            self.operations.spawn(async move { Ended::Cleared(store.clear_presences(&seen).await) });
        }
        self.presences.known = presences;
    }

    /// Another SDK is at work in the group, to which ownerships that live by a presence look abandoned.
    pub(super) fn fall_back(&mut self, owner: Option<&OwnerId>) {
        if self.lives_by_presence() {
            self.leases.set_scope(LeaseScope::Partition);
            self.store = self.store.clone().lease_scope(LeaseScope::Partition);
            telemetry::lease_scope_given_up(owner);
            self.publish(|_| {});
        }
    }

    /// As the pure part wants them.
    pub(super) fn attendances(&self) -> Vec<Attendance> {
        let received = |age: Duration| self.store.lease_time().saturating_sub(age);
        let attendance = |seen: &Presence| Attendance {
            record: seen.record.clone(),
            age: seen.age,
            received: received(seen.received.elapsed()),
        };
        self.presences.known.iter().map(attendance).collect()
    }

    /// What became of the presences of those that are long gone. They do no harm; who looks next tries again.
    pub(super) fn cleared(&self, outcome: Result<Vec<OwnerId>>) {
        match outcome {
            Ok(owners) => owners.iter().for_each(telemetry::presence_cleared),
            Err(error) => self.store.telemetry().presence_failed(&error),
        }
    }
}
