//! What this instance does with each partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::lease::{OwnedLease, Renewed};
use super::lease_record::{HeartbeatSince, KeptAliveBy};
use super::step::LeftOwned;
use crate::error::Error;
use crate::model::{LeaseScope, Moment, OwnerId, PartitionId};
use crate::planner::{ClaimReason, ReleaseReason};
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
    pub(super) next_poll_at: Option<Moment>,
    /// How many polls have failed in a row.
    pub(super) failures: u32,
}

/// Why a partition is not claimed for a while. Without this wait, one blob that cannot be written would take up the
/// claim of every cycle.
#[derive(Debug)]
pub(super) struct Setback {
    pub(super) failures: u32,
    pub(super) until: Moment,
    /// Why the storage did not decide about the last claim.
    pub(super) error: Option<Arc<Error>>,
}

/// How long the start of a partition may take before nothing more is claimed. A runtime that works needs milliseconds.
const START_LIMIT: Duration = Duration::from_secs(2);

/// While no renewal succeeds, at least this many are tried per lease duration, so that even an instance with few leases
/// detects a recovered storage before they expire.
const LEAST_PER_LEASE_DURATION: u32 = 8;

/// What this instance does with each partition. Partitions without an entry are not in use.
#[derive(Debug)]
pub(super) struct Partitions {
    pub(super) activities: BTreeMap<PartitionId, Activity>,
    /// Partitions that must not be claimed now, whether they have an activity or not.
    pub(super) setbacks: BTreeMap<PartitionId, Setback>,
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

    pub(super) fn owned_leases(&self) -> impl Iterator<Item = (&PartitionId, &OwnedLease)> {
        self.activities.iter().filter_map(|(partition, activity)| match activity {
            Activity::Owned(owned) => Some((partition, owned)),
            _ => None,
        })
    }

    pub(super) fn owned_leases_mut(&mut self) -> impl Iterator<Item = (&PartitionId, &mut OwnedLease)> {
        self.activities.iter_mut().filter_map(|(partition, activity)| match activity {
            Activity::Owned(owned) => Some((partition, owned)),
            _ => None,
        })
    }

    pub(super) fn lease_of(&self, partition: &PartitionId) -> Option<&OwnedLease> {
        match self.activities.get(partition) {
            Some(Activity::Owned(owned)) => Some(owned),
            _ => None,
        }
    }

    /// Returns the lease of a partition, if it still has this epoch.
    pub(super) fn lease_in_epoch(&mut self, partition: &PartitionId, epoch: i64) -> Option<&mut OwnedLease> {
        match self.activities.get_mut(partition) {
            Some(Activity::Owned(owned)) if owned.epoch() == epoch => Some(owned),
            _ => None,
        }
    }

    /// Returns whether a lease of this instance is valid: other instances see that it is alive.
    pub(super) fn has_valid_lease(&self, context: &Context) -> bool {
        self.owned_leases()
            .any(|(_, owned)| context.now < owned.valid_from(self.kept_alive_by) + context.settings.lease_duration())
    }

    /// Returns whether no partition is owned, being claimed, or being released.
    pub(super) fn is_idle(&self) -> bool {
        !self.activities.values().any(is_in_use)
    }

    /// Returns the owned partitions, with the epoch of each.
    pub(super) fn owned_epochs(&self) -> Vec<(PartitionId, i64)> {
        self.owned_leases().map(|(partition, owned)| (partition.clone(), owned.epoch())).collect()
    }

    /// Returns the partitions whose processing must stop, and those that are being released, with the reason of each.
    pub(super) fn release_reasons(&self) -> BTreeMap<PartitionId, ReleaseReason> {
        let released = self.activities.iter().filter_map(|(partition, activity)| {
            let reason = match activity {
                Activity::Owned(owned) => owned.release_reason()?,
                Activity::Releasing(reason) => *reason,
                _ => return None,
            };
            Some((partition.clone(), reason))
        });
        released.collect()
    }

    /// Returns the partitions that this instance has requested, with their owners.
    pub(super) fn owners_of_requested(&self) -> BTreeMap<PartitionId, OwnerId> {
        let requested = self.activities.iter().filter_map(|(partition, activity)| match activity {
            Activity::AwaitingHandoff(pending) | Activity::Claiming { handoff: Some(pending), .. } => {
                Some((partition.clone(), pending.handoff.owner().clone()))
            }
            _ => None,
        });
        requested.collect()
    }

    /// Returns whether the start of a partition is overdue.
    pub(super) fn is_start_overdue(&self, now: Moment) -> bool {
        let Some(limit) = now.checked_sub(START_LIMIT) else { return false };
        self.owned_leases()
            .any(|(_, owned)| owned.is_processed() && owned.not_started_since.is_some_and(|since| since <= limit))
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
        let busy = self.activities.iter().filter(|(_, activity)| {
            matches!(activity, Activity::RequestingHandoff | Activity::Claiming { .. } | Activity::Releasing(_))
        });
        let set_back = self.setbacks.iter().filter(move |(_, setback)| setback.until > now);
        busy.map(|(partition, _)| partition).chain(set_back.map(|(partition, _)| partition))
    }

    /// Returns the partitions whose last claims failed because of the storage, and the last error of each.
    pub(super) fn failing_claims(&self) -> impl Iterator<Item = (&PartitionId, &Arc<Error>)> {
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
        let until = context.now + context.settings.setback_wait(failures, at_least);
        self.setbacks.insert(partition.clone(), Setback { failures: failures.saturating_add(1), until, error });
    }

    /// Adds a lease that was won or renewed.
    pub(super) fn add_lease(&mut self, context: &mut Context, lease: Lease) {
        let renewed = Renewed {
            at: context.now,
            spread: 1.0 - context.random_chance() / 10.0,
            pause: context.settings.first_retry_wait(),
        };
        let partition = lease.partition().clone();
        let owned = OwnedLease::new(lease, self.lease_of(&partition), renewed, self.kept_alive_by);
        self.activities.insert(partition, Activity::Owned(owned));
        self.record_response();
    }

    /// Ends the waits of failed renewals for their turns, because the storage responded to a claim or a renewal.
    pub(super) fn record_response(&mut self) {
        if self.turns.record_success() {
            self.owned_leases_mut().for_each(|(_, owned)| owned.stop_awaiting_turn());
        }
    }

    /// Removes a partition in any state.
    pub(super) fn remove(&mut self, partition: &PartitionId) {
        self.activities.remove(partition);
    }
}

/// What depends on all leases together.
impl Partitions {
    /// Returns when the first partition needs something: a renewal, the end of its lease, a release although its
    /// handler has not stopped, or a poll of its handoff.
    pub(super) fn next_wake(&self, context: &Context) -> Option<Moment> {
        let age = context.renewal_age();
        let lifetime = context.settings.lease_lifetime();
        let moments = self.activities.values().filter_map(|activity| match activity {
            Activity::Owned(owned) => {
                let turn = if owned.awaits_turn() { self.turns.next_turn_at() } else { Moment::ZERO };
                let renewal = owned.renewal_due_at(age).map(|due| due.max(turn));
                let expiry = lifetime.map(|lifetime| owned.valid_from(self.kept_alive_by) + lifetime);
                [renewal, expiry, owned.overdue_at()].into_iter().flatten().min()
            }
            Activity::AwaitingHandoff(pending) => pending.next_poll_at,
            _ => None,
        });
        moments.min()
    }

    /// Returns whether the heartbeat of this instance keeps any lease alive, by the records.
    pub(super) fn any_kept_alive_by_heartbeat(&self) -> bool {
        self.owned_leases().any(|(_, owned)| owned.is_kept_alive_by_heartbeat())
    }

    /// Returns whether a new claim would be kept alive.
    pub(super) fn may_claim(&self, context: &Context) -> bool {
        let KeptAliveBy { scope, heartbeat } = self.kept_alive_by;
        scope == LeaseScope::Partition
            || heartbeat.is_some_and(|heartbeat| context.now < heartbeat.last + context.settings.lease_duration())
    }

    /// Sets what keeps the leases alive from now on. Leases whose records differ are due for renewal.
    pub(super) fn set_scope(&mut self, scope: LeaseScope) {
        self.kept_alive_by.scope = scope;
        self.owned_leases_mut().for_each(|(_, owned)| owned.set_scope(scope));
    }

    /// Records that a heartbeat was written, by a request that was sent at this moment.
    pub(super) fn record_sent_heartbeat(&mut self, sent: Moment) {
        let first = self.kept_alive_by.heartbeat.map_or(sent, |heartbeat| heartbeat.first);
        self.kept_alive_by.heartbeat = Some(HeartbeatSince { first, last: sent });
        let scope = self.kept_alive_by.scope;
        self.owned_leases_mut().for_each(|(_, owned)| owned.require_rewrite_if_ambiguous(scope));
    }

    /// Records that the heartbeat does not count anymore, because it was declared dead or is being ended: other
    /// instances may have taken over the leases that it kept alive, or may be about to.
    pub(super) fn record_invalid_heartbeat(&mut self) {
        self.kept_alive_by.heartbeat = None;
        self.owned_leases_mut().for_each(|(_, owned)| owned.set_ambiguous());
    }
}

/// Returns whether a partition is owned, being claimed, or being released.
pub(super) fn is_in_use(activity: &Activity) -> bool {
    match activity {
        Activity::Owned(_) | Activity::Claiming { .. } | Activity::Releasing(_) | Activity::Keeping => true,
        Activity::RequestingHandoff | Activity::AwaitingHandoff(_) => false,
    }
}

/// Lets one failed renewal at a time be retried while none succeeds: as many per lease duration as there are leases. In
/// the steady state, each lease is renewed twice in that time.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next_turn_at: Moment,
    /// Whether a renewal waits for its turn.
    any_waits: bool,
}

impl Turns {
    /// Records that a renewal has failed, and waits for its turn.
    pub(super) fn await_turn(&mut self) {
        self.any_waits = true;
    }

    /// Returns when the next turn begins.
    pub(super) fn next_turn_at(&self) -> Moment {
        self.next_turn_at
    }

    /// Takes the turn now, for one of this many leases.
    pub(super) fn take_turn(&mut self, now: Moment, leases: usize, lease_duration: Duration) {
        let leases = u32::try_from(leases).unwrap_or(u32::MAX).max(LEAST_PER_LEASE_DURATION);
        self.next_turn_at = now + lease_duration / leases;
    }

    /// Records that a renewal succeeded. Returns whether others had waited.
    pub(super) fn record_success(&mut self) -> bool {
        self.next_turn_at = Moment::ZERO;
        std::mem::take(&mut self.any_waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_lease_has_a_turn_per_lease_duration() {
        for (leases, expected) in [(256, 256), (8, 8), (1, 8)] {
            let mut turns = Turns::default();
            let mut taken = 0;
            while turns.next_turn_at() < seconds(60) {
                turns.take_turn(turns.next_turn_at(), leases, seconds(60));
                taken += 1;
            }
            assert_eq!(taken, expected, "{leases}");
        }
    }
}
