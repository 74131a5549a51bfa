//! Cycles: when the ownerships are listed, and what follows from a listing.

use std::collections::BTreeSet;
use std::time::Duration;

use super::action::Request;
use super::context::{ClaimResult, Context};
use super::events::OwnershipEvent;
use super::note::Note;
use super::pacing::{Found, Pacing, Throttled};
use super::partitions::Partitions;
use super::settings::Settings;
use crate::error::{Error, ErrorKind};
use crate::model::{Moment, OwnerId, Ownership};
use crate::planner::{ClaimReason, Idleness, PartitionOwner, PartitionView, Plan, Policy, View, plan};

/// A start that takes longer than this is reported.
const SLOW_START: Duration = Duration::from_secs(120);

/// What this instance remembers from cycle to cycle.
#[derive(Debug)]
pub(super) struct Cycles {
    pacing: Pacing,
    /// When the listing of the current cycle was sent.
    listing_sent: Moment,
    /// The ownerships of that listing, kept until the heartbeats are listed.
    listed: Vec<Ownership>,
    idleness: Idleness,
    /// Owners that the last cycle considered idle.
    idle: BTreeSet<OwnerId>,
    /// When the next partition may be taken from a live owner, if the strategy takes one per interval.
    next_takeover: Moment,
    /// Since when partitions are left for later cycles, and whether that was reported.
    slow_start: Option<(Moment, bool)>,
}

/// What decides when the cycle after a success comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CycleResult {
    /// Whether it found nothing new and nothing to do.
    pub(super) calm: bool,
    /// Whether there are unowned partitions, and this instance claims none before its look at the other name case.
    pub(super) held_back: bool,
    /// When the first partition may become claimable.
    pub(super) next_claimable: Option<Moment>,
}

impl Cycles {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            pacing: Pacing::new(settings.interval(), settings.lease_duration()),
            listing_sent: Moment::ZERO,
            listed: Vec::new(),
            idleness: Idleness::default(),
            idle: BTreeSet::new(),
            next_takeover: Moment::ZERO,
            slow_start: None,
        }
    }

    /// Returns when the next cycle begins; `None` while one is running.
    pub(super) fn next(&self) -> Option<Moment> {
        self.pacing.due()
    }

    pub(super) fn listing_sent(&self) -> Moment {
        self.listing_sent
    }

    /// Begins the next cycle at once.
    pub(super) fn begin(&mut self, context: &Context) {
        self.pacing.begin(context.now);
    }

    pub(super) fn start_listing(&mut self, context: &mut Context, with_heartbeats: bool) {
        let Some(due) = self.next().filter(|due| *due <= context.now) else { return };
        self.pacing.cycle_begins();
        self.listing_sent = context.now;
        let late = context.now.saturating_sub(due);
        if late > context.settings.interval() / 2 {
            context.note(Note::CycleLate(late));
        }
        context.request(if with_heartbeats { Request::ListWithHeartbeats } else { Request::List });
    }

    /// Brings the next cycle forward after a change. If a listing is under way, its result is judged together with the
    /// change.
    pub(super) fn list_soon(&mut self) {
        self.pacing.disturb();
    }

    /// Makes the waits between claims longer while the storage fails them.
    pub(super) fn claim_ended(&mut self, result: ClaimResult) {
        match result {
            ClaimResult::Won => self.pacing.claim_won(),
            ClaimResult::Failed => self.pacing.claim_failed(),
        }
    }

    pub(super) fn on_failed(&mut self, context: &mut Context, error: Error) {
        let throttled = match error.kind() {
            ErrorKind::Throttled { .. } => Throttled::Asked(context.settings.retry_after(&error)),
            _ => Throttled::No,
        };
        let jitter = context.chance();
        let wait = self.pacing.cycle_failed(context.now, context.settings.retry_pause(), throttled, jitter);
        context.note(Note::CycleFailed(error, wait));
    }

    /// Stores the listed ownerships, and lists the heartbeats.
    pub(super) fn list_heartbeats(&mut self, context: &mut Context, listed: Vec<Ownership>) {
        self.listed = listed;
        context.request(Request::ListHeartbeats);
    }

    pub(super) fn take_listed(&mut self) -> Vec<Ownership> {
        std::mem::take(&mut self.listed)
    }

    /// Schedules the next cycle after a success.
    pub(super) fn on_succeeded(
        &mut self,
        context: &mut Context,
        partitions: &Partitions,
        plan: &Plan,
        result: CycleResult,
    ) {
        let (now, took) = (context.now, context.now.saturating_sub(self.listing_sent));
        context.note(Note::CycleTook(took));
        if plan.takes_over() {
            self.next_takeover = now + context.settings.interval();
        }
        let claims_unowned = result.held_back
            || partitions.is_claiming_unowned()
            || plan.unowned_to_claim().any(|partition| !partitions.keeps_failing(partition));
        let found = match (claims_unowned, result.calm) {
            (true, _) => Found::Unowned,
            (false, true) => Found::Nothing,
            (false, false) => Found::Change,
        };
        let jitter = context.chance();
        self.pacing.cycle_succeeded(now, found, took, result.next_claimable, jitter);
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
        let estimate = self.pacing.pause(0.5).saturating_mul(u32::try_from(left).unwrap_or(u32::MAX));
        if !reported && context.now >= since + context.settings.interval() && estimate > SLOW_START {
            self.slow_start = Some((since, true));
            context.note(Note::SlowStart(left, estimate));
        }
    }

    /// Plans what to do about a view. In its first cycle an instance takes nothing from live owners: instances that
    /// start at the same time have sent their heartbeats by the second cycle, and no partition moves twice.
    pub(super) fn plan(
        &mut self,
        context: &mut Context,
        partitions: &Partitions,
        view: &View<'_>,
        is_first: bool,
    ) -> Plan {
        if context.claims_nothing() || !partitions.may_claim(context) {
            return Plan::default();
        }
        let view = with_operations_under_way(view, partitions);
        let mut policy = policy(context, partitions, &view);
        policy.idle = self.idle_owners(context, &view, &policy);
        let plan = plan(&view, &policy, &mut context.rng);
        let one_by_one = policy.strategy.claims_one_by_one();
        // A storage that needs longer for a claim than a short cycle takes must not get more and more of them.
        let plan = if one_by_one && partitions.is_claiming_unowned() { without_new_claims(plan) } else { plan };
        // Between two claims of unowned partitions the wait is short, but not between a claim and a steal.
        let too_early =
            (is_first && policy.handoff) || self.pacing.claims() || (one_by_one && context.now < self.next_takeover);
        // An instance with a stalled handler would not serve a partition better than its live owner does. It still
        // claims unowned partitions: if all instances have the same problem, no other instance would.
        if too_early || !context.stalled.partitions.is_empty() { without_takeovers(plan) } else { plan }
    }

    fn idle_owners(&mut self, context: &mut Context, view: &View<'_>, policy: &Policy) -> BTreeSet<OwnerId> {
        let (outage_ended, now, limit) = (context.outage_ended, context.now, context.settings.lease_duration());
        let idle = self.idleness.note(view, policy, outage_ended, now, limit);
        idle.difference(&self.idle).for_each(|owner| context.note(Note::OwnerIdle(owner.clone())));
        self.idle.clone_from(&idle);
        idle
    }
}

/// Counts claims that are under way as won, so that this instance does not exceed its share. Requested handoffs count,
/// too.
fn with_operations_under_way<'a>(view: &View<'a>, partitions: &Partitions) -> View<'a> {
    let mut view = view.clone();
    for entry in &mut view.partitions {
        if partitions.is_claiming(&entry.partition) {
            *entry = PartitionView::new(entry.partition.clone(), PartitionOwner::Reclaimable);
        } else if matches!(entry.owner, PartitionOwner::Other(_)) && partitions.awaits_handoff(&entry.partition) {
            entry.handoff_to = Some(view.me.clone());
        }
    }
    view
}

fn policy(context: &Context, partitions: &Partitions, view: &View<'_>) -> Policy {
    let (settings, stalled) = (&context.settings, &context.stalled.partitions);
    let loads = view.records.values().filter_map(|seen| Some((seen.partition.clone(), seen.record.load?)));
    Policy {
        strategy: settings.config.load_balancing_strategy.clone(),
        max_partitions: settings.config.max_partitions,
        avoid: partitions.not_to_claim(context.now).chain(stalled).cloned().collect(),
        handoff: settings.hands_over(),
        loads: loads.collect(),
        ..Policy::default()
    }
}

fn without_new_claims(mut plan: Plan) -> Plan {
    plan.claim.retain(|planned| !planned.reason.is_unowned());
    without_takeovers(plan)
}

fn without_takeovers(mut plan: Plan) -> Plan {
    plan.handoff.clear();
    plan.claim.retain(|planned| !matches!(planned.reason, ClaimReason::Stolen(_)));
    plan
}

/// Returns whether the heartbeats must be listed before the plan counts: if they keep leases alive. If instances hand
/// partitions over, also before this instance takes anything; if a handoff of an owned partition is requested, because
/// the requesting instance may have expired; and if an unowned partition is left to an instance that had a heartbeat in
/// the last listing of them, or is reserved for one, because that instance may be gone.
pub(super) fn needs_heartbeats(context: &Context, partitions: &Partitions, view: &View<'_>, plan: &Plan) -> bool {
    let kept_by_heartbeat = view.records.values().any(|seen| seen.is_kept_alive_by_heartbeat(&context.settings.this));
    let takes = !(plan.claim.is_empty() && plan.handoff.is_empty());
    let is_requested =
        || partitions.owned().any(|(id, _)| view.record(id).is_some_and(|seen| seen.record.handoff_to.is_some()));
    let leaves_to_others = || {
        let left = view.has_reserved() || (!view.present.is_empty() && view.has_unowned());
        left && !context.claims_nothing()
    };
    kept_by_heartbeat || (context.settings.hands_over() && (takes || is_requested() || leaves_to_others()))
}

/// Drops the partitions that have another owner, or none, by the listing.
pub(super) fn drop_lost(context: &mut Context, partitions: &mut Partitions, view: &View<'_>) {
    let before: Vec<_> = partitions.owned().map(|(partition, _)| partition.clone()).collect();
    for partition in before {
        let owner = view.owner(&partition);
        if owner == Some(&PartitionOwner::This) || view.removed.contains(&partition) {
            continue;
        }
        let by = match owner {
            Some(PartitionOwner::Other(owner) | PartitionOwner::Expired(owner)) => Some(owner.clone()),
            _ => None,
        };
        partitions.remove(&partition);
        context.owner_is(&partition, owner.cloned().unwrap_or(PartitionOwner::Unowned));
        context.emit(OwnershipEvent::Lost { partition, by });
    }
}

/// Returns whether every partition has a live owner of this crate, as far as this instance can see.
pub(super) fn is_settled(view: &View<'_>) -> bool {
    let owned = |entry: &PartitionView| {
        matches!(entry.owner, PartitionOwner::This | PartitionOwner::Other(_)) && entry.handoff_to.is_none()
    };
    !view.foreign_owner && view.partitions.iter().all(owned)
}
