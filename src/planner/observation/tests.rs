//! What views show of records and heartbeats.

mod handoffs;
mod heartbeats;
mod operators;

use std::collections::BTreeMap;

use time::macros::datetime;

use super::*;
use crate::model::{ETag, Heartbeat};

const LEASE_DURATIONS: LeaseDurations =
    LeaseDurations { own: Duration::from_secs(60), foreign: Duration::from_secs(180) };

fn incarnation(random: u32) -> Incarnation {
    Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), random)
}

fn me() -> Identity {
    Identity { owner: OwnerId::new("me").unwrap(), incarnation: incarnation(5) }
}

fn observer<'a>(me: &'a Identity, running: &'a BTreeSet<PartitionId>) -> Observer<'a> {
    Observer { this: me, lease_durations: LEASE_DURATIONS, running, heartbeats: &[], outage_ended: None }
}

/// A record of this crate if it has an incarnation, and of another SDK otherwise.
fn seen(owner: &str, incarnation: Option<Incarnation>, age: u64) -> Ownership {
    let owner = (!owner.is_empty()).then(|| OwnerId::new(owner).unwrap());
    let lease_duration = incarnation.as_ref().map(|_| LEASE_DURATIONS.own);
    Ownership {
        partition: 0.into(),
        record: OwnershipRecord { owner, incarnation, lease_duration, ..Default::default() },
        age: Duration::from_secs(age),
        etag: ETag::new("seen"),
        server_time: datetime!(2026-01-01 00:00:00 UTC),
        received: Duration::from_secs(100),
    }
}

fn owner_at(observation: Ownership, running: bool, now: u64) -> PartitionOwner {
    let view = look(&[observation], running, None, now);
    view.partitions[0].owner.clone()
}

/// Observes partition 0 alone.
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
    // The records live as long as the test.
    observe(listing.to_vec().leak(), &[0.into()], &observer, Duration::from_secs(now))
}

/// The age counts from the response of the listing.
#[test]
fn an_owner_expires_after_lease_duration_and_grace() {
    let other = OwnerId::new("other").unwrap();
    assert_eq!(owner_at(seen("other", Some(incarnation(0)), 30), false, 131), PartitionOwner::Other(other.clone()));
    assert_eq!(owner_at(seen("other", Some(incarnation(0)), 30), false, 132), PartitionOwner::Expired(other));
}

/// Whatever the lease duration of the observer.
#[test]
fn an_owner_expires_as_its_record_says() {
    for (seconds, last, first) in [(14, 15, 16), (300, 301, 302)] {
        let owner = |age| {
            let seen = seen("other", Some(incarnation(0)), age);
            let lease_duration = Some(Duration::from_secs(seconds));
            let record = OwnershipRecord { lease_duration, ..seen.record };
            owner_at(Ownership { record, ..seen }, false, 100)
        };
        let other = OwnerId::new("other").unwrap();
        assert_eq!(owner(last), PartitionOwner::Other(other.clone()));
        assert_eq!(owner(first), PartitionOwner::Expired(other));
    }
}

#[test]
fn a_foreign_owner_has_the_foreign_lease_duration() {
    let other = OwnerId::new("other").unwrap();
    assert_eq!(owner_at(seen("other", None, 181), false, 100), PartitionOwner::Other(other.clone()));
    assert_eq!(owner_at(seen("other", None, 182), false, 100), PartitionOwner::Expired(other));
}

#[test]
fn an_empty_owner_id_means_released() {
    assert_eq!(owner_at(seen("", None, 0), false, 100), PartitionOwner::Released);
}

#[test]
fn own_records_count_as_own_only_if_run() {
    assert_eq!(owner_at(seen("me", Some(incarnation(5)), 0), true, 100), PartitionOwner::This);
    assert_eq!(owner_at(seen("me", Some(incarnation(5)), 0), false, 100), PartitionOwner::Reclaimable);
    assert_eq!(owner_at(seen("me", Some(incarnation(5)), 70), true, 100), PartitionOwner::This);
    assert_eq!(owner_at(seen("me", Some(incarnation(4)), 0), false, 100), PartitionOwner::Reclaimable);
    assert_eq!(owner_at(seen("me", Some(incarnation(4)), 70), false, 100), PartitionOwner::Expired(me().owner));
}

#[test]
fn only_a_live_later_incarnation_replaces() {
    let view = |age| look(&[seen("me", Some(incarnation(6)), age)], false, None, 100);
    assert_eq!(view(0).replaced_by, Some(incarnation(6)));
    assert_eq!(view(62).replaced_by, None);
}

#[test]
fn the_latest_of_several_incarnations_replaces() {
    let by_record = seen("me", Some(incarnation(6)), 0);
    let view = view_with_heartbeats(&[by_record], &[heartbeat("me", Some(incarnation(7)), 0)], None, 100);
    assert_eq!(view.replaced_by, Some(incarnation(7)));
    let by_record = seen("me", Some(incarnation(8)), 0);
    let view = view_with_heartbeats(&[by_record], &[heartbeat("me", Some(incarnation(7)), 0)], None, 100);
    assert_eq!(view.replaced_by, Some(incarnation(8)));
}

mod other_owners {
    use super::*;

    /// Observes one owner with records of these ages, at second 100.
    fn live_ownership(ages: &[u64]) -> LiveOwnership {
        let records = (0u32..)
            .zip(ages)
            .map(|(partition, age)| Ownership { partition: partition.into(), ..seen("b", Some(incarnation(0)), *age) });
        let records: Vec<_> = records.collect();
        let hub: Vec<_> = records.iter().map(|seen| seen.partition.clone()).collect();
        let view = observe(&records, &hub, &observer(&me(), &BTreeSet::new()), Duration::from_secs(100));
        view.owners[&OwnerId::new("b").unwrap()].clone()
    }

    #[test]
    fn an_owner_is_silent_a_lease_after_its_last_renewal() {
        for (ages, last, silent_at) in [(&[20][..], 0, 140), (&[20, 10, 10, 30], 1, 150), (&[5, 10], 0, 155)] {
            let live = live_ownership(ages);
            let expected = (last.into(), Duration::from_secs(silent_at));
            assert_eq!((live.partition, live.silent_at), expected, "{ages:?}");
        }
    }

    /// They expire after 62 s, and are overdue after 40 s.
    #[test]
    fn the_first_overdue_lease_to_expire_counts() {
        for (ages, expiry) in
            [(&[39, 0][..], None), (&[40, 0], Some(122)), (&[40, 45, 0], Some(117)), (&[45, 40, 0], Some(117))]
        {
            assert_eq!(live_ownership(ages).overdue_expiry, expiry.map(Duration::from_secs), "{ages:?}");
        }
    }

    #[test]
    fn operators_and_absent_owners_take_no_part() {
        for (operator, away, takes_part) in
            [(None, false, true), (Some("b"), false, false), (None, true, false), (Some("operator"), false, true)]
        {
            let seen = seen("b", Some(incarnation(0)), 0);
            let operator = operator.map(OwnerId::from_record);
            let record = OwnershipRecord { operator, away, ..seen.record };
            let view = look(&[Ownership { record, ..seen }], false, None, 100);
            assert_eq!(view.owners[&OwnerId::new("b").unwrap()].takes_part, takes_part, "{:?}", view.partitions);
        }
    }
}

#[test]
fn a_live_owner_without_incarnation_is_foreign() {
    let view = |incarnation, age| look(&[seen("x", incarnation, age)], false, None, 100);
    assert!(view(None, 0).foreign_owner);
    assert!(!view(None, 999).foreign_owner);
    assert!(!view(Some(incarnation(0)), 0).foreign_owner);
}

/// Their records are left out, and those that this instance runs are reported as removed.
#[test]
fn partitions_missing_in_the_event_hub_are_removed() {
    let running = [0.into(), 1.into()].into();
    let listing = [seen("me", Some(incarnation(5)), 0)];
    let view = observe(&listing, &[1.into()], &observer(&me(), &running), Duration::ZERO);
    assert_eq!(view.partitions, [PartitionView::new(1.into(), PartitionOwner::Unowned)]);
    assert_eq!(view.removed, [0.into()]);
}

#[test]
fn partitions_are_sorted_and_unique() {
    let hub = [10.into(), 2.into(), 1.into(), 2.into()];
    let view = observe(&[], &hub, &observer(&me(), &BTreeSet::new()), Duration::ZERO);
    let order: Vec<_> = view.partitions.iter().map(|entry| entry.partition.as_str()).collect();
    assert_eq!(order, ["1", "2", "10"]);
}

mod outages {
    use super::*;

    /// Only records that were written before the end of the outage.
    #[test]
    fn records_get_a_lease_duration_after_an_outage() {
        // Written at 30, seen at 100. The outage ended at 90: live until 90 + 60 + the grace.
        let owner = |age, outage_ended, now| {
            let view = look(&[seen("other", Some(incarnation(0)), age)], false, outage_ended, now);
            view.partitions[0].owner.clone()
        };
        let other = OwnerId::new("other").unwrap();
        assert_eq!(owner(70, None, 100), PartitionOwner::Expired(other.clone()));
        assert_eq!(owner(70, Some(90), 151), PartitionOwner::Other(other.clone()));
        assert_eq!(owner(70, Some(90), 152), PartitionOwner::Expired(other.clone()));
        // Written at 95, after the end: counts by its own age.
        assert_eq!(owner(5, Some(90), 156), PartitionOwner::Other(other.clone()));
        assert_eq!(owner(5, Some(90), 157), PartitionOwner::Expired(other));
    }

    #[test]
    fn an_outage_extends_foreign_leases_not_releases() {
        let owner = |record, now| look(&[record], false, Some(90), now).partitions[0].owner.clone();
        assert_eq!(owner(seen("", None, 70), 100), PartitionOwner::Released);
        let foreign = OwnerId::new("foreign").unwrap();
        assert_eq!(owner(seen("foreign", None, 500), 271), PartitionOwner::Other(foreign.clone()));
        assert_eq!(owner(seen("foreign", None, 500), 272), PartitionOwner::Expired(foreign));
    }
}

fn with_handoff_request(seen: Ownership, to: &str) -> Ownership {
    let handoff_to = OwnerId::new(to).ok();
    Ownership { record: OwnershipRecord { handoff_to, cooperative: true, ..seen.record }, ..seen }
}

fn first_of(listing: &[Ownership], observer: &Observer<'_>) -> PartitionView {
    observe(listing, &[0.into(), 1.into()], observer, Duration::from_secs(100)).partitions.remove(0)
}

fn heartbeat(owner: &str, incarnation: Option<Incarnation>, age: u64) -> Heartbeat {
    let owner = OwnerId::new(owner).unwrap();
    let other = BTreeMap::new();
    Heartbeat {
        record: HeartbeatRecord {
            owner,
            incarnation,
            declared_dead_by: None,
            lease_duration: Some(LEASE_DURATIONS.own),
            other,
        },
        etag: ETag::new("heartbeat"),
        age: Duration::from_secs(age),
        received: Duration::from_secs(100),
    }
}

/// Observes partition 0 with these heartbeats.
fn view_with_heartbeats(
    listing: &[Ownership],
    heartbeats: &[Heartbeat],
    outage_ended: Option<u64>,
    now: u64,
) -> View<'static> {
    let me = me();
    let none = BTreeSet::new();
    let observer = Observer { heartbeats, ..observer(&me, &none) };
    look_at(listing, &observer, false, outage_ended, now)
}
