//! One cycle: from the listing of the ownerships to the claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::{Balancer, Ended, replaced};
use crate::balance::{Holder, Moment, Observation, Observer, PlannedClaim, Policy, View, observe, plan};
use crate::error::{Error, Result};
use crate::store::{Claim, Listing, Ownership};
use crate::telemetry;

/// What was listed, and when it was asked for.
pub(super) struct Cycle {
    asked: Moment,
    records: Vec<Ownership>,
}

impl Balancer {
    pub(super) fn start_listing(&mut self) {
        self.next_cycle = None;
        let (store, asked) = (self.store.clone(), self.store.lease_time());
        self.operations.spawn(async move { Ended::Listed { asked, listing: store.list_ownerships().await } });
    }

    pub(super) fn listed(&mut self, asked: Moment, listing: Result<Listing<Ownership>>) -> Result<()> {
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => {
                self.cycle_failed(&error);
                return Ok(());
            }
        };
        let cycle = Cycle { asked, records: listing.records };
        let view = self.observe(&cycle, &[]);
        if let Some(by) = &view.replaced_by {
            return Err(replaced(&view.me, by));
        }
        self.drop_lost(&view);
        self.foreign_owner = view.foreign_owner;
        let planned = self.plan(&view);
        if planned.is_empty() || !self.store.has_other_tree() {
            self.end_cycle(&cycle, view, planned);
        } else {
            self.ask_other_tree(cycle);
        }
        Ok(())
    }

    /// Only before a claim: whoever claims nothing needs not know who else is there.
    fn ask_other_tree(&mut self, cycle: Cycle) {
        let store = self.store.clone();
        self.operations.spawn(async move { Ended::OtherTreeListed { cycle, listing: store.list_other_tree().await } });
    }

    pub(super) fn other_tree_listed(&mut self, cycle: &Cycle, listing: Result<Listing<Ownership>>) {
        let other = match listing {
            Ok(listing) => listing.records,
            Err(error) => return self.cycle_failed(&error),
        };
        let view = self.observe(cycle, &other);
        self.tell_elsewhere(&view);
        let planned = self.plan(&view);
        self.end_cycle(cycle, view, planned);
    }

    fn cycle_failed(&mut self, error: &Error) {
        let pause = self.lengthened(self.config.interval.max(self.asked_to_wait(error)));
        telemetry::cycle_failed(error, pause);
        self.next_cycle = Some(Instant::now() + pause);
    }

    fn end_cycle(&mut self, cycle: &Cycle, view: View, planned: Vec<PlannedClaim>) {
        self.next_cycle = Some(Instant::now() + self.lengthened(self.config.interval));
        self.publish(|snapshot| {
            snapshot.cycles += 1;
            snapshot.partitions = view.partitions;
        });
        self.start_claims(planned, &cycle.records);
    }

    fn observe(&mut self, cycle: &Cycle, other_tree: &[Ownership]) -> View {
        let here = cycle.records.iter().map(|record| self.observation(record, false));
        let observations: Vec<_> = here.chain(other_tree.iter().map(|record| self.observation(record, true))).collect();
        let partitions = Arc::clone(&self.partitions.borrow_and_update());
        let now = self.store.lease_time();
        let (me, terms, running) = (self.store.identity(), self.store.terms(), &self.leases.partitions());
        let observer = Observer { me, terms, running, outage_ended: None };
        let mut view = observe(&observations, &partitions, &observer, now);
        let newer = self.leases.newer_than(cycle.asked);
        for entry in view.partitions.iter_mut().filter(|entry| newer.contains(&entry.partition)) {
            entry.holder = Holder::Me;
        }
        view
    }

    /// An ownership as the pure part wants it.
    fn observation(&self, ownership: &Ownership, other_tree: bool) -> Observation {
        Observation {
            partition: ownership.partition.clone(),
            record: ownership.record.clone(),
            age: ownership.age,
            received: self.store.lease_time().saturating_sub(ownership.received.elapsed()),
            other_tree,
        }
    }

    /// Once for each time that a partition is found so.
    fn tell_elsewhere(&mut self, view: &View) {
        let mut elsewhere = BTreeSet::new();
        for entry in &view.partitions {
            let Holder::Elsewhere(owner) = &entry.holder else { continue };
            if !self.elsewhere.contains(&entry.partition) {
                telemetry::in_the_other_tree(&entry.partition, owner);
            }
            elsewhere.insert(entry.partition.clone());
        }
        self.elsewhere = elsewhere;
    }

    /// What the listing shows in other hands, or in none, is not mine any more.
    fn drop_lost(&mut self, view: &View) {
        for partition in self.leases.partitions() {
            let holder = view.holder(&partition);
            if holder == Some(&Holder::Me) {
                continue;
            }
            let by = match holder {
                Some(Holder::Live(owner) | Holder::Expired(owner)) => Some(owner),
                _ => None,
            };
            telemetry::ownership_lost(&partition, by);
            self.leases.remove(&partition);
        }
    }

    /// Claims that are under way count as won, so that what they win is not too much; and on a partition with an operation
    /// under way nothing else is begun.
    fn plan(&mut self, view: &View) -> Vec<PlannedClaim> {
        self.check_vitals();
        // Who is stalled takes nothing, and nothing back, for it would get no better there.
        if self.draining || self.snapshot.borrow().stalled.any() {
            return Vec::new();
        }
        let mut view = view.clone();
        for entry in view.partitions.iter_mut().filter(|entry| self.claiming.contains(&entry.partition)) {
            entry.holder = Holder::Orphan;
        }
        let now = Instant::now();
        let set_back = self.setbacks.iter().filter(|(_, setback)| setback.until > now).map(|(partition, _)| partition);
        let avoid = set_back.chain(&self.claiming).chain(&self.releasing).cloned().collect();
        let policy = Policy { strategy: self.config.strategy.clone(), avoid, ..Policy::default() };
        plan(&view, &policy, &mut self.rng).claim
    }

    fn start_claims(&mut self, planned: Vec<PlannedClaim>, listed: &[Ownership]) {
        let etags: BTreeMap<_, _> = listed.iter().map(|record| (&record.partition, &record.etag)).collect();
        for PlannedClaim { partition, reason } in planned {
            let claim = match etags.get(&partition) {
                Some(etag) => Claim::over(partition.clone(), (*etag).clone()),
                None => Claim::unowned(partition.clone()),
            };
            self.claiming.insert(partition.clone());
            let store = self.store.clone();
            self.operations.spawn(async move {
                let outcome = store.claim_one(&claim).await;
                Ended::Claimed { partition, reason, outcome }
            });
        }
    }
}
