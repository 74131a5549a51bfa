//! Listings, claims and releases through the interface of the official processor.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::protocol::{Claim, ReleaseOutcome};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use futures::future::join_all;
use tokio::task::LocalSet;
use tokio::time::{advance, sleep, timeout};

use super::crowd::{Crowd, until};
use super::records::{
    GROUP, HUB, LocalClock, NAMESPACE, NONE, adapter, checkpoint, cycle, faulty, group_store, listed, name_of,
    owner_in, put, refused, settled, wish, writes,
};

/// The hub had 32 partitions, and was recreated with 4. One record has a backup in the same folder.
#[tokio::test]
async fn records_of_a_larger_hub_leave_nothing_unowned() {
    let all = async {
        let (crowd, container) = (Crowd::new(4).await, MemoryContainer::new());
        for leftover in (4..32).map(|partition| partition.to_string()).chain(["backup".to_owned()]) {
            put(&container, &format!("localhost/hub/$default/ownership/{leftover}"), [("ownerid", "")]).await;
        }
        let only = crowd.start(crowd.adapter(container.clone())).await;
        until("four cycles", || only.holds().count >= 4).await;
        assert_eq!(only.holds().last, ["0", "1", "2", "3"].map(str::to_owned).into());
    };
    LocalSet::new().run_until(all).await;
}

#[tokio::test(start_paused = true)]
async fn unowned_partitions_are_won_without_an_etag() {
    let container = MemoryContainer::new();
    for (partition, owner) in [(0, ""), (1, "java"), (2, "app")] {
        put(&container, &name_of("ownership", partition), [("ownerid", owner)]).await;
    }
    put(&container, &name_of("ownership", 3).replace("/3", "/backup"), [("theirs", "1")]).await;
    advance(Duration::from_secs(183)).await;
    let a = adapter(container.clone());
    assert!(listed(&*a).await.is_empty());
    let wishes = [0, 1, 2].map(|partition| wish("app", partition, None));
    assert_eq!(a.claim_ownership(&wishes).await.unwrap().len(), 3, "the first claim");
    assert_eq!(a.release_all().await.len(), 3);

    cycle(&*a, "app", NONE).await;
    assert_eq!(cycle(&*a, "app", [3]).await, [3]);
    assert_eq!(listed(&*a).await.into_keys().collect::<Vec<_>>(), ["3"]);
    assert_eq!(a.claim_ownership(&wishes).await.unwrap().len(), 3, "a later one");
    for partition in [0, 1, 2] {
        checkpoint(&*a, partition, 1).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_changed_after_the_listing_is_lost() {
    let container = MemoryContainer::new();
    for partition in [0, 1] {
        put(&container, &name_of("ownership", partition), [("ownerid", "")]).await;
    }
    let (a, b) = (adapter(container.clone()), adapter(container.clone()));
    assert_eq!(cycle(&*a, "a", [1]).await, [1]);
    assert_eq!(listed(&*a).await.into_keys().collect::<Vec<_>>(), ["1"]);
    assert_eq!(cycle(&*b, "b", [0]).await, [0]);
    b.release_all().await;
    // It is unowned, but not the record that was listed.
    assert!(a.claim_ownership(&[wish("a", 0, None)]).await.unwrap().is_empty());
    assert_eq!(owner_in(&container, 0).await, "");
    assert_eq!(cycle(&*a, "a", [0, 1]).await, [0, 1], "the next listing shows the current version");
}

#[tokio::test(start_paused = true)]
async fn of_two_claims_of_an_unlisted_one_one_wins() {
    let container = MemoryContainer::new();
    put(&container, &name_of("ownership", 0), [("ownerid", "")]).await;
    let (a, b) = (adapter(container.clone()), adapter(container.clone()));
    cycle(&*a, "a", [1]).await;
    cycle(&*b, "b", [2]).await;
    let (by_a, by_b) = tokio::join!(cycle(&*a, "a", [0]), cycle(&*b, "b", [0]));
    assert_eq!(by_a.len() + by_b.len(), 1);
    let winner = if by_a.is_empty() { &b } else { &a };
    checkpoint(&**winner, 0, 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_heartbeat_owner_is_declared_dead_first() {
    let container = MemoryContainer::new();
    let b = group_store(container.clone(), "b").await;
    let _ = b.send_heartbeat().await.unwrap();
    for id in [0, 1] {
        let _ = b.claim(&Claim::unowned(id.into()).with_lease_scope(LeaseScope::Instance)).await;
    }
    let a = adapter(container.clone());
    cycle(&*a, "a", [2]).await;
    sleep(Duration::from_secs(63)).await;
    assert_eq!(listed(&*a).await.into_keys().collect::<Vec<_>>(), ["2"]);
    let _ = b.send_heartbeat().await.unwrap();
    assert!(a.claim_ownership(&[wish("a", 0, None)]).await.unwrap().is_empty(), "alive again");
    sleep(Duration::from_secs(63)).await;
    assert_eq!(cycle(&*a, "a", [0, 1]).await, [0, 1]);
    let heartbeat = container.get(&format!("{NAMESPACE}/{HUB}/$default/heartbeat/b")).await.unwrap();
    assert_eq!(&heartbeat.metadata["ehcdeclareddeadby"], "a");
}

/// No other owner has taken it, and its renewals may have arrived: it stays in the listing, as before.
#[tokio::test(start_paused = true)]
async fn a_held_partition_is_listed_with_any_age() {
    let (faulty, container) = faulty();
    let (a, other) = (settled(faulty.clone()).await, adapter(container));
    faulty.set_plan(FaultPlan::default().with_on(1.0, writes("ownership"), Fault::Unreachable));
    advance(Duration::from_secs(70)).await;
    assert!(listed(&*other).await.is_empty());
    assert_eq!(listed(&*a).await["0"].owner_id.as_deref(), Some("a"));
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
}

/// Eight replicas with one application id, which start at once on a blob service that takes up to 20 ms per request.
#[tokio::test(start_paused = true)]
async fn replicas_that_verify_do_not_disturb_each_other() {
    let container = MemoryContainer::new();
    let replicas = (0..8).map(async |seed| {
        let faulty = FaultyContainer::new(Arc::new(container.clone()), seed.into());
        faulty.set_plan(FaultPlan::always(Fault::Latency(Duration::from_millis(20))));
        let store = BlobCheckpointStore::builder(faulty).with_wall_clock(LocalClock::ahead(0)).build().unwrap();
        cycle(&*store, "app", [seed]).await
    });
    let claimed: BTreeSet<_> = join_all(replicas).await.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 8);
}

/// Before the first claim a store only lists.
#[tokio::test(start_paused = true)]
async fn a_store_that_only_lists_does_not_verify() {
    let (faulty, _) = faulty();
    faulty.set_plan(FaultPlan::default().with_on(1.0, writes("probe"), Fault::Hang));
    let store = BlobCheckpointStore::builder(faulty).build().unwrap();
    assert!(store.list_ownerships(NAMESPACE, HUB, GROUP).await.unwrap().is_empty());
}

/// The shutdown of an application has a time limit, and the storage hangs.
#[tokio::test(start_paused = true)]
async fn an_aborted_release_all_can_be_repeated() {
    let (faulty, container) = faulty();
    let a = adapter(faulty.clone());
    assert_eq!(cycle(&*a, "app", [0, 1]).await, [0, 1]);
    faulty.set_plan(FaultPlan::always(Fault::Hang));
    assert!(timeout(Duration::from_secs(3), a.release_all()).await.is_err());
    faulty.set_plan(FaultPlan::default());
    let again = a.clone();
    let released = tokio::spawn(async move { again.release_all().await }).await.unwrap();
    assert_eq!(released.len(), 2);
    assert!(released.iter().all(|(_, outcome)| matches!(outcome, ReleaseOutcome::Released)), "{released:?}");
    for partition in [0, 1] {
        assert_eq!(owner_in(&container, partition).await, "");
        refused(checkpoint(&*a, partition, 1).await);
    }
    assert_eq!(cycle(&*a, "another", [0, 1]).await, [0, 1], "it can serve another processor");
}

#[tokio::test(start_paused = true)]
async fn an_indeterminate_release_can_be_repeated() {
    let (faulty, container) = faulty();
    let a = adapter(faulty.clone());
    assert_eq!(cycle(&*a, "app", [0, 1]).await, [0, 1]);
    let second = writes("ownership").named("/ownership/1");
    faulty.set_plan(FaultPlan::default().with_on(1.0, second, Fault::Unreachable));
    let first = a.release_all().await;
    let indeterminate = |outcome: &ReleaseOutcome| matches!(outcome, ReleaseOutcome::Indeterminate(_));
    assert_eq!(first.iter().filter(|(_, outcome)| indeterminate(outcome)).count(), 1);
    faulty.set_plan(FaultPlan::default());
    let again = a.release_all().await;
    assert_eq!(again.iter().map(|(partition, _)| partition.as_str()).collect::<Vec<_>>(), ["1"]);
    assert_eq!(owner_in(&container, 1).await, "");
    assert!(a.release_all().await.is_empty());
}

/// Its checkpoint could not be adopted, because another writer kept writing in between.
#[tokio::test(start_paused = true)]
async fn an_unadopted_partition_is_held_until_released() {
    let (faulty, container) = faulty();
    let a = adapter(faulty.clone());
    put(&container, &name_of("checkpoint", 0), [("sequencenumber", "5"), ("offset", "5")]).await;
    faulty.set_plan(FaultPlan::default().with_on(1.0, writes("checkpoint"), Fault::Conflict));
    faulty.inject_on(writes("ownership"), Fault::Latency(Duration::ZERO));
    faulty.inject_on(writes("ownership"), Fault::Unreachable);
    assert_eq!(cycle(&*a, "app", [0]).await, NONE);
    assert_eq!((faulty.pending(), owner_in(&container, 0).await.as_str()), (0, "app"));
    faulty.set_plan(FaultPlan::default());
    let released = a.release_all().await;
    assert!(matches!(&released[..], [(_, ReleaseOutcome::Released)]), "{released:?}");
    assert_eq!(owner_in(&container, 0).await, "");
}

/// Another owner has won the partition since the first call was aborted: it keeps it.
#[tokio::test(start_paused = true)]
async fn a_second_release_all_keeps_the_next_owner() {
    let (faulty, container) = faulty();
    let a = settled(faulty.clone()).await;
    faulty.set_plan(FaultPlan::always(Fault::Hang));
    assert!(timeout(Duration::from_secs(3), a.release_all()).await.is_err());
    faulty.set_plan(FaultPlan::default());
    let b = adapter(container.clone());
    assert_eq!(cycle(&*b, "b", [0]).await, [0]);
    assert_eq!(a.release_all().await.len(), 1, "it is settled: a does not own it");
    assert_eq!(owner_in(&container, 0).await, "b");
    assert!(a.release_all().await.is_empty());
}

/// The shutdown of an instance with many partitions is a burst of requests, some of which the storage may reject.
#[tokio::test(start_paused = true)]
async fn release_all_repeats_rejected_requests() {
    let busy = Fault::Throttled { retry_after: Some(Duration::from_secs(3)) };
    for fault in [Fault::Throttled { retry_after: None }, busy, Fault::Unreachable] {
        let (faulty, container) = faulty();
        let a = adapter(faulty.clone());
        assert_eq!(cycle(&*a, "app", [0, 1]).await, [0, 1]);
        (0..3).for_each(|_| faulty.inject_on(writes("ownership"), fault.clone()));
        let released = a.release_all().await;
        assert!(released.iter().all(|(_, outcome)| matches!(outcome, ReleaseOutcome::Released)), "{released:?}");
        assert_eq!([owner_in(&container, 0).await, owner_in(&container, 1).await], ["", ""]);
    }
}

#[tokio::test(start_paused = true)]
async fn release_all_ends_even_if_the_storage_rejects() {
    let (faulty, _) = faulty();
    let a = adapter(faulty.clone());
    assert_eq!(cycle(&*a, "app", [0, 1]).await, [0, 1]);
    faulty.set_plan(FaultPlan::always(Fault::Throttled { retry_after: Some(Duration::from_secs(60)) }));
    let released = timeout(Duration::from_secs(21), a.release_all()).await.unwrap();
    assert!(released.iter().all(|(_, outcome)| matches!(outcome, ReleaseOutcome::Indeterminate(_))), "{released:?}");
}
