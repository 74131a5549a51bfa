//! What a listing says about the group at one moment.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use super::attendance::Heartbeats;
use super::observer::Observer;
use crate::model::{
    HeartbeatRecord, Identity, Incarnation, LeaseDurations, LeaseScope, Moment, OwnerId, Ownership, OwnershipRecord,
    PartitionId, Relation,
};

/// Who holds a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "holder", content = "owner", rename_all = "lowercase")]
#[non_exhaustive]
pub enum PartitionOwner {
    /// Nobody has ever claimed it.
    Unowned,
    /// Its last owner gave it back.
    Released,
    /// I do, and I run it. That holds past the expiry, too, as long as nobody else has taken it.
    This,
    /// The fresh record is mine, of this life or an earlier one, but I do not run it. I may claim it at once.
    Reclaimable,
    /// Another live owner.
    Other(OwnerId),
    /// An owner that is live in the other tree of names, where no claim of ours can be won or lost: its partition is
    /// neither claimed nor stolen.
    OtherNameCase(OwnerId),
    /// An owner that has not renewed in time.
    Expired(OwnerId),
}

/// One partition, its holder, and to whom it goes from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionView {
    /// The partition.
    pub partition: PartitionId,
    /// Its holder.
    #[serde(flatten)]
    pub owner: PartitionOwner,
    /// Its holder is another that hands partitions over on request, and need not be stolen from.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cooperative: bool,
    /// Its holder is another owner that has shut down and left it for its own restart. It is neither stolen nor asked
    /// for before it expires.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub away: bool,
    /// To whom it is being handed over. While it is held, its holder was asked for it by this one, which is alive; once
    /// [released](Holder::Released), it is reserved for this one. It counts for this one already. Nothing if the one
    /// that asked has died, or the reservation has lapsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_to: Option<OwnerId>,
    /// An operator that works on it, see [`Operator::reset`](crate::admin::Operator::reset): it holds it, asked for it, or
    /// released it. An operator is no member of the group, so the partition counts for `handoff_to`, or for the owner
    /// that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<OwnerId>,
}

impl PartitionView {
    /// A partition that is not being handed over.
    #[must_use]
    pub fn new(partition: PartitionId, holder: PartitionOwner) -> Self {
        Self { partition, owner: holder, cooperative: false, away: false, handoff_to: None, operator: None }
    }

    /// Whose share it is part of.
    pub(crate) fn counts_for<'a>(&'a self, me: &'a OwnerId) -> Option<&'a OwnerId> {
        let holder = match &self.owner {
            PartitionOwner::This | PartitionOwner::Reclaimable => Some(me),
            PartitionOwner::Other(owner) | PartitionOwner::OtherNameCase(owner) => Some(owner),
            PartitionOwner::Unowned | PartitionOwner::Released | PartitionOwner::Expired(_) => None,
        };
        let is_member = |owner: &&OwnerId| self.operator.as_ref() != Some(*owner);
        self.handoff_to.as_ref().filter(is_member).or(holder.filter(is_member))
    }

    /// Whether an operator holds it.
    pub(crate) fn is_held_by_operator(&self) -> bool {
        matches!(&self.owner, PartitionOwner::Other(owner) if self.operator.as_ref() == Some(owner))
    }
}

/// The group, as one instance sees it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Every partition of the hub, in order.
    pub partitions: Vec<PartitionView>,
    /// The records that it was read from, those of this tree of names.
    pub records: HashMap<&'a PartitionId, &'a Ownership>,
    /// Partitions that I run, but that the hub no longer has.
    pub removed: Vec<PartitionId>,
    /// The other owners that are there by their presence, whether they hold anything or not.
    pub present: BTreeSet<OwnerId>,
    /// [Cooperative](PartitionView::cooperative) holders' partitions whose records are too old to be marked now: a mark
    /// must not keep alive who has died. Each is renewed soon, or else expires.
    pub not_requestable: BTreeSet<PartitionId>,
    /// Who is looking.
    pub me: OwnerId,
    /// A later life of mine that is at work: I must stop.
    pub replaced_by: Option<Incarnation>,
    /// Whether an owner of another SDK is alive in the group. Those compare ages with their own wall clocks, so our
    /// renewals must come more often.
    pub foreign_owner: bool,
}

impl<'a> View<'a> {
    /// The same view, which outlives the listing that it was read from: nothing is planned over a record of it.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn without_records(self) -> View<'static> {
        View {
            partitions: self.partitions,
            records: HashMap::new(),
            removed: self.removed,
            present: self.present,
            not_requestable: self.not_requestable,
            me: self.me,
            replaced_by: self.replaced_by,
            foreign_owner: self.foreign_owner,
        }
    }

    /// The record of a partition in this tree of names, if it has one.
    #[must_use]
    pub fn record(&self, partition: &PartitionId) -> Option<&'a Ownership> {
        self.records.get(partition).copied()
    }

    /// The holder of a partition, or nothing if the hub has no such partition.
    #[must_use]
    pub fn owner(&self, partition: &PartitionId) -> Option<&PartitionOwner> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.owner)
    }
}

/// Reads a listing at `now`.
///
/// `partitions` are all that the hub has now: records of others are left out, and those of them that I run are
/// [`gone`](View::removed). A fresh record of mine for a partition that I do not run is an [`Orphan`](Holder::Reclaimable), for
/// instance one whose write landed late.
#[must_use]
pub fn observe<'a>(
    listed: &'a [Ownership],
    partitions: &[PartitionId],
    observer: &Observer<'_>,
    now: Moment,
) -> View<'a> {
    let listing = Listing::of(listed, observer, now);
    let mut partitions: Vec<_> = partitions.to_vec();
    partitions.sort();
    partitions.dedup();
    let gone = observer.running.iter().filter(|running| partitions.binary_search(running).is_err());
    let mut view = View {
        removed: gone.cloned().collect(),
        partitions: Vec::with_capacity(partitions.len()),
        records: listed.iter().map(|seen| (&seen.partition, seen)).collect(),
        present: BTreeSet::new(),
        not_requestable: BTreeSet::new(),
        me: observer.this.owner.clone(),
        replaced_by: None,
        foreign_owner: false,
    };
    listing.present.iter().for_each(|present| notice_presence(&mut view, present, observer.this));
    let running: HashSet<_> = observer.running.iter().collect();
    for partition in partitions {
        let seen = listing.here.get(&partition);
        if let Some(seen) = seen.filter(|seen| seen.live) {
            notice_strangers(&mut view, seen.record, observer.this);
        }
        let holder = holder(seen, observer.this, running.contains(&partition));
        let holder = match listing.elsewhere.get(&partition) {
            Some(owner) if holder != PartitionOwner::This => PartitionOwner::OtherNameCase((*owner).clone()),
            _ => holder,
        };
        let entry = PartitionView::new(partition, holder);
        view.partitions.push(match seen {
            Some(seen) => listing.with_handoff(entry, seen, observer),
            None => entry,
        });
    }
    view.not_requestable = listing.unmarkable(&view, observer);
    view
}

/// A record at the moment of looking.
#[derive(Clone, Copy)]
struct Seen<'a> {
    record: &'a OwnershipRecord,
    /// Time since the last sign of life of its owner.
    age: Duration,
    live: bool,
}

impl<'a> Seen<'a> {
    /// The last sign of life of its owner is the record itself, or, if the record says so, a younger presence.
    fn at(now: Moment, seen: &'a Ownership, observer: &Observer<'_>, attendances: &Heartbeats<'_>) -> Self {
        let record = &seen.record;
        let owner = record.owner.as_ref().filter(|_| record.scope == LeaseScope::Instance);
        let presence = owner.and_then(|owner| attendances.age_of(owner, record.incarnation.as_ref(), now));
        let age = presence.map_or(seen.age_at(now), |presence| presence.min(seen.age_at(now)));
        Self { record, age, live: observer.lease_durations.counts_as_live(record, observer.forgiven(age, now)) }
    }
}

/// A listing at the moment of looking, and what is known beside it.
struct Listing<'a: 'o, 'o> {
    here: HashMap<&'a PartitionId, Seen<'a>>,
    /// Who is live in the other tree. An earlier life of mine is not: I may take its partitions at any time.
    elsewhere: HashMap<&'o PartitionId, &'o OwnerId>,
    present: Vec<&'o HeartbeatRecord>,
    /// Who shows any sign of life. Not worked out where nobody has asked for a partition.
    alive: HashSet<&'o OwnerId>,
}

impl<'a: 'o, 'o> Listing<'a, 'o> {
    fn of(listed: &'a [Ownership], observer: &Observer<'o>, now: Moment) -> Self {
        let attendances = Heartbeats::of(observer.heartbeats);
        let here = listed.iter().map(|seen| (&seen.partition, Seen::at(now, seen, observer, &attendances)));
        let here = here.collect();
        let theirs = |record: &OwnershipRecord| {
            matches!(record.relation_to(observer.this), Relation::Other | Relation::LaterIncarnation)
        };
        let other_tree = observer.other_name_case.iter().filter_map(|seen| {
            let is_live = Seen::at(now, seen, observer, &attendances).live;
            let owner = seen.record.owner.as_ref().filter(|_| is_live && theirs(&seen.record))?;
            Some((&seen.partition, owner))
        });
        let elsewhere = other_tree.collect();
        let mut listing = Self { here, elsewhere, present: attendances.live(observer, now), alive: HashSet::new() };
        if listing.here.values().any(|seen| seen.record.handoff_to.is_some()) {
            listing.alive = listing.live_owners().chain([&observer.this.owner]).collect();
        }
        listing
    }

    fn live_owners(&self) -> impl Iterator<Item = &'o OwnerId> {
        let here = self.here.values().filter(|seen| seen.live).filter_map(|seen| seen.record.owner.as_ref());
        let present = self.present.iter().map(|present| &present.owner);
        here.chain(self.elsewhere.values().copied()).chain(present)
    }

    /// With what the record says of a handoff, as far as that counts.
    fn with_handoff(&self, entry: PartitionView, seen: &Seen<'_>, observer: &Observer<'_>) -> PartitionView {
        let Seen { record, age, .. } = seen;
        let counts = |to: &&OwnerId| match &entry.owner {
            // A record that its owner asked for itself is left over from an earlier life.
            // An operator shows no other sign of life, nor need the owner do so to which it will return the partition.
            PartitionOwner::This | PartitionOwner::Other(_) => {
                record.owner.as_ref() != Some(*to) && (record.operator.is_some() || self.alive.contains(*to))
            }
            PartitionOwner::Released => *age < reservation(record, observer),
            _ => false,
        };
        let handoff_to = record.handoff_to.as_ref().filter(counts).cloned();
        let is_anothers = matches!(entry.owner, PartitionOwner::Other(_));
        let (cooperative, away) = (record.cooperative && is_anothers, record.away && is_anothers);
        let operator = record.operator.as_ref().filter(|_| !matches!(entry.owner, PartitionOwner::Expired(_))).cloned();
        PartitionView { cooperative, away, handoff_to, operator, ..entry }
    }

    /// Past half the expiry a cooperative owner may be dead.
    fn unmarkable(&self, view: &View<'_>, observer: &Observer<'_>) -> BTreeSet<PartitionId> {
        let old = |partition| self.here.get(partition).is_some_and(|seen| seen.age >= observer.lease_durations.own / 2);
        let cooperative = view.partitions.iter().filter(|entry| entry.cooperative).map(|entry| &entry.partition);
        cooperative.filter(|partition| old(*partition)).cloned().collect()
    }
}

/// How long a released partition is reserved. The owner to which an operator returns it was not told to look more often:
/// it claims the partition at its next listing, which comes after half an expiry at the latest.
fn reservation(record: &OwnershipRecord, observer: &Observer<'_>) -> Duration {
    let returned = record.operator.is_some() && record.operator != record.handoff_to;
    let listing = if returned { observer.lease_durations.own / 2 } else { observer.interval };
    listing + LeaseDurations::GRACE
}

/// What a live presence says.
fn notice_presence(view: &mut View<'_>, presence: &HeartbeatRecord, me: &Identity) {
    if presence.owner != me.owner {
        view.present.insert(presence.owner.clone());
    } else if presence.incarnation.as_ref() > Some(&me.incarnation) {
        view.replaced_by.clone_from(&presence.incarnation);
    }
}

/// What a live record of this tree says beyond its partition.
fn notice_strangers(view: &mut View<'_>, record: &OwnershipRecord, me: &Identity) {
    match record.relation_to(me) {
        Relation::LaterIncarnation if view.replaced_by < record.incarnation => {
            view.replaced_by.clone_from(&record.incarnation)
        }
        Relation::Other => view.foreign_owner |= record.incarnation.is_none(),
        _ => {}
    }
}

fn holder(seen: Option<&Seen<'_>>, me: &Identity, running: bool) -> PartitionOwner {
    let Some(Seen { record, live, .. }) = seen else { return PartitionOwner::Unowned };
    match record.relation_to(me) {
        Relation::Unowned => PartitionOwner::Released,
        Relation::This if running => PartitionOwner::This,
        Relation::This | Relation::EarlierIncarnation if *live => PartitionOwner::Reclaimable,
        Relation::This | Relation::EarlierIncarnation => other(record, false),
        Relation::LaterIncarnation | Relation::Other => other(record, *live),
    }
}

fn other(record: &OwnershipRecord, live: bool) -> PartitionOwner {
    match (&record.owner, live) {
        (Some(owner), true) => PartitionOwner::Other(owner.clone()),
        (Some(owner), false) => PartitionOwner::Expired(owner.clone()),
        (None, _) => PartitionOwner::Released,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use time::macros::datetime;

    use super::*;
    use crate::model::{ETag, Heartbeat};

    const TERMS: LeaseDurations = LeaseDurations { own: Duration::from_secs(60), foreign: Duration::from_secs(180) };

    fn life(random: u32) -> Incarnation {
        Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), random)
    }

    fn me() -> Identity {
        Identity { owner: OwnerId::new("me").unwrap(), incarnation: life(5) }
    }

    fn observer<'a>(me: &'a Identity, running: &'a BTreeSet<PartitionId>) -> Observer<'a> {
        Observer {
            this: me,
            lease_durations: TERMS,
            running,
            other_name_case: &[],
            heartbeats: &[],
            interval: Duration::from_secs(10),
            outage_ended: None,
        }
    }

    fn seen(owner: &str, incarnation: Option<Incarnation>, age: u64) -> Ownership {
        let owner = (!owner.is_empty()).then(|| OwnerId::new(owner).unwrap());
        Ownership {
            partition: 0.into(),
            record: OwnershipRecord { owner, incarnation, ..Default::default() },
            age: Duration::from_secs(age),
            etag: ETag::new("seen"),
            server_time: datetime!(2026-01-01 00:00:00 UTC),
            received: Duration::from_secs(100),
        }
    }

    fn holder_at(observation: Ownership, running: bool, now: u64) -> PartitionOwner {
        let view = look(&[observation], running, None, now);
        view.partitions[0].owner.clone()
    }

    /// At partition 0 alone.
    fn look(listing: &[Ownership], running: bool, outage_ended: Option<u64>, now: u64) -> View<'static> {
        look_at(listing, &observer(&me(), &BTreeSet::new()), running, outage_ended, now)
    }

    fn look_at(
        listing: &[Ownership],
        by: &Observer<'_>,
        running: bool,
        outage_ended: Option<u64>,
        now: u64,
    ) -> View<'static> {
        let running = if running { [0.into()].into() } else { BTreeSet::new() };
        let outage_ended = outage_ended.map(Duration::from_secs);
        let observer = Observer { outage_ended, running: &running, ..*by };
        // For as long as the test runs.
        observe(listing.to_vec().leak(), &[0.into()], &observer, Duration::from_secs(now))
    }

    #[test]
    fn an_owner_lives_until_its_expiry_and_the_grace_counted_from_the_answer() {
        let other = OwnerId::new("other").unwrap();
        assert_eq!(holder_at(seen("other", Some(life(0)), 30), false, 131), PartitionOwner::Other(other.clone()));
        assert_eq!(holder_at(seen("other", Some(life(0)), 30), false, 132), PartitionOwner::Expired(other));
    }

    #[test]
    fn an_owner_of_another_sdk_lives_until_the_peer_expiry() {
        let other = OwnerId::new("other").unwrap();
        assert_eq!(holder_at(seen("other", None, 181), false, 100), PartitionOwner::Other(other.clone()));
        assert_eq!(holder_at(seen("other", None, 182), false, 100), PartitionOwner::Expired(other));
    }

    #[test]
    fn an_empty_owner_is_nobody_and_counts_for_nothing() {
        assert_eq!(holder_at(seen("", None, 0), false, 100), PartitionOwner::Released);
    }

    #[test]
    fn my_record_is_mine_only_if_i_run_it() {
        assert_eq!(holder_at(seen("me", Some(life(5)), 0), true, 100), PartitionOwner::This);
        assert_eq!(holder_at(seen("me", Some(life(5)), 0), false, 100), PartitionOwner::Reclaimable);
        assert_eq!(holder_at(seen("me", Some(life(5)), 70), true, 100), PartitionOwner::This);
        assert_eq!(holder_at(seen("me", Some(life(4)), 0), false, 100), PartitionOwner::Reclaimable);
        assert_eq!(holder_at(seen("me", Some(life(4)), 70), false, 100), PartitionOwner::Expired(me().owner));
    }

    #[test]
    fn a_live_later_life_replaces_me_and_an_expired_one_does_not() {
        let view = |age| look(&[seen("me", Some(life(6)), age)], false, None, 100);
        assert_eq!(view(0).replaced_by, Some(life(6)));
        assert_eq!(view(62).replaced_by, None);
    }

    #[test]
    fn a_live_owner_without_incarnation_is_foreign() {
        let view = |incarnation, age| look(&[seen("x", incarnation, age)], false, None, 100);
        assert!(view(None, 0).foreign_owner);
        assert!(!view(None, 999).foreign_owner);
        assert!(!view(Some(life(0)), 0).foreign_owner);
    }

    fn with_twin(here: &[Ownership], twin: Ownership, running: bool) -> View<'static> {
        let (me, none, other_tree) = (me(), BTreeSet::new(), [twin]);
        let observer = Observer { other_name_case: &other_tree, ..observer(&me, &none) };
        look_at(here, &observer, running, None, 100)
    }

    #[test]
    fn a_fresh_ownership_in_the_other_tree_counts_whatever_this_one_says() {
        let twin = OwnerId::new("twin").unwrap();
        let elsewhere = PartitionOwner::OtherNameCase(twin.clone());
        for here in
            [vec![], vec![seen("", None, 0)], vec![seen("x", Some(life(0)), 0)], vec![seen("x", Some(life(0)), 70)]]
        {
            let view = with_twin(&here, seen("twin", None, 0), false);
            assert_eq!(view.partitions[0].owner, elsewhere);
            assert_eq!(view.counts()[&twin], 1);
            assert!(!view.foreign_owner, "it does not look at our records");
        }
    }

    #[test]
    fn the_other_tree_changes_nothing_once_released_or_expired_or_where_i_run_the_partition_or_did_before() {
        for (twin, running) in [
            (seen("", None, 0), false),
            (seen("twin", None, 182), false),
            (seen("twin", Some(life(0)), 62), false),
            (seen("me", Some(life(4)), 0), false),
        ] {
            assert_eq!(with_twin(&[], twin, running).partitions[0].owner, PartitionOwner::Unowned);
        }
        let view = with_twin(&[seen("me", Some(life(5)), 0)], seen("twin", None, 0), true);
        assert_eq!(view.partitions[0].owner, PartitionOwner::This);
    }

    #[test]
    fn records_of_partitions_that_the_hub_does_not_have_are_left_out_and_what_i_run_of_them_is_gone() {
        let running = [0.into(), 1.into()].into();
        let listing = [seen("me", Some(life(5)), 0)];
        let view = observe(&listing, &[1.into()], &observer(&me(), &running), Duration::ZERO);
        assert_eq!(view.partitions, [PartitionView::new(1.into(), PartitionOwner::Unowned)]);
        assert_eq!(view.removed, [0.into()]);
    }

    #[test]
    fn partitions_come_in_order_and_each_once_however_the_hub_names_them() {
        let hub = [10.into(), 2.into(), 1.into(), 2.into()];
        let view = observe(&[], &hub, &observer(&me(), &BTreeSet::new()), Duration::ZERO);
        let order: Vec<_> = view.partitions.iter().map(|entry| entry.partition.as_str()).collect();
        assert_eq!(order, ["1", "2", "10"]);
    }

    #[test]
    fn what_was_written_before_the_end_of_my_outage_lives_for_one_expiry_from_there_on() {
        // Written at 30, seen at 100. The outage ended at 90: live until 90 + 60 + the grace.
        let holder = |age, outage_ended, now| {
            let view = look(&[seen("other", Some(life(0)), age)], false, outage_ended, now);
            view.partitions[0].owner.clone()
        };
        let other = OwnerId::new("other").unwrap();
        assert_eq!(holder(70, None, 100), PartitionOwner::Expired(other.clone()));
        assert_eq!(holder(70, Some(90), 151), PartitionOwner::Other(other.clone()));
        assert_eq!(holder(70, Some(90), 152), PartitionOwner::Expired(other.clone()));
        // Written at 95, after the end: by its own age.
        assert_eq!(holder(5, Some(90), 156), PartitionOwner::Other(other.clone()));
        assert_eq!(holder(5, Some(90), 157), PartitionOwner::Expired(other));
    }

    #[test]
    fn an_outage_makes_nobody_live_who_gave_the_partition_back_and_lengthens_the_expiry_of_peers_too() {
        let holder = |record, now| look(&[record], false, Some(90), now).partitions[0].owner.clone();
        assert_eq!(holder(seen("", None, 70), 100), PartitionOwner::Released);
        let peer = OwnerId::new("peer").unwrap();
        assert_eq!(holder(seen("peer", None, 500), 271), PartitionOwner::Other(peer.clone()));
        assert_eq!(holder(seen("peer", None, 500), 272), PartitionOwner::Expired(peer));
    }

    fn asked_for(seen: Ownership, to: &str) -> Ownership {
        let handoff_to = OwnerId::new(to).ok();
        Ownership { record: OwnershipRecord { handoff_to, cooperative: true, ..seen.record }, ..seen }
    }

    /// At partitions 0 and 1, of which I run 0; at 1 the second record is found.
    fn handed(first: Ownership, second: Option<Ownership>, presences: &[Heartbeat]) -> PartitionView {
        let second = second.map(|seen| Ownership { partition: 1.into(), ..seen });
        let listing: Vec<_> = [first].into_iter().chain(second).collect();
        first_of(&listing, &Observer { heartbeats: presences, ..observer(&me(), &[0.into()].into()) })
    }

    fn first_of(listing: &[Ownership], observer: &Observer<'_>) -> PartitionView {
        observe(listing, &[0.into(), 1.into()], observer, Duration::from_secs(100)).partitions.remove(0)
    }

    #[test]
    fn a_partition_goes_to_the_live_owner_that_asked_for_it() {
        let [b, c] = ["b", "c"].map(|name| OwnerId::new(name).unwrap());
        for holder in ["me", "b"] {
            let held = || asked_for(seen(holder, Some(life(5)), 0), "c");
            let by_presence = [present("c", Some(life(0)), 0)];
            for entry in [handed(held(), Some(seen("c", Some(life(0)), 0)), &[]), handed(held(), None, &by_presence)] {
                assert_eq!(entry.handoff_to, Some(c.clone()));
                assert_eq!(entry.counts_for(&me().owner), Some(&c));
                assert_eq!(
                    entry.owner,
                    if holder == "b" { PartitionOwner::Other(b.clone()) } else { PartitionOwner::This }
                );
            }
        }
        let elsewhere = Ownership { partition: 1.into(), ..seen("c", Some(life(0)), 0) };
        let (listing, other_tree) = ([asked_for(seen("b", Some(life(5)), 0), "c")], [elsewhere]);
        let entry =
            first_of(&listing, &Observer { other_name_case: &other_tree, ..observer(&me(), &[0.into()].into()) });
        assert_eq!(entry.handoff_to, Some(c));
        let to_me = handed(asked_for(seen("b", Some(life(5)), 0), "me"), None, &[]);
        assert_eq!((to_me.handoff_to, to_me.cooperative), (Some(me().owner), true));
    }

    #[test]
    fn what_one_asked_for_that_is_dead_or_holds_it_already_is_not_being_handed_over() {
        let held = || asked_for(seen("b", Some(life(0)), 0), "c");
        let dead = [present("c", Some(life(0)), 62)];
        assert_eq!(handed(held(), Some(seen("c", Some(life(0)), 62)), &dead).handoff_to, None);
        let own = asked_for(seen("me", Some(life(5)), 0), "me");
        assert_eq!(handed(own, None, &[]).handoff_to, None);
        let expired = asked_for(seen("b", Some(life(0)), 62), "c");
        assert_eq!(handed(expired, None, &[present("c", Some(life(0)), 0)]).handoff_to, None);
    }

    #[test]
    fn what_i_do_not_run_of_mine_is_mine_whoever_asked_for_it() {
        let orphan = asked_for(seen("me", Some(life(4)), 0), "c");
        let entry = handed(orphan, None, &[present("c", Some(life(0)), 0)]);
        assert_eq!(entry, PartitionView::new(0.into(), PartitionOwner::Reclaimable));
    }

    #[test]
    fn a_released_partition_is_reserved_for_an_interval_and_the_grace_also_if_nothing_else_is_known_of_that_one() {
        let released = |age| handed(asked_for(seen("", None, age), "c"), None, &[]);
        assert_eq!(released(11).handoff_to, OwnerId::new("c").ok());
        assert_eq!(released(12), PartitionView::new(0.into(), PartitionOwner::Released));
    }

    #[test]
    fn only_other_live_owners_are_cooperative_and_an_old_record_of_theirs_is_not_to_be_marked() {
        let look = |seen: Ownership| look(&[asked_for(seen, "c")], true, None, 100);
        let young = look(seen("b", Some(life(0)), 29));
        assert!(young.partitions[0].cooperative && young.not_requestable.is_empty());
        let old = look(seen("b", Some(life(0)), 30));
        assert!(old.partitions[0].cooperative);
        assert_eq!(old.not_requestable, [0.into()].into());
        for (owner, age) in [("b", 62), ("me", 40), ("", 0)] {
            let view = look(seen(owner, Some(life(5)), age));
            assert!(!view.partitions[0].cooperative && view.not_requestable.is_empty(), "{owner}");
        }
        assert!(!super::tests::look(&[seen("b", Some(life(0)), 0)], true, None, 100).partitions[0].cooperative);
    }

    #[test]
    fn an_outage_of_mine_makes_no_record_younger_for_a_mark() {
        let view = look(&[asked_for(seen("b", Some(life(0)), 40), "c")], true, Some(95), 100);
        assert_eq!(view.not_requestable, [0.into()].into());
    }

    fn present(owner: &str, incarnation: Option<Incarnation>, age: u64) -> Heartbeat {
        let (owner, other) = (OwnerId::new(owner).unwrap(), BTreeMap::new());
        Heartbeat {
            record: HeartbeatRecord { owner, incarnation, declared_dead_by: None, other },
            etag: ETag::new("present"),
            age: Duration::from_secs(age),
            received: Duration::from_secs(100),
        }
    }

    /// At partition 0, with these presences.
    fn attended(listing: &[Ownership], presences: &[Heartbeat], outage_ended: Option<u64>, now: u64) -> View<'static> {
        let (me, none) = (me(), BTreeSet::new());
        let observer = Observer { heartbeats: presences, ..observer(&me, &none) };
        look_at(listing, &observer, false, outage_ended, now)
    }

    #[test]
    fn who_is_present_counts_though_it_holds_nothing_and_everybody_counts_once() {
        let presences = ["me", "b", "c"].map(|owner| present(owner, Some(life(5)), 0));
        let view = attended(&[seen("b", Some(life(0)), 0)], &presences, None, 100);
        let counts: Vec<_> = view.counts().into_iter().map(|(owner, held)| (owner.to_string(), held)).collect();
        assert_eq!(counts, [("b".to_owned(), 1), ("c".to_owned(), 0), ("me".to_owned(), 0)]);
    }

    #[test]
    fn a_presence_lives_as_long_as_an_ownership_and_an_outage_of_mine_lengthens_it_likewise() {
        let is_present = |age, outage_ended, now| {
            let view = attended(&[], &[present("b", Some(life(0)), age)], outage_ended, now);
            view.present.contains(&OwnerId::new("b").unwrap())
        };
        assert!(is_present(30, None, 131) && !is_present(30, None, 132));
        assert!(is_present(70, Some(90), 151) && !is_present(70, Some(90), 152));
    }

    #[test]
    fn of_several_presences_of_one_owner_the_latest_life_counts() {
        let is_present = |lives: [(u32, u64); 2]| {
            let presences = lives.map(|(random, age)| present("b", Some(life(random)), age));
            attended(&[], &presences, None, 100).present.len()
        };
        assert_eq!(is_present([(1, 0), (2, 0)]), 1);
        for lives in [[(1, 0), (2, 70)], [(2, 70), (1, 0)]] {
            assert_eq!(is_present(lives), 0, "the later one is dead, and the earlier one is replaced");
        }
    }

    #[test]
    fn who_was_declared_dead_is_not_present() {
        let mut broken = present("b", Some(life(0)), 0);
        broken.record.declared_dead_by = Some(me().owner);
        let seen = seen("b", Some(life(0)), 500);
        let record = OwnershipRecord { scope: LeaseScope::Instance, ..seen.record.clone() };
        let view = attended(&[Ownership { record, ..seen }], &[broken], None, 100);
        assert_eq!(view.present, BTreeSet::new());
        assert_eq!(view.partitions[0].owner, PartitionOwner::Expired(OwnerId::new("b").unwrap()));
    }

    #[test]
    fn a_later_life_of_mine_that_is_present_replaces_me() {
        let replaced_by = |random, age| {
            let view = attended(&[], &[present("me", Some(life(random)), age)], None, 100);
            assert_eq!(view.present, BTreeSet::new());
            view.replaced_by
        };
        assert_eq!(replaced_by(6, 0), Some(life(6)));
        assert_eq!(replaced_by(6, 62), None);
        assert_eq!(replaced_by(5, 0), None);
        assert_eq!(replaced_by(4, 0), None);
    }

    #[test]
    fn an_ownership_lives_by_the_presence_of_its_owner_only_if_it_says_so() {
        let is_live = |scope, old: u64, presence: Option<(u32, u64)>| {
            let seen = seen("b", Some(life(0)), old);
            let record = OwnershipRecord { scope, ..seen.record };
            let presences: Vec<_> =
                presence.map(|(random, age)| present("b", Some(life(random)), age)).into_iter().collect();
            let view = attended(&[Ownership { record, ..seen }], &presences, None, 100);
            matches!(view.partitions[0].owner, PartitionOwner::Other(_))
        };
        let (by_instance, by_partition) = (LeaseScope::Instance, LeaseScope::Partition);
        assert!(is_live(by_instance, 500, Some((0, 61))));
        assert!(!is_live(by_instance, 500, Some((0, 62))));
        assert!(!is_live(by_instance, 500, Some((1, 0))), "another life");
        assert!(!is_live(by_instance, 500, None));
        assert!(is_live(by_instance, 61, None) && is_live(by_instance, 61, Some((0, 500))), "the younger of the two");
        assert!(!is_live(by_partition, 62, Some((0, 0))));
        assert!(is_live(by_partition, 61, None), "nobody loses anything by not being present");
    }

    mod operators {
        use super::*;

        fn operated(owner: &str, to: &str, age: u64) -> PartitionView {
            let (operator, seen) = (Some(OwnerId::new("operator").unwrap()), seen(owner, Some(life(0)), age));
            let record = OwnershipRecord { operator, ..asked_for(seen.clone(), to).record };
            look(&[Ownership { record, ..seen }], false, None, 100).partitions.remove(0)
        }

        fn counts_for(entry: &PartitionView) -> Option<String> {
            entry.counts_for(&OwnerId::new("me").unwrap()).map(ToString::to_string)
        }

        #[test]
        fn what_one_holds_counts_for_the_owner_before() {
            let entry = operated("operator", "gone", 0);
            assert!(entry.is_held_by_operator());
            assert_eq!(counts_for(&entry).as_deref(), Some("gone"), "which shows no sign of life");
            assert!(!operated("operator", "gone", 62).is_held_by_operator(), "it has expired");
        }

        #[test]
        fn what_one_asked_for_counts_for_its_owner() {
            let entry = operated("b", "operator", 0);
            assert_eq!(entry.handoff_to, Some(OwnerId::new("operator").unwrap()), "though it shows no sign of life");
            assert_eq!(counts_for(&entry).as_deref(), Some("b"));
        }

        #[test]
        fn what_one_returned_is_reserved_for_longer() {
            assert_eq!(counts_for(&operated("", "gone", 31)).as_deref(), Some("gone"));
            assert_eq!(operated("", "gone", 32).handoff_to, None);
            let for_itself = operated("", "operator", 11);
            assert!(for_itself.handoff_to.is_some() && counts_for(&for_itself).is_none());
            assert_eq!(operated("", "operator", 12).handoff_to, None);
        }
    }
}
