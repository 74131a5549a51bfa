//! Writes of ownerships.

use std::time::Duration;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::{decode_heartbeat, decode_ownership};
use eventhubs_checkpoint::internal::recorded;
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::{Incarnation, OwnerId};
use tokio::time::Instant;

use super::State;
use super::incarnations::IncarnationState;
use super::timeline::TimelineEvent;
use crate::history::OwnerChange;
use crate::sim::invariant::Invariant;

/// The key that names the instance that requested a handoff.
const HANDOFF_KEY: &str = "ehchandoffto";

/// The time until an instance has noticed that its runtime is blocked, and its claims and handoffs in progress have
/// ended. A late write takes effect after 40 s.
const BLOCK_NOTICED: Duration = Duration::from_secs(60);

/// The key that names the lease scope.
const SCOPE: &str = "ehcleasescope";

impl State {
    pub(super) fn ownership_written(&mut self, incarnation: usize, partition: usize, name: &str, metadata: &Metadata) {
        let (record, _) = decode_ownership(name, metadata);
        self.operator_is_known(incarnation, &record);
        self.ownership_step(incarnation, partition, &record);
        let holder = self.owner_in_record(&record);
        self.trace(incarnation, "owns", partition, holder.map_or(-1, |holder| i64::try_from(holder).unwrap_or(-1)));
        let expired = self.is_expired(partition);
        self.check_record(incarnation, partition, metadata, holder, expired);
        self.live_owner_keeps(partition, name, holder, expired);
        self.partitions[partition].record = metadata.clone();
        self.partitions[partition].epochs.written(record.epoch);
        let change = self.partitions[partition].history.owned_by(holder);
        if change.changed {
            self.changes_hands(partition, &change, holder, expired);
        }
        self.partitions[partition].written = Instant::now();
    }

    fn ownership_step(&mut self, incarnation: usize, partition: usize, record: &OwnershipRecord) {
        let actor = self.actor(incarnation);
        let records = &mut self.partitions[partition].records;
        if !self.incarnations[incarnation].crate_processor {
            return records.foreign_ownership(record.clone());
        }
        let step = records.ownership_written((&incarnation, actor), record.clone());
        self.must_be_explored(incarnation, partition, step);
    }

    /// An instance wrote its heartbeat, or declared another instance dead.
    pub(super) fn heartbeat_written(&mut self, name: &str, metadata: &Metadata) {
        let Some(owner) = metadata.get("ownerid").filter(|_| name.contains("/heartbeat/")) else { return };
        let (record, _) = decode_heartbeat(name, recorded::owner(owner), metadata);
        if let Some(incarnation) = self.find(&record.owner, record.incarnation.as_ref()) {
            let name = self.name_of(incarnation);
            let book = &mut self.incarnations[incarnation];
            if let Some(by) = record.declared_dead_by {
                (book.heartbeat_at, book.declared_dead_at) = (None, Some(Instant::now()));
                self.note(format!("{name:<6} declared dead by {by}"));
            } else {
                book.heartbeat_at = Some(Instant::now());
                self.note(format!("{name:<6} writes its heartbeat"));
            }
        }
    }

    /// Returns whether the lease has expired, so that any instance may claim the partition.
    fn is_expired(&self, partition: usize) -> bool {
        let book = &self.partitions[partition];
        let Some(holder) = book.holder().map(|holder| &self.incarnations[holder]) else {
            return book.written.elapsed() >= self.longest_expiry;
        };
        let by_heartbeat = book.record.get(SCOPE).is_some_and(|scope| scope == "instance");
        let heartbeat = holder.heartbeat_at.filter(|_| by_heartbeat);
        let age = heartbeat.map_or(book.written, |heartbeat| heartbeat.max(book.written)).elapsed();
        age >= holder.bounds.expiry || (by_heartbeat && self.was_declared_dead(holder, book.written))
    }

    /// Returns whether an instance may still have seen the owner declared dead. Its next heartbeat does not protect an
    /// ownership that it wrote before: it must write the ownership, too.
    fn was_declared_dead(&self, owner: &IncarnationState, written: Instant) -> bool {
        let still_seen = |at: &Instant| *at >= written && at.elapsed() <= self.bounds.cycle;
        owner.declared_dead_at.as_ref().is_some_and(still_seen)
    }

    fn owner_in_record(&self, record: &OwnershipRecord) -> Option<usize> {
        self.find(record.owner.as_ref()?, record.incarnation.as_ref())
    }

    fn find(&self, owner: &OwnerId, id: Option<&Incarnation>) -> Option<usize> {
        let id = id.map(Incarnation::as_str);
        self.incarnations.iter().rposition(|incarnation| {
            incarnation.owner == *owner
                && match id {
                    Some(id) => incarnation.id.as_deref() == Some(id),
                    None => !incarnation.crate_processor,
                }
        })
    }

    fn check_record(
        &mut self,
        incarnation: usize,
        partition: usize,
        metadata: &Metadata,
        holder: Option<usize>,
        expired: bool,
    ) {
        let book = &self.incarnations[incarnation];
        if !book.crate_processor {
            return;
        }
        let before = self.partitions[partition].holder();
        let requests_handoff = holder == before && self.is_handoff_request(incarnation, partition, metadata);
        let own = holder == Some(incarnation) || requests_handoff;
        let unowned = holder.is_none() && metadata.get("ownerid").is_some_and(str::is_empty);
        let name = self.name_of(incarnation);
        self.check(Invariant::OwnRecord, own || unowned, || {
            format!("{name} wrote {metadata:?} to partition {partition}")
        });
        let its_own = before.is_none() || before == Some(incarnation) || expired;
        self.check(Invariant::OwnRecord, !unowned || its_own, || format!("{name} released partition {partition}"));
        if requests_handoff && holder != Some(incarnation) {
            self.partitions[partition].asked_by = Some(incarnation);
            self.requests_handoff(incarnation, partition);
        }
    }

    /// Checks that no instance takes a partition from another one that renews in time and would hand it over, unless it
    /// has requested a handoff in vain.
    fn live_owner_keeps(&mut self, partition: usize, name: &str, holder: Option<usize>, expired: bool) {
        let (before, _) = decode_ownership(name, &self.partitions[partition].record);
        let (Some(from), Some(to)) = (self.partitions[partition].holder(), holder) else { return };
        let (victim, taker) = (&self.incarnations[from], &self.incarnations[to]);
        let members = victim.member.is_some() && taker.member.is_some();
        let of_this_crate = members && victim.crate_processor && taker.crate_processor;
        // An owner that cannot release in time renews without the request.
        let asked = before.handoff_to.is_some() || self.partitions[partition].asked_by == Some(to);
        let may_ask = self.handoff && before.cooperative && !asked;
        // A later incarnation with the same name writes the heartbeat in its place.
        let renews = !victim.frozen && self.survivors().contains(&from);
        if !of_this_crate || victim.owner == taker.owner || !renews || taker.stale_view || !may_ask {
            return;
        }
        let (age, names) = (self.partitions[partition].written.elapsed(), (self.name_of(from), self.name_of(to)));
        self.check(Invariant::LiveOwnerKeeps, expired, || {
            let (from, to) = names;
            format!("{to} took partition {partition} from {from}, which had renewed it {age:.1?} before")
        });
    }

    /// Returns whether the write only adds this incarnation's handoff request.
    fn is_handoff_request(&self, incarnation: usize, partition: usize, metadata: &Metadata) -> bool {
        let mut entry = self.partitions[partition].record.clone();
        entry.insert(HANDOFF_KEY, self.incarnations[incarnation].owner.as_str());
        *metadata == entry
    }

    fn changes_hands(&mut self, partition: usize, change: &OwnerChange<usize>, holder: Option<usize>, expired: bool) {
        let before = change.before;
        if let (Some(from), Some(to)) = (before, holder) {
            self.taken_over(partition, from, to, expired);
        }
        if let Some(to) = holder {
            self.must_not_move(partition, to);
        }
        let now = Instant::now();
        let is_alive = holder.is_some_and(|holder| self.incarnations[holder].alive);
        let book = &mut self.partitions[partition];
        book.asked_by = None;
        let unowned_time = if is_alive { book.unowned_since.take() } else { book.unowned_since.replace(now) };
        if let Some(since) = unowned_time {
            self.add_unowned_time(now - since);
        }
        if let Some(owner) = holder.filter(|_| change.begins) {
            self.gains(owner);
            self.blocked_gains_nothing(partition, owner);
        }
        match (before, holder) {
            _ if is_alive => self.is_claimed(partition),
            (Some(before), None) => self.is_free(partition, before),
            _ => {}
        }
        self.record_owner(partition, holder);
    }

    /// An instance whose runtime is blocked cannot start a partition, so it must not take any.
    fn blocked_gains_nothing(&mut self, partition: usize, owner: usize) {
        let Some(since) = self.incarnations[owner].blocked_since else { return };
        let (name, blocked) = (self.name_of(owner), since.elapsed());
        self.check(Invariant::BlockedGainsNothing, blocked <= BLOCK_NOTICED, || {
            format!("{name} took partition {partition}, although its runtime had been blocked for {blocked:.1?}")
        });
    }

    fn taken_over(&mut self, partition: usize, from: usize, to: usize, expired: bool) {
        let victim = &self.incarnations[from];
        let same_name = victim.owner == self.incarnations[to].owner;
        if self.is_operator(from) || self.is_operator(to) {
            return self.taken_with_an_operator(partition, from, to, expired);
        }
        let victim = &self.incarnations[from];
        if victim.alive && !same_name {
            self.totals.moves += 1;
            self.count(if expired { "taken from an expired owner" } else { "stolen" });
            self.record(to, TimelineEvent::Took { partition, from });
        }
        let victim = &self.incarnations[from];
        let bound = self.strict
            && expired
            && victim.crate_processor
            && victim.alive
            && !victim.stale_view
            // Nothing can stop a handler that blocks its own thread.
            && victim.blocked_since.is_none()
            && self.incarnations[to].crate_processor;
        if bound && !same_name {
            let idle = !victim.sessions.contains_key(&partition);
            let (from, to) = (self.name_of(from), self.name_of(to));
            self.check(Invariant::StrictLease, idle, || {
                format!(
                    "{to} took partition {partition}, whose lease had expired, while {from} was still processing it"
                )
            });
        }
    }
}
