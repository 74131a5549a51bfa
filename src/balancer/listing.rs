//! What follows from a listing: which partitions are lost, what the plan is, and what the next snapshot shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::Context;
use super::cycle::CycleResult;
use super::events::OwnershipEvent;
use super::lease::OwnedLease;
use super::pacing::NextClaimable;
use super::partitions::Partitions;
use super::snapshot::LeaseAge;
use super::state::BalancerState;
use super::step::StorageRequest;
use crate::error::Result;
use crate::model::{Heartbeat, OwnerId, Ownership};
use crate::planner::{Observer, PartitionOwner, PartitionView, Plan, PlannedRelease, View, observe};

impl BalancerState {
    pub(super) fn on_listed(&mut self, listing: Result<Vec<Ownership>>, heartbeats: Option<Vec<Heartbeat>>) {
        self.beacon.end_listing(listing.is_ok());
        let records = match listing {
            Ok(records) => records,
            Err(error) => return self.cycles.on_failed(&mut self.context, error),
        };
        let has_heartbeats = heartbeats.is_some();
        if let Some(heartbeats) = heartbeats {
            self.heartbeat.on_listed(&mut self.context, heartbeats);
        }
        let view = self.read_listing(&records);
        let Self { context, partitions, heartbeat, cycles, snapshot, .. } = self;
        partitions.poll_failed_owners_soon(context);
        if let Some(by) = view.replaced_by {
            return context.end_as_replaced(by);
        }
        drop_lost(context, partitions, &view);
        // The instance forgets the setbacks that are over, of partitions that have a live owner.
        partitions.setbacks.retain(|partition, setback| {
            setback.until > context.now
                || !matches!(view.owner_of_partition(partition), Some(PartitionOwner::This | PartitionOwner::Other(_)))
        });
        if view.foreign_owner && !context.foreign_owner && !cycles.was_told {
            context.call_others();
        }
        context.foreign_owner = view.foreign_owner;
        if view.foreign_owner {
            heartbeat.give_up_scope(context, partitions, &view);
        }
        if has_heartbeats {
            partitions.accept_handoff_requests(context, &view);
        }
        let plan = cycles.make_plan(context, partitions, &view, snapshot.cycles == 0);
        if !has_heartbeats && needs_heartbeats(context, partitions, &view, &plan) {
            cycles.listed = records;
            context.push_request(StorageRequest::ListHeartbeats);
        } else {
            self.end_cycle(view, plan);
        }
    }

    pub(super) fn on_heartbeats_listed(&mut self, listing: Result<Vec<Heartbeat>>) {
        let records = std::mem::take(&mut self.cycles.listed);
        match listing {
            Ok(heartbeats) => self.heartbeat.on_listed(&mut self.context, heartbeats),
            Err(error) => return self.cycles.on_failed(&mut self.context, error),
        }
        let view = self.read_listing(&records);
        let Self { context, partitions, cycles, snapshot, .. } = self;
        partitions.accept_handoff_requests(context, &view);
        let plan = cycles.make_plan(context, partitions, &view, snapshot.cycles == 0);
        self.end_cycle(view, plan);
    }

    /// Reads a listing. A partition that this instance has won or renewed since the listing was sent counts as its own,
    /// even if the listing shows another owner.
    fn read_listing<'a>(&self, records: &'a [Ownership]) -> View<'a> {
        let Self { context, partitions, heartbeat, cycles, .. } = self;
        let observer = Observer {
            this: &context.settings.this,
            lease_durations: context.settings.lease_durations,
            running: &partitions.owned_leases().map(|(partition, _)| partition.clone()).collect(),
            heartbeats: &heartbeat.listed,
            outage_ended: context.outage_ended,
        };
        let mut view = observe(records, &self.hub, &observer, context.now);
        for entry in view.partitions.iter_mut().filter(|entry| entry.owner != PartitionOwner::This) {
            if partitions.lease_of(&entry.partition).is_some_and(|owned| owned.is_newer_than(cycles.listing_sent)) {
                *entry = PartitionView::new(entry.partition.clone(), PartitionOwner::This);
            }
        }
        view
    }

    fn end_cycle(&mut self, view: View<'_>, plan: Plan) {
        let Self { context, partitions, heartbeat, cycles, watch, snapshot, .. } = self;
        watch.record_view(&view);
        context.members = u32::try_from(view.count_by_owner().len()).unwrap_or(u32::MAX);
        if cycles.has_news(snapshot, &view, watch, &plan) {
            context.call_others();
        }
        let setback_ends =
            partitions.setbacks.values().map(|setback| setback.until).filter(|until| *until > context.now).min();
        let overdue_ends = view.owners.values().filter_map(|live| live.overdue_expiry).min();
        let result = CycleResult {
            calm: plan.is_empty() && snapshot.partitions == view.partitions && is_settled(&view),
            held_back: context.case_unknown && view.has_unowned(),
            next_claimable: NextClaimable {
                first: view.next_expiry.into_iter().chain(setback_ends).chain(cycles.takeover_due).min(),
                first_likely: overdue_ends.into_iter().chain(setback_ends).chain(cycles.takeover_due).min(),
            },
        };
        cycles.on_succeeded(context, partitions, &plan, result);
        // If nothing may be claimed, there is no plan.
        let unclaimed =
            if context.claims_nothing() { snapshot.unclaimed_due_to_limit } else { plan.unclaimed_due_to_limit };
        if snapshot.unclaimed_due_to_limit != unclaimed {
            context.push_event(OwnershipEvent::LimitReached { unclaimed });
        }
        let before = snapshot.away();
        let snapshot = Arc::make_mut(snapshot);
        snapshot.cycles += 1;
        let leases = view.records.values().map(|seen| {
            let age = LeaseAge { claimed_at: seen.record.claimed_at, age: seen.age };
            (seen.partition.clone(), age)
        });
        snapshot.leases = leases.collect();
        snapshot.partitions = view.partitions;
        snapshot.unclaimed_due_to_limit = unclaimed;
        emit_away(context, &before, &snapshot.away());
        context.request_snapshot();
        for PlannedRelease { partition, reason } in plan.release {
            if let Some(epoch) = partitions.lease_of(&partition).map(OwnedLease::epoch) {
                partitions.drain_partition(context, &partition, epoch, reason);
            }
        }
        partitions.start_claims(context, plan.claim, &heartbeat.listed);
        partitions.start_handoff_requests(context, plan.handoff);
    }
}

/// Returns whether the heartbeats must be listed before the plan counts: if they keep leases alive. If instances hand
/// partitions over, also before this instance takes anything; if a handoff of an owned partition is requested, because
/// the requesting instance may have expired; and if an unowned partition is left to an instance that had a heartbeat in
/// the last listing of them, or is reserved for one, because that instance may be gone.
fn needs_heartbeats(context: &Context, partitions: &Partitions, view: &View<'_>, plan: &Plan) -> bool {
    if view.records.values().any(|seen| seen.is_kept_alive_by_heartbeat(&context.settings.this)) {
        return true;
    }
    if !context.settings.hands_over() {
        return false;
    }
    if !plan.claim.is_empty() || !plan.handoff.is_empty() {
        return true;
    }
    if partitions.owned_leases().any(|(id, _)| view.record_of(id).is_some_and(|seen| seen.record.handoff_to.is_some()))
    {
        return true;
    }
    !context.claims_nothing() && (view.has_reserved() || (!view.present.is_empty() && view.has_unowned()))
}

/// Drops the partitions that have another owner, or none, by the listing.
fn drop_lost(context: &mut Context, partitions: &mut Partitions, view: &View<'_>) {
    let before: Vec<_> = partitions.owned_leases().map(|(partition, _)| partition.clone()).collect();
    for partition in before {
        let owner = view.owner_of_partition(&partition);
        if owner == Some(&PartitionOwner::This) || view.removed.contains(&partition) {
            continue;
        }
        let by = match owner {
            Some(PartitionOwner::Other(owner) | PartitionOwner::Expired(owner)) => Some(owner.clone()),
            _ => None,
        };
        partitions.remove(&partition);
        context.record_owner(&partition, owner.cloned().unwrap_or(PartitionOwner::Unowned));
        context.push_event(OwnershipEvent::Lost { partition, by });
    }
}

/// Returns whether every partition has a live owner of this crate, as far as this instance can see.
fn is_settled(view: &View<'_>) -> bool {
    let mut entries = view.partitions.iter();
    !view.foreign_owner
        && entries.all(|entry| {
            matches!(entry.owner, PartitionOwner::This | PartitionOwner::Other(_)) && entry.handoff_to.is_none()
        })
}

/// Reports which owners have shut down and kept partitions for their restart, and which of them no longer do.
fn emit_away(context: &mut Context, before: &BTreeMap<OwnerId, usize>, now: &BTreeMap<OwnerId, usize>) {
    let back = before.keys().filter(|owner| !now.contains_key(*owner)).map(|owner| (owner, 0));
    let away = now.iter().filter(|(owner, partitions)| before.get(*owner) != Some(*partitions));
    for (owner, partitions) in away.map(|(owner, partitions)| (owner, *partitions)).chain(back) {
        context.push_event(OwnershipEvent::OwnerAway { owner: owner.clone(), partitions });
    }
}
