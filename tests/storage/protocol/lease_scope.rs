//! Lease scope `Instance`: whoever takes over breaks first, and whoever was declared dead rewrites.

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::store::{DeclareDeadOutcome, HandoffRequestOutcome, Heartbeat, HeartbeatOutcome, Ownership};
use eventhubs_checkpoint::testing::faulty::Fault;

use crate::bench::{Bench, EXPIRY, LOWER, Owner, Said, Win, metadata, ownership};

const LATER: &str = "29990101T000000Z-00000000";

fn presence(owner: &str) -> String {
    format!("{LOWER}heartbeat/{owner}")
}

/// An owner whose leases live by its presence, and which is there.
async fn present(bench: &Bench, name: &str) -> Owner {
    let mut owner = bench.owner(name).await;
    owner.store = owner.store.cooperative(true).lease_scope(LeaseScope::Instance);
    assert_eq!(owner.store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    owner
}

/// What the one that looks knows of partition 0 and its owner.
async fn look(owner: &Owner) -> (Ownership, Option<Heartbeat>) {
    let seen = owner.store.list_ownerships().await.unwrap().records.remove(0);
    let presences = owner.store.list_heartbeats().await.unwrap().records;
    owner.sent();
    (seen, presences.into_iter().find(|presence| presence.record.owner.as_str() == "a"))
}

/// `a` owns partition 0, and `b` thinks that it has died.
async fn taken_for_dead(bench: &Bench) -> (Owner, Owner, (Ownership, Option<Heartbeat>)) {
    let (a, b) = (present(bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("heartbeat/a", EXPIRY + 2);
    b.wire().age("ownership/0", EXPIRY + 2);
    let looked = look(&b).await;
    (a, b, looked)
}

async fn judge(owner: &Owner, (of, listed): &(Ownership, Option<Heartbeat>)) -> DeclareDeadOutcome {
    owner.store.declare_dead(of, listed.as_ref()).await.unwrap()
}

pub async fn lease_scope_is_in_every_record_that_is_claimed_and_in_none_that_is_released(bench: Bench) {
    let a = present(&bench, "a").await;
    let lease = a.win(0).await;
    assert_eq!(bench.read(&ownership(0)).await["leasescope"], "instance");
    let lease = a.renew(&lease).await.lease();
    assert_eq!(bench.read(&ownership(0)).await["leasescope"], "instance");
    a.release(&lease).await;
    assert!(!bench.read(&ownership(0)).await.contains_key("leasescope"));
}

pub async fn lease_scope_the_thief_breaks_the_presence_under_its_etag(bench: Bench) {
    let (a, b, looked) = taken_for_dead(&bench).await;
    let before = bench.read(&presence("a")).await;
    assert_eq!(judge(&b, &looked).await, DeclareDeadOutcome::Declared);
    assert_eq!(b.requests(), ["match heartbeat/a"]);
    let mut broken = before;
    broken.insert("declareddeadby".into(), "b".into());
    assert_eq!(bench.read(&presence("a")).await, broken);
    let declared = a.store.send_heartbeat().await.unwrap();
    assert!(matches!(declared, HeartbeatOutcome::DeclaredDead { by: Some(by) } if by.as_str() == "b"));
}

pub async fn lease_scope_what_is_not_there_is_created_broken(bench: Bench) {
    let (a, b, (of, _)) = taken_for_dead(&bench).await;
    bench.delete(&presence("a")).await;
    assert_eq!(judge(&b, &(of, None)).await, DeclareDeadOutcome::Declared);
    assert_eq!(b.requests(), ["create heartbeat/a"]);
    let incarnation = a.store.identity().incarnation.as_str();
    let expected = metadata(&[("declareddeadby", "b"), ("incarnation", incarnation), ("ownerid", "a")]);
    assert_eq!(bench.read(&presence("a")).await, expected);
}

pub async fn lease_scope_who_is_declared_dead_already_is_not_declared_dead_again(bench: Bench) {
    let (_a, b, looked) = taken_for_dead(&bench).await;
    assert_eq!(judge(&b, &looked).await, DeclareDeadOutcome::Declared);
    let c = bench.owner("c").await;
    let looked = look(&c).await;
    assert_eq!(judge(&c, &looked).await, DeclareDeadOutcome::Declared);
    assert_eq!(c.requests().len(), 0);
    assert_eq!(bench.read(&presence("a")).await["declareddeadby"], "b");
}

pub async fn lease_scope_of_two_that_break_at_once_both_may_go_on(bench: Bench) {
    let (_a, b, looked) = taken_for_dead(&bench).await;
    let c = bench.owner("c").await;
    c.wire().age("heartbeat/a", EXPIRY + 2);
    assert_eq!(judge(&b, &looked).await, DeclareDeadOutcome::Declared);
    assert_eq!(judge(&c, &looked).await, DeclareDeadOutcome::Declared);
    assert_eq!(c.requests(), ["match heartbeat/a", "read heartbeat/a"]);
    assert_eq!(bench.read(&presence("a")).await["declareddeadby"], "b");
}

pub async fn lease_scope_an_owner_that_was_faster_is_alive(bench: Bench) {
    let (a, b, looked) = taken_for_dead(&bench).await;
    assert_eq!(a.store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    b.wire().age("heartbeat/a", 0);
    assert_eq!(judge(&b, &looked).await, DeclareDeadOutcome::StillAlive);
    assert!(!bench.read(&presence("a")).await.contains_key("declareddeadby"));
}

pub async fn lease_scope_an_earlier_life_whose_name_a_later_one_has_cannot_renew(bench: Bench) {
    let (_a, b, (of, _)) = taken_for_dead(&bench).await;
    let later = metadata(&[("ownerid", "a"), ("incarnation", LATER)]);
    bench.put(&presence("a"), &later).await;
    let (_, listed) = look(&b).await;
    assert_eq!(judge(&b, &(of, listed)).await, DeclareDeadOutcome::Declared);
    assert_eq!(b.requests().len(), 0);
    assert_eq!(bench.read(&presence("a")).await, later);
}

pub async fn lease_scope_breaking_outlives_lost_answers(bench: Bench) {
    let (_a, b, looked) = taken_for_dead(&bench).await;
    for fault in [Fault::RequestLost, Fault::ResponseLost, Fault::Conflict] {
        b.next_write("heartbeat/a", fault.clone());
        assert_eq!(judge(&b, &looked).await, DeclareDeadOutcome::Declared, "{fault:?}");
        let mut mended = bench.read(&presence("a")).await;
        assert_eq!(mended.remove("declareddeadby").as_deref(), Some("b"), "{fault:?}");
        bench.put(&presence("a"), &mended).await;
    }
    b.next_write("heartbeat/a", Fault::RequestLost);
    b.next_read_fails("heartbeat/a");
    assert!(b.store.declare_dead(&looked.0, looked.1.as_ref()).await.is_err());
}

pub async fn lease_scope_to_read_a_record_is_not_to_rewrite_it(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let (seen, _) = look(&b).await;
    a.sent();
    // Refused, though nothing has changed.
    a.next_write("ownership/0", Fault::Conflict);
    let rewritten = a.renew(&lease.forcing_rewrite(LeaseScope::Instance)).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(b.claim_over(0, &seen.etag).await.said(), "lost to a");
    a.sent();
    // Once is enough: the next one is an ordinary renewal.
    a.next_write("ownership/0", Fault::Conflict);
    a.renew(&rewritten).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
}

pub async fn lease_scope_what_was_taken_over_is_lost_to_the_one_that_rewrites(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    b.take(0).await;
    assert_eq!(a.renew(&lease.forcing_rewrite(LeaseScope::Instance)).await.said(), "lost to b");
}

pub async fn lease_scope_changes_with_a_rewriting(bench: Bench) {
    let a = present(&bench, "a").await;
    let lease = a.win(0).await;
    let lease = a.renew(&lease.forcing_rewrite(LeaseScope::Partition)).await.lease();
    assert!(!bench.read(&ownership(0)).await.contains_key("leasescope"));
    a.renew(&lease.forcing_rewrite(LeaseScope::Instance)).await.lease();
    assert_eq!(bench.read(&ownership(0)).await["leasescope"], "instance");
}

pub async fn lease_scope_an_owner_is_asked_as_long_as_its_presence_is_young(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("ownership/0", 100 * EXPIRY);
    for (age, stands) in [(EXPIRY / 2, false), (EXPIRY / 2 - 1, true)] {
        b.wire().age("heartbeat/a", age);
        let (seen, _) = look(&b).await;
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

pub async fn lease_scope_nobody_is_asked_by_the_presence_of_another_life_or_a_broken_one(bench: Bench) {
    let (a, b) = (present(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("ownership/0", 100 * EXPIRY);
    let mut broken = bench.read(&presence("a")).await;
    broken.insert("declareddeadby".into(), "c".into());
    for metadata in [Some(broken), Some(metadata(&[("ownerid", "a"), ("incarnation", LATER)])), None] {
        match &metadata {
            Some(metadata) => drop(bench.put(&presence("a"), metadata).await),
            None => bench.delete(&presence("a")).await,
        }
        let (seen, _) = look(&b).await;
        assert_eq!(b.store.request_handoff(&seen).await.unwrap(), HandoffRequestOutcome::LeaseTooOld);
    }
}
