//! Renewing leases: each one when it is due, or all together with the heartbeat of this instance. A renewal that failed
//! is retried with growing waits, and while none succeeds, about as often as leases are renewed in the steady state.

use std::time::Duration;

use super::context::Context;
use super::events::{Note, OwnershipEvent};
use super::lease::{AfterRenewal, OwnedLease};
use super::partitions::Partitions;
use super::step::StorageRequest;
use crate::backoff::{Backoff, lengthen_wait};
use crate::error::Error;
use crate::model::{Moment, OwnerId, PartitionId};
use crate::planner::PartitionOwner;
use crate::store::{ClaimOutcome, Lease};
use crate::telemetry::StorageOperation;

impl Partitions {
    /// Renews the leases that are due. If leases wait for a turn, only the lease with the turn is renewed.
    pub(super) fn start_renewals(&mut self, context: &mut Context) {
        self.give_turn(context);
        let age = context.renewal_age();
        let kept_alive_by = self.kept_alive_by;
        for (_, owned) in self.owned_leases_mut() {
            if !owned.awaits_turn() && owned.renewal_due_at(age).is_some_and(|due| due <= context.now) {
                context.push_request(StorageRequest::Renew(owned.start_renewal(kept_alive_by)));
            }
        }
    }

    /// Gives the turn to the lease with the fewest failures. Of several, the lease that expires first gets it.
    fn give_turn(&mut self, context: &Context) {
        let now = context.now;
        if now < self.turns.next_turn_at() {
            return;
        }
        let age = context.renewal_age();
        let kept_alive_by = self.kept_alive_by;
        let leases = self.owned_leases().count();
        let waiting = self.owned_leases_mut().filter(|(_, owned)| owned.awaits_turn());
        let due = waiting.filter(|(_, owned)| owned.renewal_due_at(age).is_some_and(|due| due <= now));
        let first = due.min_by_key(|(_, owned)| (owned.renewal_failures(), owned.valid_from(kept_alive_by)));
        if let Some((_, owned)) = first {
            owned.stop_awaiting_turn();
            self.turns.take_turn(now, leases, context.settings.lease_duration());
        }
    }

    pub(super) fn on_renewed(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        epoch: i64,
        outcome: ClaimOutcome,
    ) {
        // If the lease was dropped in the meantime, the outcome does not matter.
        let kept_alive_by = self.kept_alive_by;
        let Some(owned) = self.lease_in_epoch(partition, epoch) else { return };
        let after_renewal = owned.end_renewal();
        match outcome {
            ClaimOutcome::Won(lease) => self.add_renewed_lease(context, lease, epoch),
            ClaimOutcome::Lost { by } => {
                self.record_response();
                self.remove(partition);
                context.record_owner(partition, by.clone().map_or(PartitionOwner::Released, PartitionOwner::Other));
                context.push_event(OwnershipEvent::Lost { partition: partition.clone(), by });
            }
            ClaimOutcome::Replaced { by } => context.end_as_replaced(by),
            ClaimOutcome::Indeterminate(error) => {
                let longest = context.settings.lease_duration() / 8;
                let valid_from = owned.valid_from(kept_alive_by);
                owned.postpone_renewal(context.renewal_retry_at(longest, owned.renewal_failures(), valid_from, &error));
                self.turns.await_turn();
                context.push_note(Note::Indeterminate(StorageOperation::Renew, vec![partition.clone()], error.into()));
            }
        }
        let Some(epoch) = self.lease_of(partition).map(OwnedLease::epoch) else { return };
        match after_renewal {
            AfterRenewal::Nothing => {}
            AfterRenewal::Release(reason) => self.send_release(context, partition, epoch, reason),
            AfterRenewal::Keep => self.send_keep(context, partition, epoch),
        }
    }

    /// Adds a renewed lease, and accepts a handoff request that the renewal found. Requests that this instance knew
    /// before are accepted from listings, which show whether the requesting instance is alive.
    fn add_renewed_lease(&mut self, context: &mut Context, lease: Lease, before: i64) {
        let partition = lease.partition().clone();
        let epoch = lease.epoch();
        let known = self.handoff_requester(&partition, epoch);
        let drained_for = self.lease_of(&partition).and_then(OwnedLease::drained_for);
        self.add_lease(context, lease);
        if epoch != before {
            context.record_owner(&partition, PartitionOwner::This);
        }
        if let Some(reason) = drained_for.filter(|_| epoch != before) {
            // The record had vanished. The last checkpoint of the previous epoch would be rejected.
            return self.send_release(context, &partition, epoch, reason);
        }
        if let Some(by) = self.handoff_requester(&partition, epoch).filter(|by| known.as_ref() != Some(by)) {
            self.hand_over(context, &partition, epoch, &by);
        }
    }

    fn handoff_requester(&mut self, partition: &PartitionId, epoch: i64) -> Option<OwnerId> {
        self.lease_in_epoch(partition, epoch)?.lease().handoff_requested_by().cloned()
    }
}

/// Retries.
impl Context {
    /// Returns when to retry a renewal, or the heartbeat, after this many failures, with some jitter and after at most
    /// the longest wait. The lease counts from `valid_from`, and must not expire because the server asked for a longer
    /// wait.
    pub(super) fn renewal_retry_at(
        &mut self,
        longest: Duration,
        failures: u32,
        valid_from: Moment,
        error: &Error,
    ) -> Moment {
        let chance = self.random_chance();
        let settings = &self.settings;
        let wait = lengthen_wait(Backoff::new(settings.first_retry_wait(), longest).wait_after(failures), chance);
        let lifetime = settings.lease_lifetime().unwrap_or(settings.lease_duration());
        let last_chance = last_chance(self.renewal_age(), lifetime, settings.request_timeout);
        retry_time(settings.retry_after(error), self.now + wait, self.now, valid_from + last_chance)
    }
}

/// Returns when to retry if the server asked for a wait: not before that, except for one attempt while the lease can
/// still be renewed.
fn retry_time(wait: Duration, earliest: Moment, now: Moment, last_chance: Moment) -> Moment {
    let wanted = (now + wait).max(earliest);
    if last_chance > now { wanted.min(last_chance.max(earliest)) } else { wanted }
}

/// Returns the age at which a lease is tried once more in any case: two request timeouts before its end; or halfway
/// from its first renewal to its end, if that is later, because request timeouts may be as long as half the lease
/// duration.
fn last_chance(renewal_age: Duration, lifetime: Duration, request_timeout: Duration) -> Duration {
    lifetime.saturating_sub(2 * request_timeout).max((renewal_age + lifetime) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_attempt_precedes_a_long_server_wait() {
        let at =
            |wait, now, last_chance| retry_time(seconds(wait), seconds(now + 1), seconds(now), seconds(last_chance));
        assert_eq!(at(0, 100, 120), seconds(101));
        assert_eq!(at(5, 100, 120), seconds(105));
        assert_eq!(at(30, 100, 120), seconds(120), "the lease would expire");
        assert_eq!(at(30, 120, 120), seconds(150), "the last attempt was made");
        assert_eq!(at(30, 130, 120), seconds(160), "the lease has expired");
    }

    #[test]
    fn last_attempt_is_between_renewal_and_expiry() {
        for (lease_duration, lifetime, request_timeout, expected) in
            [(60, 60, 5, 50), (60, 40, 5, 35), (20, 20, 5, 15), (60, 60, 29, 45)]
        {
            let chance = last_chance(seconds(lease_duration) / 2, seconds(lifetime), seconds(request_timeout));
            assert_eq!(chance, seconds(expected), "{lease_duration} {lifetime} {request_timeout}");
        }
    }
}
