//! The decisions of the load-balancing loop: inputs come in, actions come out. There are no requests and no clock here.
//!
//! Each part keeps its own facts, and leaves its actions in the [`Context`]. [`Partitions`] knows what this instance
//! does with each partition, [`HeartbeatKeeper`] what it wrote about itself, and [`Cycles`] when it lists the
//! ownerships and what it plans. What follows from a listing is in the module `listing`.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;

use super::beacon::BeaconKeeper;
use super::case_check::CaseConflictCheck;
use super::config::{LoopSettings, MOST_LISTED_TOGETHER};
use super::context::{Change, Context, LoopPhase};
use super::cycle::Cycles;
use super::events::{Note, OwnershipEvent};
use super::heartbeat::HeartbeatKeeper;
use super::liveness::Stalled;
use super::owner_watch::OwnerWatch;
use super::partitions::{Partitions, is_in_use};
use super::snapshot::Snapshot;
use super::step::{Action, Done, Happened, LeftOwned, LoopCommand, ProcessingEnd, StorageFailures};
use crate::error::Result;
use crate::model::{LeaseScope, Moment, PartitionId};
use crate::planner::{PartitionOwner, PartitionView, ReleaseReason};
use crate::store::{CaseConflict, ClaimOutcome};

/// The state of a load-balancing loop.
#[derive(Debug)]
pub struct BalancerState {
    pub(super) context: Context,
    pub(super) partitions: Partitions,
    pub(super) heartbeat: HeartbeatKeeper,
    pub(super) cycles: Cycles,
    pub(super) beacon: BeaconKeeper,
    pub(super) watch: OwnerWatch,
    case_check: CaseConflictCheck,
    /// Why this instance ends, and until when it may take to release everything.
    refused: Option<(CaseConflict, Moment)>,
    /// The partitions of the event hub.
    pub(super) hub: Arc<[PartitionId]>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl BalancerState {
    /// Creates the state of a loop that has not begun.
    #[must_use]
    pub fn new(settings: LoopSettings, rng: StdRng) -> Self {
        let scope = settings.config.lease_scope;
        Self {
            snapshot: Arc::new(Snapshot::with_nothing_known(settings.this.owner.clone(), scope)),
            cycles: Cycles::new(&settings),
            partitions: Partitions::new(scope),
            context: Context::new(settings, rng),
            heartbeat: HeartbeatKeeper::default(),
            beacon: BeaconKeeper::default(),
            watch: OwnerWatch::default(),
            case_check: CaseConflictCheck::default(),
            refused: None,
            hub: Arc::default(),
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
                self.beacon.begin(&self.context);
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
        let beacon = self.beacon.next_wake(&self.context);
        if let LoopPhase::Ending(until) = self.context.phase {
            return Some(beacon.map_or(until, |at| at.min(until)));
        }
        let trusted_until = self.beacon.trusted_until(&self.context);
        [
            beacon,
            self.cycles.next_cycle_at(trusted_until).filter(|_| self.context.phase == LoopPhase::Running),
            self.watch.next_look_at().filter(|_| trusted_until.is_some() && self.context.phase == LoopPhase::Running),
            self.partitions.next_wake(&self.context),
            self.case_check.next_look_at(),
            self.refused.as_ref().map(|(_, until)| *until),
            self.heartbeat.next_wake(&self.context, &self.partitions),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the time since the oldest renewal of all leases; zero if there is no lease.
    #[must_use]
    pub fn oldest_lease_age(&self, now: Moment) -> Duration {
        let leases = self.partitions.owned_leases();
        let ages = leases.map(|(_, owned)| now.saturating_sub(owned.valid_from(self.partitions.kept_alive_by)));
        ages.max().unwrap_or_default()
    }

    /// Returns which operations of this instance the storage keeps failing. A failing claim is included only if the
    /// event hub has the partition and no other instance owns it.
    #[must_use]
    pub fn storage_failures(&self) -> StorageFailures {
        let claims = self.partitions.failing_claims().filter(|(partition, _)| {
            self.hub.contains(partition) && !matches!(self.snapshot.owner(partition), Some(PartitionOwner::Other(_)))
        });
        StorageFailures {
            cycles: self.cycles.failing_since.filter(|_| self.context.phase == LoopPhase::Running),
            heartbeat: self.heartbeat.failing_since().map(|(since, error)| (since, Arc::clone(error))),
            case_check: self.case_check.failing_since().map(|(since, error)| (since, Arc::clone(error))),
            claims: claims.map(|(partition, error)| (partition.clone(), Arc::clone(error))).collect(),
        }
    }

    fn on_woke(&mut self) {
        let Self { context, partitions, heartbeat, cycles, beacon, watch, .. } = self;
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
            cycles.start_listing(context, beacon, by_heartbeat && self.hub.len() <= MOST_LISTED_TOGETHER);
            if beacon.trusted_until(context).is_some() {
                watch.start_looks(context);
            }
        }
    }

    /// Reports the stall. The stalled partitions are kept: another instance of the application would probably stall.
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
            LoopCommand::ProcessingStarted { partition, epoch } => partitions.on_started(context, &partition, epoch),
            LoopCommand::ProcessingEnded { partition, epoch, end: ProcessingEnd::Lost { by } } => {
                partitions.on_lost(context, &partition, epoch, by);
            }
            LoopCommand::ProcessingEnded { partition, epoch, end: ProcessingEnd::Stopped { settled, cooldown } } => {
                partitions.on_stopped(context, &partition, epoch, settled, cooldown);
            }
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
        let Self { context, partitions, heartbeat, cycles, beacon, watch, case_check, .. } = self;
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
            Done::BeaconRead(outcome) => {
                if beacon.on_read(context, outcome) {
                    cycles.call_cycle(context);
                }
            }
            Done::BeaconLit(outcome) => beacon.on_lit(context, outcome),
            Done::BeaconRefreshed(outcome) => beacon.on_refreshed(context, outcome),
            Done::OwnerChecked { owner, since_renewal } => {
                if watch.on_checked(context, &owner, &since_renewal) {
                    cycles.call_cycle(context);
                }
            }
        }
    }

    /// Begins to end the loop if another application owns partitions in the other blob-name casing.
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
        *refused = Some((conflict, context.now + limit));
        // Others no longer leave a share to it.
        heartbeat.write_or_end(context, partitions);
    }

    /// Collects what all parts left for the end of the step. The snapshot comes first, so that a subscriber that
    /// receives an event can also see its effect.
    fn end_step(&mut self) -> Vec<Action> {
        if !self.context.is_ending() {
            self.case_check.start_if_due(&mut self.context);
            self.release_if_refused();
        }
        if std::mem::take(&mut self.context.effects.news) {
            self.beacon.report_change();
        }
        self.beacon.start_requests(&mut self.context);
        self.end_loop();
        let mut effects = std::mem::take(&mut self.context.effects);
        self.cycles.adjust_pacing(&effects);
        self.cycles.expect_cycle(self.context.now, self.beacon.trusted_until(&self.context));
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

    /// Releases everything if this instance must not continue, also what it has won since, and then begins to end.
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
        let Self { context, partitions, heartbeat, beacon, .. } = self;
        let LoopPhase::Ending(until) = context.phase else { return };
        let is_busy = heartbeat.is_busy() || !partitions.is_idle();
        if context.now < until && (is_busy || beacon.is_awaited(context)) {
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
        let mut views = Arc::make_mut(&mut self.snapshot).partitions.iter_mut();
        let Some(view) = views.find(|view| view.partition == *partition) else { return };
        match change {
            Change::HandoffReceived(by) => view.handoff_to = Some(by),
            Change::Owner(owner) => {
                // The request of a requesting instance stays, and reserves the partition once it is released.
                let stays = owner == view.owner || owner == PartitionOwner::Released;
                let handoff_to = view.handoff_to.take().filter(|_| stays);
                *view = PartitionView { handoff_to, ..PartitionView::new(partition.clone(), owner) };
            }
        }
    }
}
