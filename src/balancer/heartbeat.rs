//! The heartbeat of this instance. Other instances count this one by its heartbeat while it owns nothing. With the
//! lease scope [`Instance`](LeaseScope::Instance), the heartbeat also keeps its leases alive.

use std::sync::Arc;

use super::config::heartbeat_wait;
use super::context::Context;
use super::events::{Note, OwnershipEvent};
use super::partitions::Partitions;
use super::step::StorageRequest;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Heartbeat, LeaseScope, Moment, OwnerId};
use crate::planner::{PartitionOwner, View};
use crate::store::membership::{HeartbeatOutcome, is_stale};

/// The leases are renewed individually once the heartbeat has failed for the lease duration divided by this. Then as
/// much time is left as if they had always been.
const LATE_AFTER: u32 = 4;

/// An end that has failed is tried again after the lease duration divided by this: for so long at least, other
/// instances leave a share to this one.
const END_AGAIN_AFTER: u32 = 8;

/// What this instance wrote about itself, and the heartbeats of the other instances.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct HeartbeatKeeper {
    /// Whether a heartbeat of this instance may exist, and has not ended.
    may_exist: bool,
    /// Whether the beacon was lit for it.
    announced: bool,
    /// Whether the last attempt to end it was repeated until it could not help anymore.
    ends_persistently: bool,
    /// When to try again to end it, after a failure.
    next_end_at: Option<Moment>,
    /// How many writes and ends of the heartbeat are under way.
    under_way: u32,
    /// When the write that is under way was sent.
    sent: Moment,
    /// Whether the first attempt to write it has ended.
    attempted: bool,
    /// When to write it again; `None`: at once.
    next_write_at: Option<Moment>,
    /// How many writes have failed in a row.
    failures: u32,
    /// When the first write after the last success was sent.
    trying_since: Option<Moment>,
    /// Why the last write failed.
    error: Option<Arc<Error>>,
    /// Whether an owner of another SDK was found, so that the heartbeat keeps no leases alive anymore.
    scope_given_up: bool,
    /// Whether the storage does not permit this instance to delete blobs.
    may_not_delete: bool,
    /// The heartbeats as last listed, including the heartbeat of this instance.
    pub(super) listed: Vec<Heartbeat>,
}

impl HeartbeatKeeper {
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Returns what keeps the leases alive while heartbeats succeed.
    fn lease_scope(&self, context: &Context) -> LeaseScope {
        if self.scope_given_up { LeaseScope::Partition } else { context.settings.config.lease_scope }
    }

    /// Returns since when it could not be written, and the last error, if there is one.
    pub(super) fn failing_since(&self) -> Option<(Moment, &Arc<Error>)> {
        self.trying_since.zip(self.error.as_ref())
    }

    /// Returns whether this instance needs a heartbeat. An instance that would not claim a share must not have one,
    /// unless the heartbeat keeps leases alive.
    fn is_wanted(&self, context: &Context, partitions: &Partitions) -> bool {
        if context.is_ending() {
            return false;
        }
        let takes_part = context.takes_part() && context.settings.config.max_partitions != Some(0);
        let must_count = self.lease_scope(context) == LeaseScope::Instance
            || (context.settings.hands_over() && partitions.owned_leases().next().is_none());
        partitions.any_kept_alive_by_heartbeat() || (takes_part && must_count)
    }

    /// Returns when to write or to end it next, or to renew the leases without it.
    pub(super) fn next_wake(&self, context: &Context, partitions: &Partitions) -> Option<Moment> {
        [
            self.write_due_at(context, partitions),
            self.late_at(context, partitions),
            self.next_end_at.filter(|_| !context.takes_part() && !self.is_busy()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn write_due_at(&self, context: &Context, partitions: &Partitions) -> Option<Moment> {
        (self.is_wanted(context, partitions) && !self.is_busy()).then(|| self.next_write_at.unwrap_or(Moment::ZERO))
    }

    /// Returns when the leases that it keeps alive must be renewed without it, unless it is written before.
    fn late_at(&self, context: &Context, partitions: &Partitions) -> Option<Moment> {
        let since = self.trying_since.filter(|_| partitions.kept_alive_by.scope == LeaseScope::Instance)?;
        Some(since + context.settings.lease_duration() / LATE_AFTER)
    }

    /// Renews the leases individually if it is late, so that other instances do not take the partitions, and so that
    /// this one can claim. Its record need not be wrong: a rule of a proxy, or a lease on the blob, is enough.
    pub(super) fn fall_back_if_late(&self, context: &mut Context, partitions: &mut Partitions) {
        if self.late_at(context, partitions).is_some_and(|late| late <= context.now) {
            partitions.set_scope(LeaseScope::Partition);
            context.push_note(Note::HeartbeatLate);
            context.request_snapshot();
            context.bring_cycle_forward();
        }
    }

    /// Lets it keep the leases alive again.
    fn restore_scope(&self, context: &mut Context, partitions: &mut Partitions) {
        let scope = self.lease_scope(context);
        if partitions.kept_alive_by.scope != scope {
            partitions.set_scope(scope);
            context.push_note(Note::HeartbeatBack);
            context.request_snapshot();
        }
    }

    /// Ends the wait for the next attempt, because the storage responds again: until it is written, other instances
    /// take over what it kept alive.
    pub(super) fn retry_now(&mut self) {
        if self.failures > 0 {
            self.next_write_at = None;
        }
    }

    /// Writes it when it is due, and ends it if this instance no longer takes part. Returns whether a write begins.
    pub(super) fn write_or_end(&mut self, context: &mut Context, partitions: &mut Partitions) -> bool {
        if self.is_busy() {
            return false;
        }
        if !self.is_wanted(context, partitions) {
            self.next_write_at = None;
            self.trying_since = None;
            self.error = None;
            // While this instance owns partitions, other instances count it anyway, and an old heartbeat does no harm.
            // It must end only if the instance does not take part.
            if !context.takes_part() && self.next_end_at.is_none_or(|at| at <= context.now) {
                self.end_heartbeat(context, partitions, false);
            }
            return false;
        }
        let is_due = self.write_due_at(context, partitions).is_some_and(|due| due <= context.now);
        if is_due {
            self.send_heartbeat(context);
        }
        is_due
    }

    /// Ends it. A claim that is still under way must not count on it: after the end, other instances declare nothing.
    ///
    /// At shutdown, a write that fails is repeated for as long as the shutdown may take: until then, other instances
    /// leave a share to this one.
    pub(super) fn end_heartbeat(&mut self, context: &mut Context, partitions: &mut Partitions, persistently: bool) {
        if std::mem::take(&mut self.may_exist) {
            self.under_way += 1;
            self.next_end_at = None;
            self.announced = false;
            self.ends_persistently = persistently;
            partitions.record_invalid_heartbeat();
            context.push_request(StorageRequest::EndHeartbeat { persistently });
        }
    }

    /// Writes it once more if it keeps alive the leases that are kept for the restart of this owner; otherwise ends it.
    pub(super) fn end_and_keep(&mut self, context: &mut Context, partitions: &mut Partitions) {
        if !partitions.any_kept_alive_by_heartbeat() {
            return self.end_heartbeat(context, partitions, true);
        }
        if !self.is_busy() {
            self.send_heartbeat(context);
        }
    }

    fn send_heartbeat(&mut self, context: &mut Context) {
        self.under_way += 1;
        self.may_exist = true;
        self.next_end_at = None;
        self.sent = context.now;
        self.trying_since.get_or_insert(context.now);
        context.push_request(StorageRequest::SendHeartbeat);
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
                self.restore_scope(context, partitions);
                partitions.record_sent_heartbeat(self.sent);
                if !std::mem::replace(&mut self.announced, true) {
                    context.call_others();
                }
                self.failures = 0;
                self.trying_since = None;
                self.error = None;
                self.next_write_at = Some(self.sent + heartbeat_wait(context.settings.lease_duration()));
            }
            Ok(HeartbeatOutcome::DeclaredDead { by }) => {
                partitions.record_invalid_heartbeat();
                self.next_write_at = None;
                context.push_event(OwnershipEvent::DeclaredDead { by });
            }
            Ok(HeartbeatOutcome::Replaced { by }) => context.end_as_replaced(by),
            Err(error) => {
                let valid_from = partitions.kept_alive_by.heartbeat.map(|heartbeat| heartbeat.last).unwrap_or_default();
                // More often than the renewal of a lease, because all leases may depend on it.
                let longest = context.settings.lease_duration() / 16;
                self.next_write_at = Some(context.renewal_retry_at(longest, self.failures, valid_from, &error));
                self.failures = self.failures.saturating_add(1);
                let error = Arc::new(error);
                self.error = Some(Arc::clone(&error));
                context.push_note(if self.lease_scope(context) == LeaseScope::Instance {
                    Note::KeepAliveFailed(error)
                } else {
                    Note::HeartbeatFailed(error)
                });
            }
        }
        !std::mem::replace(&mut self.attempted, true)
    }

    pub(super) fn on_ended(&mut self, context: &mut Context, partitions: &mut Partitions, outcome: Result<()>) {
        self.under_way -= 1;
        let Err(error) = outcome else { return };
        context.push_note(Note::HeartbeatNotEnded(error));
        if self.ends_persistently {
            return;
        }
        self.may_exist = true;
        self.next_end_at = Some(context.now + context.settings.lease_duration() / END_AGAIN_AFTER);
        if context.is_ending() {
            self.end_heartbeat(context, partitions, true);
        }
    }

    pub(super) fn on_listed(&mut self, context: &mut Context, heartbeats: Vec<Heartbeat>) {
        let durations = context.settings.lease_durations;
        let any_stale = heartbeats.iter().any(|seen| is_stale(seen, durations, context.now));
        if any_stale && !self.may_not_delete {
            context.push_request(StorageRequest::DeleteHeartbeats(heartbeats.clone()));
        }
        self.listed = heartbeats;
    }

    /// Reports which stale heartbeats were deleted. A failure does no harm: a later listing tries again, unless the
    /// permission is missing.
    pub(super) fn on_deleted(&mut self, context: &mut Context, outcome: Result<Vec<OwnerId>>) {
        match outcome {
            Ok(owners) => owners.into_iter().for_each(|owner| context.push_note(Note::HeartbeatDeleted(owner))),
            Err(error) => {
                self.may_not_delete = error.kind() == ErrorKind::Unauthorized;
                context.push_note(Note::StaleHeartbeatsStay(error));
            }
        }
    }

    /// Stops using the lease scope [`Instance`](LeaseScope::Instance), because another SDK is active in the group.
    /// Other SDKs consider such leases expired.
    pub(super) fn give_up_scope(&mut self, context: &mut Context, partitions: &mut Partitions, view: &View<'_>) {
        if self.lease_scope(context) == LeaseScope::Partition {
            return;
        }
        let live = view.partitions.iter().filter(|entry| matches!(entry.owner, PartitionOwner::Other(_)));
        let foreign =
            live.filter_map(|entry| view.record_of(&entry.partition)).find(|seen| seen.record.incarnation.is_none());
        self.scope_given_up = true;
        partitions.set_scope(LeaseScope::Partition);
        context.push_note(Note::ScopeGivenUp(foreign.and_then(|seen| seen.record.owner.clone())));
        context.request_snapshot();
    }
}
