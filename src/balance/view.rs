//! What a listing says about the group at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

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
    /// Whether it still counts at `now`.
    fn is_live(&self, terms: LeaseTerms, now: Moment) -> bool {
        terms.counts_as_live(&self.record, self.age + now.saturating_sub(self.received))
    }
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
        let mut counts = BTreeMap::from([(self.me.clone(), 0)]);
        for view in &self.partitions {
            let owner = match &view.holder {
                Holder::Me | Holder::Orphan => &self.me,
                Holder::Live(owner) | Holder::Elsewhere(owner) => owner,
                Holder::Nobody | Holder::Released | Holder::Expired(_) => continue,
            };
            *counts.entry(owner.clone()).or_default() += 1;
        }
        counts
    }

    /// The holder of a partition, or nothing if the hub has no such partition.
    #[must_use]
    pub fn holder(&self, partition: &PartitionId) -> Option<&Holder> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.holder)
    }
}

/// Reads a listing at `now`.
///
/// `partitions` are all that the hub has now: records of others are left out. `running` are those that I run: a fresh
/// record of mine for any other one is an [`Orphan`](Holder::Orphan), for instance one whose write landed late.
#[must_use]
pub fn observe(
    listing: &[Observation],
    partitions: &[PartitionId],
    running: &BTreeSet<PartitionId>,
    me: &Identity,
    terms: LeaseTerms,
    now: Moment,
) -> View {
    let (elsewhere, here): (Vec<_>, Vec<_>) = listing.iter().partition(|seen| seen.other_tree);
    let here: BTreeMap<_, _> = here.into_iter().map(|seen| (&seen.partition, seen)).collect();
    let elsewhere = owners_elsewhere(&elsewhere, me, terms, now);
    let mut view = View {
        partitions: Vec::with_capacity(partitions.len()),
        me: me.owner.clone(),
        replaced_by: None,
        foreign_owner: false,
    };
    for partition in partitions.iter().collect::<BTreeSet<_>>() {
        let seen = here.get(partition).copied();
        let live = seen.is_some_and(|seen| seen.is_live(terms, now));
        let relation = seen.map(|seen| (seen.record.relation_to(me), &seen.record));
        let holder = match relation {
            None => Holder::Nobody,
            Some((Relation::Nobody, _)) => Holder::Released,
            Some((Relation::Mine, _)) if running.contains(partition) => Holder::Me,
            Some((Relation::Mine | Relation::EarlierMe, _)) if live => Holder::Orphan,
            Some((Relation::Mine | Relation::EarlierMe, record)) => other(record, false),
            Some((Relation::LaterMe, record)) => {
                if live {
                    view.replaced_by = view.replaced_by.max(record.incarnation.clone());
                }
                other(record, live)
            }
            Some((Relation::Other, record)) => {
                view.foreign_owner |= live && record.incarnation.is_none();
                other(record, live)
            }
        };
        let holder = match elsewhere.get(partition) {
            Some(owner) if holder != Holder::Me => Holder::Elsewhere((*owner).clone()),
            _ => holder,
        };
        view.partitions.push(PartitionView { partition: partition.clone(), holder });
    }
    view
}

/// Who is live in the other tree. An earlier life of mine is not: I may take its partitions at any time.
fn owners_elsewhere<'a>(
    observations: &[&'a Observation],
    me: &Identity,
    terms: LeaseTerms,
    now: Moment,
) -> BTreeMap<&'a PartitionId, &'a OwnerId> {
    let live = observations.iter().filter(|seen| {
        seen.is_live(terms, now) && matches!(seen.record.relation_to(me), Relation::Other | Relation::LaterMe)
    });
    live.filter_map(|seen| Some((&seen.partition, seen.record.owner.as_ref()?))).collect()
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
        let running = if running { [0.into()].into() } else { BTreeSet::new() };
        let view = observe(&[observation], &[0.into()], &running, &me(), TERMS, Duration::from_secs(now));
        view.partitions[0].holder.clone()
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
        let view = |age| {
            observe(
                &[seen("me", Some(life(6)), age)],
                &[0.into()],
                &BTreeSet::new(),
                &me(),
                TERMS,
                Duration::from_secs(100),
            )
        };
        assert_eq!(view(0).replaced_by, Some(life(6)));
        assert_eq!(view(62).replaced_by, None);
    }

    #[test]
    fn a_live_owner_without_incarnation_is_foreign() {
        let view = |incarnation, age| {
            observe(
                &[seen("x", incarnation, age)],
                &[0.into()],
                &BTreeSet::new(),
                &me(),
                TERMS,
                Duration::from_secs(100),
            )
        };
        assert!(view(None, 0).foreign_owner);
        assert!(!view(None, 999).foreign_owner);
        assert!(!view(Some(life(0)), 0).foreign_owner);
    }

    fn with_twin(here: Option<Observation>, twin: Observation, running: bool) -> View {
        let twin = Observation { other_tree: true, ..twin };
        let running = if running { [0.into()].into() } else { BTreeSet::new() };
        let listing: Vec<_> = here.into_iter().chain([twin]).collect();
        observe(&listing, &[0.into()], &running, &me(), TERMS, Duration::from_secs(100))
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
    fn records_of_partitions_that_the_hub_does_not_have_are_left_out() {
        let view = observe(&[seen("x", None, 0)], &[1.into()], &BTreeSet::new(), &me(), TERMS, Duration::ZERO);
        assert_eq!(view.partitions, [PartitionView { partition: 1.into(), holder: Holder::Nobody }]);
    }
}
