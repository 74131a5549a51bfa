//! Cycles: when the ownerships are listed, and what this instance plans.

use std::collections::BTreeSet;
use std::time::Duration;

use super::beacon::BeaconKeeper;
use super::config::LoopSettings;
use super::context::{ClaimResult, Context, StepEffects};
use super::events::Note;
use super::owner_watch::OwnerWatch;
use super::pacing::{CallWait, CycleFinding, NextClaimable, Pacing, Throttled};
use super::partitions::{Activity, Partitions};
use super::snapshot::Snapshot;
use super::step::StorageRequest;
use crate::error::{Error, ErrorKind};
use crate::model::{Moment, OwnerId, Ownership};
use crate::planner::{ClaimPace, ClaimReason, Idleness, PartitionOwner, PartitionView, Plan, Policy, View, plan};

/// The least time between two cycles of an instance because of changes: this much for each instance of the group, and
/// never less than a second.
const BETWEEN_CALLED_CYCLES: Duration = Duration::from_millis(15);
const SHORTEST_CALL: Duration = Duration::from_secs(1);

/// The cycles that one change calls are spread over this much for each instance of the group: those that list later see
/// what the others have claimed.
const CALLED_CYCLE_SPREAD: Duration = Duration::from_millis(10);

/// A start that takes longer than this is reported.
const SLOW_START: Duration = Duration::from_secs(120);

/// What this instance remembers from cycle to cycle.
#[derive(Debug)]
pub(super) struct Cycles {
    pacing: Pacing,
    /// When the next cycle should begin.
    expected_at: Option<Moment>,
    /// When the listing of the current cycle was sent.
    pub(super) listing_sent: Moment,
    /// When the first listing was sent that failed, if all have failed since then.
    pub(super) failing_since: Option<Moment>,
    /// The ownerships of the last listing, kept until the heartbeats are listed.
    pub(super) listed: Vec<Ownership>,
    idleness: Idleness,
    /// Owners that the last cycle considered idle.
    idle: BTreeSet<OwnerId>,
    /// When the next partition may be taken from a live owner, if the strategy takes one per interval.
    next_takeover_at: Moment,
    /// That moment, if the last plan left out such a partition because it was too early.
    pub(super) takeover_due: Option<Moment>,
    /// Since when partitions are left for later cycles, and whether that was reported.
    slow_start: Option<(Moment, bool)>,
    /// Whether another instance has reported a change that the current listing covers.
    pub(super) was_told: bool,
    /// The owners that may be dead, by the last listing.
    overdue: BTreeSet<OwnerId>,
    /// Owners that this instance watches, and found overdue in a cycle that another instance had called. Other
    /// instances may have listed before the owner was overdue.
    unreported: BTreeSet<OwnerId>,
    /// Since when this instance has been alone in the group.
    alone_since: Option<Moment>,
    /// Whether it has seen a group in which each partition has an owner.
    has_seen_complete: bool,
}

/// What decides when the cycle after a success comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CycleResult {
    /// Whether it found nothing new and nothing to do.
    pub(super) calm: bool,
    /// Whether there are unowned partitions, and this instance claims none before its look at the other blob-name
    /// casing.
    pub(super) held_back: bool,
    /// When the first partition may become claimable.
    pub(super) next_claimable: NextClaimable,
}

impl Cycles {
    pub(super) fn new(settings: &LoopSettings) -> Self {
        Self {
            pacing: Pacing::new(settings.interval(), settings.lease_duration()),
            expected_at: None,
            listing_sent: Moment::ZERO,
            failing_since: None,
            listed: Vec::new(),
            idleness: Idleness::default(),
            idle: BTreeSet::new(),
            next_takeover_at: Moment::ZERO,
            takeover_due: None,
            slow_start: None,
            was_told: false,
            overdue: BTreeSet::new(),
            unreported: BTreeSet::new(),
            alone_since: None,
            has_seen_complete: false,
        }
    }

    /// Returns when the next cycle begins; `None` while one is running. Until `trusted_until` the beacon is trusted.
    pub(super) fn next_cycle_at(&self, trusted_until: Option<Moment>) -> Option<Moment> {
        self.pacing.next_cycle_at(trusted_until)
    }

    /// Begins the next cycle soon, because something has changed in the group. In a large group the waits between such
    /// cycles are longer: if all instances listed at each change, the listings would be too many.
    pub(super) fn call_cycle(&mut self, context: &Context) {
        let longest = context.settings.interval();
        self.pacing.call_cycle(
            context.now,
            CallWait {
                after: (BETWEEN_CALLED_CYCLES * context.members).max(SHORTEST_CALL).min(longest),
                spread: (CALLED_CYCLE_SPREAD * context.members).min(longest),
            },
        );
    }

    /// Begins the next cycle at once.
    pub(super) fn begin_now(&mut self, context: &Context) {
        self.pacing.begin_now(context.now);
    }

    /// Begins a cycle if it is due.
    pub(super) fn start_listing(&mut self, context: &mut Context, beacon: &mut BeaconKeeper, with_heartbeats: bool) {
        let due = self.next_cycle_at(beacon.trusted_until(context)).filter(|due| *due <= context.now);
        let Some(due) = due else { return };
        self.was_told = beacon.start_listing();
        self.pacing.begin_cycle();
        self.listing_sent = context.now;
        let late = context.now.saturating_sub(self.expected_at.unwrap_or(due));
        if late > context.settings.interval() / 2 {
            context.push_note(Note::CycleLate(late));
        }
        context.push_request(if with_heartbeats { StorageRequest::ListWithHeartbeats } else { StorageRequest::List });
    }

    /// Records when the next cycle should begin, by what is known now. A cycle may have become due in the past, because
    /// of a change, or because the beacon is no longer trusted. One that should have begun is late.
    pub(super) fn expect_cycle(&mut self, now: Moment, trusted_until: Option<Moment>) {
        let due = self.next_cycle_at(trusted_until);
        let is_late = self.expected_at.is_some_and(|expected| expected <= now) && due.is_some_and(|due| due <= now);
        if !is_late {
            self.expected_at = due.map(|due| due.max(now));
        }
    }

    /// Brings the next cycle forward after a change, and makes the waits between claims longer while the storage fails
    /// them. If a listing is under way, its result is judged together with the change.
    pub(super) fn adjust_pacing(&mut self, effects: &StepEffects) {
        if effects.disturbed {
            self.pacing.bring_forward();
        }
        match effects.claim {
            Some(ClaimResult::Won) => self.pacing.record_won_claim(),
            Some(ClaimResult::Failed) => self.pacing.record_failed_claim(),
            None => {}
        }
    }

    pub(super) fn on_failed(&mut self, context: &mut Context, error: Error) {
        let throttled = match error.kind() {
            ErrorKind::Throttled { .. } => Throttled::Asked(context.settings.retry_after(&error)),
            _ => Throttled::No,
        };
        self.failing_since.get_or_insert(self.listing_sent);
        let jitter = context.random_chance();
        let wait = self.pacing.record_failure(context.now, context.settings.first_retry_wait(), throttled, jitter);
        context.push_note(Note::CycleFailed(error, wait));
    }

    /// Schedules the next cycle after a success.
    pub(super) fn on_succeeded(
        &mut self,
        context: &mut Context,
        partitions: &Partitions,
        plan: &Plan,
        result: CycleResult,
    ) {
        let now = context.now;
        let took = now.saturating_sub(self.listing_sent);
        self.failing_since = None;
        context.push_note(Note::CycleTook(took));
        if plan.takes_over() {
            self.next_takeover_at = now + context.settings.interval();
        }
        let claims_unowned = result.held_back
            || partitions.is_claiming_unowned()
            || plan.claim.iter().any(|claim| claim.reason.is_unowned() && !partitions.keeps_failing(&claim.partition));
        let found = match (claims_unowned, result.calm) {
            (true, _) => CycleFinding::Unowned,
            (false, true) => CycleFinding::Nothing,
            (false, false) => CycleFinding::Change,
        };
        self.pacing.record_success(now, found, took, result.next_claimable, context.random_chance());
        self.note_slow_start(context, plan.left_for_later);
    }

    /// Reports once that the claims that are left will take long. Instances that start at the same time are known one
    /// interval later.
    fn note_slow_start(&mut self, context: &mut Context, left: usize) {
        if left == 0 {
            self.slow_start = None;
            return;
        }
        let (since, reported) = *self.slow_start.get_or_insert((context.now, false));
        let estimate = self.pacing.steady_wait(0.5).saturating_mul(u32::try_from(left).unwrap_or(u32::MAX));
        if !reported && context.now >= since + context.settings.interval() && estimate > SLOW_START {
            self.slow_start = Some((since, true));
            context.push_note(Note::SlowStart(left, estimate));
        }
    }

    /// Plans what to do about a view. In its first cycle an instance takes nothing from live owners: instances that
    /// start at the same time have sent their heartbeats by the second cycle, and no partition moves twice.
    pub(super) fn make_plan(
        &mut self,
        context: &mut Context,
        partitions: &Partitions,
        view: &View<'_>,
        is_first: bool,
    ) -> Plan {
        self.takeover_due = None;
        if context.claims_nothing() || !partitions.may_claim(context) {
            return Plan::default();
        }
        let view = with_operations_under_way(view, partitions);
        let mut policy = Policy {
            pace: self.claim_pace(context, &view),
            chance: self.pacing.jitter,
            ..planning_policy(context, partitions, &view)
        };
        let lease_duration = context.settings.lease_duration();
        policy.idle = self.idleness.record_view(&view, &policy, context.outage_ended, context.now, lease_duration);
        for owner in policy.idle.difference(&self.idle) {
            context.push_note(Note::OwnerIdle(owner.clone()));
        }
        self.idle.clone_from(&policy.idle);
        let mut plan = plan(&view, &policy, &mut context.rng);
        let one_by_one = policy.strategy.claims_one_by_one();
        if one_by_one && partitions.is_claiming_unowned() {
            // A backend that needs longer for a claim than a short cycle takes must not get more and more of them.
            plan.claim.retain(|planned| !planned.reason.is_unowned());
            plan = without_takeovers(plan);
        }
        // Between two claims of unowned partitions the wait is short, but not between a claim and a steal.
        let waits = one_by_one && context.now < self.next_takeover_at;
        self.takeover_due = Some(self.next_takeover_at).filter(|_| waits && plan.takes_over());
        let too_early = (is_first && policy.handoff) || self.pacing.claims_unowned() || waits;
        // An instance with a stalled handler would not serve a partition better than its live owner does. It still
        // claims unowned partitions: if all instances have the same problem, no other instance would.
        if too_early || !context.stalled.partitions.is_empty() { without_takeovers(plan) } else { plan }
    }
}

/// What other instances do, and know.
impl Cycles {
    /// Returns how many unowned partitions to claim at once. An instance that stays alone for an interval is the group:
    /// the heartbeats of instances that started with it would show by then. One that has seen a complete group knows
    /// its members, and takes its part of what one of them leaves.
    fn claim_pace(&mut self, context: &Context, view: &View<'_>) -> ClaimPace {
        self.has_seen_complete |= !view.partitions.is_empty() && !view.has_unowned();
        if !context.settings.hands_over() || !view.present.is_empty() || !view.owners.is_empty() {
            self.alone_since = None;
        } else if context.now >= *self.alone_since.get_or_insert(context.now) + context.settings.interval() {
            return ClaimPace::All;
        }
        if self.has_seen_complete { ClaimPace::Part } else { ClaimPace::One }
    }

    /// Returns whether the last listing shows something that the other instances do not know: an owner that may be
    /// dead, or a partition that this instance leaves to them. In a cycle that another instance called, it reports
    /// nothing; later, only the instances that watch the owner do, because all others would do so at the same time.
    pub(super) fn has_news(&mut self, before: &Snapshot, view: &View<'_>, watch: &OwnerWatch, plan: &Plan) -> bool {
        let overdue = view.owners.iter().filter(|(_, live)| live.overdue_expiry.is_some());
        let known = std::mem::replace(&mut self.overdue, overdue.map(|(owner, _)| owner.clone()).collect());
        self.unreported.retain(|owner| self.overdue.contains(owner) || !view.owners.contains_key(owner));
        let mut found = self.overdue.difference(&known);
        if self.was_told || before.cycles == 0 {
            self.unreported.extend(found.filter(|owner| watch.0.contains_key(*owner)).cloned());
            return false;
        }
        found.next().is_some()
            || !std::mem::take(&mut self.unreported).is_empty()
            || view.partitions.iter().zip(&before.partitions).any(|(now, before)| {
                now.partition == before.partition
                    && now.is_unowned()
                    && !before.is_unowned()
                    // The others wait for its expiry, too.
                    && !matches!(&now.owner, PartitionOwner::Expired(owner) if known.contains(owner))
                    && !plan.claim.iter().any(|claim| claim.partition == now.partition)
            })
    }
}

/// Counts claims that are under way as won, so that this instance does not exceed its share. Requested handoffs count,
/// too.
fn with_operations_under_way<'a>(view: &View<'a>, partitions: &Partitions) -> View<'a> {
    let mut view = view.clone();
    for entry in &mut view.partitions {
        match partitions.activities.get(&entry.partition) {
            Some(Activity::Claiming { .. }) => {
                *entry = PartitionView::new(entry.partition.clone(), PartitionOwner::Reclaimable);
            }
            Some(Activity::RequestingHandoff | Activity::AwaitingHandoff(_))
                if matches!(entry.owner, PartitionOwner::Other(_)) =>
            {
                entry.handoff_to = Some(view.me.clone());
            }
            _ => {}
        }
    }
    view
}

fn planning_policy(context: &Context, partitions: &Partitions, view: &View<'_>) -> Policy {
    let settings = &context.settings;
    let loads = view.records.values().filter_map(|seen| Some((seen.partition.clone(), seen.record.load?)));
    Policy {
        strategy: settings.config.load_balancing_strategy.clone(),
        max_partitions: settings.config.max_partitions,
        avoid: partitions.not_to_claim(context.now).chain(&context.stalled.partitions).cloned().collect(),
        handoff: settings.hands_over(),
        loads: loads.collect(),
        ..Policy::default()
    }
}

fn without_takeovers(mut plan: Plan) -> Plan {
    plan.handoff.clear();
    plan.claim.retain(|planned| !matches!(planned.reason, ClaimReason::Stolen(_)));
    plan
}
