//! Heartbeat: an owner's blob about itself.

use std::time::Duration;

use eventhubs_checkpoint::store::protocol::membership::{Heartbeat, HeartbeatOutcome};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use tokio::time::Instant;

use crate::bench::{Bench, EXPIRY, LOWER, Owner, metadata};
use crate::wire::shown;

const LATER: &str = "29990101T000000Z-00000000";

fn heartbeat(owner: &str) -> String {
    format!("{LOWER}heartbeat/{owner}")
}

fn is(heartbeat: &HeartbeatOutcome) -> &str {
    match heartbeat {
        HeartbeatOutcome::Written => "present",
        HeartbeatOutcome::DeclaredDead { by: Some(by) } => by.as_str(),
        HeartbeatOutcome::DeclaredDead { by: None } => "declared dead",
        HeartbeatOutcome::Replaced { .. } => "replaced",
        other => panic!("{other:?}"),
    }
}

async fn send_heartbeat(owner: &Owner) -> String {
    is(&owner.store.send_heartbeat().await.unwrap()).to_owned()
}

async fn listed(owner: &Owner) -> Vec<Heartbeat> {
    owner.store.list_heartbeats().await.unwrap().records
}

pub async fn names_owner_and_incarnation(bench: Bench) {
    let a = bench.owner("pod 1/a").await;
    assert_eq!(send_heartbeat(&a).await, "present");
    let incarnation = a.store.identity().incarnation.as_str();
    let expected = metadata(&[("ehcleaseduration", "60"), ("ehcincarnation", incarnation), ("ownerid", "pod 1/a")]);
    assert_eq!(bench.read(&heartbeat("pod%201%2Fa")).await, expected);
    let seen = listed(&bench.owner("b").await).await.remove(0);
    let this = a.store.identity();
    assert_eq!((&seen.record.owner, &seen.record.incarnation), (&this.owner, &Some(this.incarnation.clone())));
    assert_eq!(seen.record.declared_dead_by, None);
    assert!(a.store.list_ownerships().await.unwrap().malformed.is_empty());
}

pub async fn is_written_only_under_its_own_etag(bench: Bench) {
    let a = bench.owner("a").await;
    for _ in 0..2 {
        assert_eq!(send_heartbeat(&a).await, "present");
    }
    let sent = a.sent();
    assert_eq!(shown(&sent), ["create heartbeat/a", "match heartbeat/a"]);
    assert_eq!(sent[1].under(), sent[0].etag.as_ref());
}

pub async fn survives_lost_responses(bench: Bench) {
    let a = bench.owner("a").await;
    for fault in [Fault::RequestLost, Fault::ResponseLost, Fault::Conflict] {
        for _ in 0..2 {
            a.next_write("heartbeat/a", fault.clone());
            assert_eq!(send_heartbeat(&a).await, "present", "{fault:?}");
        }
        a.next_write("heartbeat/a", fault.clone());
        a.store.end_heartbeat().await.unwrap();
        assert!(bench.blob(&heartbeat("a")).await.is_none(), "{fault:?}");
    }
}

/// Long before the request timeout. A read that hangs is sent again, too.
pub async fn is_sent_again_if_it_hangs(bench: Bench) {
    let a = bench.owner("a").await;
    send_heartbeat(&a).await;
    a.next_write("heartbeat/a", Fault::ResponseLost);
    a.faulty.inject_on(Target::from(BlobOperation::Get).named("heartbeat/a"), Fault::Hang);
    a.next_write("heartbeat/a", Fault::Hang);
    let began = Instant::now();
    assert_eq!(send_heartbeat(&a).await, "present");
    assert!(!bench.is_paused() || began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(a.faulty.pending(), 0);
}

/// From then on no instance counts it. Its owner may send it again.
pub async fn ends_without_a_right_to_delete(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    send_heartbeat(&a).await;
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Delete, Fault::Unauthorized));
    a.store.end_heartbeat().await.unwrap();
    let by = listed(&b).await.remove(0).record.declared_dead_by;
    assert_eq!(by.as_ref(), Some(&a.store.identity().owner));
    assert_eq!(send_heartbeat(&a).await, "present");
    assert_eq!(listed(&b).await.remove(0).record.declared_dead_by, None);
}

pub async fn a_404_on_its_own_means_declared_dead(bench: Bench) {
    let a = bench.owner("a").await;
    send_heartbeat(&a).await;
    bench.delete(&heartbeat("a")).await;
    assert_eq!(send_heartbeat(&a).await, "declared dead");
    assert!(bench.blob(&heartbeat("a")).await.is_none());
    assert_eq!(send_heartbeat(&a).await, "present");
}

pub async fn invalidated_by_another_means_declared_dead(bench: Bench) {
    let a = bench.owner("a").await;
    send_heartbeat(&a).await;
    let mut broken = bench.read(&heartbeat("a")).await;
    broken.insert("ehcdeclareddeadby", "b");
    bench.put(&heartbeat("a"), &broken).await;
    assert_eq!(send_heartbeat(&a).await, "b");
    assert_eq!(bench.read(&heartbeat("a")).await, broken);
    assert_eq!(send_heartbeat(&a).await, "present");
    assert!(!bench.read(&heartbeat("a")).await.contains_key("ehcdeclareddeadby"));
}

pub async fn a_fresh_later_incarnation_replaces_this_one(bench: Bench) {
    let a = bench.owner("a").await;
    send_heartbeat(&a).await;
    let later = metadata(&[("ownerid", "a"), ("ehcincarnation", LATER), ("ehcleaseduration", "60")]);
    bench.put(&heartbeat("a"), &later).await;
    let outcome = a.store.send_heartbeat().await.unwrap();
    assert!(matches!(&outcome, HeartbeatOutcome::Replaced { by } if by.as_str() == LATER), "{outcome:?}");
    assert_eq!(bench.read(&heartbeat("a")).await, later);
    a.wire().age("heartbeat/a", EXPIRY + 2);
    assert_eq!(send_heartbeat(&a).await, "declared dead", "its own was not valid meanwhile");
    assert_eq!(send_heartbeat(&a).await, "present");
}

pub async fn an_earlier_incarnation_is_overwritten(bench: Bench) {
    send_heartbeat(&bench.owner("a").await).await;
    let later = bench.later("a").await;
    assert_eq!(send_heartbeat(&later).await, "present");
    let incarnation = later.store.identity().incarnation.as_str();
    assert_eq!(&bench.read(&heartbeat("a")).await["ehcincarnation"], incarnation);
}

pub async fn is_removed_only_by_its_own_incarnation(bench: Bench) {
    let a = bench.owner("a").await;
    a.store.end_heartbeat().await.unwrap();
    send_heartbeat(&a).await;
    a.store.end_heartbeat().await.unwrap();
    assert!(bench.blob(&heartbeat("a")).await.is_none());
    send_heartbeat(&a).await;
    send_heartbeat(&bench.later("a").await).await;
    a.store.end_heartbeat().await.unwrap();
    assert!(bench.blob(&heartbeat("a")).await.is_some());
}

pub async fn after_ten_lease_durations_any_instance_deletes_it(bench: Bench) {
    let (a, b, this) = (bench.owner("a").await, bench.owner("b").await, bench.owner("me").await);
    send_heartbeat(&a).await;
    send_heartbeat(&b).await;
    send_heartbeat(&this).await;
    this.wire().age("heartbeat/", 10 * EXPIRY + 1);
    this.wire().age("heartbeat/b", 10 * EXPIRY - 10);
    let seen = listed(&this).await;
    let cleared = this.store.delete_stale_heartbeats(&seen).await.unwrap();
    assert_eq!(cleared, [a.store.identity().owner.clone()]);
    assert!(bench.blob(&heartbeat("a")).await.is_none());
    assert!(bench.blob(&heartbeat("b")).await.is_some() && bench.blob(&heartbeat("me")).await.is_some());

    this.wire().age("heartbeat/b", 10 * EXPIRY + 1);
    let seen = listed(&this).await;
    send_heartbeat(&b).await;
    assert_eq!(this.store.delete_stale_heartbeats(&seen).await.unwrap(), []);
    assert!(bench.blob(&heartbeat("b")).await.is_some());
}

/// The record says how long the lease of its owner is; that of the observer plays no part.
pub async fn a_heartbeat_of_longer_leases_is_kept_longer(bench: Bench) {
    let this = bench.owner("me").await;
    bench
        .put(&heartbeat("a"), &metadata(&[("ownerid", "a"), ("ehcincarnation", LATER), ("ehcleaseduration", "600")]))
        .await;
    for (age, deleted) in [(10 * EXPIRY + 1, 0), (6001, 1)] {
        this.wire().age("heartbeat/a", age);
        let seen = listed(&this).await;
        assert_eq!(this.store.delete_stale_heartbeats(&seen).await.unwrap().len(), deleted, "{age}");
    }
}

pub async fn unreadable_blobs_are_reported_and_hide_no_other(bench: Bench) {
    let a = bench.owner("a").await;
    send_heartbeat(&a).await;
    bench.put(&heartbeat("b/c"), &metadata(&[("ownerid", "b")])).await;
    bench.put(&heartbeat("d"), &metadata(&[("ownerid", "e")])).await;
    let listing = a.store.list_heartbeats().await.unwrap();
    let owners: Vec<_> = listing.records.iter().map(|seen| seen.record.owner.as_str()).collect();
    assert_eq!(owners, ["a", "d"]);
    let blobs: Vec<_> = listing.malformed.iter().map(|malformed| malformed.blob.clone()).collect();
    assert_eq!(blobs, [heartbeat("b/c"), heartbeat("d")]);
}
