//! What views show of records and heartbeats.

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

/// Observes partitions 0 and 1, and runs 0. The second record belongs to partition 1.
fn view_of_handoff(first: Ownership, second: Option<Ownership>, heartbeats: &[Heartbeat]) -> PartitionView {
    let second = second.map(|seen| Ownership { partition: 1.into(), ..seen });
    let listing: Vec<_> = [first].into_iter().chain(second).collect();
    first_of(&listing, &Observer { heartbeats, ..observer(&me(), &[0.into()].into()) })
}

fn first_of(listing: &[Ownership], observer: &Observer<'_>) -> PartitionView {
    observe(listing, &[0.into(), 1.into()], observer, Duration::from_secs(100)).partitions.remove(0)
}

mod handoffs {
    use super::*;

    #[test]
    fn a_partition_counts_for_the_live_requester() {
        let [b, c] = ["b", "c"].map(|name| OwnerId::new(name).unwrap());
        for owner in ["me", "b"] {
            let owned = || with_handoff_request(seen(owner, Some(incarnation(5)), 0), "c");
            let by_heartbeat = [heartbeat("c", Some(incarnation(0)), 0)];
            for entry in [
                view_of_handoff(owned(), Some(seen("c", Some(incarnation(0)), 0)), &[]),
                view_of_handoff(owned(), None, &by_heartbeat),
            ] {
                assert_eq!(entry.handoff_to, Some(c.clone()));
                assert_eq!(entry.counts_for(&me().owner), Some(&c));
                assert_eq!(
                    entry.owner,
                    if owner == "b" { PartitionOwner::Other(b.clone()) } else { PartitionOwner::This }
                );
            }
        }
        let to_me = view_of_handoff(with_handoff_request(seen("b", Some(incarnation(5)), 0), "me"), None, &[]);
        assert_eq!((to_me.handoff_to, to_me.cooperative), (Some(me().owner), true));
    }

    #[test]
    fn requests_of_dead_or_current_owners_do_not_count() {
        let owned = || with_handoff_request(seen("b", Some(incarnation(0)), 0), "c");
        let dead = [heartbeat("c", Some(incarnation(0)), 62)];
        assert_eq!(view_of_handoff(owned(), Some(seen("c", Some(incarnation(0)), 62)), &dead).handoff_to, None);
        let own = with_handoff_request(seen("me", Some(incarnation(5)), 0), "me");
        assert_eq!(view_of_handoff(own, None, &[]).handoff_to, None);
        let expired = with_handoff_request(seen("b", Some(incarnation(0)), 62), "c");
        assert_eq!(view_of_handoff(expired, None, &[heartbeat("c", Some(incarnation(0)), 0)]).handoff_to, None);
    }

    #[test]
    fn requests_for_reclaimable_partitions_are_ignored() {
        let reclaimable = with_handoff_request(seen("me", Some(incarnation(4)), 0), "c");
        let entry = view_of_handoff(reclaimable, None, &[heartbeat("c", Some(incarnation(0)), 0)]);
        assert_eq!(entry, PartitionView::new(0.into(), PartitionOwner::Reclaimable));
    }

    /// For one of its lease durations, by whatever shows that it is alive.
    #[test]
    fn a_release_is_reserved_while_the_requester_lives() {
        let released = |age| with_handoff_request(seen("", None, age), "c");
        let lasting = |seconds| Some(Duration::from_secs(seconds));
        let short = |age| {
            let heartbeat = heartbeat("c", Some(incarnation(0)), age);
            let record = HeartbeatRecord { lease_duration: lasting(14), ..heartbeat.record };
            Heartbeat { record, ..heartbeat }
        };
        let by_heartbeat = |age| view_of_handoff(released(age), None, &[short(0)]).handoff_to;
        assert_eq!(by_heartbeat(15), OwnerId::new("c").ok());
        assert_eq!(by_heartbeat(16), None);
        let long = seen("c", Some(incarnation(0)), 0);
        let long = Ownership { record: OwnershipRecord { lease_duration: lasting(300), ..long.record }, ..long };
        let by_record = |age| view_of_handoff(released(age), Some(long.clone()), &[]).handoff_to;
        assert_eq!(by_record(301), OwnerId::new("c").ok());
        assert_eq!(by_record(302), None);
        assert_eq!(view_of_handoff(released(0), None, &[short(16)]).handoff_to, None, "it has expired");
        assert_eq!(view_of_handoff(released(0), None, &[]), PartitionView::new(0.into(), PartitionOwner::Released));
    }

    #[test]
    fn the_longest_lease_of_the_requester_reserves() {
        for [one, other] in [[14, 300], [300, 14]] {
            let owned = [(1, one), (2, other)].map(|(partition, seconds): (u32, u64)| {
                let seen = seen("c", Some(incarnation(0)), 0);
                let lease_duration = Some(Duration::from_secs(seconds));
                Ownership {
                    partition: partition.into(),
                    record: OwnershipRecord { lease_duration, ..seen.record },
                    ..seen
                }
            });
            let requester = |age| {
                let listing = [vec![with_handoff_request(seen("", None, age), "c")], owned.to_vec()].concat();
                look(&listing, false, None, 100).partitions.remove(0).handoff_to
            };
            assert_eq!((requester(301), requester(302)), (OwnerId::new("c").ok(), None), "{one}, {other}");
        }
    }

    /// Only other live owners count as cooperative.
    #[test]
    fn only_young_cooperative_records_are_requestable() {
        let look = |seen: Ownership| look(&[with_handoff_request(seen, "c")], true, None, 100);
        let young = look(seen("b", Some(incarnation(0)), 29));
        assert!(young.partitions[0].cooperative && young.not_requestable.is_empty());
        let old = look(seen("b", Some(incarnation(0)), 30));
        assert!(old.partitions[0].cooperative);
        assert_eq!(old.not_requestable, [0.into()].into());
        for (owner, age) in [("b", 62), ("me", 40), ("", 0)] {
            let view = look(seen(owner, Some(incarnation(5)), age));
            assert!(!view.partitions[0].cooperative && view.not_requestable.is_empty(), "{owner}");
        }
        assert!(!super::look(&[seen("b", Some(incarnation(0)), 0)], true, None, 100).partitions[0].cooperative);
    }

    #[test]
    fn an_outage_makes_no_record_requestable() {
        let view = look(&[with_handoff_request(seen("b", Some(incarnation(0)), 40), "c")], true, Some(95), 100);
        assert_eq!(view.not_requestable, [0.into()].into());
    }
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

mod heartbeats {
    use super::*;

    /// Also if it owns nothing.
    #[test]
    fn an_owner_with_a_heartbeat_counts_once() {
        let heartbeats = ["me", "b", "c"].map(|owner| heartbeat(owner, Some(incarnation(5)), 0));
        let view = view_with_heartbeats(&[seen("b", Some(incarnation(0)), 0)], &heartbeats, None, 100);
        let counts: Vec<_> =
            view.count_by_owner().into_iter().map(|(owner, owned)| (owner.to_string(), owned)).collect();
        assert_eq!(counts, [("b".to_owned(), 1), ("c".to_owned(), 0), ("me".to_owned(), 0)]);
    }

    /// An outage extends both alike.
    #[test]
    fn heartbeats_expire_like_leases() {
        let is_present = |age, outage_ended, now| {
            let view = view_with_heartbeats(&[], &[heartbeat("b", Some(incarnation(0)), age)], outage_ended, now);
            view.present.contains(&OwnerId::new("b").unwrap())
        };
        assert!(is_present(30, None, 131) && !is_present(30, None, 132));
        assert!(is_present(70, Some(90), 151) && !is_present(70, Some(90), 152));
    }

    #[test]
    fn the_latest_incarnation_counts() {
        let is_present = |incarnations: [(u32, u64); 2]| {
            let heartbeats = incarnations.map(|(random, age)| heartbeat("b", Some(incarnation(random)), age));
            view_with_heartbeats(&[], &heartbeats, None, 100).present.len()
        };
        assert_eq!(is_present([(1, 0), (2, 0)]), 1);
        for incarnations in [[(1, 0), (2, 70)], [(2, 70), (1, 0)]] {
            assert_eq!(is_present(incarnations), 0, "the later one has expired, and the earlier one is replaced");
        }
    }

    #[test]
    fn an_owner_declared_dead_does_not_count() {
        let mut declared_dead = heartbeat("b", Some(incarnation(0)), 0);
        declared_dead.record.declared_dead_by = Some(me().owner);
        let seen = seen("b", Some(incarnation(0)), 500);
        let record = OwnershipRecord { scope: LeaseScope::Instance, ..seen.record.clone() };
        let view = view_with_heartbeats(&[Ownership { record, ..seen }], &[declared_dead], None, 100);
        assert_eq!(view.present, BTreeSet::new());
        assert_eq!(view.partitions[0].owner, PartitionOwner::Expired(OwnerId::new("b").unwrap()));
    }

    #[test]
    fn a_live_later_incarnation_replaces() {
        let replaced_by = |random, age| {
            let view = view_with_heartbeats(&[], &[heartbeat("me", Some(incarnation(random)), age)], None, 100);
            assert_eq!(view.present, BTreeSet::new());
            view.replaced_by
        };
        assert_eq!(replaced_by(6, 0), Some(incarnation(6)));
        assert_eq!(replaced_by(6, 62), None);
        assert_eq!(replaced_by(5, 0), None);
        assert_eq!(replaced_by(4, 0), None);
    }

    #[test]
    fn only_leases_of_instance_scope_are_kept_alive() {
        let is_live = |scope, old: u64, sent: Option<(u32, u64)>| {
            let seen = seen("b", Some(incarnation(0)), old);
            let record = OwnershipRecord { scope, ..seen.record };
            let heartbeats: Vec<_> =
                sent.map(|(random, age)| heartbeat("b", Some(incarnation(random)), age)).into_iter().collect();
            let view = view_with_heartbeats(&[Ownership { record, ..seen }], &heartbeats, None, 100);
            matches!(view.partitions[0].owner, PartitionOwner::Other(_))
        };
        let by_instance = LeaseScope::Instance;
        let by_partition = LeaseScope::Partition;
        assert!(is_live(by_instance, 500, Some((0, 61))));
        assert!(!is_live(by_instance, 500, Some((0, 62))));
        assert!(!is_live(by_instance, 500, Some((1, 0))), "another incarnation");
        assert!(!is_live(by_instance, 500, None));
        assert!(is_live(by_instance, 61, None) && is_live(by_instance, 61, Some((0, 500))), "the younger of the two");
        assert!(!is_live(by_partition, 62, Some((0, 0))));
        assert!(is_live(by_partition, 61, None), "a heartbeat is not required");
    }
}

mod operators {
    use super::*;

    fn operated(owner: &str, to: &str, age: u64) -> PartitionView {
        let operator = Some(OwnerId::new("operator").unwrap());
        let seen = seen(owner, Some(incarnation(0)), age);
        let record = OwnershipRecord { operator, ..with_handoff_request(seen.clone(), to).record };
        look(&[Ownership { record, ..seen }], false, None, 100).partitions.remove(0)
    }

    fn counts_for(entry: &PartitionView) -> Option<String> {
        entry.counts_for(&OwnerId::new("me").unwrap()).map(ToString::to_string)
    }

    #[test]
    fn a_partition_it_owns_counts_for_the_previous_owner() {
        let entry = operated("operator", "previous", 0);
        assert!(entry.is_owned_by_operator());
        assert_eq!(counts_for(&entry).as_deref(), Some("previous"), "although it does not appear alive");
        assert!(!operated("operator", "previous", 62).is_owned_by_operator(), "it has expired");
    }

    #[test]
    fn a_partition_it_requested_counts_for_its_owner() {
        let entry = operated("b", "operator", 0);
        assert_eq!(entry.handoff_to, Some(OwnerId::new("operator").unwrap()), "although it does not appear alive");
        assert_eq!(counts_for(&entry).as_deref(), Some("b"));
    }

    /// Neither the operator nor the previous owner need appear alive.
    #[test]
    fn a_returned_partition_is_reserved_as_recorded() {
        assert_eq!(counts_for(&operated("", "previous", 61)).as_deref(), Some("previous"));
        assert_eq!(operated("", "previous", 62).handoff_to, None);
        let for_itself = operated("", "operator", 61);
        assert!(for_itself.handoff_to.is_some() && counts_for(&for_itself).is_none());
        assert_eq!(operated("", "operator", 62).handoff_to, None);
    }
}
