//! The decisions of the balancing loop: what happened comes in, what to do comes out. No request, no clock.
//!
//! Each part keeps its own facts, and leaves actions in the [`Context`]: [`Partitions`] what this instance does with
//! each partition, [`OwnPresence`] what it wrote of itself, [`Cycles`] when it lists the ownerships, and what it plans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;

use super::action::Action;
use super::config::OnStall;
use super::context::{Change, Context, Phase};
use super::cycle::{Cycles, Needs, drop_lost, is_settled, needs};
use super::events::{Event, Releasing};
use super::happened::{Command, Done, Happened, Others};
use super::lease::Held;
use super::note::Note;
use super::partitions::Partitions;
use super::presence::{OwnPresence, fall_back, on_cleared};
use super::settings::Settings;
use super::snapshot::{RecordAge, Snapshot};
use super::vitals::Stalled;
use crate::error::Result;
use crate::model::{Moment, OwnerId, Ownership, PartitionId};
use crate::planner::{Holder, Observer, PartitionView, Plan, PlannedRelease, View, observe};

/// The state of a balancing loop.
#[derive(Debug)]
pub struct State {
    context: Context,
    partitions: Partitions,
    presence: OwnPresence,
    cycles: Cycles,
    /// The partitions of the hub.
    hub: Arc<[PartitionId]>,
    snapshot: Arc<Snapshot>,
}

impl State {
    /// The state of a loop that has not begun.
    #[must_use]
    pub fn new(settings: Settings, rng: StdRng) -> Self {
        let scope = settings.config.lease_scope;
        let snapshot = Arc::new(Snapshot::unknown(settings.me.owner.clone(), scope));
        Self {
            cycles: Cycles::new(&settings),
            partitions: Partitions::new(scope),
            context: Context::new(settings, rng),
            presence: OwnPresence::default(),
            hub: Arc::default(),
            snapshot,
        }
    }

    /// What to do about what happened at `now`.
    pub fn step(&mut self, happened: Happened, now: Moment) -> Vec<Action> {
        self.context.now = now;
        match happened {
            Happened::Began(partitions) => {
                self.hub = partitions;
                // The first cycle waits for the first announcement: an instance that lists next is to count this one.
                if !self.presence.keep(&mut self.context, &self.partitions) {
                    self.cycles.begin(&self.context);
                }
            }
            Happened::Woke => self.on_woke(),
            Happened::Hub(partitions) => {
                self.hub = partitions;
                // Not at once: a hub that changes often would let it take more than one partition per interval.
                self.context.disturb();
            }
            Happened::Vitals(stalled) => self.on_vitals(stalled),
            Happened::OutageEnded { at, silence } => {
                self.context.outage_ended = Some(at);
                self.context.note(Note::OutageOver(silence));
                self.context.disturb();
            }
            Happened::Commanded(command) => self.on_command(command),
            Happened::Done(done) => self.on_done(done),
        }
        self.end_step()
    }

    /// When to wake it, if nothing else happens.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        if let Phase::Ending(until) = self.context.phase {
            return Some(until);
        }
        let cycle = self.cycles.next().filter(|_| self.context.phase == Phase::Running);
        let lifetime = self.context.settings.lifetime();
        let outlived = lifetime.and_then(|lifetime| self.partitions.next_outlived(lifetime));
        [
            cycle,
            outlived,
            self.partitions.next_due(self.context.renewal_age()),
            self.partitions.next_overdue(),
            self.partitions.next_look(),
            self.presence.next(&self.context, &self.partitions),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// How long ago the lease was renewed that was renewed longest ago; zero if there is none.
    #[must_use]
    pub fn renewal_age(&self, now: Moment) -> Duration {
        self.partitions.greatest_age(now)
    }

    fn on_woke(&mut self) {
        let Self { context, partitions, presence, cycles, .. } = self;
        if context.is_ending() {
            return;
        }
        partitions.release_overdue(context);
        partitions.drop_outlived(context);
        partitions.start_renewals(context);
        partitions.start_looks(context);
        presence.keep(context, partitions);
        if context.phase == Phase::Running {
            cycles.start_listing(context);
        }
    }

    /// Another instance gets what stalls here, if that is wanted.
    fn on_vitals(&mut self, stalled: Stalled) {
        let context = &mut self.context;
        context.tell(Event::Stalled(stalled.clone()));
        context.disturb();
        context.change();
        if context.settings.config.on_stall == OnStall::Release {
            for (partition, epoch) in self.partitions.epochs() {
                if stalled.affects(&partition) {
                    self.partitions.drain(context, &partition, epoch, Releasing::Stalled);
                }
            }
        }
        context.stalled = stalled;
    }

    fn on_command(&mut self, command: Command) {
        let Self { context, partitions, .. } = self;
        match command {
            Command::StopClaiming if context.phase == Phase::Running => context.phase = Phase::Draining,
            Command::StopClaiming => {}
            Command::Forget { partition, epoch, by } => partitions.on_forgotten(context, &partition, epoch, by),
            Command::Release { partition, epoch, cool_down, settled } => {
                partitions.on_stopped(context, &partition, epoch, cool_down, settled);
            }
            Command::Unprocessed { partition } => partitions.on_unprocessed(context, &partition),
            Command::Shutdown | Command::Keep if context.is_ending() => {}
            Command::Shutdown => {
                context.end();
                partitions.release_all(context);
                partitions.stop_asking(context);
                self.presence.withdraw(context, true);
            }
            Command::Keep => {
                context.end();
                self.presence.end_and_keep(context, partitions);
                partitions.keep_all(context);
                partitions.stop_asking(context);
            }
        }
    }

    fn on_done(&mut self, done: Done) {
        let Self { context, partitions, presence, cycles, .. } = self;
        match done {
            Done::Listed(listing) => self.on_listed(listing),
            Done::OthersListed(listing) => self.on_others_listed(listing),
            Done::Judged { claims, outcome } => partitions.on_judged(context, claims, outcome),
            Done::Claimed { partition, outcome } => partitions.on_claimed(context, &partition, outcome),
            Done::Renewed { partition, epoch, outcome } => {
                partitions.on_renewed(context, &partition, epoch, outcome);
            }
            Done::Released { partition, outcome } => partitions.on_released(context, &partition, outcome),
            Done::Kept { partition, outcome } => partitions.on_kept(context, &partition, outcome),
            Done::Marked { partition, outcome } => partitions.on_marked(context, &partition, outcome),
            Done::Pursued { handoff, outcome } => partitions.on_pursued(context, handoff, outcome),
            Done::Announced(outcome) => {
                if presence.on_announced(context, partitions, outcome) {
                    cycles.begin(context);
                }
            }
            Done::Withdrawn(outcome) => presence.on_withdrawn(context, outcome),
            Done::Cleared(outcome) => on_cleared(context, outcome),
        }
    }

    fn on_listed(&mut self, listing: Result<Vec<Ownership>>) {
        let records = match listing {
            Ok(records) => records,
            Err(error) => return self.cycles.on_failed(&mut self.context, error),
        };
        let view = self.observe(&records, &[]);
        let is_first = self.snapshot.cycles == 0;
        let Self { context, partitions, cycles, .. } = self;
        partitions.look_soon_at_failed(context);
        if let Some(by) = view.replaced_by {
            return context.replaced(by);
        }
        drop_lost(context, partitions, &view);
        context.foreign_owner = view.foreign_owner;
        if view.foreign_owner {
            fall_back(context, partitions, &view);
        }
        let plan = cycles.plan(context, partitions, &view, is_first);
        match needs(context, partitions, &view, &plan) {
            Needs::Nothing => self.end_cycle(view, plan),
            needs => cycles.list_others(context, needs, records),
        }
    }

    fn on_others_listed(&mut self, listing: Result<Others>) {
        let records = self.cycles.take_listed();
        let others = match listing {
            Ok(others) => others,
            Err(error) => return self.cycles.on_failed(&mut self.context, error),
        };
        if let Some(presences) = others.presences {
            self.presence.on_listed(&mut self.context, presences);
        }
        let view = self.observe(&records, &others.other_tree);
        let is_first = self.snapshot.cycles == 0;
        let Self { context, partitions, cycles, .. } = self;
        cycles.note_other_tree(context, &view);
        partitions.heed_marks(context, &view);
        let plan = cycles.plan(context, partitions, &view, is_first);
        self.end_cycle(view, plan);
    }

    /// A partition that was won or renewed since the listing was asked for is this instance's, whatever the listing
    /// shows.
    fn observe<'a>(&self, records: &'a [Ownership], other_tree: &[Ownership]) -> View<'a> {
        let Self { context, partitions, presence, cycles, .. } = self;
        let observer = Observer {
            me: &context.settings.me,
            terms: context.settings.terms,
            running: &partitions.held().map(|(partition, _)| partition.clone()).collect(),
            other_tree,
            presences: &presence.listed,
            interval: context.settings.interval(),
            outage_ended: context.outage_ended,
        };
        let mut view = observe(records, &self.hub, &observer, context.now);
        for entry in view.partitions.iter_mut().filter(|entry| entry.holder != Holder::Me) {
            if partitions.get(&entry.partition).is_some_and(|held| held.is_newer_than(cycles.asked())) {
                *entry = PartitionView::new(entry.partition.clone(), Holder::Me);
            }
        }
        view
    }

    fn end_cycle(&mut self, view: View<'_>, plan: Plan) {
        let Self { context, partitions, presence, cycles, snapshot, .. } = self;
        let calm = plan.is_empty() && snapshot.partitions == view.partitions && is_settled(&view);
        cycles.on_succeeded(context, calm);
        // While nothing is claimed, the planner is not asked.
        let unclaimed = if context.claims_nothing() { snapshot.unclaimed_for_cap } else { plan.unclaimed_for_cap };
        if snapshot.unclaimed_for_cap != unclaimed {
            context.tell(Event::Capped { unclaimed });
        }
        let before = snapshot.away();
        let age = |seen: &Ownership| RecordAge { since: seen.record.since, age: seen.age };
        let snapshot = Arc::make_mut(snapshot);
        snapshot.cycles += 1;
        snapshot.records = view.records.values().map(|seen| (seen.partition.clone(), age(seen))).collect();
        snapshot.partitions = view.partitions;
        snapshot.unclaimed_for_cap = unclaimed;
        tell_away(context, &before, &snapshot.away());
        context.change();
        for PlannedRelease { partition, reason } in plan.release {
            if let Some(epoch) = partitions.get(&partition).map(Held::epoch) {
                partitions.drain(context, &partition, epoch, reason.into());
            }
        }
        partitions.start_claims(context, plan.claim, &presence.listed);
        partitions.start_marks(context, plan.handoff);
    }

    /// What all parts left for the end of the step. The snapshot comes first, so that a subscriber that sees an event
    /// also sees what it led to.
    fn end_step(&mut self) -> Vec<Action> {
        self.end_loop();
        let mut left = self.context.take();
        if left.disturbed {
            self.cycles.look_soon(&mut self.context);
        }
        for (partition, change) in left.changes {
            self.change_view(&partition, change);
        }
        if left.changed {
            let snapshot = Arc::make_mut(&mut self.snapshot);
            snapshot.held = self.partitions.kept();
            snapshot.asked = self.partitions.asked();
            snapshot.releasing = self.partitions.released();
            snapshot.lease_scope = self.partitions.live_by.scope;
            snapshot.stalled.clone_from(&self.context.stalled);
            left.actions.insert(0, Action::Publish(Arc::clone(&self.snapshot)));
        }
        left.actions
    }

    /// Ends the loop when everything is released, or when the time for that is over: what is not released expires.
    fn end_loop(&mut self) {
        let Self { context, partitions, presence, .. } = self;
        let Phase::Ending(until) = context.phase else { return };
        if context.now < until && (presence.is_busy() || !partitions.is_at_rest()) {
            return;
        }
        let left = partitions.left();
        if left.unreleased > 0 {
            context.note(Note::NotReleased(left.unreleased));
        }
        *partitions = Partitions::new(partitions.live_by.scope);
        context.change();
        context.act(Action::Ended(left));
    }

    fn change_view(&mut self, partition: &PartitionId, change: Change) {
        let views = &mut Arc::make_mut(&mut self.snapshot).partitions;
        let Some(view) = views.iter_mut().find(|view| view.partition == *partition) else { return };
        match change {
            Change::AskedFor(by) => view.handoff_to = Some(by),
            Change::Holder(holder) => {
                // An owner that asked for it still does, and has it reserved once it is released.
                let same = holder == view.holder || holder == Holder::Released;
                let handoff_to = view.handoff_to.take().filter(|_| same);
                *view = PartitionView { handoff_to, ..PartitionView::new(partition.clone(), holder) };
            }
        }
    }
}

/// Tells which owners have shut down and left partitions for their own restart, and which no longer.
fn tell_away(context: &mut Context, before: &BTreeMap<OwnerId, usize>, now: &BTreeMap<OwnerId, usize>) {
    let back = before.keys().filter(|owner| !now.contains_key(*owner)).map(|owner| (owner, 0));
    let away = now.iter().filter(|(owner, partitions)| before.get(*owner) != Some(*partitions));
    for (owner, partitions) in away.map(|(owner, partitions)| (owner, *partitions)).chain(back) {
        context.tell(Event::OwnerAway { owner: owner.clone(), partitions });
    }
}
