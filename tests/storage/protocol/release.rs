//! Claim, renew, steal, release: releases (2), failed reads (3), and what is reported and written (4).

use std::time::Duration;

use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use tokio::join;

use super::group::Group;
use crate::bench::{Bench, Describe, EXPIRY, Win, metadata, owned_by, ownership};
use crate::wire::shown;

pub async fn line_2_a_release_that_finds_another_owner_is_lost(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, theirs, lost) in [
        (0, owned_by("b"), "lost to b"),
        (1, metadata(&[("ownerid", "")]), "lost to no owner"),
        (2, metadata(&[("ownerid", "a")]), "lost to a"),
    ] {
        let lease = a.win(partition).await;
        bench.put(&ownership(partition), &theirs).await;
        a.sent();
        assert_eq!(a.release(&lease).await.describe(), lost);
        assert_eq!(a.requests(), [format!("match ownership/{partition}"), format!("read ownership/{partition}")]);
        assert_eq!(bench.read(&ownership(partition)).await, theirs);
    }
}

pub async fn line_2_a_release_that_finds_nothing_is_lost(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    bench.delete(&ownership(0)).await;
    assert_eq!(a.release(&lease).await.describe(), "lost to no owner");
    assert!(bench.blob(&ownership(0)).await.is_none());
}

pub async fn line_2_a_release_that_finds_its_own_record_retries(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let renewed = a.renew(&lease).await.lease();
    a.sent();
    assert_eq!(a.release(&lease).await.describe(), "released");
    let sent = a.sent();
    assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(sent[2].under(), Some(renewed.etag()));
    assert_eq!(bench.owner_of(0).await, "");
}

/// A claiming instance writes between the read and the second write.
pub async fn line_2_a_retried_release_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    a.next_write("ownership/0", Fault::RequestLost);
    a.next_write("ownership/0", Fault::ConcurrentWrite(owned_by("b")));
    assert_eq!(a.release(&lease).await.describe(), "lost to b");
    assert_eq!(bench.owner_of(0).await, "b");
}

pub async fn line_2_of_a_release_and_a_steal_the_steal_wins(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        a.add_jitter();
        b.add_jitter();
        let (released, stolen) = join!(a.release(&lease), b.claim_over(partition, lease.etag()));
        let owner = bench.owner_of(partition).await;
        let reported = (released.describe(), stolen.describe(), owner);
        let ends = [("lost to b", "won", "b"), ("released", "lost to no owner", "")];
        assert!(ends.contains(&(reported.0.as_str(), reported.1.as_str(), reported.2.as_str())), "{reported:?}");
    }
}

pub async fn line_3_a_failed_read_leaves_it_indeterminate(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(1).await;
    a.sent();
    let lose_both = |name| {
        a.next_write(name, Fault::RequestLost);
        a.next_read_fails(name);
    };
    lose_both("ownership/0");
    assert_eq!(a.claim(0).await.describe(), "indeterminate: Indeterminate");
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0"]);
    lose_both("ownership/1");
    assert_eq!(a.renew(&lease).await.describe(), "indeterminate: Indeterminate");
    lose_both("ownership/1");
    assert_eq!(a.release(&lease).await.describe(), "indeterminate: Indeterminate");
    assert_eq!(bench.owner_of(1).await, "a");
}

/// The previous lease can be renewed, regardless of the unknown outcome of the attempt.
pub async fn line_3_the_previous_lease_remains_valid(bench: Bench) {
    let a = bench.owner("a").await;
    for fault in [Fault::RequestLost, Fault::ResponseLost] {
        let lease = a.win(0).await;
        a.next_write("ownership/0", fault);
        a.next_read_fails("ownership/0");
        assert_eq!(a.renew(&lease).await.describe(), "indeterminate: Indeterminate");
        assert_eq!(a.renew(&lease).await.lease().epoch(), lease.epoch());
        bench.delete(&ownership(0)).await;
    }
}

/// With a lease duration of 4 s the loop renews after 2 s.
pub async fn line_3_a_renewal_is_retried_during_the_lease(bench: Bench) {
    let a = bench.owner_with("a", StoreConfig::default().with_lease_duration(Duration::from_secs(4))).await;
    let mut group = Group::run(&a, 1);
    group.until_it_holds(&[0]).await;
    let held = group.held();
    let every = |operation: BlobOperation| Target::from(operation).named("ownership/0");
    let plan = FaultPlan::default().with_on(1.0, every(BlobOperation::Write), Fault::RequestLost).with_on(
        1.0,
        every(BlobOperation::Get),
        Fault::RequestLost,
    );
    a.faulty.set_plan(plan);
    a.sent();
    group.until_sent(&a, "three renewals that fail", |sent| sent.is_write_of("ownership/0"), 3).await;
    assert_eq!(group.held(), held);
    a.faulty.set_plan(FaultPlan::default());
    let written = |sent: &crate::wire::Sent| sent.is_write_of("ownership/0") && sent.etag.is_some();
    group.until_sent(&a, "a renewal that succeeds", written, 1).await;
    assert_eq!(group.held(), held);
    group.stop().await;
}

/// The broker decides which owner reads; the record is not given up before another owner takes it.
pub async fn line_3_a_renewal_is_retried_after_the_deadline(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    a.wire().age("ownership/0", 2 * EXPIRY);
    a.next_write("ownership/0", Fault::ResponseLost);
    let renewed = a.renew(&lease).await.lease();
    assert_eq!((renewed.epoch(), bench.owner_of(0).await.as_str()), (lease.epoch(), "a"));
}

pub async fn line_4_a_loss_is_an_outcome_and_no_error(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let (lease, mut adoption) = a.run(0).await;
    b.take_over(0, 5).await;
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "fenced by b");
    for outcome in [a.claim(0).await, a.claim_over(0, lease.etag()).await, a.renew(&lease).await] {
        assert_eq!(outcome.describe(), "lost to b");
    }
    assert_eq!(a.adopt(0, None).await.describe(), "lost to b");
    assert_eq!(a.release(&lease).await.describe(), "lost to b");
}

pub async fn line_4_a_win_has_the_etag_the_age_and_the_record(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::RequestLost);
    let lease = a.win(0).await;
    let sent = a.sent();
    let blob = bench.blob(&ownership(0)).await.unwrap();
    assert_eq!(*lease.etag(), blob.etag);
    let record = lease.record();
    let recorded = |key: &str| &blob.metadata[key];
    assert_eq!(record.owner.as_ref().unwrap().as_str(), recorded("ownerid"));
    assert_eq!(record.incarnation.as_ref().unwrap().as_str(), recorded("ehcincarnation"));
    assert!(record.claimed_at.is_some() && blob.metadata.contains_key("ehcclaimedat"));
    // From before the successful write was sent, not the lost one.
    assert!(a.counts_from(&lease, sent[1].when..=sent[2].when));
}

pub async fn line_4_a_release_empties_ownerid_keeps_handoffto(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let mut marked = bench.read(&ownership(0)).await;
    marked.insert("ehchandoffto", "b");
    bench.put(&ownership(0), &marked).await;
    assert_eq!(a.release(&lease).await.describe(), "released");
    let epoch = lease.epoch().to_string();
    let released =
        metadata(&[("ehcleaseduration", "60"), ("ehcepoch", &epoch), ("ehchandoffto", "b"), ("ownerid", "")]);
    assert_eq!(bench.read(&ownership(0)).await, released);
}

pub async fn line_4_a_released_partition_can_be_claimed_at_once(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let _ = a.release(&lease).await;
    let listed = b.store.list_ownerships().await.unwrap().records.remove(0);
    assert_eq!(listed.record.owner, None);
    b.claim_over(0, &listed.etag).await.lease();
}

pub async fn line_4_a_renewal_keeps_handoffto_and_other_keys(bench: Bench) {
    let a = bench.owner("a").await;
    let mut lease = a.win(0).await;
    let mut expected = bench.read(&ownership(0)).await;
    expected.extend(metadata(&[("ehchandoffto", "b"), ("theirs", "1")]));
    bench.put(&ownership(0), &expected).await;
    for _ in 0..3 {
        let renewed = a.renew(&lease).await.lease();
        assert_eq!(bench.read(&ownership(0)).await, expected);
        assert_eq!(renewed.epoch(), lease.epoch());
        assert_ne!(renewed.etag(), lease.etag());
        lease = renewed;
    }
}
