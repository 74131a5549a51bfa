//! What heartbeats say about owners, and about their leases.

use super::*;

/// Also if it owns nothing.
#[test]
fn an_owner_with_a_heartbeat_counts_once() {
    let heartbeats = ["me", "b", "c"].map(|owner| heartbeat(owner, Some(incarnation(5)), 0));
    let view = view_with_heartbeats(&[seen("b", Some(incarnation(0)), 0)], &heartbeats, None, 100);
    let counts: Vec<_> = view.count_by_owner().into_iter().map(|(owner, owned)| (owner.to_string(), owned)).collect();
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
