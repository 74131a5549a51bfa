//! What an instance does, and what it tells, while the storage is away for it.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::processor::{EventSource, HealthIssue, StartPosition, StopReason};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::world::{Instance, Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

/// Starts an instance, and cuts it alone off from the storage once it reads the one partition. Gives what stands
/// between the two.
async fn start_and_cut_off(fault: Fault, world: &World) -> (Instance, FaultyContainer) {
    let faulty = FaultyContainer::new(world.container.clone(), 3);
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let builder = GroupStore::builder(Arc::new(faulty.clone()), group, OwnerId::new("a").unwrap());
    let store = builder.with_lease_duration(world.expiry).with_seed(1).connect().await.unwrap();
    let handler = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_on(store, world.hub.source(), handler);
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    faulty.set_plan(FaultPlan::always(fault));
    (a, faulty)
}

/// Found by `cargo chaos`: both opened the link again and again, and every event was processed by both.
#[tokio::test(start_paused = true)]
async fn who_is_displaced_while_the_storage_is_away_does_not_fight_with_the_new_owner() {
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

/// Whoever displaced it does not own the partition.
#[tokio::test(start_paused = true)]
async fn who_was_displaced_and_still_owns_the_partition_reads_on_when_the_storage_says_so() {
    let world = World::new(1);
    let (a, faulty) = start_and_cut_off(Fault::Hang, &world).await;
    let rival = world.hub.source().open_receiver(&0.into(), StartPosition::Earliest, 1, 2).await.unwrap();
    world.hub.publish(0, "kept back");
    sleep(20 * SECOND).await;
    assert_eq!(world.log.times("kept back"), 0);
    faulty.set_plan(FaultPlan::default());
    world.log.wait_for("kept back", |log| log.times("kept back") == 1).await;
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler need not know");
    drop(rival);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_displaced_while_the_storage_hangs_still_stops_at_once() {
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

/// Sixteen partitions whose every attempt was told made hundreds of lines a minute.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_once_in_a_while_and_not_for_every_partition_and_attempt() {
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
        "the balancing cycle failed and will be repeated",
        "the operation is not settled, trying again",
        "the checkpoint was not written and stays pending",
    ] {
        assert!((2..=3).contains(&reported.matches(message).count()), "of 90 s, one each 30 s: {message}: {reported}");
    }
    assert_eq!(reported.matches("the storage answers again").count(), 1, "{reported}");
    assert!(warnings() <= 10, "{reported}");
    let suppressed = |line: &str| line.split("untold=").nth(1)?.split_whitespace().next()?.parse::<u32>().ok();
    let suppressed_total: u32 = reported.lines().filter_map(suppressed).sum();
    assert!(suppressed_total > 100, "those that were not told are counted: {reported}");
    a.shut_down().await.unwrap();
}

/// Records of different kinds may be throttled apart. Other owners need time to renew after that, though checkpoints
/// were written.
#[tokio::test(start_paused = true)]
async fn checkpoints_do_not_hide_that_the_ownerships_are_out_of_reach() {
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
    assert_eq!(log.text().matches("the storage answers again").count(), 1, "{}", log.text());
    a.shut_down().await.unwrap();
}
