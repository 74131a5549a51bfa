//! One cycle: from the listing of the ownerships to the claims.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::RngExt;
use tokio::time::Instant;

use super::events::Event;
use super::listed::{Cycle, Others};
use super::snapshot::RecordAge;
use super::{Balancer, Ended, replaced};
use crate::balance::{
    ClaimReason, Holder, Moment, Observation, Observer, PartitionView, Plan, PlannedRelease, Policy, View, observe,
    plan,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::OwnerId;
use crate::store::{Listing, Ownership};
use crate::telemetry;

impl Balancer {
    pub(super) fn start_listing(&mut self) {
        let late = self.next_cycle.take().map(|due| due.elapsed()).unwrap_or_default();
        if late > self.config.interval / 2 {
            telemetry::cycle_late(late);
        }
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
        self.asked.look_by(self.look_after());
        let cycle = Cycle { asked, records: listing.records };
        let view = self.observe(&cycle, &[]);
        if let Some(by) = &view.replaced_by {
            return Err(replaced(&view.me, by));
        }
        self.drop_lost(&view);
        self.foreign_owner = view.foreign_owner;
        if view.foreign_owner {
            self.fall_back(foreign_owner(&view, &cycle.records));
        }
        let plan = self.plan(&view, &cycle.records);
        let (takes, other_tree) = (!(plan.claim.is_empty() && plan.handoff.is_empty()), self.store.has_other_tree());
        let answers = takes || self.is_asked(&cycle.records) || self.leaves_to_others(&view);
        let by_presence = cycle.records.iter().any(|seen| seen.lives_by_presence(&self.store));
        let presences = by_presence || (self.hands_over() && answers);
        if presences || (takes && other_tree) {
            self.list_others(cycle, presences, takes && other_tree);
        } else {
            self.end_cycle(&cycle, view, plan);
        }
        Ok(())
    }

    /// Whether the records say that somebody wants what this instance has.
    fn is_asked(&self, records: &[Ownership]) -> bool {
        let held = self.leases.epochs();
        records.iter().any(|seen| seen.record.handoff_to.is_some() && held.contains_key(&seen.partition))
    }

    /// Whether nobody owns something that may be left to one who was present when that was last looked at. It may have
    /// gone since.
    fn leaves_to_others(&self, view: &View) -> bool {
        let is_unowned = |entry: &PartitionView| match entry.holder {
            Holder::Nobody | Holder::Released => entry.handoff_to.is_none(),
            Holder::Expired(_) => true,
            _ => false,
        };
        !self.claims_nothing() && !view.present.is_empty() && view.partitions.iter().any(is_unowned)
    }

    /// Only before a claim, for an answer, where something is left to others, or where others live by their presence:
    /// else nobody need know who else is there.
    fn list_others(&mut self, cycle: Cycle, presences: bool, other_tree: bool) {
        let store = self.store.clone();
        self.operations.spawn(async move {
            let listing = Others::list(&store, presences, other_tree).await;
            Ended::OthersListed { cycle, listing }
        });
    }

    pub(super) fn others_listed(&mut self, cycle: &Cycle, listing: Result<Others>) {
        let others = match listing {
            Ok(others) => others,
            Err(error) => return self.cycle_failed(&error),
        };
        if let Some(presences) = others.presences {
            self.presences_listed(presences);
        }
        let view = self.observe(cycle, &others.other_tree);
        self.tell_elsewhere(&view);
        self.answer(&view, &cycle.records);
        let plan = self.plan(&view, &cycle.records);
        self.end_cycle(cycle, view, plan);
    }

    fn cycle_failed(&mut self, error: &Error) {
        let jitter = self.rng.random_range(0.0..1.0);
        let soon = self.pacing.failed(self.retry_pause(), jitter);
        // Who is asked for fewer requests does not hurry.
        let throttled = matches!(error.kind(), ErrorKind::Throttled { .. });
        let pause = if throttled { soon.max(self.pause()).max(self.asked_to_wait(error)) } else { soon };
        self.store.telemetry().cycle_failed(error, pause);
        self.next_cycle = Some(Instant::now() + pause);
    }

    fn end_cycle(&mut self, cycle: &Cycle, view: View, plan: Plan) {
        self.reach.cycle_succeeded();
        self.metrics.0.cycle_took(self.store.lease_time().saturating_sub(cycle.asked));
        let calm = plan.is_empty() && self.snapshot.borrow().partitions == view.partitions;
        self.pacing.cycle(calm && is_settled(&view));
        self.next_cycle = Some(Instant::now() + self.pause());
        // Nobody was asked while draining or stalled.
        let known = self.snapshot.borrow().unclaimed_for_cap;
        let unclaimed = if self.claims_nothing() { known } else { plan.unclaimed_for_cap };
        if self.snapshot.borrow().unclaimed_for_cap != unclaimed {
            self.events.tell(Event::Capped { unclaimed });
        }
        let age = |seen: &Ownership| RecordAge { since: seen.record.since, age: seen.age };
        self.publish(|snapshot| {
            snapshot.cycles += 1;
            snapshot.partitions = view.partitions;
            snapshot.records = cycle.records.iter().map(|seen| (seen.partition.clone(), age(seen))).collect();
            snapshot.unclaimed_for_cap = unclaimed;
        });
        for PlannedRelease { partition, reason } in plan.release {
            if let Some(epoch) = self.leases.epochs().get(&partition).copied() {
                self.give_back(&partition, epoch, reason.into());
            }
        }
        self.start_claims(plan.claim, &cycle.records);
        self.start_marks(plan.handoff, &cycle.records);
    }

    fn observe(&mut self, cycle: &Cycle, other_tree: &[Ownership]) -> View {
        let here = cycle.records.iter().map(|record| self.observation(record, false));
        let observations: Vec<_> = here.chain(other_tree.iter().map(|record| self.observation(record, true))).collect();
        let partitions = Arc::clone(&self.partitions.borrow_and_update());
        let now = self.store.lease_time();
        let (me, terms, running) = (self.store.identity(), self.store.terms(), &self.leases.partitions());
        let (interval, outage_ended, presences) =
            (self.config.interval, self.store.outages().ended(), &self.attendances());
        let observer = Observer { me, terms, running, presences, interval, outage_ended };
        let mut view = observe(&observations, &partitions, &observer, now);
        let newer = self.leases.newer_than(cycle.asked);
        let outdated = |entry: &&mut PartitionView| entry.holder != Holder::Me && newer.contains(&entry.partition);
        for entry in view.partitions.iter_mut().filter(outdated) {
            *entry = PartitionView::new(entry.partition.clone(), Holder::Me);
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
            if holder == Some(&Holder::Me) || view.gone.contains(&partition) {
                continue;
            }
            let by = match holder {
                Some(Holder::Live(owner) | Holder::Elsewhere(owner) | Holder::Expired(owner)) => Some(owner.clone()),
                _ => None,
            };
            self.leases.remove(&partition);
            // At once: the rest of the cycle may fail.
            self.publish_holder(&partition, holder.cloned().unwrap_or(Holder::Nobody));
            self.events.tell(Event::Lost { partition, by });
        }
    }

    /// Claims that are under way count as won, so that what they win is not too much; and on a partition with an
    /// operation under way nothing else is begun.
    fn plan(&mut self, view: &View, listed: &[Ownership]) -> Plan {
        self.check_vitals();
        if self.claims_nothing() || !self.may_claim() {
            return Plan::default();
        }
        let mut view = view.clone();
        for entry in view.partitions.iter_mut().filter(|entry| self.claiming.contains(&entry.partition)) {
            *entry = PartitionView::new(entry.partition.clone(), Holder::Orphan);
        }
        let (me, asked) = (view.me.clone(), &self.asked);
        let goes_to_me =
            |entry: &&mut PartitionView| matches!(entry.holder, Holder::Live(_)) && asked.contains(&entry.partition);
        for entry in view.partitions.iter_mut().filter(goes_to_me) {
            entry.handoff_to = Some(me.clone());
        }
        let now = Instant::now();
        let set_back = self.setbacks.iter().filter(|(_, setback)| setback.until > now).map(|(partition, _)| partition);
        let busy = self.claiming.iter().chain(&self.releasing).chain(self.asked.marking());
        let stalled = self.snapshot.borrow().stalled.partitions.clone();
        let avoid = set_back.chain(busy).chain(&stalled).cloned().collect();
        let loads = listed.iter().filter_map(|seen| Some((seen.partition.clone(), seen.record.load?))).collect();
        let strategy = self.config.strategy.clone();
        let max_partitions = self.config.max_partitions;
        let handoff = self.hands_over();
        let mut policy = Policy { strategy, max_partitions, avoid, handoff, loads, ..Policy::default() };
        policy.idle = self.idle_owners(&view, &policy);
        let plan = plan(&view, &policy, &mut self.rng);
        // In its first cycle an instance takes nothing from live owners: others that start together with it have
        // announced themselves by the second, and nothing moves twice. An instance with a stuck batch would serve no
        // partition better than its live owner. It takes unowned partitions: with the same fault everywhere, no other
        // instance would.
        let first = handoff && self.snapshot.borrow().cycles == 0;
        if first || !stalled.is_empty() { without_takeovers(plan) } else { plan }
    }

    fn idle_owners(&mut self, view: &View, policy: &Policy) -> BTreeSet<OwnerId> {
        let (outage_ended, now, limit) =
            (self.store.outages().ended(), self.store.lease_time(), self.store.terms().expiry);
        let idle = self.idleness.note(view, policy, outage_ended, now, limit);
        idle.difference(&self.idle).for_each(telemetry::owner_idle);
        self.idle.clone_from(&idle);
        idle
    }

    /// With a stalled runtime, a claimed partition would not be read.
    pub(super) fn claims_nothing(&self) -> bool {
        self.draining || self.snapshot.borrow().stalled.runtime
    }
}

fn without_takeovers(mut plan: Plan) -> Plan {
    plan.handoff.clear();
    plan.claim.retain(|planned| !matches!(planned.reason, ClaimReason::Stolen(_)));
    plan
}

/// A live owner of another SDK.
fn foreign_owner<'a>(view: &View, listed: &'a [Ownership]) -> Option<&'a OwnerId> {
    let is_live = |seen: &&Ownership| matches!(view.holder(&seen.partition), Some(Holder::Live(_)));
    let foreign = listed.iter().filter(|seen| seen.record.incarnation.is_none()).find(is_live)?;
    foreign.record.owner.as_ref()
}

/// Whether every partition has a live owner of this crate, as far as that can be seen.
fn is_settled(view: &View) -> bool {
    let owned =
        |entry: &PartitionView| matches!(entry.holder, Holder::Me | Holder::Live(_)) && entry.handoff_to.is_none();
    !view.foreign_owner && view.partitions.iter().all(owned)
}
