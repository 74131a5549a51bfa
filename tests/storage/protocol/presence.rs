//! Presence: an owner's blob about itself.

use eventhubs_checkpoint::store::{Heartbeat, HeartbeatOutcome};
use eventhubs_checkpoint::testing::faulty::Fault;

use crate::bench::{Bench, EXPIRY, LOWER, Owner, metadata};
use crate::wire::shown;

const LATER: &str = "29990101T000000Z-00000000";

fn presence(owner: &str) -> String {
    format!("{LOWER}heartbeat/{owner}")
}

fn is(announced: &HeartbeatOutcome) -> &str {
    match announced {
        HeartbeatOutcome::Written => "present",
        HeartbeatOutcome::DeclaredDead { by: Some(by) } => by.as_str(),
        HeartbeatOutcome::DeclaredDead { by: None } => "declared dead",
        HeartbeatOutcome::Replaced { .. } => "replaced",
        other => panic!("{other:?}"),
    }
}

async fn announce(owner: &Owner) -> String {
    is(&owner.store.send_heartbeat().await.unwrap()).to_owned()
}

async fn listed(owner: &Owner) -> Vec<Heartbeat> {
    owner.store.list_heartbeats().await.unwrap().records
}

pub async fn presence_names_owner_and_incarnation(bench: Bench) {
    let a = bench.owner("pod 1/a").await;
    assert_eq!(announce(&a).await, "present");
    let incarnation = a.store.identity().incarnation.as_str();
    let expected = metadata(&[("incarnation", incarnation), ("ownerid", "pod 1/a")]);
    assert_eq!(bench.read(&presence("pod%201%2Fa")).await, expected);
    let seen = listed(&bench.owner("b").await).await.remove(0);
    let me = a.store.identity();
    assert_eq!((&seen.record.owner, &seen.record.incarnation), (&me.owner, &Some(me.incarnation.clone())));
    assert_eq!(seen.record.declared_dead_by, None);
    assert!(a.store.list_ownerships().await.unwrap().malformed.is_empty());
}

pub async fn presence_is_written_only_under_its_own_etag(bench: Bench) {
    let a = bench.owner("a").await;
    for _ in 0..2 {
        assert_eq!(announce(&a).await, "present");
    }
    let sent = a.sent();
    assert_eq!(shown(&sent), ["create heartbeat/a", "match heartbeat/a"]);
    assert_eq!(sent[1].under(), sent[0].etag.as_ref());
}

pub async fn presence_outlives_lost_answers(bench: Bench) {
    let a = bench.owner("a").await;
    for fault in [Fault::RequestLost, Fault::ResponseLost, Fault::Conflict] {
        for _ in 0..2 {
            a.next_write("heartbeat/a", fault.clone());
            assert_eq!(announce(&a).await, "present", "{fault:?}");
        }
        a.store.remove_heartbeat().await.unwrap();
    }
}

pub async fn presence_404_on_ones_own_is_to_be_declared_dead(bench: Bench) {
    let a = bench.owner("a").await;
    announce(&a).await;
    bench.delete(&presence("a")).await;
    assert_eq!(announce(&a).await, "declared dead");
    assert!(bench.blob(&presence("a")).await.is_none());
    assert_eq!(announce(&a).await, "present");
}

pub async fn presence_broken_by_another_is_to_be_declared_dead(bench: Bench) {
    let a = bench.owner("a").await;
    announce(&a).await;
    let mut broken = bench.read(&presence("a")).await;
    broken.insert("declareddeadby".into(), "b".into());
    bench.put(&presence("a"), &broken).await;
    assert_eq!(announce(&a).await, "b");
    assert_eq!(bench.read(&presence("a")).await, broken);
    assert_eq!(announce(&a).await, "present");
    assert!(!bench.read(&presence("a")).await.contains_key("declareddeadby"));
}

pub async fn presence_of_a_greater_incarnation_that_is_fresh_replaces_me(bench: Bench) {
    let a = bench.owner("a").await;
    announce(&a).await;
    let later = metadata(&[("ownerid", "a"), ("incarnation", LATER)]);
    bench.put(&presence("a"), &later).await;
    let announced = a.store.send_heartbeat().await.unwrap();
    assert!(matches!(&announced, HeartbeatOutcome::Replaced { by } if by.as_str() == LATER), "{announced:?}");
    assert_eq!(bench.read(&presence("a")).await, later);
    a.wire().age("heartbeat/a", EXPIRY + 2);
    assert_eq!(announce(&a).await, "declared dead", "its own did not stand meanwhile");
    assert_eq!(announce(&a).await, "present");
}

pub async fn presence_of_an_earlier_incarnation_is_written_over(bench: Bench) {
    announce(&bench.owner("a").await).await;
    let later = bench.later("a").await;
    assert_eq!(announce(&later).await, "present");
    let incarnation = later.store.identity().incarnation.as_str();
    assert_eq!(bench.read(&presence("a")).await["incarnation"], incarnation);
}

pub async fn presence_is_withdrawn_by_its_own_life_alone(bench: Bench) {
    let a = bench.owner("a").await;
    a.store.remove_heartbeat().await.unwrap();
    announce(&a).await;
    a.store.remove_heartbeat().await.unwrap();
    assert!(bench.blob(&presence("a")).await.is_none());
    announce(&a).await;
    announce(&bench.later("a").await).await;
    a.store.remove_heartbeat().await.unwrap();
    assert!(bench.blob(&presence("a")).await.is_some());
}

pub async fn presence_older_than_ten_expiries_is_deleted_by_anyone_under_its_etag(bench: Bench) {
    let (a, b, me) = (bench.owner("a").await, bench.owner("b").await, bench.owner("me").await);
    announce(&a).await;
    announce(&b).await;
    announce(&me).await;
    me.wire().age("heartbeat/", 10 * EXPIRY + 1);
    me.wire().age("heartbeat/b", 10 * EXPIRY - 10);
    let seen = listed(&me).await;
    let cleared = me.store.delete_stale_heartbeats(&seen).await.unwrap();
    assert_eq!(cleared, [a.store.identity().owner.clone()]);
    assert!(bench.blob(&presence("a")).await.is_none());
    assert!(bench.blob(&presence("b")).await.is_some() && bench.blob(&presence("me")).await.is_some());

    me.wire().age("heartbeat/b", 10 * EXPIRY + 1);
    let seen = listed(&me).await;
    announce(&b).await;
    assert_eq!(me.store.delete_stale_heartbeats(&seen).await.unwrap(), []);
    assert!(bench.blob(&presence("b")).await.is_some());
}

pub async fn presence_blobs_that_cannot_be_read_are_reported_and_hide_no_other(bench: Bench) {
    let a = bench.owner("a").await;
    announce(&a).await;
    bench.put(&presence("b/c"), &metadata(&[("ownerid", "b")])).await;
    bench.put(&presence("d"), &metadata(&[("ownerid", "e")])).await;
    let listing = a.store.list_heartbeats().await.unwrap();
    let owners: Vec<_> = listing.records.iter().map(|seen| seen.record.owner.as_str()).collect();
    assert_eq!(owners, ["a", "d"]);
    let blobs: Vec<_> = listing.malformed.iter().map(|malformed| malformed.blob.clone()).collect();
    assert_eq!(blobs, [presence("b/c"), presence("d")]);
}
