//! The storage is unavailable, throttles, or holds blobs of others: instances continue, lose nothing, and report it.

use std::ops::Range;
use std::time::Duration;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::processor::{HealthIssue, StopReason};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::store::StorageOperation as Purpose;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultKind, FaultPlan, FaultyContainer, Target};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::support::{CHECKPOINT, OWNERSHIP, SECOND, greedy, isolated, record, write_record};
use crate::world::{Instance, World, random_faults};

/// Fails every request for a while, and checks that both instances continue during the outage and after it. Returns the
/// stops.
async fn run_through_outage(fault: Fault, outage: Duration) -> Vec<(String, String, StopReason)> {
    let world = World::new(4);
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    sleep(Duration::from_secs(60)).await;

    world.faulty.set_plan(FaultPlan::always(fault));
    for number in 0..40u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("events in the outage", |log| log.bodies().len() >= 40).await;
    sleep(outage).await;
    assert!(instances.iter().all(|instance| !instance.running.is_finished()));
    world.faulty.set_plan(FaultPlan::default());

    for instance in &mut instances {
        let cycles = instance.snapshots.borrow().cycles;
        instance.wait_until("another cycle", |snapshot| snapshot.cycles > cycles + 1).await;
    }
    let stops = world.log.stops.lock().unwrap().clone();
    for number in 40..80u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("all 80", |log| (0..80).all(|number| log.times(&number.to_string()) > 0)).await;
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert_eq!(world.checkpoint().await, Some(19));
    stops
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_lease_moves_nothing() {
    for fault in [Fault::Unreachable, Fault::RequestLost, Fault::Throttled { retry_after: None }] {
        let stops = run_through_outage(fault.clone(), Duration::from_secs(50)).await;
        assert!(stops.is_empty(), "{fault:?}: {stops:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_ends_no_instance() {
    for fault in [Fault::Unreachable, Fault::Hang, Fault::RequestLost, Fault::ResponseLost] {
        run_through_outage(fault, Duration::from_secs(300)).await;
    }
}

/// For half an hour, one of ten requests fails in some way.
#[tokio::test(start_paused = true)]
async fn random_faults_lose_nothing() {
    let world = World::new(4);
    let mut instances = [world.start("a").await, world.start("b").await];
    let plan = random_faults().with(0.02, Fault::TruncatedListing);
    world.faulty.set_plan(plan);
    for number in 0..360u32 {
        world.hub.publish(number % 4, number.to_string());
        sleep(Duration::from_secs(5)).await;
    }
    world.faulty.set_plan(FaultPlan::default());
    world.log.wait_for("all 360", |log| (0..360).all(|number| log.times(&number.to_string()) > 0)).await;
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert_eq!(world.checkpoint().await, Some(89));
}

#[tokio::test(start_paused = true)]
async fn a_storage_outage_is_reported_and_ends_nothing() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    assert!(a.handle.health().ready);
    assert_eq!(a.handle.health().issues, []);
    world.faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    world.hub.publish(0, "meanwhile");
    world.log.wait_for("the event is processed", |log| log.times("meanwhile") == 1).await;
    sleep(600 * SECOND).await;
    let degraded = a.handle.health().issues;
    assert!(degraded.iter().any(
        |what| matches!(what, HealthIssue::StorageUnavailable { unavailable_for } if *unavailable_for > 500 * SECOND)
    ));
    assert!(degraded.iter().any(|what| matches!(what, HealthIssue::CheckpointFailing { .. })), "{degraded:?}");
    world.faulty.set_plan(FaultPlan::default());
    sleep(120 * SECOND).await;
    assert_eq!(a.handle.health().issues, []);
    assert_eq!(a.held(), 2);
    assert_eq!(world.checkpoint().await, Some(0));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failing_cycles_degrade_health() {
    let world = greedy(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(a.handle.health().issues, []);
    sleep(Duration::from_secs(70)).await;
    let degraded = a.handle.health().issues;
    let expiry = Duration::from_secs(60);
    assert!(
        matches!(degraded[..], [HealthIssue::CyclesFailing { failing_for }] if failing_for > expiry),
        "{degraded:?}"
    );
    assert_eq!(a.held(), 2, "it still renews");
    world.faulty.set_plan(FaultPlan::default());
    sleep(Duration::from_secs(31)).await;
    assert_eq!(a.handle.health().issues, []);
    a.shut_down().await.unwrap();
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
        "the beacon cannot be read or written",
    ] {
        assert!((2..=3).contains(&reported.matches(message).count()), "in 90 s, once per 30 s: {message}: {reported}");
    }
    assert_eq!(reported.matches("storage reachable again").count(), 1, "{reported}");
    assert!(warnings() <= 14, "{reported}");
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

/// Starts an instance, and cuts only this one off from the storage once it reads the partition. Returns its container.
async fn start_and_cut_off(fault: Fault, world: &World) -> (Instance, FaultyContainer) {
    let isolated = isolated(world);
    let mut a = isolated.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    isolated.faulty.set_plan(FaultPlan::always(fault));
    (a, isolated.faulty)
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

#[tokio::test(start_paused = true)]
async fn the_next_cycle_honors_retry_after() {
    for (retry_after, at_least) in [(Some(Duration::from_secs(35)), 35), (Some(Duration::from_secs(1)), 10), (None, 10)]
    {
        let world = World::new(1);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        sleep(Duration::from_secs(1)).await;
        // Zero latency only records every listing of the ownerships.
        let listings = Target::from(BlobOperation::List).named(OWNERSHIP);
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, listings, Fault::Latency(Duration::ZERO)));
        world.faulty.inject_on(BlobOperation::List, Fault::Throttled { retry_after });
        let cycles = a.snapshots.borrow().cycles;
        a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles).await;
        let trace = world.faulty.trace();
        let [throttled, next] = trace.as_slice() else { panic!("{trace:?}") };
        assert_eq!(throttled.fault.kind(), FaultKind::Throttled);
        let pause = next.at.saturating_sub(throttled.at).as_secs_f64();
        let at_least = f64::from(at_least);
        assert!((at_least..at_least * 1.1 + 0.1).contains(&pause), "{retry_after:?}: {pause}");
        a.shut_down().await.unwrap();
    }
}

/// A proxy may return any value.
#[tokio::test(start_paused = true)]
async fn an_absurd_retry_after_ends_nothing() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    let absurd = Fault::Throttled { retry_after: Some(Duration::MAX) };
    world.faulty.set_plan(FaultPlan::always(absurd));
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(15)).await;
    world.faulty.set_plan(FaultPlan::default());
    let cycles = a.snapshots.borrow().cycles;
    a.wait_until("another cycle", |snapshot| snapshot.cycles > cycles).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.checkpoint().await, Some(0));
    assert!(world.log.stops.lock().unwrap().is_empty());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_throttled_adoption_honors_retry_after() {
    for requested in [2, 20] {
        let requested = requested * SECOND;
        let world = World::new(1);
        let writes = Target::from(BlobOperation::Write).named(CHECKPOINT);
        let fault = Fault::Throttled { retry_after: Some(requested) };
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, fault));
        let store = world.store("a").await;
        let a = world.start_on(store.clone(), world.hub.source(), world.recorder("a"));
        let mut attempts = Vec::new();
        while attempts.len() < 3 {
            if store.request_counts().total(Purpose::Adopt) > attempts.len() as u64 {
                attempts.push(Instant::now());
            }
            sleep(SECOND / 100).await;
        }
        for pair in attempts.windows(2) {
            assert!(pair[1] - pair[0] >= requested, "{:?} instead of {requested:?}", pair[1] - pair[0]);
        }
        a.crash().await;
    }
}

/// Another program writes into the container: a group continues, and names what it ignores.
mod foreign_blobs {
    use super::*;

    /// Names that differ from those of the records by as little as possible.
    const IMITATIONS: [&str; 9] = [
        "ownership/00",
        "ownership/0 ",
        "ownership/-1",
        "ownership/\u{0660}",
        "ownership/0/0",
        "ownership/",
        "checkpoint/00",
        "checkpoint/0/",
        "heartbeat/0/0",
    ];

    /// Writes imitations, thousands of blobs as large as Azure allows below the prefix, and more outside of it.
    async fn fill(world: &World) {
        let owner = [("ownerid", "another"), ("sequencenumber", "none"), ("offset", "none")];
        for name in IMITATIONS {
            write_record(world, name, &owner).await;
        }
        let huge = [("ownerid", "x".repeat(8000))];
        for number in 0..2000 {
            write_record(world, &format!("ownership/{number}/x"), &huge).await;
            write_record(world, &format!("other/{number}"), &huge).await;
        }
        for number in 0..20_000 {
            world.container.overwrite(&format!("another/{number}"), &Metadata::from(owner)).await.unwrap();
        }
    }

    async fn processes(world: &World, numbers: Range<u32>) {
        for number in numbers.clone() {
            world.hub.publish(number % 4, number.to_string());
        }
        world.log.wait_for("all events", |log| numbers.clone().all(|number| log.times(&number.to_string()) > 0)).await;
    }

    async fn two_instances(world: &World) -> [Instance; 2] {
        let mut instances = [world.start("a").await, world.start("b").await];
        for instance in &mut instances {
            instance.wait_until_it_holds(2).await;
        }
        instances
    }

    #[tokio::test(start_paused = true)]
    async fn foreign_blobs_do_not_stop_a_group() {
        let (log, _capturing) = Captured::begin();
        let world = World::new(4);
        fill(&world).await;
        let [a, mut b] = two_instances(&world).await;
        processes(&world, 0..40).await;
        a.crash().await;
        b.wait_until_it_holds(4).await;
        processes(&world, 40..80).await;
        sleep(Duration::from_secs(3600)).await;
        b.shut_down().await.unwrap();
        for name in IMITATIONS {
            assert_eq!(&record(&world, name).await.unwrap()["ownerid"], "another", "{name} is as it was");
        }
        let reports = log.text().lines().filter(|line| line.contains("malformed")).count();
        assert!((2..=44).contains(&reports), "{reports} reports of thousands of unchanged blobs in an hour");
    }

    /// So an instance also continues if foreign blobs make all listings fail.
    #[tokio::test(start_paused = true)]
    async fn owned_partitions_need_no_listing() {
        let world = World::new(4);
        let instances = two_instances(&world).await;
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
        for hour in 0..6 {
            processes(&world, hour * 40..(hour + 1) * 40).await;
            sleep(Duration::from_secs(3600)).await;
        }
        assert!(world.log.stops.lock().unwrap().is_empty(), "{:?}", world.log.stops);
        for instance in instances {
            instance.shut_down().await.unwrap();
        }
        assert!((0..240).all(|number: u32| world.log.times(&number.to_string()) == 1));
    }
}
