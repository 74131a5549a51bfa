//! What this instance does with each partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::handle::LeftOwned;
use super::lease::{HeartbeatSince, KeptAliveBy, OwnedLease, Renewed};
use super::retries::Turns;
use crate::error::Error;
use crate::model::{LeaseScope, Moment, OwnerId, PartitionId};
use crate::planner::{ClaimReason, PartitionOwner, ReleaseReason, View};
use crate::store::Lease;
use crate::store::handoff::Handoff;

/// What this instance does with one partition.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "almost every partition is owned, which is the largest variant")]
pub(super) enum Activity {
    /// It writes a handoff request into the record.
    RequestingHandoff,
    /// It has requested a handoff, and waits for the owner.
    AwaitingHandoff(PendingHandoff),
    /// It claims the partition, perhaps after a handoff.
    Claiming { reason: ClaimReason, handoff: Option<PendingHandoff> },
    /// It owns the partition.
    Owned(OwnedLease),
    /// It writes the release.
    Releasing(ReleaseReason),
    /// It renews the lease for the last time, to keep the partition for its restart.
    Keeping,
}

/// A handoff that this instance requested and that is not completed.
#[derive(Debug)]
pub(super) struct PendingHandoff {
    pub(super) handoff: Handoff,
    /// When to poll it next; `None` while a poll is under way.
    pub(super) next: Option<Moment>,
    /// How many polls have failed in a row.
    pub(super) failures: u32,
}

/// Why a partition is not claimed for a while. Without this wait, one blob that cannot be written would take up the
/// claim of every cycle.
#[derive(Debug)]
struct Setback {
    failures: u32,
    until: Moment,
    /// Why the storage did not decide about the last claim.
    error: Option<Arc<Error>>,
}

/// How long the start of a partition may take before nothing more is claimed. A runtime that works needs milliseconds.
const START_LIMIT: Duration = Duration::from_secs(2);

/// What this instance does with each partition. Partitions without an entry are not in use.
#[derive(Debug)]
pub(super) struct Partitions {
    pub(super) activities: BTreeMap<PartitionId, Activity>,
    /// Partitions that must not be claimed now, whether they have an activity or not.
    setbacks: BTreeMap<PartitionId, Setback>,
    pub(super) kept_alive_by: KeptAliveBy,
    pub(super) turns: Turns,
    /// What the loop has left owned at its end, as far as it is known.
    pub(super) left: LeftOwned,
}

impl Partitions {
    pub(super) fn new(scope: LeaseScope) -> Self {
        Self {
            activities: BTreeMap::new(),
            setbacks: BTreeMap::new(),
            kept_alive_by: KeptAliveBy { scope, heartbeat: None },
            turns: Turns::default(),
            left: LeftOwned::default(),
        }
    }

    pub(super) fn owned(&self) -> impl Iterator<Item = (&PartitionId, &OwnedLease)> {
        self.activities.iter().filter_map(|(partition, activity)| match activity {
            Activity::Owned(owned) => Some((partition, owned)),
            _ => None,
        })
    }

    pub(super) fn owned_mut(&mut self) -> impl Iterator<Item = (&PartitionId, &mut OwnedLease)> {
        self.activities.iter_mut().filter_map(|(partition, activity)| match activity {
            Activity::Owned(owned) => Some((partition, owned)),
            _ => None,
        })
    }

    pub(super) fn get(&self, partition: &PartitionId) -> Option<&OwnedLease> {
        match self.activities.get(partition) {
            Some(Activity::Owned(owned)) => Some(owned),
            _ => None,
        }
    }

    /// Returns the lease of a partition, if it still has this epoch.
    pub(super) fn get_of(&mut self, partition: &PartitionId, epoch: i64) -> Option<&mut OwnedLease> {
        match self.activities.get_mut(partition) {
            Some(Activity::Owned(owned)) if owned.epoch() == epoch => Some(owned),
            _ => None,
        }
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.owned().next().is_none()
    }

    /// Returns whether a lease of this instance is valid: other instances see that it is alive.
    pub(super) fn has_valid_lease(&self, context: &Context) -> bool {
        self.owned()
            .any(|(_, owned)| context.now < owned.valid_from(self.kept_alive_by) + context.settings.lease_duration())
    }

    /// Returns whether no partition is owned, being claimed, or being released.
    pub(super) fn is_idle(&self) -> bool {
        !self.activities.values().any(is_in_use)
    }

    /// Returns the owned partitions, with the epoch of each.
    pub(super) fn epochs(&self) -> Vec<(PartitionId, i64)> {
        self.owned().map(|(partition, owned)| (partition.clone(), owned.epoch())).collect()
    }

    /// Returns the owned partitions that are to be processed, with the epoch of each.
    pub(super) fn kept(&self) -> BTreeMap<PartitionId, i64> {
        let kept = self.owned().filter(|(_, owned)| owned.is_kept());
        kept.map(|(partition, owned)| (partition.clone(), owned.epoch())).collect()
    }

    /// Returns the partitions whose processing must stop, and those that are being released, with the reason of each.
    pub(super) fn released(&self) -> BTreeMap<PartitionId, ReleaseReason> {
        let reason = |activity: &Activity| match activity {
            Activity::Owned(owned) => owned.release_reason(),
            Activity::Releasing(reason) => Some(*reason),
            _ => None,
        };
        self.activities
            .iter()
            .filter_map(|(partition, activity)| Some((partition.clone(), reason(activity)?)))
            .collect()
    }

    /// Returns the partitions that this instance has requested, with their owners.
    pub(super) fn requested_handoffs(&self) -> BTreeMap<PartitionId, OwnerId> {
        let owner = |activity: &Activity| Some(handoff_in(activity)?.handoff.owner().clone());
        self.activities.iter().filter_map(|(partition, activity)| Some((partition.clone(), owner(activity)?))).collect()
    }

    /// Returns whether this instance has requested a partition, or is about to.
    pub(super) fn awaits_handoff(&self, partition: &PartitionId) -> bool {
        let activity = self.activities.get(partition);
        activity
            .is_some_and(|activity| matches!(activity, Activity::RequestingHandoff) || handoff_in(activity).is_some())
    }

    /// Returns whether the start of a partition is overdue.
    pub(super) fn is_start_overdue(&self, now: Moment) -> bool {
        let Some(limit) = now.checked_sub(START_LIMIT) else { return false };
        self.owned().any(|(_, owned)| owned.awaits_start_since(limit))
    }

    pub(super) fn is_claiming(&self, partition: &PartitionId) -> bool {
        matches!(self.activities.get(partition), Some(Activity::Claiming { .. }))
    }

    /// Returns whether a claim of a partition that was unowned is under way, except for those that keep failing.
    pub(super) fn is_claiming_unowned(&self) -> bool {
        self.activities.iter().any(|(partition, activity)| match activity {
            Activity::Claiming { reason, handoff: None } => reason.is_unowned() && !self.keeps_failing(partition),
            _ => false,
        })
    }

    /// Returns whether the last claims of this partition failed. Nothing waits for it: a blob that cannot be written
    /// would hold up the rest of the group.
    pub(super) fn keeps_failing(&self, partition: &PartitionId) -> bool {
        self.setbacks.get(partition).is_some_and(|setback| setback.failures >= 2)
    }

    /// Returns the partitions that must not be claimed now: an operation on them is under way, or an attempt failed not
    /// long ago.
    pub(super) fn not_to_claim(&self, now: Moment) -> impl Iterator<Item = &PartitionId> {
        let is_busy = |activity: &Activity| {
            matches!(activity, Activity::RequestingHandoff | Activity::Claiming { .. } | Activity::Releasing(_))
        };
        let busy =
            self.activities.iter().filter(move |(_, activity)| is_busy(activity)).map(|(partition, _)| partition);
        let set_back = self.setbacks.iter().filter(move |(_, setback)| setback.until > now);
        busy.chain(set_back.map(|(partition, _)| partition))
    }

    /// Returns the partitions whose last claims failed because of the storage, and the last error of each.
    pub(super) fn unclaimable(&self) -> impl Iterator<Item = (&PartitionId, &Arc<Error>)> {
        let failing = self.setbacks.iter().filter(|(partition, _)| self.keeps_failing(partition));
        failing.filter_map(|(partition, setback)| Some((partition, setback.error.as_ref()?)))
    }

    /// Postpones the next claim of a partition, because of this error if the storage failed.
    pub(super) fn set_back(
        &mut self,
        context: &Context,
        partition: &PartitionId,
        at_least: Duration,
        error: Option<Arc<Error>>,
    ) {
        let failures = self.setbacks.get(partition).map_or(0, |setback| setback.failures);
        let until = context.now + context.settings.set_back(failures, at_least);
        self.setbacks.insert(partition.clone(), Setback { failures: failures.saturating_add(1), until, error });
    }

    /// Records that another writer has won a partition. Usually the next listing shows its owner, and until then it is
    /// not avoided. If it was lost before and still has no owner, its next claim is postponed.
    pub(super) fn lost_claim(&mut self, context: &Context, partition: &PartitionId) {
        if self.setbacks.contains_key(partition) {
            self.set_back(context, partition, Duration::ZERO, None);
        } else {
            self.setbacks.insert(partition.clone(), Setback { failures: 1, until: context.now, error: None });
        }
    }

    /// Returns when the first partition may be claimed again.
    pub(super) fn next_setback_end(&self, now: Moment) -> Option<Moment> {
        self.setbacks.values().map(|setback| setback.until).filter(|until| *until > now).min()
    }

    /// Forgets the setbacks that are over, of the partitions that have a live owner.
    pub(super) fn end_setbacks_of_owned(&mut self, view: &View<'_>, now: Moment) {
        self.setbacks.retain(|partition, setback| {
            let is_owned = matches!(view.owner(partition), Some(PartitionOwner::This | PartitionOwner::Other(_)));
            setback.until > now || !is_owned
        });
    }

    /// Allows claims of a partition again, because the storage has decided about it.
    pub(super) fn end_setback(&mut self, partition: &PartitionId) {
        self.setbacks.remove(partition);
    }

    /// Adds a lease that was won or renewed.
    pub(super) fn add(&mut self, context: &mut Context, lease: Lease) {
        let renewed =
            Renewed { at: context.now, spread: 1.0 - context.chance() / 10.0, pause: context.settings.retry_pause() };
        let partition = lease.partition().clone();
        let owned = OwnedLease::new(lease, self.get(&partition), renewed, self.kept_alive_by);
        self.activities.insert(partition, Activity::Owned(owned));
        self.storage_responds();
    }

    /// Ends the waits of failed renewals for their turns, because the storage responded to a claim or a renewal.
    pub(super) fn storage_responds(&mut self) {
        if self.turns.clear() {
            self.owned_mut().for_each(|(_, owned)| owned.has_turn());
        }
    }

    /// Removes a partition in any state.
    pub(super) fn remove(&mut self, partition: &PartitionId) {
        self.activities.remove(partition);
    }
}

/// What depends on all leases together.
impl Partitions {
    /// Returns when the next renewal is due, if each lease is renewed at this age.
    pub(super) fn next_due(&self, age: Duration) -> Option<Moment> {
        let turn = |owned: &OwnedLease| if owned.awaits_turn() { self.turns.next() } else { Moment::ZERO };
        self.owned().filter_map(|(_, owned)| Some(owned.due(age)?.max(turn(owned)))).min()
    }

    /// Returns the time since the oldest renewal of all leases; zero if there is no lease.
    pub(super) fn greatest_age(&self, now: Moment) -> Duration {
        let ages = self.owned().map(|(_, owned)| now.saturating_sub(owned.valid_from(self.kept_alive_by)));
        ages.max().unwrap_or_default()
    }

    /// Returns when the first lease is older than this.
    pub(super) fn next_lease_expiry(&self, lifetime: Duration) -> Option<Moment> {
        self.owned().map(|(_, owned)| owned.valid_from(self.kept_alive_by) + lifetime).min()
    }

    /// Returns when the first partition must be released although its handler has not stopped.
    pub(super) fn next_overdue(&self) -> Option<Moment> {
        self.owned().filter_map(|(_, owned)| owned.overdue_at()).min()
    }

    /// Returns when the first handoff must be polled.
    pub(super) fn next_poll(&self) -> Option<Moment> {
        let next = |activity: &Activity| match activity {
            Activity::AwaitingHandoff(pending) => pending.next,
            _ => None,
        };
        self.activities.values().filter_map(next).min()
    }

    /// Returns whether the heartbeat of this instance keeps any lease alive, by the records.
    pub(super) fn any_by_heartbeat(&self) -> bool {
        self.owned().any(|(_, owned)| owned.is_by_heartbeat())
    }

    /// Returns whether the last heartbeat was sent less than `lifetime` ago.
    pub(super) fn has_heartbeat(&self, lifetime: Duration, now: Moment) -> bool {
        self.kept_alive_by.heartbeat.is_some_and(|heartbeat| now < heartbeat.last + lifetime)
    }

    /// Returns whether a new claim would be kept alive.
    pub(super) fn may_claim(&self, context: &Context) -> bool {
        self.kept_alive_by.scope == LeaseScope::Partition
            || self.has_heartbeat(context.settings.lease_duration(), context.now)
    }

    /// Sets what keeps the leases alive from now on. Leases whose records differ are due for renewal.
    pub(super) fn set_scope(&mut self, scope: LeaseScope) {
        self.kept_alive_by.scope = scope;
        self.owned_mut().for_each(|(_, owned)| owned.set_scope(scope));
    }

    /// Records that a heartbeat was written, by a request that was sent at this moment.
    pub(super) fn heartbeat_sent(&mut self, sent: Moment) {
        let first = self.kept_alive_by.heartbeat.map_or(sent, |heartbeat| heartbeat.first);
        self.kept_alive_by.heartbeat = Some(HeartbeatSince { first, last: sent });
        let scope = self.kept_alive_by.scope;
        self.owned_mut().for_each(|(_, owned)| owned.require_rewrite_if_ambiguous(scope));
    }

    /// Records that the heartbeat does not count anymore, because it was declared dead or is being ended: other instances
    /// may have taken over the leases that it kept alive, or may be about to.
    pub(super) fn heartbeat_invalid(&mut self) {
        self.kept_alive_by.heartbeat = None;
        self.owned_mut().for_each(|(_, owned)| owned.set_ambiguous());
    }
}

/// Returns whether a partition is owned, being claimed, or being released.
pub(super) fn is_in_use(activity: &Activity) -> bool {
    match activity {
        Activity::Owned(_) | Activity::Claiming { .. } | Activity::Releasing(_) | Activity::Keeping => true,
        Activity::RequestingHandoff | Activity::AwaitingHandoff(_) => false,
    }
}

fn handoff_in(activity: &Activity) -> Option<&PendingHandoff> {
    match activity {
        Activity::AwaitingHandoff(pending) | Activity::Claiming { handoff: Some(pending), .. } => Some(pending),
        _ => None,
    }
}
