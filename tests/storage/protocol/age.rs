//! Age: which clock counts, and how long a record is valid.

use std::time::Duration;

use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use eventhubs_checkpoint::testing::faulty::Fault;
use tokio::time::Instant;

use super::group::Group;
use crate::bench::{Bench, Describe, Win, metadata, owned_by, ownership};

async fn listed_ages(bench: &Bench, ages: [i64; 2]) -> Vec<u64> {
    let a = bench.owner("a").await;
    for (partition, age) in (0..).zip(ages) {
        bench.put(&ownership(partition), &owned_by("b")).await;
        a.wire().age(&format!("ownership/{partition}"), age);
    }
    let listing = a.store.list_ownerships().await.unwrap();
    listing.records.iter().map(|record| record.age.as_secs()).collect()
}

/// Each blob has the response of its own page.
pub async fn is_the_date_of_the_page_minus_last_modified(bench: Bench) {
    assert_eq!(listed_ages(&bench, [40, 10]).await, [40, 10]);
}

pub async fn is_clamped_at_zero(bench: Bench) {
    assert_eq!(listed_ages(&bench, [-30, 0]).await, [0, 0]);
}

/// Returns whether an instance that wants the partition considers this record live at this age. Otherwise it is
/// claimed.
async fn is_live(bench: &Bench, record: &[(&str, &str)], age: i64) -> bool {
    bench.put(&ownership(0), &metadata(record)).await;
    let a = bench.owner("a").await;
    a.wire().age("ownership/0", age);
    let mut group = Group::run(&a, 1);
    let holders = group.settled().await;
    let live = holders == [PartitionOwner::Other(eventhubs_checkpoint::OwnerId::new("b").unwrap())];
    assert_eq!(a.requests().iter().any(|request| request == "match ownership/0"), !live, "{holders:?}");
    group.stop().await;
    live
}

pub async fn another_owner_expires_two_seconds_of_grace_later(bench: Bench) {
    assert_eq!(LeaseDurations::GRACE.as_secs(), 2);
    for (lease_duration, seconds) in [("14", 14), ("300", 300), ("1", 4)] {
        let incarnation = "20260101T000000Z-00000001";
        let record = [("ownerid", "b"), ("ehcincarnation", incarnation), ("ehcleaseduration", lease_duration)];
        assert!(is_live(&bench, &record, seconds + 1).await, "{lease_duration}");
        assert!(!is_live(&bench, &record, seconds + 2).await, "{lease_duration}");
    }
}

pub async fn without_a_duration_the_foreign_one_applies(bench: Bench) {
    let malformed = [("ownerid", "b"), ("ehcincarnation", "20260101T000000Z-00000001"), ("ehcleaseduration", "1m")];
    for record in [&[("ownerid", "b")][..], &malformed] {
        assert!(is_live(&bench, record, 180 + 1).await, "{record:?}");
        assert!(!is_live(&bench, record, 180 + 2).await, "{record:?}");
    }
}

pub async fn own_age_counts_from_before_the_last_success(bench: Bench) {
    let a = bench.owner("a").await;
    let slow = || Fault::Latency(Duration::from_millis(50));
    a.next_write("ownership/0", slow());
    let requested = Instant::now();
    let won = a.win(0).await;
    assert!(a.counts_from(&won, requested..=a.sent()[0].when));
    a.next_write("ownership/0", slow());
    let requested = Instant::now();
    let renewed = a.renew(&won).await.lease();
    assert!(a.counts_from(&renewed, requested..=a.sent()[0].when));
    // An attempt that failed changes nothing.
    a.next_write("ownership/0", Fault::RequestLost);
    a.next_read_fails("ownership/0");
    assert_eq!(a.renew(&renewed).await.describe(), "indeterminate: Indeterminate");
    let again = a.renew(&renewed).await.lease();
    assert!(a.counts_from(&again, a.sent()[1].when..=Instant::now()));
}
