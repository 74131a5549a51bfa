//! The heartbeat of this instance. Other instances count this one by its heartbeat while it owns nothing. With the
//! lease scope [`Instance`](LeaseScope::Instance), the heartbeat also keeps its leases alive.

use super::action::Request;
use super::context::Context;
use super::events::OwnershipEvent;
use super::note::Note;
use super::partitions::Partitions;
use crate::error::Result;
use crate::model::{Heartbeat, LeaseScope, Moment, OwnerId};
use crate::planner::{PartitionOwner, PartitionView, View};
use crate::store::membership::{HeartbeatOutcome, stale_age};

/// What this instance wrote about itself, and the heartbeats of the other instances.
#[derive(Debug, Default)]
pub(super) struct OwnHeartbeat {
    /// Whether a heartbeat of this instance may exist.
    may_exist: bool,
    /// How many writes and deletions of the heartbeat are under way.
    under_way: u32,
    /// When the write that is under way was sent.
    sent: Moment,
    /// Whether the first attempt to write it has ended.
    attempted: bool,
    /// When to write it again; `None`: at once.
    next: Option<Moment>,
    /// How many writes have failed in a row.
    failures: u32,
    /// The heartbeats as last listed, including that of this instance.
    pub(super) listed: Vec<Heartbeat>,
}

impl OwnHeartbeat {
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Returns whether this instance needs a heartbeat. An instance that would not claim a share must not have one,
    /// unless the heartbeat keeps leases alive.
    fn is_wanted(context: &Context, partitions: &Partitions) -> bool {
        if context.is_ending() {
            return false;
        }
        let takes_part = context.takes_part() && context.settings.config.max_partitions != Some(0);
        let by_heartbeat = partitions.kept_alive_by.scope == LeaseScope::Instance;
        let must_count = by_heartbeat || (context.settings.hands_over() && partitions.holds_nothing());
        partitions.any_by_heartbeat() || (takes_part && must_count)
    }

    /// Returns when to write it next.
    pub(super) fn next(&self, context: &Context, partitions: &Partitions) -> Option<Moment> {
        let due = Self::is_wanted(context, partitions) && !self.is_busy();
        due.then(|| self.next.unwrap_or(Moment::ZERO))
    }

    /// Writes it when it is due, and deletes it if this instance does not take part anymore. Returns whether a write
    /// begins.
    pub(super) fn keep(&mut self, context: &mut Context, partitions: &Partitions) -> bool {
        if self.is_busy() {
            return false;
        }
        if !Self::is_wanted(context, partitions) {
            self.next = None;
            // While this instance owns partitions, other instances count it anyway, and an old heartbeat does no harm.
            // It must be deleted only if the instance does not take part.
            if !context.takes_part() {
                self.remove(context, false);
            }
            return false;
        }
        let is_due = self.next(context, partitions).is_some_and(|due| due <= context.now);
        if is_due {
            self.send(context);
        }
        is_due
    }

    /// Deletes it. At shutdown, a deletion that fails is repeated for as long as the shutdown may take: while the
    /// heartbeat exists, other instances leave a share to this one.
    pub(super) fn remove(&mut self, context: &mut Context, persistently: bool) {
        if std::mem::take(&mut self.may_exist) {
            self.under_way += 1;
            context.request(Request::RemoveHeartbeat { persistently });
        }
    }

    /// Writes it once more if it keeps alive the leases that are kept for the restart of this owner, and deletes it
    /// otherwise.
    pub(super) fn end_and_keep(&mut self, context: &mut Context, partitions: &Partitions) {
        if !partitions.any_by_heartbeat() {
            return self.remove(context, true);
        }
        if !self.is_busy() {
            self.send(context);
        }
    }

    fn send(&mut self, context: &mut Context) {
        self.under_way += 1;
        (self.may_exist, self.sent) = (true, context.now);
        context.request(Request::SendHeartbeat);
    }

    /// Returns whether it was the first attempt.
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
                let valid_from = partitions.kept_alive_by.heartbeat.map(|heartbeat| heartbeat.last).unwrap_or_default();
                self.next = Some(context.retry_at(self.failures, valid_from, &error));
                self.failures = self.failures.saturating_add(1);
                context.note(Note::HeartbeatFailed(error));
            }
        }
        !std::mem::replace(&mut self.attempted, true)
    }

    pub(super) fn on_removed(&mut self, context: &mut Context, outcome: Result<()>) {
        self.under_way -= 1;
        if let Err(error) = outcome {
            context.note(Note::HeartbeatFailed(error));
        }
    }

    pub(super) fn on_listed(&mut self, context: &mut Context, heartbeats: Vec<Heartbeat>) {
        let durations = context.settings.lease_durations;
        if heartbeats.iter().any(|seen| seen.age_at(context.now) > stale_age(&seen.record, durations)) {
            context.request(Request::DeleteHeartbeats(heartbeats.clone()));
        }
        self.listed = heartbeats;
    }
}

/// Reports which stale heartbeats were deleted. A failure does no harm: a later listing tries again.
pub(super) fn on_deleted(context: &mut Context, outcome: Result<Vec<OwnerId>>) {
    match outcome {
        Ok(owners) => owners.into_iter().for_each(|owner| context.note(Note::HeartbeatDeleted(owner))),
        Err(error) => context.note(Note::HeartbeatFailed(error)),
    }
}

/// Stops using the lease scope [`Instance`](LeaseScope::Instance), because another SDK is active in the group. Other
/// SDKs consider such leases expired.
pub(super) fn fall_back(context: &mut Context, partitions: &mut Partitions, view: &View<'_>) {
    if partitions.kept_alive_by.scope == LeaseScope::Partition {
        return;
    }
    let is_live = |entry: &&PartitionView| matches!(entry.owner, PartitionOwner::Other(_));
    let mut records = view.partitions.iter().filter(is_live).filter_map(|entry| view.record(&entry.partition));
    let foreign = records.find(|seen| seen.record.incarnation.is_none());
    partitions.set_scope(LeaseScope::Partition);
    context.note(Note::ScopeGivenUp(foreign.and_then(|seen| seen.record.owner.clone())));
    context.change();
}
