//! Renewing leases: each one when it is due, or all together with the heartbeat of this instance.

use super::action::Request;
use super::context::Context;
use super::events::OwnershipEvent;
use super::lease::{Next, OwnedLease};
use super::note::Note;
use super::partitions::Partitions;
use crate::model::{OwnerId, PartitionId};
use crate::planner::PartitionOwner;
use crate::store::{ClaimOutcome, Lease};
use crate::telemetry::StorageOperation;

impl Partitions {
    /// Renews the leases that are due. If leases wait for a turn, only the lease with the turn is renewed.
    pub(super) fn start_renewals(&mut self, context: &mut Context) {
        self.give_turn(context);
        let (age, now, kept_alive_by) = (context.renewal_age(), context.now, self.kept_alive_by);
        for (_, owned) in self.owned_mut() {
            if !owned.awaits_turn() && owned.due(age).is_some_and(|due| due <= now) {
                context.request(Request::Renew(owned.start_renewal(kept_alive_by)));
            }
        }
    }

    /// Gives the turn to the lease with the fewest failures. Of several, the lease that expires first gets it.
    fn give_turn(&mut self, context: &Context) {
        let (age, now, kept_alive_by) = (context.renewal_age(), context.now, self.kept_alive_by);
        if now < self.turns.next() {
            return;
        }
        let leases = self.owned().count();
        let waiting = self.owned_mut().filter(|(_, owned)| owned.awaits_turn());
        let due = waiting.filter(|(_, owned)| owned.due(age).is_some_and(|due| due <= now));
        if let Some((_, owned)) = due.min_by_key(|(_, owned)| (owned.failures(), owned.valid_from(kept_alive_by))) {
            owned.has_turn();
            self.turns.take(now, leases, context.settings.lease_duration());
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
        let Some(owned) = self.get_of(partition, epoch) else { return };
        let next = owned.end_renewal();
        match outcome {
            ClaimOutcome::Won(lease) => self.renewed(context, lease, epoch),
            ClaimOutcome::Lost { by } => {
                self.storage_responds();
                self.remove(partition);
                context.owner_is(partition, by.clone().map_or(PartitionOwner::Released, PartitionOwner::Other));
                context.emit(OwnershipEvent::Lost { partition: partition.clone(), by });
            }
            ClaimOutcome::Replaced { by } => context.replaced(by),
            ClaimOutcome::Indeterminate(error) => {
                owned.postpone(context.retry_at(owned.failures(), owned.valid_from(kept_alive_by), &error));
                self.turns.wait();
                context.note(Note::Indeterminate(StorageOperation::Renew, vec![partition.clone()], error.into()));
            }
        }
        let Some(epoch) = self.get(partition).map(OwnedLease::epoch) else { return };
        match next {
            Next::Nothing => {}
            Next::Release(reason) => self.send_release(context, partition, epoch, reason),
            Next::Keep => self.send_keep(context, partition, epoch),
        }
    }

    /// Adds a renewed lease, and accepts a handoff request that the renewal found. Requests that this instance knew
    /// before are accepted from listings, which show whether the requesting instance is alive.
    fn renewed(&mut self, context: &mut Context, lease: Lease, before: i64) {
        let (partition, epoch) = (lease.partition().clone(), lease.epoch());
        let known = self.requested_by(&partition, epoch);
        let draining = self.get(&partition).filter(|owned| owned.is_draining());
        let drained_for = draining.and_then(OwnedLease::release_reason);
        self.add(context, lease);
        if epoch != before {
            context.owner_is(&partition, PartitionOwner::This);
        }
        if let Some(reason) = drained_for.filter(|_| epoch != before) {
            // The record had vanished. The last checkpoint of the previous epoch would be rejected.
            return self.send_release(context, &partition, epoch, reason);
        }
        if let Some(by) = self.requested_by(&partition, epoch).filter(|by| known.as_ref() != Some(by)) {
            self.hand_over(context, &partition, epoch, &by);
        }
    }

    fn requested_by(&mut self, partition: &PartitionId, epoch: i64) -> Option<OwnerId> {
        self.get_of(partition, epoch)?.lease().handoff_requested_by().cloned()
    }
}
