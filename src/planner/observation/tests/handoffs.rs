//! Requests for handoffs, and reservations, as records and heartbeats show them.

use super::*;

/// Observes partitions 0 and 1, and runs 0. The second record belongs to partition 1.
fn view_of_handoff(first: Ownership, second: Option<Ownership>, heartbeats: &[Heartbeat]) -> PartitionView {
    let second = second.map(|seen| Ownership { partition: 1.into(), ..seen });
    let listing: Vec<_> = [first].into_iter().chain(second).collect();
    first_of(&listing, &Observer { heartbeats, ..observer(&me(), &[0.into()].into()) })
}

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
            assert_eq!(entry.owner, if owner == "b" { PartitionOwner::Other(b.clone()) } else { PartitionOwner::This });
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
            Ownership { partition: partition.into(), record: OwnershipRecord { lease_duration, ..seen.record }, ..seen }
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
