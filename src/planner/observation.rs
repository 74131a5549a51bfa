//! What a listing shows about the group at one moment, to the instance that reads it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::view::{LiveOwnership, PartitionOwner, PartitionView, View};
use crate::model::{
    Heartbeat, HeartbeatRecord, Identity, Incarnation, LeaseDurations, LeaseScope, Moment, OwnerId, Ownership,
    OwnershipRecord, PartitionId, Relation,
};

#[cfg(test)]
mod tests;

/// The instance that observes a listing, and what it knows in addition.
#[derive(Clone, Copy, Debug)]
pub struct Observer<'a> {
    /// The observing instance.
    pub this: &'a Identity,
    /// How long ownerships are valid without renewal that do not say so themselves.
    pub lease_durations: LeaseDurations,
    /// The partitions that this instance runs.
    pub running: &'a BTreeSet<PartitionId>,
    /// The heartbeats. May be empty: then owners without partitions are unknown.
    pub heartbeats: &'a [Heartbeat],
    /// When an outage of this instance ended, if there was one: for a while none of its requests succeeded. The same
    /// cause may have stopped the others, so a record that was last written before that moment counts as live for one
    /// lease duration from there on. A record that was written later counts by its own age. Only the last outage is
    /// needed, and it may be kept forever.
    pub outage_ended: Option<Moment>,
}

impl Observer<'_> {
    /// Returns an age, counted from the end of the last outage at the earliest.
    fn age_since_outage(&self, age: Duration, now: Moment) -> Duration {
        self.outage_ended.map_or(age, |ended| age.min(now.saturating_sub(ended)))
    }
}

/// Reads a listing at `now`.
///
/// `partitions` are all partitions of the event hub. Records of other partitions are left out; those that this instance
/// runs are in [`removed`](View::removed). A live record of this instance for a partition that it does not run is
/// [`Reclaimable`](PartitionOwner::Reclaimable): for instance one whose write arrived late.
#[must_use]
pub fn observe<'a>(
    listed: &'a [Ownership],
    partitions: &[PartitionId],
    observer: &Observer<'_>,
    now: Moment,
) -> View<'a> {
    let listing = ObservedRecords::new(listed, observer, now);
    let mut partitions: Vec<_> = partitions.to_vec();
    partitions.sort();
    partitions.dedup();
    let removed = observer.running.iter().filter(|running| partitions.binary_search(running).is_err());
    let mut view = View {
        removed: removed.cloned().collect(),
        partitions: Vec::with_capacity(partitions.len()),
        records: listed.iter().map(|seen| (&seen.partition, seen)).collect(),
        present: BTreeSet::new(),
        not_requestable: BTreeSet::new(),
        me: observer.this.owner.clone(),
        replaced_by: None,
        foreign_owner: false,
        next_expiry: None,
        owners: BTreeMap::new(),
    };
    for heartbeat in &listing.live_heartbeats {
        if heartbeat.owner != observer.this.owner {
            view.present.insert(heartbeat.owner.clone());
        } else if heartbeat.incarnation.as_ref() > Some(&observer.this.incarnation) {
            view.replaced_by.clone_from(&heartbeat.incarnation);
        }
    }
    let running: HashSet<_> = observer.running.iter().collect();
    for partition in partitions {
        let seen = listing.here.get(&partition);
        if let Some(seen) = seen.filter(|seen| seen.live) {
            note_other_owner(&mut view, &partition, seen, observer, now);
        }
        let owner = owner_of(seen, observer.this, running.contains(&partition));
        let entry = PartitionView::new(partition, owner);
        view.partitions.push(match seen {
            Some(seen) => listing.with_handoff(entry, seen, observer),
            None => entry,
        });
    }
    view.not_requestable = listing.not_requestable(&view, observer);
    view
}

/// The heartbeat of each owner. If there are several, the heartbeat of its latest incarnation.
struct Heartbeats<'a>(HashMap<&'a OwnerId, &'a Heartbeat>);

impl<'a> Heartbeats<'a> {
    fn new(listing: &'a [Heartbeat]) -> Self {
        let mut latest: HashMap<&OwnerId, &Heartbeat> = HashMap::with_capacity(listing.len());
        for seen in listing {
            let known = latest.entry(&seen.record.owner).or_insert(seen);
            if seen.record.incarnation > known.record.incarnation {
                *known = seen;
            }
        }
        Self(latest)
    }

    /// Returns how long ago this incarnation of an owner last sent a heartbeat, unless it was declared dead since then.
    fn age_of(&self, owner: &OwnerId, incarnation: Option<&Incarnation>, now: Moment) -> Option<Duration> {
        let seen = self.0.get(owner)?;
        let same = seen.record.incarnation.as_ref() == incarnation && seen.record.declared_dead_by.is_none();
        same.then(|| seen.age_at(now))
    }
}

/// A record at the moment of observation.
#[derive(Clone, Copy)]
struct Seen<'a> {
    record: &'a OwnershipRecord,
    /// Time since its owner last renewed it.
    age: Duration,
    live: bool,
    /// How long it stays live without renewal.
    left: Duration,
}

impl<'a> Seen<'a> {
    /// The owner last renewed it by writing the record, or, if the record says so, by a heartbeat that is younger.
    fn new(now: Moment, seen: &'a Ownership, observer: &Observer<'_>, heartbeats: &Heartbeats<'_>) -> Self {
        let record = &seen.record;
        let owner = record.owner.as_ref().filter(|_| record.scope == LeaseScope::Instance);
        let heartbeat = owner.and_then(|owner| heartbeats.age_of(owner, record.incarnation.as_ref(), now));
        let age = heartbeat.map_or(seen.age_at(now), |heartbeat| heartbeat.min(seen.age_at(now)));
        let counted = observer.age_since_outage(age, now);
        Self {
            record,
            age,
            live: observer.lease_durations.counts_as_live(record, counted),
            left: observer.lease_durations.lifetime(record).saturating_sub(counted),
        }
    }
}

/// A listing at the moment of observation, and what is known in addition.
struct ObservedRecords<'a: 'o, 'o> {
    here: HashMap<&'a PartitionId, Seen<'a>>,
    live_heartbeats: Vec<&'o HeartbeatRecord>,
    /// The lease durations of the owners that are alive by any record, the longest of each: records of before a restart
    /// may have another one. Empty if no record contains a handoff request.
    alive: HashMap<&'o OwnerId, Duration>,
}

impl<'a: 'o, 'o> ObservedRecords<'a, 'o> {
    fn new(listed: &'a [Ownership], observer: &Observer<'o>, now: Moment) -> Self {
        let heartbeats = Heartbeats::new(observer.heartbeats);
        let here = listed.iter().map(|seen| (&seen.partition, Seen::new(now, seen, observer, &heartbeats)));
        let live_heartbeats = heartbeats.0.values().filter(|seen| {
            observer.lease_durations.counts_as_present(&seen.record, observer.age_since_outage(seen.age_at(now), now))
        });
        let mut listing = Self {
            here: here.collect(),
            live_heartbeats: live_heartbeats.map(|seen| &seen.record).collect(),
            alive: HashMap::new(),
        };
        if listing.here.values().any(|seen| seen.record.handoff_to.is_some()) {
            listing.alive = listing.live_owners(observer);
        }
        listing
    }

    fn live_owners(&self, observer: &Observer<'o>) -> HashMap<&'o OwnerId, Duration> {
        let durations = observer.lease_durations;
        let heartbeats = self.live_heartbeats.iter().map(|live| (&live.owner, durations.of_heartbeat(live)));
        let live = self.here.values().filter(|seen| seen.live);
        let here = live.filter_map(|seen| Some((seen.record.owner.as_ref()?, durations.of(seen.record))));
        let mut longest: HashMap<_, Duration> = HashMap::new();
        for (owner, duration) in heartbeats.chain(here).chain([(&observer.this.owner, durations.own)]) {
            let known = longest.entry(owner).or_default();
            *known = duration.max(*known);
        }
        longest
    }

    /// Adds the handoff in the record, if it counts.
    fn with_handoff(&self, entry: PartitionView, seen: &Seen<'_>, observer: &Observer<'_>) -> PartitionView {
        let Seen { record, age, .. } = seen;
        let handoff_to = record.handoff_to.as_ref().filter(|to| match &entry.owner {
            // A request of its own owner is left over from an earlier incarnation. An operator need not appear alive,
            // nor does the owner that it will return the partition to.
            PartitionOwner::This | PartitionOwner::Other(_) => {
                record.owner.as_ref() != Some(*to) && (record.operator.is_some() || self.alive.contains_key(*to))
            }
            PartitionOwner::Released => *age < self.reservation_time(record, to, observer),
            _ => false,
        });
        let is_other = matches!(entry.owner, PartitionOwner::Other(_));
        let operator = record.operator.as_ref().filter(|_| !matches!(entry.owner, PartitionOwner::Expired(_)));
        PartitionView {
            cooperative: record.cooperative && is_other,
            away: record.away && is_other,
            handoff_to: handoff_to.cloned(),
            operator: operator.cloned(),
            ..entry
        }
    }

    /// Returns how long a released partition is reserved for an owner: one of its lease durations, in which it lists
    /// the group at least twice, as long as it is alive. An operator has no record of its own, and the owner to which
    /// it returns a partition may not have one yet: then the released record says it.
    fn reservation_time(&self, record: &OwnershipRecord, to: &OwnerId, observer: &Observer<'_>) -> Duration {
        let operated = record.operator.is_some().then(|| observer.lease_durations.of(record));
        let lease_duration = self.alive.get(to).copied().or(operated);
        lease_duration.map_or(Duration::ZERO, |lease_duration| lease_duration + LeaseDurations::GRACE)
    }

    /// After half its lease duration a cooperative owner may be dead.
    fn not_requestable(&self, view: &View<'_>, observer: &Observer<'_>) -> BTreeSet<PartitionId> {
        let cooperative = view.partitions.iter().filter(|entry| entry.cooperative).map(|entry| &entry.partition);
        let too_old = cooperative.filter(|partition| {
            let seen = self.here.get(*partition);
            seen.is_some_and(|seen| seen.age >= observer.lease_durations.of(seen.record) / 2)
        });
        too_old.cloned().collect()
    }
}

/// Records what a live record of this blob-name casing shows in addition to its owner.
fn note_other_owner(
    view: &mut View<'_>,
    partition: &PartitionId,
    seen: &Seen<'_>,
    observer: &Observer<'_>,
    now: Moment,
) {
    let record = seen.record;
    match record.relation_to(observer.this) {
        Relation::LaterIncarnation => {
            view.replaced_by = view.replaced_by.take().max(record.incarnation.clone());
        }
        Relation::Other => {
            view.foreign_owner |= record.incarnation.is_none();
            let expiry = now + seen.left;
            view.next_expiry = Some(view.next_expiry.map_or(expiry, |known| known.min(expiry)));
            note_renewal(view, partition, seen, observer.lease_durations.of(record), now);
        }
        _ => {}
    }
}

/// Records when the owner of a live record last renewed it.
fn note_renewal(view: &mut View<'_>, partition: &PartitionId, seen: &Seen<'_>, lease_duration: Duration, now: Moment) {
    let Some(owner) = &seen.record.owner else { return };
    let silent_at = now + lease_duration.saturating_sub(seen.age);
    let known = view.owners.entry(owner.clone()).or_insert_with(|| LiveOwnership {
        partition: partition.clone(),
        silent_at,
        overdue_expiry: None,
        takes_part: seen.record.operator.as_ref() != Some(owner) && !seen.record.away,
    });
    if known.silent_at < silent_at {
        known.partition = partition.clone();
        known.silent_at = silent_at;
    }
    if LeaseDurations::is_overdue(seen.age, lease_duration) {
        let expiry = now + seen.left;
        known.overdue_expiry = Some(known.overdue_expiry.map_or(expiry, |before| before.min(expiry)));
    }
}

fn owner_of(seen: Option<&Seen<'_>>, this: &Identity, running: bool) -> PartitionOwner {
    let Some(Seen { record, live, .. }) = seen else { return PartitionOwner::Unowned };
    match record.relation_to(this) {
        Relation::Unowned => PartitionOwner::Released,
        Relation::This if running => PartitionOwner::This,
        Relation::This | Relation::EarlierIncarnation if *live => PartitionOwner::Reclaimable,
        Relation::This | Relation::EarlierIncarnation => other_owner(record, false),
        Relation::LaterIncarnation | Relation::Other => other_owner(record, *live),
    }
}

fn other_owner(record: &OwnershipRecord, live: bool) -> PartitionOwner {
    match (&record.owner, live) {
        (Some(owner), true) => PartitionOwner::Other(owner.clone()),
        (Some(owner), false) => PartitionOwner::Expired(owner.clone()),
        (None, _) => PartitionOwner::Released,
    }
}
