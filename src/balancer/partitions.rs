//! What this instance does with each partition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::context::Context;
use super::handle::LeftOwned;
use super::lease::{HeartbeatSince, KeptAliveBy, OwnedLease, Renewed};
use super::retries::Turns;
use crate::model::{LeaseScope, Moment, OwnerId, PartitionId};
use crate::planner::ClaimReason;
use crate::store::{Handoff, Lease};

/// What this instance does with one partition.
#[derive(Debug)]
pub(super) enum Activity {
    /// It writes its mark into the record of the owner: it asks for the partition.
    RequestingHandoff,
    /// It has asked the owner for it.
    AwaitingHandoff(PendingHandoff),
    /// It claims it, perhaps after it has asked for it.
    Claiming { reason: ClaimReason, handoff: Option<PendingHandoff> },
    /// It holds it.
    Owned(OwnedLease),
    /// It writes the release.
    Releasing,
    /// It renews it for the last time, and leaves it for its restart.
    Keeping,
}

/// A partition that this instance has asked for and not got yet.
#[derive(Debug)]
pub(super) struct PendingHandoff {
    pub(super) handoff: Handoff,
    /// When to look at it again; `None` while that is being done.
    pub(super) next: Option<Moment>,
    /// How many looks have failed in a row.
    pub(super) failures: u32,
}

/// Why a partition is not tried for a while. Without this wait, one blob that cannot be written would take the claim of
/// every cycle.
#[derive(Debug)]
struct Setback {
    failures: u32,
    until: Moment,
}

/// What this instance does with each partition: nothing with those that are not in it.
#[derive(Debug)]
pub(super) struct Partitions {
    pub(super) activities: BTreeMap<PartitionId, Activity>,
    /// Partitions that are not to be claimed now, whatever is done with them.
    setbacks: BTreeMap<PartitionId, Setback>,
    pub(super) kept_alive_by: KeptAliveBy,
    pub(super) turns: Turns,
    /// What the loop leaves at its end, as far as is known.
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
        self.activities.iter().filter_map(|(partition, doing)| match doing {
            Activity::Owned(held) => Some((partition, held)),
            _ => None,
        })
    }

    pub(super) fn owned_mut(&mut self) -> impl Iterator<Item = (&PartitionId, &mut OwnedLease)> {
        self.activities.iter_mut().filter_map(|(partition, doing)| match doing {
            Activity::Owned(held) => Some((partition, held)),
            _ => None,
        })
    }

    pub(super) fn get(&self, partition: &PartitionId) -> Option<&OwnedLease> {
        match self.activities.get(partition) {
            Some(Activity::Owned(held)) => Some(held),
            _ => None,
        }
    }

    /// The lease of a partition, if it is still of this tenure.
    pub(super) fn get_of(&mut self, partition: &PartitionId, epoch: i64) -> Option<&mut OwnedLease> {
        match self.activities.get_mut(partition) {
            Some(Activity::Owned(held)) if held.epoch() == epoch => Some(held),
            _ => None,
        }
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.owned().next().is_none()
    }

    /// Whether anything is held, or about to be, or being released.
    pub(super) fn is_idle(&self) -> bool {
        !self.activities.values().any(is_at_work)
    }

    /// The partitions that are held, and the tenure of each.
    pub(super) fn epochs(&self) -> Vec<(PartitionId, i64)> {
        self.owned().map(|(partition, held)| (partition.clone(), held.epoch())).collect()
    }

    /// Those that are to be processed.
    pub(super) fn kept(&self) -> BTreeMap<PartitionId, i64> {
        let kept = self.owned().filter(|(_, held)| held.is_kept());
        kept.map(|(partition, held)| (partition.clone(), held.epoch())).collect()
    }

    /// Those whose processing has to stop, and those that are being released.
    pub(super) fn released(&self) -> BTreeSet<PartitionId> {
        let is_released = |doing: &Activity| match doing {
            Activity::Owned(held) => !held.is_kept(),
            doing => matches!(doing, Activity::Releasing),
        };
        self.activities.iter().filter(|(_, doing)| is_released(doing)).map(|(partition, _)| partition.clone()).collect()
    }

    /// Those that this instance has asked for, with their owners.
    pub(super) fn requested_handoffs(&self) -> BTreeMap<PartitionId, OwnerId> {
        let owner = |doing: &Activity| Some(handoff_in(doing)?.handoff.owner().clone());
        self.activities.iter().filter_map(|(partition, doing)| Some((partition.clone(), owner(doing)?))).collect()
    }

    /// Those that this instance has asked for, or is about to.
    pub(super) fn awaits_handoff(&self, partition: &PartitionId) -> bool {
        let doing = self.activities.get(partition);
        doing.is_some_and(|doing| matches!(doing, Activity::RequestingHandoff) || handoff_in(doing).is_some())
    }

    pub(super) fn is_claiming(&self, partition: &PartitionId) -> bool {
        matches!(self.activities.get(partition), Some(Activity::Claiming { .. }))
    }

    /// Those that are not to be claimed now: an operation on them is under way, or they were tried not long ago.
    pub(super) fn not_to_claim(&self, now: Moment) -> impl Iterator<Item = &PartitionId> {
        let is_busy = |doing: &Activity| {
            matches!(doing, Activity::RequestingHandoff | Activity::Claiming { .. } | Activity::Releasing)
        };
        let busy = self.activities.iter().filter(move |(_, doing)| is_busy(doing)).map(|(partition, _)| partition);
        let set_back = self.setbacks.iter().filter(move |(_, setback)| setback.until > now);
        busy.chain(set_back.map(|(partition, _)| partition))
    }

    /// Not to be tried for a while.
    pub(super) fn set_back(&mut self, context: &Context, partition: &PartitionId, at_least: Duration) {
        let failures = self.setbacks.get(partition).map_or(0, |setback| setback.failures);
        let until = context.now + context.settings.set_back(failures, at_least);
        self.setbacks.insert(partition.clone(), Setback { failures: failures.saturating_add(1), until });
    }

    /// The storage decided about it.
    pub(super) fn end_setback(&mut self, partition: &PartitionId) {
        self.setbacks.remove(partition);
    }

    /// Takes a lease that was won or renewed.
    pub(super) fn add(&mut self, context: &mut Context, lease: Lease) {
        let renewed =
            Renewed { at: context.now, spread: 1.0 - context.chance() / 10.0, pause: context.settings.retry_pause() };
        let partition = lease.partition().clone();
        let held = OwnedLease::new(lease, self.get(&partition), renewed, self.kept_alive_by);
        self.activities.insert(partition, Activity::Owned(held));
        self.storage_responds();
    }

    /// A claim or a renewal was answered: leases whose renewals have failed need not wait for their turns.
    pub(super) fn storage_responds(&mut self) {
        if self.turns.clear() {
            self.owned_mut().for_each(|(_, held)| held.has_turn());
        }
    }

    /// Drops what was done with a partition.
    pub(super) fn remove(&mut self, partition: &PartitionId) {
        self.activities.remove(partition);
    }
}

/// What depends on all leases together.
impl Partitions {
    /// When the next renewal is due, if each is due at this age.
    pub(super) fn next_due(&self, age: Duration) -> Option<Moment> {
        let turn = |held: &OwnedLease| if held.awaits_turn() { self.turns.next() } else { Moment::ZERO };
        self.owned().filter_map(|(_, held)| Some(held.due(age)?.max(turn(held)))).min()
    }

    /// How long ago the lease was renewed that was renewed longest ago; zero if there is none.
    pub(super) fn greatest_age(&self, now: Moment) -> Duration {
        let ages = self.owned().map(|(_, held)| now.saturating_sub(held.valid_from(self.kept_alive_by)));
        ages.max().unwrap_or_default()
    }

    /// When the first lease has outlived this time.
    pub(super) fn next_lease_expiry(&self, lifetime: Duration) -> Option<Moment> {
        self.owned().map(|(_, held)| held.valid_from(self.kept_alive_by) + lifetime).min()
    }

    /// When the first partition is to be released although its handler has not stopped.
    pub(super) fn next_overdue(&self) -> Option<Moment> {
        self.owned().filter_map(|(_, held)| held.overdue_at()).min()
    }

    /// When the first partition that was asked for is to be looked at.
    pub(super) fn next_poll(&self) -> Option<Moment> {
        let next = |doing: &Activity| match doing {
            Activity::AwaitingHandoff(asked) => asked.next,
            _ => None,
        };
        self.activities.values().filter_map(next).min()
    }

    /// Whether the record of any lease says that it lives by the presence of this instance.
    pub(super) fn any_by_heartbeat(&self) -> bool {
        self.owned().any(|(_, held)| held.is_by_heartbeat())
    }

    /// Whether this instance was present less than `lifetime` ago.
    pub(super) fn has_heartbeat(&self, lifetime: Duration, now: Moment) -> bool {
        self.kept_alive_by.heartbeat.is_some_and(|presence| now < presence.last + lifetime)
    }

    /// Whether what is claimed now would live.
    pub(super) fn may_claim(&self, context: &Context) -> bool {
        self.kept_alive_by.scope == LeaseScope::Partition
            || self.has_heartbeat(context.settings.lease_duration(), context.now)
    }

    /// From here on the records are to say so: those that do not are due.
    pub(super) fn set_scope(&mut self, scope: LeaseScope) {
        self.kept_alive_by.scope = scope;
        self.owned_mut().for_each(|(_, held)| held.set_scope(scope));
    }

    /// The presence was written, by a request that was sent at this moment.
    pub(super) fn heartbeat_sent(&mut self, sent: Moment) {
        let first = self.kept_alive_by.heartbeat.map_or(sent, |presence| presence.first);
        self.kept_alive_by.heartbeat = Some(HeartbeatSince { first, last: sent });
        let scope = self.kept_alive_by.scope;
        self.owned_mut().for_each(|(_, held)| held.owe_rewriting_if_doubted(scope));
    }

    /// The presence counts for nothing any more: what lives by it may have been taken over, or be about to be.
    pub(super) fn declared_dead(&mut self) {
        self.kept_alive_by.heartbeat = None;
        self.owned_mut().for_each(|(_, held)| held.doubt());
    }
}

/// Whether it is held, about to be, or about to be no longer.
pub(super) fn is_at_work(doing: &Activity) -> bool {
    match doing {
        Activity::Owned(_) | Activity::Claiming { .. } | Activity::Releasing | Activity::Keeping => true,
        Activity::RequestingHandoff | Activity::AwaitingHandoff(_) => false,
    }
}

fn handoff_in(doing: &Activity) -> Option<&PendingHandoff> {
    match doing {
        Activity::AwaitingHandoff(asked) | Activity::Claiming { handoff: Some(asked), .. } => Some(asked),
        _ => None,
    }
}
