//! Cycles: when the ownerships are listed, and what a listing leads to.

use std::collections::BTreeSet;

use super::action::Request;
use super::context::Context;
use super::events::OwnershipEvent;
use super::note::Note;
use super::pacing::Pacing;
use super::partitions::Partitions;
use super::settings::Settings;
use crate::error::{Error, ErrorKind};
use crate::model::{Moment, OwnerId, Ownership, PartitionId};
use crate::planner::{ClaimReason, Idleness, PartitionOwner, PartitionView, Plan, Policy, View, plan};

/// What this instance remembers from cycle to cycle.
#[derive(Debug)]
pub(super) struct Cycles {
    /// When the next one begins; `None` while one is under way.
    next: Option<Moment>,
    pacing: Pacing,
    /// When the listing of the one that is under way was asked for.
    asked: Moment,
    /// What that showed, while the other owners are listed.
    listed: Vec<Ownership>,
    idleness: Idleness,
    /// Owners that the last cycle found idle.
    idle: BTreeSet<OwnerId>,
    /// Partitions whose owner in the other tree of names was reported.
    elsewhere: BTreeSet<PartitionId>,
}

/// What a cycle must list before it can act, beyond the ownerships of its tree of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    Heartbeats,
    OtherNameCase,
    Both,
}

impl Cycles {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            next: None,
            pacing: Pacing::new(settings.interval(), settings.lease_duration()),
            asked: Moment::ZERO,
            listed: Vec::new(),
            idleness: Idleness::default(),
            idle: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
        }
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.next
    }

    pub(super) fn asked(&self) -> Moment {
        self.asked
    }

    /// The next cycle begins at once.
    pub(super) fn begin(&mut self, context: &Context) {
        self.next = Some(context.now);
    }

    pub(super) fn start_listing(&mut self, context: &mut Context) {
        let Some(due) = self.next.filter(|due| *due <= context.now) else { return };
        (self.next, self.asked) = (None, context.now);
        let late = context.now.saturating_sub(due);
        if late > context.settings.interval() / 2 {
            context.note(Note::CycleLate(late));
        }
        context.request(Request::List);
    }

    /// Something has changed, so that the next cycle is not to come late. While a listing is under way, its outcome will
    /// be read with the change.
    pub(super) fn list_soon(&mut self, context: &mut Context) {
        self.pacing.disturb();
        let soon = context.now + self.pacing.pause(context.chance());
        self.next = self.next.map(|next| next.min(soon));
    }

    pub(super) fn on_failed(&mut self, context: &mut Context, error: Error) {
        let soon = self.pacing.failed(context.settings.retry_pause(), context.chance());
        // An instance that is asked for fewer requests does not hurry.
        let pause = if matches!(error.kind(), ErrorKind::Throttled { .. }) {
            soon.max(self.pacing.pause(context.chance())).max(context.settings.asked_to_wait(&error))
        } else {
            soon
        };
        context.note(Note::CycleFailed(error, pause));
        self.next = Some(context.now + pause);
    }

    /// Keeps what was listed, and lists the other owners.
    pub(super) fn list_others(&mut self, context: &mut Context, needs: Needs, listed: Vec<Ownership>) {
        self.listed = listed;
        context.request(Request::ListOthers {
            heartbeats: matches!(needs, Needs::Heartbeats | Needs::Both),
            other_name_case: matches!(needs, Needs::OtherNameCase | Needs::Both),
        });
    }

    pub(super) fn take_listed(&mut self) -> Vec<Ownership> {
        std::mem::take(&mut self.listed)
    }

    /// A cycle has succeeded. A calm one found nothing new and nothing to do.
    pub(super) fn on_succeeded(&mut self, context: &mut Context, calm: bool) {
        context.note(Note::CycleTook(context.now.saturating_sub(self.asked)));
        self.pacing.cycle(calm);
        self.next = Some(context.now + self.pacing.pause(context.chance()));
    }

    /// Reports partitions that are owned in the other tree of names, once for each time that they are found so.
    pub(super) fn note_other_name_case(&mut self, context: &mut Context, view: &View<'_>) {
        let mut elsewhere = BTreeSet::new();
        for entry in &view.partitions {
            let PartitionOwner::OtherNameCase(owner) = &entry.owner else { continue };
            if !self.elsewhere.contains(&entry.partition) {
                context.note(Note::InOtherNameCase(entry.partition.clone(), owner.clone()));
            }
            elsewhere.insert(entry.partition.clone());
        }
        self.elsewhere = elsewhere;
    }

    /// What to do about a view. In its first cycle an instance takes nothing from live owners: others that start
    /// together with it have announced themselves by the second, and nothing moves twice.
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
        let first = is_first && policy.handoff;
        // An instance with a stuck batch would serve no partition better than its live owner. It takes unowned
        // partitions: with the same fault everywhere, no other instance would.
        if first || !context.stalled.partitions.is_empty() { without_takeovers(plan) } else { plan }
    }

    fn idle_owners(&mut self, context: &mut Context, view: &View<'_>, policy: &Policy) -> BTreeSet<OwnerId> {
        let (outage_ended, now, limit) = (context.outage_ended, context.now, context.settings.lease_duration());
        let idle = self.idleness.note(view, policy, outage_ended, now, limit);
        idle.difference(&self.idle).for_each(|owner| context.note(Note::OwnerIdle(owner.clone())));
        self.idle.clone_from(&idle);
        idle
    }
}

/// Claims that are under way count as won, so that what they win is not too much. What was asked for counts as well.
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

fn without_takeovers(mut plan: Plan) -> Plan {
    plan.handoff.clear();
    plan.claim.retain(|planned| !matches!(planned.reason, ClaimReason::Stolen(_)));
    plan
}

/// What must be listed before the plan counts. The other tree, before anything is taken. The presences, where owners
/// live by them; and among instances that hand over, before anything is taken, for a mark, whose author may have died,
/// and where something unowned is left to an owner that was present when that was last looked at, and may have gone.
pub(super) fn needs(context: &Context, partitions: &Partitions, view: &View<'_>, plan: &Plan) -> Needs {
    let takes = !(plan.claim.is_empty() && plan.handoff.is_empty());
    let other_tree = takes && context.settings.has_other_name_case;
    let by_presence = view.records.values().any(|seen| seen.is_kept_alive_by_heartbeat(&context.settings.this));
    let is_asked =
        || partitions.owned().any(|(id, _)| view.record(id).is_some_and(|seen| seen.record.handoff_to.is_some()));
    let leaves_to_others = || !context.claims_nothing() && !view.present.is_empty() && view.has_unowned();
    let presences = by_presence || (context.settings.hands_over() && (takes || is_asked() || leaves_to_others()));
    match (presences, other_tree) {
        (false, false) => Needs::Nothing,
        (true, false) => Needs::Heartbeats,
        (false, true) => Needs::OtherNameCase,
        (true, true) => Needs::Both,
    }
}

/// Drops what the listing shows in other hands, or in none.
pub(super) fn drop_lost(context: &mut Context, partitions: &mut Partitions, view: &View<'_>) {
    let held: Vec<_> = partitions.owned().map(|(partition, _)| partition.clone()).collect();
    for partition in held {
        let holder = view.owner(&partition);
        if holder == Some(&PartitionOwner::This) || view.removed.contains(&partition) {
            continue;
        }
        let by = match holder {
            Some(
                PartitionOwner::Other(owner) | PartitionOwner::OtherNameCase(owner) | PartitionOwner::Expired(owner),
            ) => Some(owner.clone()),
            _ => None,
        };
        partitions.remove(&partition);
        context.owner_is(&partition, holder.cloned().unwrap_or(PartitionOwner::Unowned));
        context.emit(OwnershipEvent::Lost { partition, by });
    }
}

/// Whether every partition has a live owner of this crate, as far as that can be seen.
pub(super) fn is_settled(view: &View<'_>) -> bool {
    let owned = |entry: &PartitionView| {
        matches!(entry.owner, PartitionOwner::This | PartitionOwner::Other(_)) && entry.handoff_to.is_none()
    };
    !view.foreign_owner && view.partitions.iter().all(owned)
}
