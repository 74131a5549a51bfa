//! Lease scope `Instance`: a takeover declares the owner dead first, and an owner that was declared dead rewrites.

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::store::Ownership;
use eventhubs_checkpoint::store::protocol::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::store::protocol::membership::{DeclareDeadOutcome, Heartbeat, HeartbeatOutcome};
use eventhubs_checkpoint::testing::faulty::Fault;

use crate::bench::{Bench, Describe, EXPIRY, LOWER, Owner, Win, metadata, ownership};

const LATER: &str = "29990101T000000Z-00000000";

fn heartbeat(owner: &str) -> String {
    format!("{LOWER}heartbeat/{owner}")
}

/// Returns an owner with a heartbeat that keeps its leases alive.
async fn present(bench: &Bench, name: &str) -> Owner {
    let mut owner = bench.owner(name).await;
    (owner.cooperative, owner.scope) = (true, LeaseScope::Instance);
    assert_eq!(owner.store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    owner
}

/// Returns what an owner reads of partition 0 and its owner.
async fn list(owner: &Owner) -> (Ownership, Option<Heartbeat>) {
    let seen = owner.store.list_ownerships().await.unwrap().records.remove(0);
    let heartbeats = owner.store.list_heartbeats().await.unwrap().records;
    owner.sent();
    (seen, heartbeats.into_iter().find(|heartbeat| heartbeat.record.owner.as_str() == "a"))
}

/// `a` owns partition 0, and `b` considers it dead.
async fn considered_dead(bench: &Bench) -> (Owner, Owner, (Ownership, Option<Heartbeat>)) {
    let (a, b) = (present(bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("heartbeat/a", EXPIRY + 2);
    b.wire().age("ownership/0", EXPIRY + 2);
    let listed = list(&b).await;
    (a, b, listed)
}

async fn judge(owner: &Owner, (of, listed): &(Ownership, Option<Heartbeat>)) -> DeclareDeadOutcome {
    owner.store.declare_dead(of, listed.as_ref()).await.unwrap()
}

pub async fn is_in_claimed_records_and_not_in_released_ones(bench: Bench) {
    let a = present(&bench, "a").await;
    let lease = a.win(0).await;
    assert_eq!(&bench.read(&ownership(0)).await["ehcleasescope"], "instance");
    let lease = a.renew(&lease).await.lease();
    assert_eq!(&bench.read(&ownership(0)).await["ehcleasescope"], "instance");
    let _ = a.release(&lease).await;
    assert!(!bench.read(&ownership(0)).await.contains_key("ehcleasescope"));
}

pub async fn a_takeover_declares_dead_under_the_etag(bench: Bench) {
    let (a, b, listed) = considered_dead(&bench).await;
    let before = bench.read(&heartbeat("a")).await;
    assert_eq!(judge(&b, &listed).await, DeclareDeadOutcome::Declared);
    assert_eq!(b.requests(), ["match heartbeat/a"]);
    let mut broken = before;
    broken.insert("ehcdeclareddeadby", "b");
    assert_eq!(bench.read(&heartbeat("a")).await, broken);
    let declared = a.store.send_heartbeat().await.unwrap();
    assert!(matches!(declared, HeartbeatOutcome::DeclaredDead { by: Some(by) } if by.as_str() == "b"));
}

pub async fn a_missing_heartbeat_is_created_declared_dead(bench: Bench) {
    let (a, b, (of, _)) = considered_dead(&bench).await;
    bench.delete(&heartbeat("a")).await;
    assert_eq!(judge(&b, &(of, None)).await, DeclareDeadOutcome::Declared);
    assert_eq!(b.requests(), ["create heartbeat/a"]);
    let incarnation = a.store.identity().incarnation.as_str();
    let expected = metadata(&[
        ("ehcdeclareddeadby", "b"),
        ("ehcleaseduration", "60"),
        ("ehcincarnation", incarnation),
        ("ownerid", "a"),
    ]);
    assert_eq!(bench.read(&heartbeat("a")).await, expected);
}

pub async fn an_owner_is_declared_dead_once(bench: Bench) {
    let (_a, b, listed) = considered_dead(&bench).await;
    assert_eq!(judge(&b, &listed).await, DeclareDeadOutcome::Declared);
    let c = bench.owner("c").await;
    let listed = list(&c).await;
    assert_eq!(judge(&c, &listed).await, DeclareDeadOutcome::Declared);
    assert_eq!(c.requests().len(), 0);
    assert_eq!(&bench.read(&heartbeat("a")).await["ehcdeclareddeadby"], "b");
}

pub async fn two_declarations_at_once_both_succeed(bench: Bench) {
    let (_a, b, listed) = considered_dead(&bench).await;
    let c = bench.owner("c").await;
    c.wire().age("heartbeat/a", EXPIRY + 2);
    assert_eq!(judge(&b, &listed).await, DeclareDeadOutcome::Declared);
    assert_eq!(judge(&c, &listed).await, DeclareDeadOutcome::Declared);
    assert_eq!(c.requests(), ["match heartbeat/a", "read heartbeat/a"]);
    assert_eq!(&bench.read(&heartbeat("a")).await["ehcdeclareddeadby"], "b");
}

pub async fn an_owner_that_was_faster_is_alive(bench: Bench) {
    let (a, b, listed) = considered_dead(&bench).await;
    assert_eq!(a.store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    b.wire().age("heartbeat/a", 0);
    assert_eq!(judge(&b, &listed).await, DeclareDeadOutcome::StillAlive);
    assert!(!bench.read(&heartbeat("a")).await.contains_key("ehcdeclareddeadby"));
}

pub async fn an_earlier_incarnation_cannot_renew(bench: Bench) {
    let (_a, b, (of, _)) = considered_dead(&bench).await;
    let later = metadata(&[("ownerid", "a"), ("ehcincarnation", LATER), ("ehcleaseduration", "60")]);
    bench.put(&heartbeat("a"), &later).await;
    let (_, listed) = list(&b).await;
    assert_eq!(judge(&b, &(of, listed)).await, DeclareDeadOutcome::Declared);
    assert_eq!(b.requests().len(), 0);
    assert_eq!(bench.read(&heartbeat("a")).await, later);
}

pub async fn a_declaration_survives_lost_responses(bench: Bench) {
    let (_a, b, listed) = considered_dead(&bench).await;
    for fault in [Fault::RequestLost, Fault::ResponseLost, Fault::Conflict] {
        b.next_write("heartbeat/a", fault.clone());
        assert_eq!(judge(&b, &listed).await, DeclareDeadOutcome::Declared, "{fault:?}");
        let mut restored = bench.read(&heartbeat("a")).await;
        assert_eq!(restored.remove("ehcdeclareddeadby").as_deref(), Some("b"), "{fault:?}");
        bench.put(&heartbeat("a"), &restored).await;
    }
    b.next_write("heartbeat/a", Fault::RequestLost);
    b.next_read_fails("heartbeat/a");
    assert!(b.store.declare_dead(&listed.0, listed.1.as_ref()).await.is_err());
}

pub async fn reading_a_record_does_not_rewrite_it(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let (seen, _) = list(&b).await;
    a.sent();
    // Rejected, although nothing has changed.
    a.next_write("ownership/0", Fault::Conflict);
    let rewritten = a.renew(&lease.forcing_rewrite(LeaseScope::Instance)).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(b.claim_over(0, &seen.etag).await.describe(), "lost to a");
    a.sent();
    // Once is enough: the next one is an ordinary renewal.
    a.next_write("ownership/0", Fault::Conflict);
    a.renew(&rewritten).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
}

pub async fn a_rewrite_after_a_takeover_is_lost(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    b.take(0).await;
    assert_eq!(a.renew(&lease.forcing_rewrite(LeaseScope::Instance)).await.describe(), "lost to b");
}

pub async fn changes_with_a_rewrite(bench: Bench) {
    let a = present(&bench, "a").await;
    let lease = a.win(0).await;
    let lease = a.renew(&lease.forcing_rewrite(LeaseScope::Partition)).await.lease();
    assert!(!bench.read(&ownership(0)).await.contains_key("ehcleasescope"));
    a.renew(&lease.forcing_rewrite(LeaseScope::Instance)).await.lease();
    assert_eq!(&bench.read(&ownership(0)).await["ehcleasescope"], "instance");
}

pub async fn requests_need_a_fresh_heartbeat(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("ownership/0", 100 * EXPIRY);
    for (age, stands) in [(EXPIRY / 2, false), (EXPIRY / 2 - 1, true)] {
        b.wire().age("heartbeat/a", age);
        let (seen, _) = list(&b).await;
        let marked = b.store.request_handoff(&seen).await.unwrap();
        let expected = if stands {
            matches!(marked, HandoffRequestOutcome::Requested(_))
        } else {
            marked == HandoffRequestOutcome::LeaseTooOld
        };
        assert!(expected, "{age} s: {marked:?}");
    }
    assert_eq!(b.requests(), ["read ownership/0", "read heartbeat/a", "match ownership/0"]);
}

pub async fn no_requests_by_an_invalid_heartbeat(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("ownership/0", 100 * EXPIRY);
    let mut broken = bench.read(&heartbeat("a")).await;
    broken.insert("ehcdeclareddeadby", "c");
    for metadata in
        [Some(broken), Some(metadata(&[("ownerid", "a"), ("ehcincarnation", LATER), ("ehcleaseduration", "60")])), None]
    {
        match &metadata {
            Some(metadata) => drop(bench.put(&heartbeat("a"), metadata).await),
            None => bench.delete(&heartbeat("a")).await,
        }
        let (seen, _) = list(&b).await;
        assert_eq!(b.store.request_handoff(&seen).await.unwrap(), HandoffRequestOutcome::LeaseTooOld);
    }
}
