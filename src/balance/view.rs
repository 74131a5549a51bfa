//! What a listing says about the group at one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use super::census::Census;
use crate::model::{Identity, Incarnation, LeaseTerms, OwnerId, OwnershipRecord, PartitionId, Relation};

/// A point on an instance's own monotonic clock: the time since some fixed moment. Only differences mean anything.
pub type Moment = Duration;

/// One ownership record, as an answer showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whose record it is.
    pub partition: PartitionId,
    /// What it says.
    pub record: OwnershipRecord,
    /// Time since it was last written, by the server's clock, when the server answered.
    pub age: Duration,
    /// When the answer was here.
    pub received: Moment,
    /// It lies in the other tree of names, which some SDKs use.
    pub other_tree: bool,
}

impl Observation {
    /// Whether it still counts at `now`. Its age begins anew with the end of an outage of mine.
    fn is_live(&self, observer: &Observer<'_>, now: Moment) -> bool {
        let age = self.age + now.saturating_sub(self.received);
        let age = observer.outage_ended.map_or(age, |ended| age.min(now.saturating_sub(ended)));
        observer.terms.counts_as_live(&self.record, age)
    }
}

/// Who looks at a listing, and what it knows beside it.
#[derive(Clone, Copy, Debug)]
pub struct Observer<'a> {
    /// Who is looking.
    pub me: &'a Identity,
    /// How long an ownership lives without renewal.
    pub terms: LeaseTerms,
    /// The partitions that I run.
    pub running: &'a BTreeSet<PartitionId>,
    /// When an outage of mine ended, if there was one: for a while no request of mine had succeeded. What stopped me may
    /// have stopped the others, so a record last written before that end counts as live for one expiry from there on.
    /// One written later counts by its own age. The last outage is enough, and it may be kept for ever.
    pub outage_ended: Option<Moment>,
}

/// Who holds a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "holder", content = "owner", rename_all = "lowercase")]
pub enum Holder {
    /// Nobody has ever claimed it.
    Nobody,
    /// Its last owner gave it back.
    Released,
    /// I do, and I run it. That holds past the expiry, too, as long as nobody else has taken it.
    Me,
    /// The fresh record is mine, of this life or an earlier one, but I do not run it. I may claim it at once.
    Orphan,
    /// Another live owner.
    Live(OwnerId),
    /// An owner that is live in the other tree of names, where no claim of ours can be won or lost: its partition is
    /// neither claimed nor stolen.
    Elsewhere(OwnerId),
    /// An owner that has not renewed in time.
    Expired(OwnerId),
}

/// One partition and its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionView {
    /// The partition.
    pub partition: PartitionId,
    /// Its holder.
    #[serde(flatten)]
    pub holder: Holder,
}

/// The group, as one instance sees it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Every partition of the hub, in order.
    pub partitions: Vec<PartitionView>,
    /// Partitions that I run, but that the hub no longer has.
    pub gone: Vec<PartitionId>,
    /// Who is looking.
    pub me: OwnerId,
    /// A later life of mine that is at work: I must stop.
    pub replaced_by: Option<Incarnation>,
    /// Whether an owner of another SDK is alive in the group. Those compare ages with their own wall clocks, so our
    /// renewals must come more often.
    pub foreign_owner: bool,
}

impl View {
    /// How many partitions each live owner holds. I am always in it.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let census = Census::of(self);
        census.owners.iter().map(|owner| (*owner).clone()).zip(census.counts()).collect()
    }

    /// The holder of a partition, or nothing if the hub has no such partition.
    #[must_use]
    pub fn holder(&self, partition: &PartitionId) -> Option<&Holder> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.holder)
    }
}

/// Reads a listing at `now`.
///
/// `partitions` are all that the hub has now: records of others are left out, and those of them that I run are
/// [`gone`](View::gone). A fresh record of mine for a partition that I do not run is an [`Orphan`](Holder::Orphan), for
/// instance one whose write landed late.
#[must_use]
pub fn observe(listing: &[Observation], partitions: &[PartitionId], observer: &Observer<'_>, now: Moment) -> View {
    let listing = Sorted::of(listing, observer, now);
    let mut partitions: Vec<_> = partitions.to_vec();
    partitions.sort();
    partitions.dedup();
    let gone = observer.running.iter().filter(|running| partitions.binary_search(running).is_err());
    let mut view = View {
        gone: gone.cloned().collect(),
        partitions: Vec::with_capacity(partitions.len()),
        me: observer.me.owner.clone(),
        replaced_by: None,
        foreign_owner: false,
    };
    let running: HashSet<_> = observer.running.iter().collect();
    for partition in partitions {
        let seen = listing.here.get(&partition).copied();
        let live = seen.is_some_and(|seen| seen.is_live(observer, now));
        if let Some(seen) = seen.filter(|_| live) {
            notice_strangers(&mut view, &seen.record, observer.me);
        }
        let holder = holder(seen, live, observer.me, running.contains(&partition));
        let holder = match listing.elsewhere.get(&partition) {
            Some(owner) if holder != Holder::Me => Holder::Elsewhere((*owner).clone()),
            _ => holder,
        };
        view.partitions.push(PartitionView { partition, holder });
    }
    view
}

/// A listing, by partition.
struct Sorted<'a> {
    here: HashMap<&'a PartitionId, &'a Observation>,
    /// Who is live in the other tree. An earlier life of mine is not: I may take its partitions at any time.
    elsewhere: HashMap<&'a PartitionId, &'a OwnerId>,
}

impl<'a> Sorted<'a> {
    fn of(listing: &'a [Observation], observer: &Observer<'_>, now: Moment) -> Self {
        let here = listing.iter().filter(|seen| !seen.other_tree);
        let elsewhere = listing.iter().filter(|seen| {
            seen.other_tree
                && seen.is_live(observer, now)
                && matches!(seen.record.relation_to(observer.me), Relation::Other | Relation::LaterMe)
        });
        Self {
            here: here.map(|seen| (&seen.partition, seen)).collect(),
            elsewhere: elsewhere.filter_map(|seen| Some((&seen.partition, seen.record.owner.as_ref()?))).collect(),
        }
    }
}

/// What a live record of this tree says beyond its partition.
fn notice_strangers(view: &mut View, record: &OwnershipRecord, me: &Identity) {
    match record.relation_to(me) {
        Relation::LaterMe if view.replaced_by < record.incarnation => view.replaced_by.clone_from(&record.incarnation),
        Relation::Other => view.foreign_owner |= record.incarnation.is_none(),
        _ => {}
    }
}

fn holder(seen: Option<&Observation>, live: bool, me: &Identity, running: bool) -> Holder {
    let Some(Observation { record, .. }) = seen else { return Holder::Nobody };
    match record.relation_to(me) {
        Relation::Nobody => Holder::Released,
        Relation::Mine if running => Holder::Me,
        Relation::Mine | Relation::EarlierMe if live => Holder::Orphan,
        Relation::Mine | Relation::EarlierMe => other(record, false),
        Relation::LaterMe | Relation::Other => other(record, live),
    }
}

fn other(record: &OwnershipRecord, live: bool) -> Holder {
    match (&record.owner, live) {
        (Some(owner), true) => Holder::Live(owner.clone()),
        (Some(owner), false) => Holder::Expired(owner.clone()),
        (None, _) => Holder::Released,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const TERMS: LeaseTerms = LeaseTerms { expiry: Duration::from_secs(60), peer_expiry: Duration::from_secs(180) };

    fn life(random: u32) -> Incarnation {
        Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), random)
    }

    fn me() -> Identity {
        Identity { owner: OwnerId::new("me").unwrap(), incarnation: life(5) }
    }

    fn seen(owner: &str, incarnation: Option<Incarnation>, age: u64) -> Observation {
        let owner = (!owner.is_empty()).then(|| OwnerId::new(owner).unwrap());
        Observation {
            partition: 0.into(),
            record: OwnershipRecord { owner, incarnation, ..Default::default() },
            age: Duration::from_secs(age),
            received: Duration::from_secs(100),
            other_tree: false,
        }
    }

    fn holder_at(observation: Observation, running: bool, now: u64) -> Holder {
        let view = look(&[observation], running, None, now);
        view.partitions[0].holder.clone()
    }

    /// At partition 0 alone.
    fn look(listing: &[Observation], running: bool, outage_ended: Option<u64>, now: u64) -> View {
        let running = if running { [0.into()].into() } else { BTreeSet::new() };
        let outage_ended = outage_ended.map(Duration::from_secs);
        let observer = Observer { me: &me(), terms: TERMS, running: &running, outage_ended };
        observe(listing, &[0.into()], &observer, Duration::from_secs(now))
    }

    #[test]
    fn an_owner_lives_until_its_expiry_and_the_grace_counted_from_the_answer() {
        let other = OwnerId::new("other").unwrap();
        assert_eq!(holder_at(seen("other", Some(life(0)), 30), false, 131), Holder::Live(other.clone()));
        assert_eq!(holder_at(seen("other", Some(life(0)), 30), false, 132), Holder::Expired(other));
    }

    #[test]
    fn an_owner_of_another_sdk_lives_until_the_peer_expiry() {
        let other = OwnerId::new("other").unwrap();
        assert_eq!(holder_at(seen("other", None, 181), false, 100), Holder::Live(other.clone()));
        assert_eq!(holder_at(seen("other", None, 182), false, 100), Holder::Expired(other));
    }

    #[test]
    fn an_empty_owner_is_nobody_and_counts_for_nothing() {
        assert_eq!(holder_at(seen("", None, 0), false, 100), Holder::Released);
    }

    #[test]
    fn my_record_is_mine_only_if_i_run_it() {
        assert_eq!(holder_at(seen("me", Some(life(5)), 0), true, 100), Holder::Me);
        assert_eq!(holder_at(seen("me", Some(life(5)), 0), false, 100), Holder::Orphan);
        assert_eq!(holder_at(seen("me", Some(life(5)), 70), true, 100), Holder::Me);
        assert_eq!(holder_at(seen("me", Some(life(4)), 0), false, 100), Holder::Orphan);
        assert_eq!(holder_at(seen("me", Some(life(4)), 70), false, 100), Holder::Expired(me().owner));
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

    fn with_twin(here: Option<Observation>, twin: Observation, running: bool) -> View {
        let twin = Observation { other_tree: true, ..twin };
        let listing: Vec<_> = here.into_iter().chain([twin]).collect();
        look(&listing, running, None, 100)
    }

    #[test]
    fn a_fresh_ownership_in_the_other_tree_counts_whatever_this_one_says() {
        let twin = OwnerId::new("twin").unwrap();
        let elsewhere = Holder::Elsewhere(twin.clone());
        for here in
            [None, Some(seen("", None, 0)), Some(seen("x", Some(life(0)), 0)), Some(seen("x", Some(life(0)), 70))]
        {
            let view = with_twin(here, seen("twin", None, 0), false);
            assert_eq!(view.partitions[0].holder, elsewhere);
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
            assert_eq!(with_twin(None, twin, running).partitions[0].holder, Holder::Nobody);
        }
        let view = with_twin(Some(seen("me", Some(life(5)), 0)), seen("twin", None, 0), true);
        assert_eq!(view.partitions[0].holder, Holder::Me);
    }

    #[test]
    fn records_of_partitions_that_the_hub_does_not_have_are_left_out_and_what_i_run_of_them_is_gone() {
        let running = [0.into(), 1.into()].into();
        let observer = Observer { me: &me(), terms: TERMS, running: &running, outage_ended: None };
        let view = observe(&[seen("me", Some(life(5)), 0)], &[1.into()], &observer, Duration::ZERO);
        assert_eq!(view.partitions, [PartitionView { partition: 1.into(), holder: Holder::Nobody }]);
        assert_eq!(view.gone, [0.into()]);
    }

    #[test]
    fn partitions_come_in_order_and_each_once_however_the_hub_names_them() {
        let observer = Observer { me: &me(), terms: TERMS, running: &BTreeSet::new(), outage_ended: None };
        let view = observe(&[], &[10.into(), 2.into(), 1.into(), 2.into()], &observer, Duration::ZERO);
        let order: Vec<_> = view.partitions.iter().map(|entry| entry.partition.as_str()).collect();
        assert_eq!(order, ["1", "2", "10"]);
    }

    #[test]
    fn what_was_written_before_the_end_of_my_outage_lives_for_one_expiry_from_there_on() {
        // Written at 30, seen at 100. The outage ended at 90: live until 90 + 60 + the grace.
        let holder = |age, outage_ended, now| {
            let view = look(&[seen("other", Some(life(0)), age)], false, outage_ended, now);
            view.partitions[0].holder.clone()
        };
        let other = OwnerId::new("other").unwrap();
        assert_eq!(holder(70, None, 100), Holder::Expired(other.clone()));
        assert_eq!(holder(70, Some(90), 151), Holder::Live(other.clone()));
        assert_eq!(holder(70, Some(90), 152), Holder::Expired(other.clone()));
        // Written at 95, after the end: by its own age.
        assert_eq!(holder(5, Some(90), 156), Holder::Live(other.clone()));
        assert_eq!(holder(5, Some(90), 157), Holder::Expired(other));
    }

    #[test]
    fn an_outage_makes_nobody_live_who_gave_the_partition_back_and_lengthens_the_expiry_of_peers_too() {
        let holder = |record, now| look(&[record], false, Some(90), now).partitions[0].holder.clone();
        assert_eq!(holder(seen("", None, 70), 100), Holder::Released);
        let peer = OwnerId::new("peer").unwrap();
        assert_eq!(holder(seen("peer", None, 500), 271), Holder::Live(peer.clone()));
        assert_eq!(holder(seen("peer", None, 500), 272), Holder::Expired(peer));
    }
}
