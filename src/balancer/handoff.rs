//! Planned moves: asking live owners for partitions, and answering those who ask.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::events::{DuplicateCause, Event, Releasing};
use super::retries::back_off;
use super::{Balancer, Ended};
use crate::balance::{ClaimReason, Holder, PlannedHandoff, View};
use crate::error::{Error, Result};
use crate::model::{OwnerId, PartitionId};
use crate::store::{Claim, Handoff, MarkOutcome, Ownership, Patience, Pursuit};
use crate::telemetry::{self, Operation};

/// The side of the one that asks.
impl Balancer {
    /// Only where handlers are given their time to stop: without, nothing would be gained by asking first.
    pub(super) fn hands_over(&self) -> bool {
        self.config.handoff && !self.drain.is_zero()
    }

    fn patience(&self) -> Patience {
        Patience { release: self.config.handoff_timeout(&self.store), ..self.store.patience() }
    }

    pub(super) fn look_after(&self) -> Instant {
        Instant::now() + self.config.interval / 2
    }

    /// Ever later, until a listing succeeds.
    fn look_after_failure(&self, failures: u32, error: &Error) -> Instant {
        let pause = back_off(failures, self.config.interval / 2, self.store.terms().expiry);
        Instant::now() + pause.max(self.asked_to_wait(error))
    }

    /// How long its owner has for what it is to do next.
    fn wait_for(&self, handoff: &Handoff) -> Duration {
        let patience = self.patience();
        if handoff.is_acknowledged() { patience.release } else { patience.acknowledgement }
    }

    fn had_outage_within(&self, time: Duration) -> bool {
        self.store.outages().ended().is_some_and(|ended| self.store.lease_time() < ended + time)
    }

    pub(super) fn start_marks(&mut self, planned: Vec<PlannedHandoff>, listed: &[Ownership]) {
        let wanted: BTreeSet<_> = planned.into_iter().map(|planned| planned.partition).collect();
        for seen in listed.iter().filter(|seen| wanted.contains(&seen.partition)) {
            let (store, seen) = (self.store.clone(), seen.clone());
            self.asked.begin(seen.partition.clone());
            self.operations.spawn(async move {
                let outcome = store.mark(&seen).await;
                Ended::Marked { partition: seen.partition, outcome }
            });
        }
    }

    pub(super) fn marked(&mut self, partition: &PartitionId, outcome: Result<MarkOutcome<Handoff>>) {
        self.asked.end(partition);
        match outcome {
            Ok(MarkOutcome::Standing(handoff)) => {
                self.events.tell(Event::Asked { partition: partition.clone(), from: handoff.owner().clone() });
                let next = self.look_after();
                self.asked.stands(handoff, next, 0);
                self.publish(|_| {});
            }
            Ok(MarkOutcome::Lost) => self.look_soon(),
            // The next cycle plans anew.
            Ok(refused) => telemetry::not_asked(partition, &refused),
            Err(error) => self.undecided(Operation::Mark, partition, &error),
        }
    }

    /// Looks at what is due. Who claims nothing pursues nothing.
    pub(super) fn start_pursuits(&mut self) {
        if self.claims_nothing() {
            self.asked.clear();
        }
        let patience = self.patience();
        for mut handoff in self.asked.due(Instant::now()) {
            let store = self.store.clone();
            self.operations.spawn(async move {
                let outcome = store.pursue(&mut handoff, &patience).await;
                Ended::Pursued { handoff, outcome }
            });
        }
    }

    pub(super) fn pursued(&mut self, handoff: Handoff, outcome: Result<Pursuit<Claim>>) {
        let partition = handoff.partition().clone();
        let Some(failures) = self.asked.failures(&partition) else { return };
        let (next, failures) = match &outcome {
            Ok(_) => (self.look_after(), 0),
            Err(error) => (self.look_after_failure(failures, error), failures.saturating_add(1)),
        };
        let (owner, wait) = (handoff.owner().clone(), self.wait_for(&handoff));
        // Until it is won, it is looked at again.
        self.asked.stands(handoff, next, failures);
        match outcome {
            Ok(Pursuit::Wait) => {}
            Ok(Pursuit::Take(claim)) => self.take(claim, ClaimReason::HandedOver),
            Ok(Pursuit::Steal(claim)) if !self.had_outage_within(wait) => self.take(claim, ClaimReason::Stolen(owner)),
            // After an outage the next cycle plans anew: an answer may have come and gone, or could not be given.
            Ok(Pursuit::Steal(_) | Pursuit::Over) => {
                self.asked.remove(&partition);
                self.look_soon();
                self.publish(|_| {});
            }
            Err(error) => self.store.telemetry().ownership_undecided(Operation::Read, &partition, &error),
        }
    }

    /// Its owner is not declared dead even if it did not answer: that would give up all its partitions. It learns what
    /// it lost from its next listing.
    fn take(&mut self, claim: Claim, reason: ClaimReason) {
        if !self.claims_nothing() && self.may_claim() && self.claiming.insert(claim.partition().clone()) {
            self.start_claim(claim, reason);
        }
    }

    /// A partition that was asked for is won. Whoever did not answer may still be at it.
    pub(super) fn got(&mut self, partition: &PartitionId, reason: &ClaimReason) {
        let Some(handoff) = self.asked.remove(partition) else { return };
        if matches!(reason, ClaimReason::Stolen(_)) {
            let answered = handoff.is_acknowledged();
            let cause = if answered { DuplicateCause::NotReleased } else { DuplicateCause::NotAnswered };
            self.events.tell(Event::DuplicatesPossible { partition: partition.clone(), cause });
        }
    }
}

/// The side of the one that is asked.
impl Balancer {
    /// By a listing. Who asked and died since is not waited for: its mark is taken away, so that others may ask.
    pub(super) fn answer(&mut self, view: &View, listed: &[Ownership]) {
        let me = &self.store.identity().owner;
        let marks = listed.iter().filter_map(|seen| Some((&seen.partition, seen.record.handoff_to.as_ref()?)));
        let marks: BTreeMap<_, _> = marks.filter(|(_, asking)| *asking != me).collect();
        for entry in view.partitions.iter().filter(|entry| entry.holder == Holder::Me) {
            let Some(asking) = marks.get(&entry.partition) else { continue };
            let Some(epoch) = self.leases.epochs().get(&entry.partition).copied() else { continue };
            match &entry.handoff_to {
                Some(by) => self.asked_for(&entry.partition, epoch, by.clone()),
                None => self.leases.drop_mark(&entry.partition, asking),
            }
        }
    }

    /// By a renewal that found the mark, unless whoever made it is known to have died.
    pub(super) fn answer_renewal(&mut self, partition: &PartitionId, epoch: i64, known: Option<&OwnerId>) {
        let asking = self.leases.asked_for_by(partition, epoch).filter(|by| known != Some(*by)).cloned();
        if let Some(by) = asking {
            self.asked_for(partition, epoch, by);
        }
    }

    fn asked_for(&mut self, partition: &PartitionId, epoch: i64, by: OwnerId) {
        if self.hands_over() && !self.ending && self.leases.drain(partition, epoch) {
            self.events.tell(Event::AskedFor { partition: partition.clone(), by: by.clone() });
            self.publish(|snapshot| {
                if let Some(view) = snapshot.partitions.iter_mut().find(|view| view.partition == *partition) {
                    view.handoff_to = Some(by);
                }
            });
            self.give_back(partition, epoch, Releasing::HandedOver);
        }
    }
}
