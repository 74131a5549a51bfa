//! The decisions of the load-balancing loop: inputs come in, actions come out. There are no requests and no clock here.
//!
//! Each part keeps its own facts, and leaves its actions in the [`Context`]. [`Partitions`] knows what this instance
//! does with each partition, [`HeartbeatKeeper`] what it wrote about itself, and [`Cycles`] when it lists the ownerships
//! and what it plans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;

use super::case_check::CaseConflictCheck;
use super::context::{Change, Context, LoopPhase};
use super::cycle::{CycleResult, Cycles, drop_lost, is_settled, needs_heartbeats};
use super::events::{Note, OwnershipEvent};
use super::heartbeat::HeartbeatKeeper;
use super::lease::OwnedLease;
use super::liveness::Stalled;
use super::partitions::{Partitions, is_in_use};
use super::settings::LoopSettings;
use super::snapshot::{LeaseAge, Snapshot};
use super::step::{Action, Done, Happened, LeftOwned, LoopCommand, StorageFailures};
use crate::error::Result;
use crate::model::{Heartbeat, LeaseScope, Moment, OwnerId, Ownership, PartitionId};
use crate::planner::{Observer, PartitionOwner, PartitionView, Plan, PlannedRelease, ReleaseReason, View, observe};
use crate::store::{CaseConflict, ClaimOutcome};

/// The most partitions for which ownerships and heartbeats are listed together. Such a listing also contains the
/// checkpoints. One response holds 5000 blobs.
const MOST_LISTED_TOGETHER: usize = 2000;

/// The state of a load-balancing loop.
#[derive(Debug)]
pub struct BalancerState {
    context: Context,
    partitions: Partitions,
    heartbeat: HeartbeatKeeper,
    cycles: Cycles,
    case_check: CaseConflictCheck,
    /// Why this instance ends, and until when it may take to release everything.
    refused: Option<(CaseConflict, Moment)>,
    /// The partitions of the event hub.
    hub: Arc<[PartitionId]>,
    snapshot: Arc<Snapshot>,
}

impl BalancerState {
    /// Creates the state of a loop that has not begun.
    #[must_use]
    pub fn new(settings: LoopSettings, rng: StdRng) -> Self {
        let scope = settings.config.lease_scope;
        let snapshot = Arc::new(Snapshot::with_nothing_known(settings.this.owner.clone(), scope));
        Self {
            cycles: Cycles::new(&settings),
            partitions: Partitions::new(scope),
            context: Context::new(settings, rng),
            heartbeat: HeartbeatKeeper::default(),
            case_check: CaseConflictCheck::default(),
            refused: None,
            hub: Arc::default(),
            snapshot,
        }
    }

    /// Returns what to do about an input at `now`.
    pub fn step(&mut self, happened: Happened, now: Moment) -> Vec<Action> {
        self.context.now = now;
        let was_live = self.partitions.has_valid_lease(&self.context);
        self.context.case_unknown = self.case_check.is_unknown();
        self.context.start_overdue = self.context.settings.reports_starts && self.partitions.is_start_overdue(now);
        match happened {
            Happened::Began(partitions) => {
                self.hub = partitions;
                // The first cycle waits for the first heartbeat, so that instances that list later count this one.
                if !self.heartbeat.write_or_end(&mut self.context, &mut self.partitions) {
                    self.cycles.begin_now(&self.context);
                }
            }
            Happened::Woke => self.on_woke(),
            Happened::Hub(partitions) => {
                self.hub = partitions;
                // Not at once: if the event hub changed often, this instance would claim more than one partition per
                // interval.
                self.context.bring_cycle_forward();
            }
            Happened::Liveness(stalled) => self.on_liveness(stalled),
            Happened::OutageEnded { at, silence } => {
                self.context.outage_ended = Some(at);
                self.context.push_note(Note::OutageOver(silence));
                self.context.bring_cycle_forward();
                self.heartbeat.retry_now();
            }
            Happened::Commanded(command) => self.on_command(command),
            Happened::Done(done) => self.on_done(done),
        }
        if !was_live && self.partitions.has_valid_lease(&self.context) {
            self.case_check.record_live_lease(&self.context);
        }
        self.end_step()
    }

    /// Returns when to wake the state if there is no other input.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        if let LoopPhase::Ending(until) = self.context.phase {
            return Some(until);
        }
        let cycle = self.cycles.next().filter(|_| self.context.phase == LoopPhase::Running);
        [
            cycle,
            self.partitions.next_wake(&self.context),
            self.case_check.next(),
            self.refused.as_ref().map(|(_, until)| *until),
            self.heartbeat.next(&self.context, &self.partitions),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the time since the oldest renewal of all leases; zero if there is no lease.
    #[must_use]
    pub fn oldest_lease_age(&self, now: Moment) -> Duration {
        let kept_alive_by = self.partitions.kept_alive_by;
        let ages = self.partitions.owned_leases().map(|(_, owned)| now.saturating_sub(owned.valid_from(kept_alive_by)));
        ages.max().unwrap_or_default()
    }

    /// Returns which operations of this instance the storage keeps failing. A failing claim is included only if the event
    /// hub has the partition and no other instance owns it.
    #[must_use]
    pub fn storage_failures(&self) -> StorageFailures {
        let claims = self.partitions.failing_claims().filter(|(partition, _)| {
            self.hub.contains(partition) && !matches!(self.snapshot.owner(partition), Some(PartitionOwner::Other(_)))
        });
        StorageFailures {
            heartbeat: self.heartbeat.failing_since().map(|(since, error)| (since, Arc::clone(error))),
            case_check: self.case_check.failing_since().map(|(since, error)| (since, Arc::clone(error))),
            claims: claims.map(|(partition, error)| (partition.clone(), Arc::clone(error))).collect(),
        }
    }

    fn on_woke(&mut self) {
        let Self { context, partitions, heartbeat, cycles, .. } = self;
        if context.is_ending() {
            return;
        }
        partitions.release_overdue(context);
        partitions.drop_expired(context);
        heartbeat.fall_back_if_late(context, partitions);
        partitions.start_renewals(context);
        partitions.start_handoff_polls(context);
        heartbeat.write_or_end(context, partitions);
        if context.phase == LoopPhase::Running {
            let by_heartbeat = partitions.kept_alive_by.scope == LeaseScope::Instance;
            cycles.start_listing(context, by_heartbeat && self.hub.len() <= MOST_LISTED_TOGETHER);
        }
    }

    /// Reports the stall. The stalled partitions are kept: another instance of the application would probably stall, too.
    fn on_liveness(&mut self, stalled: Stalled) {
        let context = &mut self.context;
        context.push_event(OwnershipEvent::Stalled(stalled.clone()));
        context.bring_cycle_forward();
        context.request_snapshot();
        context.stalled = stalled;
    }

    fn on_command(&mut self, command: LoopCommand) {
        let Self { context, partitions, .. } = self;
        match command {
            LoopCommand::StopClaiming if context.phase == LoopPhase::Running => context.phase = LoopPhase::Draining,
            LoopCommand::StopClaiming => {}
            LoopCommand::MarkLost { partition, epoch, by } => partitions.on_lost(context, &partition, epoch, by),
            LoopCommand::Release { partition, epoch, cooldown, settled } => {
                partitions.on_stopped(context, &partition, epoch, cooldown, settled);
            }
            LoopCommand::Started { partition, epoch } => partitions.on_started(context, &partition, epoch),
            LoopCommand::Unprocessed { partition } => partitions.on_unprocessed(context, &partition),
            LoopCommand::Shutdown | LoopCommand::Keep if context.is_ending() => {}
            LoopCommand::Shutdown => {
                context.begin_shutdown();
                partitions.release_all(context);
                partitions.cancel_handoffs(context);
                self.heartbeat.end_heartbeat(context, partitions, true);
            }
            LoopCommand::Keep => {
                context.begin_shutdown();
                self.heartbeat.end_and_keep(context, partitions);
                partitions.keep_all(context);
                partitions.cancel_handoffs(context);
            }
        }
    }

    fn on_done(&mut self, done: Done) {
        let Self { context, partitions, heartbeat, cycles, case_check, .. } = self;
        match done {
            Done::Listed(listing) => self.on_listed(listing, None),
            Done::ListedWithHeartbeats(Ok((records, heartbeats))) => self.on_listed(Ok(records), Some(heartbeats)),
            Done::ListedWithHeartbeats(Err(error)) => self.on_listed(Err(error), None),
            Done::HeartbeatsListed(listing) => self.on_heartbeats_listed(listing),
            Done::CaseConflictFound(found) => self.on_case_conflict_found(found),
            Done::DeclaredDead { claims, outcome } => partitions.on_declared_dead(context, claims, outcome),
            Done::Claimed { partition, outcome } => partitions.on_claimed(context, &partition, outcome),
            Done::Renewed { partition, epoch, outcome } => {
                // The record had vanished, so an instance that started since did not see this one.
                if matches!(&outcome, ClaimOutcome::Won(lease) if lease.epoch() != epoch) {
                    case_check.record_live_lease(context);
                }
                partitions.on_renewed(context, &partition, epoch, outcome);
            }
            Done::Released { partition, outcome } => partitions.on_released(context, &partition, outcome),
            Done::Kept { partition, outcome } => partitions.on_kept(context, &partition, outcome),
            Done::HandoffRequested { partition, outcome } => {
                partitions.on_handoff_requested(context, &partition, outcome);
            }
            Done::HandoffPolled { handoff, outcome } => partitions.on_handoff_polled(context, handoff, outcome),
            Done::HeartbeatSent(outcome) => {
                if heartbeat.on_sent(context, partitions, outcome) {
                    cycles.begin_now(context);
                }
            }
            Done::HeartbeatEnded(outcome) => heartbeat.on_ended(context, partitions, outcome),
            Done::HeartbeatsDeleted(outcome) => heartbeat.on_deleted(context, outcome),
        }
    }

    fn on_listed(&mut self, listing: Result<Vec<Ownership>>, heartbeats: Option<Vec<Heartbeat>>) {
        let records = match listing {
            Ok(records) => records,
            Err(error) => return self.cycles.on_failed(&mut self.context, error),
        };
        let has_heartbeats = heartbeats.is_some();
        if let Some(heartbeats) = heartbeats {
            self.heartbeat.on_listed(&mut self.context, heartbeats);
        }
        let view = self.read_listing(&records);
        let is_first = self.snapshot.cycles == 0;
        let Self { context, partitions, heartbeat, cycles, .. } = self;
        partitions.poll_failed_owners_soon(context);
        if let Some(by) = view.replaced_by {
            return context.end_as_replaced(by);
        }
        drop_lost(context, partitions, &view);
        // The instance forgets the setbacks that are over, of partitions that have a live owner.
        partitions.setbacks.retain(|partition, setback| {
            let owner = view.owner_of_partition(partition);
            setback.until > context.now || !matches!(owner, Some(PartitionOwner::This | PartitionOwner::Other(_)))
        });
        context.foreign_owner = view.foreign_owner;
        if view.foreign_owner {
            heartbeat.give_up_scope(context, partitions, &view);
        }
        if has_heartbeats {
            partitions.accept_handoff_requests(context, &view);
        }
        let plan = cycles.make_plan(context, partitions, &view, is_first);
        if !has_heartbeats && needs_heartbeats(context, partitions, &view, &plan) {
            cycles.list_heartbeats(context, records);
        } else {
            self.end_cycle(view, plan);
        }
    }

    fn on_heartbeats_listed(&mut self, listing: Result<Vec<Heartbeat>>) {
        let records = std::mem::take(&mut self.cycles.listed);
        match listing {
            Ok(heartbeats) => self.heartbeat.on_listed(&mut self.context, heartbeats),
            Err(error) => return self.cycles.on_failed(&mut self.context, error),
        }
        let view = self.read_listing(&records);
        let is_first = self.snapshot.cycles == 0;
        let Self { context, partitions, cycles, .. } = self;
        partitions.accept_handoff_requests(context, &view);
        let plan = cycles.make_plan(context, partitions, &view, is_first);
        self.end_cycle(view, plan);
    }

    /// Begins to end the loop if another application owns partitions in the other name case.
    fn on_case_conflict_found(&mut self, found: Result<Option<CaseConflict>>) {
        let Self { context, partitions, heartbeat, case_check, refused, .. } = self;
        let Some(conflict) = case_check.on_found(context, found) else { return };
        if context.is_ending() || refused.is_some() {
            return;
        }
        context.push_note(Note::CaseConflictFound(conflict.clone()));
        context.phase = LoopPhase::Draining;
        partitions.cancel_handoffs(context);
        // Until then, both instances may process the same partitions, and the other one may wait for this one.
        let settings = &context.settings;
        let limit = (settings.time_to_stop() + settings.release_limit()).min(settings.lease_duration() / 2);
        let until = context.now + limit;
        *refused = Some((conflict, until));
        // Others no longer leave a share to it.
        heartbeat.write_or_end(context, partitions);
    }

    /// Reads a listing. A partition that this instance has won or renewed since the listing was sent counts as its own,
    /// even if the listing shows another owner.
    fn read_listing<'a>(&self, records: &'a [Ownership]) -> View<'a> {
        let Self { context, partitions, heartbeat, cycles, .. } = self;
        let observer = Observer {
            this: &context.settings.this,
            lease_durations: context.settings.lease_durations,
            running: &partitions.owned_leases().map(|(partition, _)| partition.clone()).collect(),
            heartbeats: &heartbeat.listed,
            outage_ended: context.outage_ended,
        };
        let mut view = observe(records, &self.hub, &observer, context.now);
        for entry in view.partitions.iter_mut().filter(|entry| entry.owner != PartitionOwner::This) {
            if partitions.lease_of(&entry.partition).is_some_and(|owned| owned.is_newer_than(cycles.listing_sent())) {
                *entry = PartitionView::new(entry.partition.clone(), PartitionOwner::This);
            }
        }
        view
    }

    fn end_cycle(&mut self, view: View<'_>, plan: Plan) {
        let Self { context, partitions, heartbeat, cycles, snapshot, .. } = self;
        let calm = plan.is_empty() && snapshot.partitions == view.partitions && is_settled(&view);
        let setback_ends = partitions.setbacks.values().map(|setback| setback.until);
        let setback_ends = setback_ends.filter(|until| *until > context.now);
        let next_claimable = view.next_expiry.into_iter().chain(setback_ends).min();
        let held_back = context.case_unknown && view.has_unowned();
        cycles.on_succeeded(context, partitions, &plan, CycleResult { calm, held_back, next_claimable });
        // If nothing may be claimed, there is no plan.
        let unclaimed =
            if context.claims_nothing() { snapshot.unclaimed_due_to_limit } else { plan.unclaimed_due_to_limit };
        if snapshot.unclaimed_due_to_limit != unclaimed {
            context.push_event(OwnershipEvent::LimitReached { unclaimed });
        }
        let before = snapshot.away();
        let snapshot = Arc::make_mut(snapshot);
        snapshot.cycles += 1;
        let ages = view.records.values().map(|seen| {
            let age = LeaseAge { claimed_at: seen.record.claimed_at, age: seen.age };
            (seen.partition.clone(), age)
        });
        snapshot.leases = ages.collect();
        snapshot.partitions = view.partitions;
        snapshot.unclaimed_due_to_limit = unclaimed;
        emit_away(context, &before, &snapshot.away());
        context.request_snapshot();
        for PlannedRelease { partition, reason } in plan.release {
            if let Some(epoch) = partitions.lease_of(&partition).map(OwnedLease::epoch) {
                partitions.drain_partition(context, &partition, epoch, reason);
            }
        }
        partitions.start_claims(context, plan.claim, &heartbeat.listed);
        partitions.start_handoff_requests(context, plan.handoff);
    }

    /// Collects what all parts left for the end of the step. The snapshot comes first, so that a subscriber that
    /// receives an event can also see its effect.
    fn end_step(&mut self) -> Vec<Action> {
        if !self.context.is_ending() {
            self.case_check.start_if_due(&mut self.context);
            self.release_if_refused();
        }
        self.end_loop();
        let mut effects = std::mem::take(&mut self.context.effects);
        self.cycles.adjust_pacing(&effects);
        for (partition, change) in effects.changes {
            self.change_view(&partition, change);
        }
        if effects.changed {
            let snapshot = Arc::make_mut(&mut self.snapshot);
            let kept = self.partitions.owned_leases().filter(|(_, owned)| owned.is_processed());
            snapshot.owned = kept.map(|(partition, owned)| (partition.clone(), owned.epoch())).collect();
            snapshot.requested_handoffs = self.partitions.owners_of_requested();
            snapshot.releasing = self.partitions.release_reasons();
            snapshot.lease_scope = self.partitions.kept_alive_by.scope;
            snapshot.stalled.clone_from(&self.context.stalled);
            effects.actions.insert(0, Action::Publish(Arc::clone(&self.snapshot)));
        }
        effects.actions
    }

    /// Releases everything if this instance must not go on, also what it has won since, and then begins to end.
    fn release_if_refused(&mut self) {
        let Self { context, partitions, heartbeat, refused, .. } = self;
        let Some((_, until)) = refused else { return };
        for (partition, epoch) in partitions.owned_epochs() {
            partitions.drain_partition(context, &partition, epoch, ReleaseReason::Shutdown);
        }
        if partitions.is_idle() || *until <= context.now {
            context.begin_shutdown();
            partitions.release_all(context);
            heartbeat.end_heartbeat(context, partitions, true);
        }
    }

    /// Ends the loop when everything is released, or when the time for that is over. Partitions that are not released
    /// stay owned until their leases expire.
    fn end_loop(&mut self) {
        let Self { context, partitions, heartbeat, .. } = self;
        let LoopPhase::Ending(until) = context.phase else { return };
        if context.now < until && (heartbeat.is_busy() || !partitions.is_idle()) {
            return;
        }
        let in_use = partitions.activities.values().filter(|activity| is_in_use(activity)).count();
        let left = LeftOwned { unreleased: partitions.left.unreleased + in_use, ..partitions.left };
        if left.unreleased > 0 {
            context.push_note(Note::NotReleased(left.unreleased));
        }
        *partitions = Partitions::new(partitions.kept_alive_by.scope);
        context.request_snapshot();
        context.push_action(match self.refused.take() {
            Some((conflict, _)) => Action::Refused(left, conflict),
            None => Action::Ended(left),
        });
    }

    fn change_view(&mut self, partition: &PartitionId, change: Change) {
        let views = &mut Arc::make_mut(&mut self.snapshot).partitions;
        let Some(view) = views.iter_mut().find(|view| view.partition == *partition) else { return };
        match change {
            Change::HandoffReceived(by) => view.handoff_to = Some(by),
            Change::Owner(owner) => {
                // The request of a requesting instance stays, and reserves the partition once it is released.
                let same = owner == view.owner || owner == PartitionOwner::Released;
                let handoff_to = view.handoff_to.take().filter(|_| same);
                *view = PartitionView { handoff_to, ..PartitionView::new(partition.clone(), owner) };
            }
        }
    }
}

/// Reports which owners have shut down and kept partitions for their restart, and which of them no longer do.
fn emit_away(context: &mut Context, before: &BTreeMap<OwnerId, usize>, now: &BTreeMap<OwnerId, usize>) {
    let back = before.keys().filter(|owner| !now.contains_key(*owner)).map(|owner| (owner, 0));
    let away = now.iter().filter(|(owner, partitions)| before.get(*owner) != Some(*partitions));
    for (owner, partitions) in away.map(|(owner, partitions)| (owner, *partitions)).chain(back) {
        context.push_event(OwnershipEvent::OwnerAway { owner: owner.clone(), partitions });
    }
}
