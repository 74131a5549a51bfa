//! The presence of this instance: it is written so that other instances count this one while it owns nothing, and so
//! that its ownerships live by it if its lease scope is [`Instance`](LeaseScope::Instance).

use super::action::{Action, Request};
use super::context::Context;
use super::events::OwnershipEvent;
use super::note::Note;
use super::partitions::Partitions;
use crate::error::Result;
use crate::model::{Heartbeat, LeaseScope, Moment, OwnerId};
use crate::planner::{PartitionOwner, PartitionView, View};
use crate::store::HeartbeatOutcome;

/// What this instance wrote of itself, and what it knows of the presences of others.
#[derive(Debug, Default)]
pub(super) struct OwnHeartbeat {
    /// Something of this instance may be there.
    is_there: bool,
    /// How many announcements and withdrawals are under way.
    under_way: u32,
    /// When the announcement that is under way was sent.
    sent: Moment,
    /// The first announcement has been made, or could not be.
    begun: bool,
    /// When to announce again; `None`: at once.
    next: Option<Moment>,
    /// How many announcements have failed in a row.
    failures: u32,
    /// The presences as last listed, this instance's among them.
    pub(super) listed: Vec<Heartbeat>,
}

impl OwnHeartbeat {
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// An instance that would not claim a share must not be given one. What lives by the presence needs it in any case.
    fn is_wanted(context: &Context, partitions: &Partitions) -> bool {
        if context.is_ending() {
            return false;
        }
        let takes_part = !context.claims_nothing() && context.settings.config.max_partitions != Some(0);
        let by_presence = partitions.kept_alive_by.scope == LeaseScope::Instance;
        let is_to_be_counted = by_presence || (context.settings.hands_over() && partitions.holds_nothing());
        partitions.any_by_heartbeat() || (takes_part && is_to_be_counted)
    }

    /// When it is written next.
    pub(super) fn next(&self, context: &Context, partitions: &Partitions) -> Option<Moment> {
        let due = Self::is_wanted(context, partitions) && !self.is_busy();
        due.then(|| self.next.unwrap_or(Moment::ZERO))
    }

    /// Writes it when it is due, and deletes it when this instance takes no part any more. Returns whether it is being
    /// written.
    pub(super) fn keep(&mut self, context: &mut Context, partitions: &Partitions) -> bool {
        if self.is_busy() {
            return false;
        }
        if !Self::is_wanted(context, partitions) {
            self.next = None;
            // What is owned shows the same, as long as it is owned; only an instance that takes no part must not count.
            if context.claims_nothing() {
                self.remove(context, false);
            }
            return false;
        }
        let is_due = self.next(context, partitions).is_some_and(|due| due <= context.now);
        if is_due {
            self.announce(context);
        }
        is_due
    }

    /// At the end the withdrawal is repeated as long as that may take: while the presence is there, other instances
    /// leave a share to this one.
    pub(super) fn remove(&mut self, context: &mut Context, persistently: bool) {
        if std::mem::take(&mut self.is_there) {
            self.under_way += 1;
            context.request(Request::RemoveHeartbeat { persistently });
        }
    }

    /// What is left for the restart of this owner lives by its presence, or does without.
    pub(super) fn end_and_keep(&mut self, context: &mut Context, partitions: &Partitions) {
        if !partitions.any_by_heartbeat() {
            return self.remove(context, true);
        }
        if !self.is_busy() {
            self.announce(context);
        }
    }

    fn announce(&mut self, context: &mut Context) {
        self.under_way += 1;
        (self.is_there, self.sent) = (true, context.now);
        context.request(Request::SendHeartbeat);
    }

    /// Returns whether it was the first announcement.
    pub(super) fn on_sent(
        &mut self,
        context: &mut Context,
        partitions: &mut Partitions,
        outcome: Result<HeartbeatOutcome>,
    ) -> bool {
        self.under_way -= 1;
        match outcome {
            Ok(HeartbeatOutcome::Written) => {
                partitions.heartbeat_sent(self.sent);
                self.failures = 0;
                self.next = Some(self.sent + context.settings.lease_duration() / 2);
            }
            Ok(HeartbeatOutcome::DeclaredDead { by }) => {
                partitions.declared_dead();
                self.next = None;
                context.emit(OwnershipEvent::DeclaredDead { by });
            }
            Ok(HeartbeatOutcome::Replaced { by }) => context.replaced(by),
            Err(error) => {
                let valid_from = partitions.kept_alive_by.heartbeat.map(|presence| presence.last).unwrap_or_default();
                self.next = Some(context.try_again_at(self.failures, valid_from, &error));
                self.failures = self.failures.saturating_add(1);
                context.note(Note::HeartbeatFailed(error));
            }
        }
        !std::mem::replace(&mut self.begun, true)
    }

    pub(super) fn on_removed(&mut self, context: &mut Context, outcome: Result<()>) {
        self.under_way -= 1;
        if let Err(error) = outcome {
            context.note(Note::HeartbeatFailed(error));
        }
    }

    pub(super) fn on_listed(&mut self, context: &mut Context, presences: Vec<Heartbeat>) {
        let long_dead = 10 * context.settings.lease_duration();
        if presences.iter().any(|seen| seen.age_at(context.now) > long_dead) {
            context.request(Request::DeleteHeartbeats(presences.clone()));
        }
        self.listed = presences;
    }
}

/// The presences of dead owners were deleted. They do no harm: a later listing tries again.
pub(super) fn on_deleted(context: &mut Context, outcome: Result<Vec<OwnerId>>) {
    match outcome {
        Ok(owners) => owners.into_iter().for_each(|owner| context.note(Note::HeartbeatDeleted(owner))),
        Err(error) => context.note(Note::HeartbeatFailed(error)),
    }
}

/// Another SDK is at work in the group, to which ownerships that live by a presence look abandoned.
pub(super) fn fall_back(context: &mut Context, partitions: &mut Partitions, view: &View<'_>) {
    if partitions.kept_alive_by.scope == LeaseScope::Partition {
        return;
    }
    let is_live = |entry: &&PartitionView| matches!(entry.owner, PartitionOwner::Other(_));
    let mut records = view.partitions.iter().filter(is_live).filter_map(|entry| view.record(&entry.partition));
    let foreign = records.find(|seen| seen.record.incarnation.is_none());
    partitions.set_scope(LeaseScope::Partition);
    context.act(Action::FallBack);
    context.note(Note::ScopeGivenUp(foreign.and_then(|seen| seen.record.owner.clone())));
    context.change();
}
