//! Requirements of the earlier systems for records, claims and checkpoints.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::blob::Condition;
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use futures::future::join_all;
use tokio::join;
use tokio::time::sleep;

use super::group::Group;
use crate::bench::{Bench, Describe, EXPIRY, LOWER, Owner, checkpoint, metadata, owned_by, ownership, position};

pub async fn the_list_has_owner_position_date_and_etag(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for (partition, owner) in [(0, &a), (1, &b)] {
        let (_, mut adoption) = owner.run(partition).await;
        let _ = owner.checkpoint(&mut adoption, 5 + i64::from(partition)).await;
    }
    let ownerships = a.store.list_ownerships().await.unwrap().records;
    let checkpoints = a.store.list_checkpoints().await.unwrap().records;
    assert_eq!((ownerships.len(), checkpoints.len()), (2, 2));
    for (index, (owned, reached)) in (0..).zip(ownerships.iter().zip(&checkpoints)) {
        let (blob, read) =
            (bench.blob(&ownership(index)).await.unwrap(), bench.blob(&checkpoint(index)).await.unwrap());
        assert_eq!((&owned.partition, &reached.partition), (&index.into(), &index.into()));
        assert_eq!(owned.record.owner.as_ref().unwrap().as_str(), ["a", "b"][index as usize]);
        assert!((&owned.etag, &reached.etag) == (&blob.etag, &read.etag) && owned.age < Duration::from_secs(30));
        let position = (reached.record.sequence_number.unwrap(), reached.record.offset.as_deref().unwrap());
        assert_eq!(position, [(5, "50"), (6, "60")][index as usize]);
        assert_eq!(reached.last_modified, read.last_modified);
    }
}

/// Without an ETag, and with one.
pub async fn of_two_claims_at_once_one_wins(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        a.add_jitter();
        b.add_jitter();
        for over in [false, true] {
            let (of_a, of_b) = if over {
                let victims = bench.put(&ownership(partition), &owned_by("victim")).await;
                join!(a.claim_over(partition, &victims), b.claim_over(partition, &victims))
            } else {
                join!(a.claim(partition), b.claim(partition))
            };
            let owner = bench.owner_of(partition).await;
            let (won, lost) = ("won".to_owned(), format!("lost to {owner}"));
            let expected = if owner == "a" { [won, lost] } else { [lost, won] };
            assert_eq!([of_a.describe(), of_b.describe()], expected);
        }
    }
}

pub async fn of_twenty_claims_at_once_one_wins(bench: Bench) {
    let owners = join_all((0..20).map(|number| {
        let bench = &bench;
        async move { bench.owner(&format!("owner-{number}")).await }
    }))
    .await;
    // All want the first one, and each another one for itself.
    let claims = join_all((1..).zip(&owners).map(|(own, owner): (u32, &Owner)| {
        owner.store.claim_all(vec![Claim::unowned(0.into()), Claim::unowned(own.into())])
    }))
    .await;
    let reported = |claim: &[(_, ClaimOutcome)], partition: u32| {
        claim.iter().find(|(id, _)| *id == eventhubs_checkpoint::PartitionId::from(partition)).unwrap().1.describe()
    };
    let winner = bench.owner_of(0).await;
    for ((own, claim), owner) in (1..).zip(&claims).zip(&owners) {
        assert_eq!(reported(claim, own), "won");
        let this = owner.store.identity().owner.as_str();
        let expected = if this == winner { "won".to_owned() } else { format!("lost to {winner}") };
        assert_eq!(reported(claim, 0), expected, "{this}");
    }
}

pub async fn only_the_owner_updates_the_checkpoint(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let (_, mut of_a) = a.run(0).await;
    assert_eq!(a.checkpoint(&mut of_a, 5).await.describe(), "written");
    b.take_over(0, 7).await;
    assert_eq!(a.checkpoint(&mut of_a, 6).await.describe(), "fenced by b");
    assert_eq!(a.checkpoint(&mut of_a, 8).await.describe(), "fenced by b");
    assert_eq!(bench.position_of(0).await, 7);
}

/// And does not change the ownership.
pub async fn success_refreshes_last_modified(bench: Bench) {
    let a = bench.owner("a").await;
    let (lease, mut adoption) = a.run(0).await;
    let before = bench.blob(&checkpoint(0)).await.unwrap().last_modified;
    while bench.container.list(LOWER).await.unwrap().response.server_time <= before {
        sleep(Duration::from_millis(50)).await;
    }
    let _ = a.checkpoint(&mut adoption, 5).await;
    assert!(bench.blob(&checkpoint(0)).await.unwrap().last_modified > before);
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, *lease.etag());
}

pub async fn a_failed_update_rereads_then_stops_or_retries(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let changed = bench.put(&checkpoint(0), &position(3)).await;
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
    assert_eq!(a.sent().pop().unwrap().under(), Some(&changed));
    bench.put(&checkpoint(0), &position(4)).await;
    bench.put(&ownership(0), &owned_by("b")).await;
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "fenced by b");
    assert_eq!(bench.position_of(0).await, 4);
}

#[derive(Debug)]
struct MinutesAhead;

impl WallClock for MinutesAhead {
    fn now(&self) -> time::OffsetDateTime {
        SystemWallClock.now() + time::Duration::minutes(10)
    }
}

/// Ages come from the server.
pub async fn a_clock_minutes_ahead_expires_no_owner(bench: Bench) {
    let b = bench.owner("b").await;
    b.win(0).await;
    let clock = std::sync::Arc::new(MinutesAhead);
    let a = bench.try_owner("a", |builder| builder.with_wall_clock(clock), |_| {}).await.unwrap();
    assert!(a.store.list_ownerships().await.unwrap().records[0].age < Duration::from_secs(30));
    let mut group = Group::run(&a, 1);
    assert_eq!(group.settled().await, [PartitionOwner::Other(OwnerId::new("b").unwrap())]);
    assert_eq!(bench.owner_of(0).await, "b");
    group.stop().await;
}

pub async fn list_for_hub_and_group(bench: Bench) {
    let a = bench.owner("a").await;
    a.run(0).await;
    for foreign in
        ["ns.servicebus.windows.net/hub/other", "ns.servicebus.windows.net/hub2/$default", "ns2/hub/$default"]
    {
        bench.put(&format!("{foreign}/ownership/1"), &owned_by("b")).await;
        bench.put(&format!("{foreign}/checkpoint/1"), &position(1)).await;
    }
    let (ownerships, checkpoints) = join!(a.store.list_ownerships(), a.store.list_checkpoints());
    let (ownerships, checkpoints) = (ownerships.unwrap(), checkpoints.unwrap());
    assert_eq!((ownerships.records.len(), checkpoints.records.len()), (1, 1));
    assert!(ownerships.malformed.is_empty() && checkpoints.malformed.is_empty());
}

pub async fn a_claimed_list_reports_which_succeeded(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    b.win(1).await;
    a.next_write("ownership/2", eventhubs_checkpoint::testing::faulty::Fault::Unreachable);
    let claimed = a.store.claim_all((0..4u32).map(|id| Claim::unowned(id.into())).collect()).await;
    let mut reported: Vec<_> =
        claimed.iter().map(|(partition, outcome)| format!("{partition} {}", outcome.describe())).collect();
    reported.sort();
    assert_eq!(reported, ["0 won", "1 lost to b", "2 indeterminate: Unavailable", "3 won"]);
}

/// The adoption keeps it: the next update is made under it.
pub async fn update_checkpoint_returns_the_new_etag(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let _ = a.checkpoint(&mut adoption, 5).await;
    let etag = a.sent().remove(0).etag.unwrap();
    assert_eq!(bench.blob(&checkpoint(0)).await.unwrap().etag, etag);
    let _ = a.checkpoint(&mut adoption, 6).await;
    assert_eq!(a.sent()[0].under(), Some(&etag));
}

/// Two workers go through the same units, and share them without one left out or done twice.
pub async fn a_claim_fails_if_the_record_exists(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let units = 2 * bench.rounds;
    a.add_jitter();
    b.add_jitter();
    let work = async |worker: &Owner| {
        let mut own = Vec::new();
        for unit in 0..units {
            match worker.claim(unit).await {
                ClaimOutcome::Won(_) => own.push(unit),
                ClaimOutcome::Lost { by: Some(_) } => {}
                other => panic!("{other:?}"),
            }
        }
        own
    };
    let (of_a, of_b) = join!(work(&a), work(&b));
    let mut all: Vec<_> = of_a.iter().chain(&of_b).copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..units).collect::<Vec<_>>());
    for (name, units) in [("a", of_a), ("b", of_b)] {
        for unit in units {
            assert_eq!(bench.owner_of(unit).await, name);
        }
    }
}

pub async fn abandoned_locks_are_overridden_by_age(bench: Bench) {
    let abandoned = bench.container.write(&ownership(0), &owned_by("b"), &Condition::Create).await.unwrap();
    let a = bench.owner("a").await;
    a.wire().age("ownership/0", EXPIRY + 1);
    let mut group = Group::run(&a, 1);
    assert_eq!(group.settled().await, [PartitionOwner::Other(OwnerId::new("b").unwrap())]);
    a.wire().age("ownership/0", EXPIRY + 2);
    group.until_it_holds(&[0]).await;
    let claim = a.sent().into_iter().find(|sent| sent.is_write_of("ownership/0")).unwrap();
    assert_eq!(claim.under(), Some(&abandoned.etag));
    assert_ne!(bench.read(&ownership(0)).await, metadata(&[]));
    assert_eq!(bench.owner_of(0).await, "a");
    group.stop().await;
}
