//! Rule by rule: the behavior of the official blob store in a case, and that of this crate.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use tokio::time::{Instant, advance, sleep};

use super::official_rules::OfficialRules;
use super::records::{
    GROUP, HUB, LocalClock, NAMESPACE, adapter, checkpoint, cycle, faulty, kind_of, listed, live_owners, looks_expired,
    name_of, owner_in, position, put, refused, try_cycle, wish, writes,
};

/// A storage, each set of rules separately, and the local clock of a machine that reads them.
struct Sides {
    official: Arc<OfficialRules>,
    adapter: Arc<BlobCheckpointStore>,
    clock: Arc<LocalClock>,
}

/// Two instances of each kind have claimed four partitions each; a third machine, whose clock is wrong, observes them.
async fn sides_seen_with_a_clock(ahead: i64) -> Sides {
    let (official, here) = (MemoryContainer::new(), MemoryContainer::new());
    let clock = LocalClock::ahead(ahead);
    for (owner, partitions) in [("a", 0..4), ("b", 4..8)] {
        assert_eq!(cycle(&*OfficialRules::new(official.clone()), owner, partitions.clone()).await.len(), 4);
        assert_eq!(cycle(&*adapter(here.clone()), owner, partitions).await.len(), 4);
    }
    let adapter = BlobCheckpointStore::builder(here).with_wall_clock(clock.clone()).build().unwrap();
    Sides { official: OfficialRules::new(official), adapter, clock }
}

impl Sides {
    /// Returns how many of the eight look unowned, by either rules: they are listed as expired, or not at all.
    async fn expired(&self) -> (usize, usize) {
        let count = async |store: &dyn CheckpointStore| {
            8 - listed(store).await.values().filter(|ownership| !looks_expired(ownership, &*self.clock)).count()
        };
        (count(&*self.official).await, count(&*self.adapter).await)
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_clock_two_minutes_ahead() {
    let sides = sides_seen_with_a_clock(120).await;
    assert_eq!(sides.expired().await, (8, 0), "written this very second");
    assert!(live_owners(&listed(&*sides.official).await, &*sides.clock).is_empty());
    assert_eq!(live_owners(&listed(&*sides.adapter).await, &*sides.clock).len(), 2);
    advance(Duration::from_secs(59)).await;
    assert_eq!(sides.expired().await, (8, 0));
    // The server's times have whole seconds and may come from two machines: two seconds of grace.
    advance(Duration::from_secs(2)).await;
    assert_eq!(sides.expired().await, (8, 0));
    advance(Duration::from_secs(3)).await;
    assert_eq!(sides.expired().await, (8, 8));
}

#[tokio::test(start_paused = true)]
async fn a_local_clock_two_minutes_behind() {
    let sides = sides_seen_with_a_clock(-120).await;
    advance(Duration::from_secs(59)).await;
    assert_eq!(sides.expired().await, (0, 0));
    advance(Duration::from_secs(5)).await;
    assert_eq!(sides.expired().await, (0, 8), "expired for a minute");
    advance(Duration::from_secs(110)).await;
    assert_eq!(sides.expired().await, (0, 8), "expired for almost three minutes");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_another_sdk_released() {
    let container = MemoryContainer::new();
    let (official, adapter, clock) =
        (OfficialRules::new(container.clone()), adapter(container.clone()), LocalClock::ahead(0));
    put(&container, &format!("{NAMESPACE}/{HUB}/{GROUP}/ownership/0"), [("ownerid", "")]).await;
    put(&container, &format!("{NAMESPACE}/{HUB}/{GROUP}/ownership/1"), [("ownerid", "b")]).await;

    let shown = listed(&*official).await;
    assert_eq!(shown["0"].owner_id.as_deref(), Some(""));
    assert_eq!(live_owners(&shown, &*clock), ["", "b"], "a phantom takes its share");

    let shown = listed(&*adapter).await;
    assert_eq!(
        shown.keys().collect::<Vec<_>>(),
        ["1"],
        "the hub may not have it: the processor adds such partitions \
        itself"
    );
    assert_eq!(live_owners(&shown, &*clock).len(), 1);
    assert_eq!(cycle(&*adapter, "a", [0]).await, [0], "unowned at once");
}

/// "a" has processed up to 5 when "b" takes its partition over and continues to 9; then a's last checkpoint arrives.
async fn late_checkpoint(a: &dyn CheckpointStore, b: &dyn CheckpointStore) -> azure_core::Result<()> {
    cycle(a, "a", [0]).await;
    checkpoint(a, 0, 5).await.unwrap();
    assert_eq!(cycle(b, "b", [0]).await, [0]);
    checkpoint(b, 0, 9).await.unwrap();
    checkpoint(a, 0, 6).await
}

#[tokio::test(start_paused = true)]
async fn a_late_checkpoint_of_a_displaced_owner() {
    let container = MemoryContainer::new();
    let (a, b) = (OfficialRules::new(container.clone()), OfficialRules::new(container));
    late_checkpoint(&*a, &*b).await.expect("the official rules accept anything");
    assert_eq!(position(&*b, 0).await, Some(6), "back from 9");

    let container = MemoryContainer::new();
    let (a, b) = (adapter(container.clone()), adapter(container.clone()));
    let message = refused(late_checkpoint(&*a, &*b).await);
    assert!(message.contains("partition 0") && message.contains("current owner: b"), "{message}");
    let blob = container.get(&name_of("checkpoint", 0)).await.unwrap();
    assert_eq!((&blob.metadata["sequencenumber"], &blob.metadata["ownerid"]), ("9", "b"));
    assert_eq!(position(&*b, 0).await, Some(9));
}

/// The same without fencing by the new owner's progress: it has only just won.
#[tokio::test(start_paused = true)]
async fn a_late_checkpoint_before_the_new_owners_first() {
    let race = async |a: &dyn CheckpointStore, b: &dyn CheckpointStore| {
        cycle(a, "a", [0]).await;
        checkpoint(a, 0, 5).await.unwrap();
        cycle(b, "b", [0]).await;
        let outcome = checkpoint(a, 0, 8).await;
        (outcome, position(b, 0).await)
    };
    let container = MemoryContainer::new();
    let (outcome, moved) = race(&*OfficialRules::new(container.clone()), &*OfficialRules::new(container)).await;
    assert!(outcome.is_ok());
    assert_eq!(moved, Some(8), "moved while the new owner reads");

    let container = MemoryContainer::new();
    let (outcome, stays) = race(&*adapter(container.clone()), &*adapter(container)).await;
    refused(outcome);
    assert_eq!(stays, Some(5));
}

#[tokio::test(start_paused = true)]
async fn one_malformed_checkpoint_among_good_ones() {
    let container = MemoryContainer::new();
    for tree in ["$default", GROUP] {
        for (partition, number) in [("0", "7"), ("1", ""), ("2", "9")] {
            let name = format!("{NAMESPACE}/{HUB}/{tree}/checkpoint/{partition}");
            put(&container, &name, [("sequencenumber", number), ("offset", "700")]).await;
        }
    }
    let official = OfficialRules::new(container.clone());
    let error = official.list_checkpoints(NAMESPACE, HUB, GROUP).await.expect_err("one bad number fails all");
    assert!(error.to_string().contains("empty string"), "{error}");

    let shown = adapter(container).list_checkpoints(NAMESPACE, HUB, GROUP).await.unwrap();
    let mut positions: Vec<_> = shown.iter().map(|shown| (&*shown.partition_id, shown.sequence_number)).collect();
    positions.sort_unstable();
    assert_eq!(positions, [("0", Some(7)), ("1", None), ("2", Some(9))]);
    // The usable part of the bad one is used.
    assert!(shown.iter().all(|shown| shown.offset.as_deref() == Some("700")));
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_of_an_applied_claim() {
    let (faulty, container) = faulty();
    let official = OfficialRules::new(faulty.clone());
    faulty.inject_on(writes("ownership"), Fault::ResponseLost);
    assert_eq!(cycle(&*official, "a", [0, 1]).await, [1]);
    let name = format!("{NAMESPACE}/{HUB}/{GROUP}/ownership/0");
    assert_eq!(&container.get(&name).await.unwrap().metadata["ownerid"], "a", "owned, but not read");
    faulty.inject_on(writes("ownership"), Fault::ResponseLost);
    assert_eq!(cycle(&*official, "a", [0, 1]).await, [1], "a renewal is no better");

    let (faulty, container) = super::records::faulty();
    let adapter = adapter(faulty.clone());
    faulty.inject_on(writes("ownership"), Fault::ResponseLost);
    assert_eq!(cycle(&*adapter, "a", [0, 1]).await, [0, 1]);
    assert_eq!(owner_in(&container, 0).await, "a");
    faulty.inject_on(writes("ownership"), Fault::ResponseLost);
    assert_eq!(cycle(&*adapter, "a", [0, 1]).await, [0, 1]);
    assert_eq!(faulty.pending(), 0);
}

/// One claim that fails must not affect the others.
#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_among_others() {
    let (faulty, container) = faulty();
    let one = || FaultPlan::default().with_on(1.0, writes("ownership").named("/ownership/1"), Fault::Unreachable);
    faulty.set_plan(one());
    assert!(try_cycle(&*OfficialRules::new(faulty.clone()), "a", 0..4).await.is_err());
    let name = |partition| format!("{NAMESPACE}/{HUB}/{GROUP}/ownership/{partition}");
    assert_eq!(&container.get(&name(0)).await.unwrap().metadata["ownerid"], "a", "won, but not reported");
    assert!(container.get(&name(2)).await.is_err(), "not even tried");

    let (faulty, _) = super::records::faulty();
    faulty.set_plan(one());
    assert_eq!(cycle(&*adapter(faulty), "a", 0..4).await, [0, 2, 3]);
}

/// An outage that the official store's own retries outlast, which end after 51 s.
#[tokio::test(start_paused = true)]
async fn listings_during_an_outage_of_forty_five_seconds() {
    let survives = async |store: &dyn CheckpointStore, faulty: &FaultyContainer| {
        assert_eq!(cycle(store, "a", [0]).await, [0]);
        checkpoint(store, 0, 5).await.unwrap();
        let outage = async {
            faulty.set_plan(FaultPlan::always(Fault::Unreachable));
            sleep(Duration::from_secs(45)).await;
            faulty.set_plan(FaultPlan::default());
        };
        let ((), listed) = tokio::join!(outage, listed(store));
        faulty.inject(Fault::Throttled { retry_after: Some(Duration::from_secs(10)) });
        (listed.len(), position(store, 0).await)
    };
    let (faulty, _) = faulty();
    assert_eq!(survives(&*OfficialRules::new(faulty.clone()), &faulty).await, (1, Some(5)));

    let (faulty, _) = super::records::faulty();
    assert_eq!(survives(&*adapter(faulty.clone()), &faulty).await, (1, Some(5)));
}

/// Returns how long 256 claims take, and then 256 renewals, if a response takes 10 ms on average.
async fn times(store: &dyn CheckpointStore) -> (Duration, Duration) {
    let started = Instant::now();
    assert_eq!(cycle(store, "a", 0..256).await.len(), 256);
    let claims = started.elapsed();
    let started = Instant::now();
    assert_eq!(cycle(store, "a", 0..256).await.len(), 256);
    (claims, started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn many_partitions_at_ten_milliseconds() {
    let slow = || {
        let (faulty, _) = faulty();
        faulty.set_plan(FaultPlan::always(Fault::Latency(Duration::from_millis(20))));
        faulty
    };
    let (claims, renewals) = times(&*OfficialRules::new(slow())).await;
    assert!(claims > Duration::from_millis(2200) && renewals > Duration::from_millis(2200), "{claims:?} {renewals:?}");
    let (claims, renewals) = times(&*adapter(slow())).await;
    // 32 at once; a first claim includes the adoption, of three requests.
    assert!(claims < Duration::from_millis(600), "{claims:?}");
    assert!(renewals < Duration::from_millis(250), "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn two_processors_that_share_one_store_object() {
    let official = OfficialRules::new(MemoryContainer::new());
    assert_eq!(cycle(&*official, "a", [0]).await, [0]);
    assert_eq!(cycle(&*official, "b", [0]).await, [0]);
    // There is no report, and every checkpoint is accepted.
    checkpoint(&*official, 0, 9).await.unwrap();
    checkpoint(&*official, 0, 3).await.unwrap();
    assert_eq!(position(&*official, 0).await, Some(3));

    let adapter = adapter(MemoryContainer::new());
    assert_eq!(cycle(&*adapter, "a", [0]).await, [0]);
    let error = try_cycle(&*adapter, "b", [1]).await.unwrap_err();
    assert_eq!(kind_of(&error), ErrorKind::Config);
    let message = error.to_string();
    for part in ["owner a", r#""b""#, "its own store"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(cycle(&*adapter, "a", [0, 1]).await, [0, 1], "the first one continues");
}

/// Replicas of one application, whose id the official client uses as the owner's.
#[tokio::test(start_paused = true)]
async fn replicas_with_one_application_id() {
    let clock = LocalClock::ahead(0);
    let container = MemoryContainer::new();
    let (one, two) = (OfficialRules::new(container.clone()), OfficialRules::new(container));
    cycle(&*one, "app", 0..4).await;
    for replica in [&one, &two] {
        let shown = listed(&**replica).await;
        assert_eq!(live_owners(&shown, &*clock), ["app"]);
        assert_eq!(shown.len(), 4, "each considers all of it its own");
    }
    assert_eq!(cycle(&*two, "app", 0..4).await, [0, 1, 2, 3], "and each renews all of it");

    let container = MemoryContainer::new();
    let (one, two) = (adapter(container.clone()), adapter(container));
    assert_eq!(cycle(&*one, "app", 0..4).await.len(), 4);
    assert_ne!(live_owners(&listed(&*two).await, &*clock), ["app"], "even before it has claimed anything");
    let etag = listed(&*one).await["3"].etag.clone();
    assert_eq!(cycle(&*two, "app", [2, 3]).await, [2, 3]);
    assert!(one.claim_ownership(&[wish("app", 3, etag)]).await.unwrap().is_empty(), "no longer its own");
    for (replica, own) in [(&one, ["0", "1"]), (&two, ["2", "3"])] {
        let shown = listed(&**replica).await;
        assert_eq!(live_owners(&shown, &*clock).len(), 2, "{shown:?}");
        let named = shown.values().filter(|seen| seen.owner_id.as_deref() == Some("app"));
        assert_eq!(named.map(|seen| seen.partition_id.as_str()).collect::<Vec<_>>(), own);
    }
    refused(checkpoint(&*one, 2, 1).await);
}

/// A record without any metadata, as the official rules write an unowned one.
#[tokio::test(start_paused = true)]
async fn a_record_without_metadata_is_unowned() {
    let container = MemoryContainer::new();
    for tree in ["$default", GROUP] {
        let name = format!("{NAMESPACE}/{HUB}/{tree}/ownership/0");
        container.overwrite(&name, &Metadata::new()).await.unwrap();
    }
    assert_eq!(listed(&*OfficialRules::new(container.clone())).await["0"].owner_id, None);
    let adapter = adapter(container);
    assert!(listed(&*adapter).await.is_empty());
    assert_eq!(cycle(&*adapter, "a", [0]).await, [0]);
}
