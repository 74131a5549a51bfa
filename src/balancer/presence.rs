//! Being there: an instance that owns nothing says so, that others may count it.

use std::time::Duration;

use tokio::time::Instant;

use super::{Balancer, Ended, replaced};
use crate::balance::Attendance;
use crate::error::Result;
use crate::model::OwnerId;
use crate::store::{Announced, Presence};
use crate::telemetry::{self, Operation};

/// What is known of who is there, and what was said of this instance.
#[derive(Debug, Default)]
pub(super) struct Presences {
    /// Something of this instance may be there.
    announced: bool,
    /// How many announcements and withdrawals are under way.
    under_way: u32,
    /// The first announcement has been made, or could not be.
    begun: bool,
    /// When to say it again; nothing: at once.
    next: Option<Instant>,
    /// As last listed.
    known: Vec<Presence>,
}

impl Presences {
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }
}

impl Balancer {
    /// Who would not claim a share must not be given one.
    fn is_to_be_present(&self) -> bool {
        let takes_part = self.hands_over() && !self.ending && !self.claims_nothing();
        takes_part && self.leases.is_empty() && self.config.max_partitions != Some(0)
    }

    pub(super) fn next_announcement(&self) -> Option<Instant> {
        let due = self.is_to_be_present() && !self.presences.is_busy();
        due.then(|| self.presences.next.unwrap_or_else(Instant::now))
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
        } else if self.next_announcement().is_some_and(|due| due <= Instant::now()) {
            self.announce();
        }
    }

    pub(super) fn announce(&mut self) {
        self.presences.under_way += 1;
        self.presences.announced = true;
        let (store, asked) = (self.store.clone(), Instant::now());
        self.operations.spawn(async move { Ended::Announced { asked, outcome: store.announce(None).await } });
    }

    pub(super) fn withdraw(&mut self) {
        if std::mem::take(&mut self.presences.announced) {
            self.presences.under_way += 1;
            let store = self.store.clone();
            self.operations.spawn(async move { Ended::Withdrawn(store.withdraw().await) });
        }
    }

    pub(super) fn announced(&mut self, asked: Instant, outcome: Result<Announced>) -> Result<()> {
        self.presences.under_way -= 1;
        match outcome {
            Ok(Announced::Present) => {
                self.outage_over();
                self.presences.next = Some(asked + self.store.terms().expiry / 2);
            }
            // Leases that live by themselves are not touched by that.
            Ok(Announced::DeclaredDead { by }) => {
                telemetry::declared_dead(by.as_ref());
                self.presences.next = None;
            }
            Ok(Announced::Replaced { by }) => return Err(replaced(&self.store.identity().owner, &by)),
            Err(error) => {
                self.outage.failed();
                telemetry::presence_failed(Operation::Presence, &error);
                let wait = self.asked_to_wait(&error).max(self.retry_pause());
                self.presences.next = Some(Instant::now() + wait);
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
            self.outage.failed();
            telemetry::presence_failed(Operation::Presence, &error);
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
}

/// What became of the presences of those that are long gone. They do no harm; who looks next tries again.
pub(super) fn cleared(outcome: Result<Vec<OwnerId>>) {
    match outcome {
        Ok(owners) => owners.iter().for_each(telemetry::presence_cleared),
        Err(error) => telemetry::presence_failed(Operation::Presence, &error),
    }
}
