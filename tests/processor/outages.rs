//! The behavior and the logs of an instance while the storage is unavailable to it.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::processor::{CheckpointPolicy, HealthIssue, StopReason};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::world::{Instance, Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

/// Starts an instance, and cuts only this one off from the storage once it reads the partition. Returns its container.
async fn start_and_cut_off(fault: Fault, world: &World) -> (Instance, FaultyContainer) {
    let faulty = FaultyContainer::new(world.container.clone(), 3);
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let builder = GroupStore::builder(Arc::new(faulty.clone()), group, OwnerId::new("a").unwrap());
    let store = builder
        .with_config(StoreConfig::default().with_lease_duration(world.expiry))
        .with_seed(1)
        .connect()
        .await
        .unwrap();
    let handler = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_on(store, world.hub.source(), handler);
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    faulty.set_plan(FaultPlan::always(fault));
    (a, faulty)
}

/// Found by `cargo chaos`: both instances reopened the link again and again, and both processed every event.
#[tokio::test(start_paused = true)]
async fn a_displaced_owner_does_not_compete() {
    let world = World::new(1);
    let (a, faulty) = start_and_cut_off(Fault::Unreachable, &world).await;
    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    b.wait_until_all_idle(1).await;
    for number in 0..60 {
        world.hub.publish(0, number.to_string());
        sleep(SECOND).await;
    }
    let processed = world.log.events.lock().unwrap().clone();
    assert_eq!(processed.len(), 60, "{processed:?}");
    assert!(processed.iter().all(|(owner, ..)| owner == "b"), "{processed:?}");

    faulty.set_plan(FaultPlan::default());
    assert_eq!(world.lost_to().await, "b");
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// The instance that displaced it does not own the partition.
#[tokio::test(start_paused = true)]
async fn a_displaced_owner_continues_if_it_still_owns() {
    let world = World::new(1);
    let (a, faulty) = start_and_cut_off(Fault::Hang, &world).await;
    let rival = world.hub.source().open_receiver(&0.into(), StartPosition::Earliest, 1, 2).await.unwrap();
    world.hub.publish(0, "delayed");
    sleep(20 * SECOND).await;
    assert_eq!(world.log.times("delayed"), 0);
    faulty.set_plan(FaultPlan::default());
    world.log.wait_for("delayed", |log| log.times("delayed") == 1).await;
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler is not restarted");
    drop(rival);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_displaced_owner_stops_while_the_storage_hangs() {
    let world = World::new(1);
    let (mut a, _faulty) = start_and_cut_off(Fault::Hang, &world).await;
    let _rival = world.hub.source().open_receiver(&0.into(), StartPosition::Earliest, 1, 2).await.unwrap();
    sleep(SECOND).await;
    let requested = Instant::now();
    a.shutdown.take().unwrap().send(()).unwrap();
    assert!(matches!(world.first_stop().await, StopReason::Shutdown));
    assert!(requested.elapsed() < SECOND, "it waits for the storage: {:?}", requested.elapsed());
    a.ended().await.unwrap();
}

/// Logging every attempt for sixteen partitions made hundreds of lines per minute.
#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_at_intervals() {
    let (log, _guard) = Captured::begin();
    let world = World::new(16);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(16).await;
    a.wait_until_all_idle(16).await;
    sleep(60 * SECOND).await;
    let warnings = || log.text().lines().filter(|line| line.contains(" WARN ")).count();
    assert_eq!(warnings(), 0, "{}", log.text());
    world.faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    for _ in 0..90 {
        for partition in 0..16 {
            world.hub.publish(partition, "x");
        }
        sleep(SECOND).await;
    }
    world.faulty.set_plan(FaultPlan::default());
    sleep(60 * SECOND).await;
    let reported = log.text();
    for message in [
        "load-balancing cycle failed; retrying",
        "outcome of storage operation unknown; retrying",
        "checkpoint was not written and stays pending",
    ] {
        assert!((2..=3).contains(&reported.matches(message).count()), "in 90 s, once per 30 s: {message}: {reported}");
    }
    assert_eq!(reported.matches("storage reachable again").count(), 1, "{reported}");
    assert!(warnings() <= 10, "{reported}");
    let suppressed = |line: &str| line.split("suppressed=").nth(1)?.split_whitespace().next()?.parse::<u32>().ok();
    let total: u32 = reported.lines().filter_map(suppressed).sum();
    assert!(total > 100, "suppressed warnings are counted: {reported}");
    a.shut_down().await.unwrap();
}

/// Records of different kinds may be throttled separately. Other owners need time to renew after that, although
/// checkpoints were written.
#[tokio::test(start_paused = true)]
async fn checkpoints_do_not_hide_unavailable_ownerships() {
    let (log, _guard) = Captured::begin();
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    let ownerships = Target::any().named("/ownership/");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, ownerships, Fault::Unreachable));
    for number in 0..50 {
        world.hub.publish(0, number.to_string());
        sleep(SECOND).await;
    }
    let degraded = a.handle.health().issues;
    assert!(
        matches!(degraded[..], [HealthIssue::StorageUnavailable { .. }]),
        "the checkpoints are written: {degraded:?}"
    );
    world.faulty.set_plan(FaultPlan::default());
    sleep(60 * SECOND).await;
    assert_eq!(a.handle.health().issues, []);
    assert_eq!(log.text().matches("storage reachable again").count(), 1, "{}", log.text());
    a.shut_down().await.unwrap();
}

/// The interval of a policy that writes rarely is no measure for a write that failed.
#[tokio::test(start_paused = true)]
async fn a_failed_checkpoint_is_repeated_within_a_minute() {
    let mut world = World::new(1);
    world.config = world.config.with_checkpoint_policy(CheckpointPolicy::default().with_interval(300 * SECOND));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    let checkpoints = Target::from(BlobOperation::Write).named("/checkpoint/");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, checkpoints, Fault::Unreachable));
    world.hub.publish(0, "x");
    sleep(305 * SECOND).await;
    assert!(!world.faulty.trace().is_empty());
    world.faulty.set_plan(FaultPlan::default());
    assert_ne!(world.checkpoint().await, Some(0));
    sleep(45 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(0));
    a.shut_down().await.unwrap();
}
