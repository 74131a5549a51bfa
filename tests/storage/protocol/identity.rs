//! Identity: which instance a record belongs to, and one operation at a time.

use eventhubs_checkpoint::Incarnation;
use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault};
use std::time::Duration;
use tokio::join;
use tokio::sync::oneshot;

use super::group::Group;
use crate::bench::{Adopted, Bench, Describe, EXPIRY, LOWER, Win, at, checkpoint, metadata, ownership};
use crate::wire::Wire;

const EARLIER: &str = "20200101T000000Z-ffffffff";
const LATER: &str = "29990101T000000Z-00000000";

pub async fn incarnation_is_server_time_and_random(bench: Bench) {
    let server_time = async || bench.container.list(LOWER).await.unwrap().response.server_time;
    let ahead = time::Duration::seconds(10);
    let (before, a, after) = (server_time().await, bench.later("a").await, server_time().await);
    let incarnation = &a.store.identity().incarnation;
    assert!(Incarnation::new(before + ahead, 0) <= *incarnation, "{incarnation}");
    assert!(Incarnation::new(after + ahead, u32::MAX) >= *incarnation, "{incarnation}");
    let (second, random) = incarnation.as_str().split_once('-').unwrap();
    assert_eq!((second.len(), random.len()), (16, 8));
    let another = bench.later("a").await;
    assert_ne!(another.store.identity().incarnation, *incarnation);
}

pub async fn the_greater_incarnation_is_the_newer(bench: Bench) {
    let first = bench.owner("a").await;
    let lease = first.win(0).await;
    let second = bench.later("a").await;
    assert!(second.store.identity().incarnation > first.store.identity().incarnation);
    assert_eq!(second.relation(0).await, Relation::EarlierIncarnation);
    second.claim_over(0, lease.etag()).await.lease();
    assert_eq!(first.relation(0).await, Relation::LaterIncarnation);
}

pub async fn a_record_is_own_if_owner_and_incarnation_match(bench: Bench) {
    let a = bench.owner("a").await;
    let own = a.store.identity().incarnation.as_str().to_owned();
    for (record, relation) in [
        (metadata(&[("ownerid", "a"), ("ehcincarnation", &own)]), Relation::This),
        (metadata(&[("ownerid", "a"), ("ehcincarnation", EARLIER)]), Relation::EarlierIncarnation),
        (metadata(&[("ownerid", "a")]), Relation::EarlierIncarnation),
        (metadata(&[("ownerid", "a"), ("ehcincarnation", LATER)]), Relation::LaterIncarnation),
        (metadata(&[("ownerid", "A"), ("ehcincarnation", &own)]), Relation::Other),
        (metadata(&[("ownerid", ""), ("ehcincarnation", &own)]), Relation::Unowned),
    ] {
        bench.put(&ownership(0), &record).await;
        assert_eq!(a.relation(0).await, relation, "{record:?}");
    }
}

pub async fn an_earlier_incarnation_is_claimed_at_any_time(bench: Bench) {
    let a = bench.owner("a").await;
    let earlier = metadata(&[("ownerid", "a"), ("ehcincarnation", EARLIER), ("ehcepoch", "1")]);
    for earlier in [earlier, metadata(&[("ownerid", "a"), ("ehcepoch", "1")])] {
        let etag = bench.put(&ownership(0), &earlier).await;
        a.claim_over(0, &etag).await.lease();
        assert_eq!(a.sent()[0].under(), Some(&etag));
        assert_eq!(a.relation(0).await, Relation::This);
        a.sent();
    }
}

pub async fn a_fresh_later_incarnation_replaces_this_one(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    bench
        .put(&ownership(0), &metadata(&[("ownerid", "a"), ("ehcincarnation", LATER), ("ehcleaseduration", "60")]))
        .await;
    a.wire().age("ownership/0", EXPIRY - 1);
    assert_eq!(a.renew(&lease).await.describe(), format!("replaced by {LATER}"));
    assert_eq!(a.claim(0).await.describe(), format!("replaced by {LATER}"));
    assert_eq!(&bench.read(&ownership(0)).await["ehcincarnation"], LATER);
}

pub async fn an_expired_later_incarnation_is_any_other_owner(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let expired = bench
        .put(&ownership(0), &metadata(&[("ownerid", "a"), ("ehcincarnation", LATER), ("ehcleaseduration", "60")]))
        .await;
    a.wire().age("ownership/0", EXPIRY + 3);
    assert_eq!(a.renew(&lease).await.describe(), "lost to a");
    a.claim_over(0, &expired).await.lease();
}

/// The newer one takes the partition while the older one renews it.
pub async fn of_two_incarnations_at_once_the_newer_remains(bench: Bench) {
    let (first, second) = (bench.owner("a").await, bench.later("a").await);
    for partition in 0..bench.rounds {
        let lease = first.win(partition).await;
        first.add_jitter();
        second.add_jitter();
        let (renewed, claimed) = join!(first.renew(&lease), second.claim_over(partition, lease.etag()));
        let newer = second.store.identity().incarnation.to_string();
        let recorded = bench.read(&ownership(partition)).await["ehcincarnation"].to_owned();
        match (renewed.describe().as_str(), claimed.describe().as_str()) {
            ("won", "lost to a") => {
                assert_ne!(recorded, newer);
                second.take(partition).await;
                assert_eq!(first.renew(&renewed.lease()).await.describe(), format!("replaced by {newer}"));
            }
            (replaced, "won") => assert_eq!((replaced, &recorded), (&*format!("replaced by {newer}"), &newer)),
            other => panic!("{other:?}"),
        }
    }
}

/// Its claim got no response, and the read of the outcome failed, too.
pub async fn a_late_own_write_is_claimed_again_not_renewed(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::ResponseLost);
    a.next_read_fails("ownership/0");
    let mut group = Group::run(&a, 1);
    group.until("it is held", |snapshot| snapshot.owned.len() == 1).await;
    let sent = a.sent();
    let writes: Vec<_> = sent.iter().filter(|sent| sent.is_write_of("ownership/0")).collect();
    let [late, claimed, ..] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!((late.to_string(), late.etag.as_ref()), ("create ownership/0".to_owned(), None));
    assert_eq!(claimed.to_string(), "match ownership/0");
    assert_eq!(bench.container.get(&ownership(0)).await.unwrap().metadata, claimed.metadata);
    let renewals = a.store.request_counts().total(eventhubs_checkpoint::store::StorageOperation::Renew);
    assert_eq!((renewals, a.adopt(0, None).await.describe().as_str()), (0, "adopted"));
    group.stop().await;
}

/// Clones are one instance.
pub async fn operations_on_one_partition_are_serial(bench: Bench) {
    let a = bench.owner("a").await;
    for partition in 0..bench.rounds {
        a.add_jitter();
        let (one, other) = (a.clone(), a.clone());
        let (first, second) = join!(one.claim(partition), other.claim(partition));
        Wire::assert_serial(&a.sent());
        let (first, second) = (first.lease(), second.lease());
        let (earlier, later) = if first.epoch() < second.epoch() { (first, second) } else { (second, first) };
        assert_eq!(bench.blob(&ownership(partition)).await.unwrap().etag, *later.etag());

        let mut adoption = a.adopt(partition, Some(-1)).await.adoption();
        let position = at(5);
        let (renewed, old, released) = join!(one.renew(&later), other.renew(&earlier), a.release(&later));
        assert_eq!((old.describe().as_str(), released.describe().as_str()), ("lost to a", "released"));
        assert!(["won", "lost to no owner"].contains(&renewed.describe().as_str()), "{renewed:?}");
        assert_eq!(bench.owner_of(partition).await, "");
        a.take(partition).await;
        let _ = join!(async { a.adopt(partition, Some(-1)).await.adoption() }, async {
            one.store.checkpoint(&mut adoption, &position).await.unwrap()
        },);
        // The ownership is read during a renewal: only writes must not overlap.
        Wire::assert_serial(
            &a.sent().into_iter().filter(|sent| sent.operation == BlobOperation::Write).collect::<Vec<_>>(),
        );
    }
}

pub async fn responses_of_an_earlier_epoch_are_dropped(bench: Bench) {
    let a = bench.owner("a").await;
    let (earlier, mut adoption) = a.run(0).await;
    let later = a.take(0).await;
    assert!(later.epoch() > earlier.epoch());
    a.sent();
    assert_eq!(a.renew(&earlier).await.describe(), "lost to a");
    assert_eq!(a.release(&earlier).await.describe(), "lost to a");
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "fenced by a");
    assert_eq!(a.requests(), [""; 0]);
    assert_eq!(bench.owner_of(0).await, "a");
    assert_eq!(&bench.read(&checkpoint(0)).await["sequencenumber"], "-1");
}

/// An operation that waits for the claim that begins the next epoch belongs to an earlier one by then.
pub async fn and_also_while_the_next_epoch_begins(bench: Bench) {
    let a = bench.owner("a").await;
    let (earlier, mut adoption) = a.run(0).await;
    a.next_write("ownership/0", Fault::Latency(Duration::from_millis(50)));
    let claim = a.over(0, earlier.etag()).await;
    let (mut claimed, renewed, released) =
        join!(a.store.claim_all(vec![claim]), a.renew(&earlier), a.release(&earlier));
    assert_eq!((renewed.describe().as_str(), released.describe().as_str()), ("lost to a", "lost to a"));
    assert_eq!(a.requests(), ["match ownership/0"]);
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "fenced by a");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, *claimed.remove(0).1.lease().etag());
}

/// The record is its own again, but another instance owned it in between.
pub async fn a_checkpoint_does_not_outlive_its_epoch(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let (_, mut adoption) = a.run(0).await;
    b.take_over(0, 50).await;
    let again = a.clone();
    a.wire().after(BlobOperation::Get, "checkpoint/0", async move { drop(again.take(0).await) });
    assert_eq!(a.checkpoint(&mut adoption, 70).await.describe(), "fenced by a");
    assert_eq!(bench.position_of(0).await, 50);
}

pub async fn a_renewal_that_creates_the_record_begins_an_epoch(bench: Bench) {
    let a = bench.owner("a").await;
    let (lease, _) = a.run(0).await;
    bench.delete(&ownership(0)).await;
    // The first write finds nothing; the response of the second one is lost.
    a.next_write("ownership/0", Fault::Latency(Duration::ZERO));
    a.next_write("ownership/0", Fault::ResponseLost);
    assert!(a.renew(&lease).await.lease().epoch() > lease.epoch());
}

pub async fn an_abandoned_creation_can_be_renewed_and_released(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, release) in [(0, true), (1, false)] {
        let (lease, _) = a.run(partition).await;
        bench.delete(&ownership(partition)).await;
        // The first write finds nothing. The renewal is dropped while the second one waits for its response.
        let (applied, created) = oneshot::channel();
        a.wire().after_nth(2, BlobOperation::Write, &ownership(partition), async move {
            applied.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        tokio::select! {
            renewed = a.renew(&lease) => panic!("{renewed:?}"),
            created = created => created.unwrap(),
        }
        assert!(bench.blob(&ownership(partition)).await.is_some());
        if release {
            assert_eq!(a.release(&lease).await.describe(), "released");
            assert_eq!(bench.owner_of(partition).await, "");
        } else {
            assert!(a.renew(&lease).await.lease().epoch() > lease.epoch());
        }
    }
}
