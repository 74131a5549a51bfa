//! Epochs: they only grow.

use eventhubs_checkpoint::store::protocol::Claim;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault};
use std::time::Duration;
use tokio::time::Instant;

use crate::bench::{Adopted, Bench, Describe, LOWER, Win, metadata, owned_by, ownership, position};

/// Returns the recorded epoch.
async fn recorded(bench: &Bench, partition: u32) -> Option<i64> {
    bench.read(&ownership(partition)).await.get("ehcepoch").map(|epoch| epoch.parse().unwrap())
}

/// Returns the server's time in milliseconds.
async fn server_time(bench: &Bench) -> i64 {
    bench.container.list(LOWER).await.unwrap().response.server_time.unix_timestamp() * 1000
}

pub async fn line_1_without_a_record_it_follows_server_time(bench: Bench) {
    let before = server_time(&bench).await;
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let after = server_time(&bench).await;
    assert!((before + 1..=after + 1).contains(&lease.epoch()), "{before} {} {after}", lease.epoch());
    assert_eq!(recorded(&bench, 0).await, Some(lease.epoch()));
}

pub async fn line_1_it_follows_the_epoch_of_the_claimed_record(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, released) in [(0, false), (1, true)] {
        let mut record = if released { metadata(&[("ownerid", "")]) } else { owned_by("b") };
        record.insert("ehcepoch", "9000000000000000");
        bench.put(&ownership(partition), &record).await;
        assert_eq!(a.take(partition).await.epoch(), 9_000_000_000_000_001);
    }
}

pub async fn line_1_it_grows_with_every_claim_within_a_second(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let mut lease = a.win(0).await;
    for taker in [&b, &a, &b, &b] {
        let next = taker.take(0).await;
        assert!(next.epoch() > lease.epoch());
        lease = next;
    }
    let _ = b.release(&lease).await;
    assert!(a.take(0).await.epoch() > lease.epoch());
}

pub async fn line_1_a_creating_renewal_has_its_own_epoch(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    bench.delete(&ownership(0)).await;
    let created = a.renew(&lease).await.lease();
    assert!(created.epoch() > lease.epoch());
    assert_eq!(recorded(&bench, 0).await, Some(created.epoch()));
}

/// Only the epoch of the write that is known to have won counts.
pub async fn line_1_a_claim_written_again_has_another_epoch(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::ResponseLost);
    let lease = a.win(0).await;
    let sent = a.sent();
    let epochs: Vec<i64> = sent
        .iter()
        .filter(|sent| sent.is_write_of("ownership/0"))
        .map(|sent| sent.metadata["ehcepoch"].parse().unwrap())
        .collect();
    assert!(matches!(epochs[..], [first, second] if first < second && second == lease.epoch()), "{epochs:?}");
}

pub async fn line_2_renewals_requests_and_releases_keep_it(bench: Bench) {
    let (mut a, b) = (bench.owner("a").await, bench.owner("b").await);
    a.cooperative = true;
    let lease = a.win(0).await;
    let lease = a.renew(&lease).await.lease();
    assert_eq!(recorded(&bench, 0).await, Some(lease.epoch()));
    let seen = b.store.list_ownerships().await.unwrap().records.remove(0);
    b.store.request_handoff(&seen).await.unwrap();
    assert!(bench.read(&ownership(0)).await.contains_key("ehchandoffto"));
    assert_eq!(recorded(&bench, 0).await, Some(lease.epoch()));
    let lease = a.renew(&lease.acknowledging_handoff()).await.lease();
    let _ = a.release(&lease).await;
    assert_eq!((bench.owner_of(0).await.as_str(), recorded(&bench, 0).await), ("", Some(lease.epoch())));
}

/// It may have erased an epoch of the same second, and the dates may come from two machines. The partition is claimed
/// at once, because its owner may renew it every second, but the new epoch begins only later.
pub async fn line_3_over_a_fresh_record_without_one_it_waits(bench: Bench) {
    let a = bench.owner("a").await;
    let seen = loop {
        bench.put(&ownership(0), &metadata(&[("ownerid", "python")])).await;
        let seen = a.store.list_ownerships().await.unwrap().records.remove(0);
        if seen.age < Duration::from_secs(2) {
            break seen;
        }
    };
    a.sent();
    let requested = Instant::now();
    let lease = a.store.claim_all(vec![Claim::over(&seen)]).await.remove(0).1.lease();
    assert!(!bench.is_paused() || requested.elapsed() < Duration::from_secs(5), "{:?}", requested.elapsed());
    let sent = a.sent();
    let writes: Vec<_> = sent.iter().filter(|sent| sent.is_write_of("ownership/0")).collect();
    let [taken, begun] = writes[..] else { panic!("{sent:?}") };
    assert_eq!((&taken.metadata["ownerid"], taken.metadata.get("ehcepoch")), ("a", None));
    assert_eq!((taken.under(), begun.under()), (Some(&seen.etag), taken.etag.as_ref()));
    assert!(begun.when - taken.when >= Duration::from_secs(1), "{:?}", begun.when - taken.when);
    // The time is that of a response in which the record was old enough.
    let modified = (seen.server_time - seen.age).unix_timestamp();
    assert!(lease.epoch() > (modified + 2) * 1000, "{} {modified}", lease.epoch());
    assert_eq!(recorded(&bench, 0).await, Some(lease.epoch()));
}

/// Before its epoch has begun.
pub async fn line_3_a_partition_taken_meanwhile_is_lost(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&ownership(0), &metadata(&[("ownerid", "python")])).await;
    let seen = a.store.list_ownerships().await.unwrap().records.remove(0);
    let container = bench.container.clone();
    a.wire().after(BlobOperation::Write, "ownership/0", async move {
        container.overwrite(&ownership(0), &owned_by("b")).await.unwrap();
    });
    assert_eq!(a.store.claim_all(vec![Claim::over(&seen)]).await.remove(0).1.describe(), "lost to b");
    assert_eq!(bench.owner_of(0).await, "b");
}

pub async fn line_3_an_old_enough_record_is_claimed_at_once(bench: Bench) {
    let a = bench.owner("a").await;
    for (record, age) in [(metadata(&[("ownerid", "python")]), 2), (metadata(&[("ownerid", ""), ("ehcepoch", "7")]), 0)]
    {
        bench.put(&ownership(0), &record).await;
        a.wire().age("ownership/0", age);
        let seen = a.store.list_ownerships().await.unwrap().records.remove(0);
        a.sent();
        a.store.claim_all(vec![Claim::over(&seen)]).await.remove(0).1.lease();
        assert_eq!(a.requests(), ["match ownership/0"], "{record:?}");
    }
}

/// A write that was given up, and was applied later.
pub async fn line_4_a_record_with_another_epoch_is_not_own(bench: Bench) {
    let a = bench.owner("a").await;
    let (lease, mut adoption) = a.run(0).await;
    let mut orphan = bench.read(&ownership(0)).await;
    orphan.insert("ehcepoch", (lease.epoch() + 5).to_string());
    bench.put(&ownership(0), &orphan).await;
    bench.put(&crate::bench::checkpoint(0), &position(3)).await;
    assert_eq!(a.checkpoint(&mut adoption, 7).await.describe(), "fenced by a");
    let adopted = a.store.adopt(&0.into(), lease.epoch(), None).await.unwrap();
    assert_eq!(adopted.describe(), "lost to a");
    assert_eq!(bench.position_of(0).await, 3);
    // It is claimed again, which begins another epoch.
    let claimed = a.renew(&lease).await.lease();
    assert!(claimed.epoch() > lease.epoch() + 5);
    let adoption = a.store.adopt(&0.into(), claimed.epoch(), None).await.unwrap().adoption();
    assert_eq!(adoption.epoch(), claimed.epoch());
}

/// Responses of writes are lost; reads are late.
pub async fn owners_in_turn_always_have_a_greater_epoch(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let mut epochs = vec![a.win(0).await.epoch()];
    for round in 0..2 * bench.rounds {
        let taker = if round % 2 == 0 { &b } else { &a };
        taker.add_jitter();
        taker.next_write("ownership/0", if round % 3 == 0 { Fault::ResponseLost } else { Fault::RequestLost });
        epochs.push(taker.take(0).await.epoch());
        let adoption = taker.adopt(0, Some(-1)).await.adoption();
        assert_eq!(Some(&adoption.epoch()), epochs.last());
    }
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
    assert!(a.sent().iter().filter(|sent| sent.operation == BlobOperation::Write).count() > bench.rounds as usize);
}
