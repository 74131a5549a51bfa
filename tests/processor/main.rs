//! Whole instances with a hub and a container in memory, mostly in paused time: they share, move, stop and resume
//! partitions.

mod administration;
mod blocked;
mod broken_links;
#[path = "../common/captured.rs"]
mod captured;
mod co_tenant;
mod counted_source;
mod dead_letters;
mod dedicated_thread;
mod effects;
mod emptied;
mod failures;
mod faults;
mod feature_pairs;
mod handlers;
mod handoff_failures;
mod handoffs;
mod heartbeats;
#[path = "../common/intercepted.rs"]
mod intercepted;
mod keda;
mod keda_records;
mod known_problems;
mod last_writes;
mod leases;
mod loads;
mod management_requests;
#[cfg(feature = "metrics")]
mod metrics;
mod migration;
mod missing_ends;
mod outages;
mod own_positions;
mod ownership_log;
mod panics;
#[path = "../common/placing.rs"]
mod placing;
mod poison_events;
mod pull;
mod races;
#[cfg(feature = "metrics")]
#[path = "../common/recorded_metrics.rs"]
mod recorded_metrics;
mod recreations;
mod repeated_links;
mod resets;
mod restarts;
mod scripted_source;
#[path = "../common/service.rs"]
mod service;
mod shutdowns;
mod slow_storage;
mod spans;
mod stalls;
mod start_positions;
mod starts;
mod systems;
mod takeovers;
mod tracking;
mod undecodable;
mod wall_clock;
#[path = "../common/world.rs"]
mod world;

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use captured::Captured;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, PartitionContext, Processor, ProcessorConfig, StopReason, handler_fn,
};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ErrorKind, OwnerId};
use ownership_log::OwnershipLog;
use tokio::time::{Instant, sleep};
use world::{Instance, Log, Recorder, World};

#[tokio::test(start_paused = true)]
async fn three_instances_process_every_event_once() {
    let world = World::new(8);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance
            .wait_until("all owned, by three", |s| s.counts().values().sum::<usize>() == 8 && s.counts().len() == 3)
            .await;
    }
    sleep(Duration::from_secs(60)).await;
    let mut held: Vec<_> = instances.iter().map(Instance::held).collect();
    held.sort_unstable();
    assert_eq!(held, [2, 3, 3]);
    for number in 0..80u32 {
        world.hub.publish(number % 8, number.to_string());
    }
    world.log.wait_for("80 events", |log| log.bodies().len() >= 80).await;
    let mut bodies: Vec<u32> = world.log.bodies().iter().map(|body| body.parse().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..80).collect::<Vec<_>>());
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crashed_instance_is_replaced_without_losses() {
    let world = World::new(4);
    let mut a = world.start("a").await;
    let mut b = world.start("b").await;
    a.wait_until_it_holds(2).await;
    b.wait_until_it_holds(2).await;
    for number in 0..40u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    a.crash().await;
    let crashed_at = Instant::now();
    for number in 40..80u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    b.wait_until_it_holds(4).await;
    let unowned = crashed_at.elapsed();
    assert!(unowned >= Duration::from_secs(30), "taken from a valid lease after {unowned:?}");
    assert!(unowned <= Duration::from_secs(62 + 11 + 11), "still unowned after {unowned:?}");
    world.log.wait_for("all 80", |log| (0..80).all(|number| log.times(&number.to_string()) > 0)).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_checkpoints_and_releases() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "x");
    world.hub.publish(0, "y");
    world.log.wait_for("y", |log| log.times("y") == 1).await;
    a.shut_down().await.unwrap();
    assert!(world.owners().await.values().all(String::is_empty));
    assert_eq!(world.checkpoint().await, Some(1));
    assert!(world.log.stops.lock().unwrap().iter().all(|(_, _, reason)| matches!(reason, StopReason::Shutdown)));

    let began = Instant::now();
    let mut b = world.start("b").await;
    b.wait_until_it_holds(2).await;
    assert!(began.elapsed() < Duration::from_secs(12));
    world.hub.publish(0, "z");
    world.log.wait_for("z", |log| log.times("z") == 1).await;
    assert_eq!((world.log.times("x"), world.log.times("y")), (1, 1));
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failing_handler_restarts_at_the_checkpoint() {
    for body in ["fail", "panic"] {
        let world = World::new(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        for body in ["before", body, "after"] {
            world.hub.publish(0, body);
        }
        world.hub.publish(1, "elsewhere");
        world.log.wait_for("after", |log| log.times("after") == 1 && log.times("elsewhere") == 1).await;
        assert_eq!(world.log.times(body), 2);
        assert_eq!(world.log.times("elsewhere"), 1);
        let stops = world.log.stops.lock().unwrap().clone();
        let [(_, partition, StopReason::Failed { error })] = &stops[..] else { panic!("{stops:?}") };
        assert_eq!((partition.as_str(), error.kind()), ("0", ErrorKind::Handler));
        let reported = format!("{error}: {:?}", error.source().map(ToString::to_string));
        assert!(reported.contains("on request"), "the cause is missing: {reported}");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_handler_delays_only_for_the_drain_time() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "done");
    world.log.wait_for("done", |log| log.times("done") == 1).await;
    sleep(Duration::from_secs(2)).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let began = Instant::now();
    a.shut_down().await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(world.checkpoint().await, Some(0));
    assert!(world.owners().await.values().all(String::is_empty));
}

/// A renewal would detect it, too, but only after half the lease duration.
#[tokio::test(start_paused = true)]
async fn a_partition_taken_by_another_sdk_names_the_taker() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_millis(100)).await;
    world.give_to("python").await;
    let taken = Instant::now();
    a.wait_until_it_holds(0).await;
    assert!(taken.elapsed() <= Duration::from_secs(11), "{:?}", taken.elapsed());
    assert_eq!(world.lost_to().await, "python");
    a.shut_down().await.unwrap();
}

/// The adoption by the new owner makes the checkpoint fail.
#[tokio::test(start_paused = true)]
async fn a_refused_checkpoint_stops_its_partition() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_millis(100)).await;
    world.give_to("b").await;
    let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
    let adopted = Metadata::from([("sequencenumber", "-1"), ("offset", "-1")]);
    world.container.overwrite(name, &adopted).await.unwrap();
    let taken = Instant::now();
    let mut reported = OwnershipLog::of(&a);
    world.hub.publish(0, "x");
    assert_eq!(world.lost_to().await, "b");
    reported.wait_for(&format!("lost to {:?}", Some(OwnerId::new("b").unwrap()))).await;
    assert_eq!(a.snapshots.borrow().other_owner(&0.into()).map(OwnerId::as_str), Some("b"));
    a.wait_until_it_holds(0).await;
    assert!(taken.elapsed() < Duration::from_secs(3), "{:?}", taken.elapsed());
    assert_eq!(world.checkpoint().await, Some(-1));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_displaced_reader_stops_if_it_has_lost_ownership() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_millis(100)).await;
    world.give_to("b").await;
    let taken = Instant::now();
    let _rival = world.hub.source().open_receiver(&0.into(), StartPosition::Earliest, 1, 2).await.unwrap();
    assert_eq!(world.lost_to().await, "b");
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_settled_group_moves_nothing_and_keeps_renewing() {
    let world = World::new(5);
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 5).await;
    }
    sleep(Duration::from_secs(60)).await;
    let held = || instances.iter().map(|instance| instance.snapshots.borrow().owned.clone()).collect::<Vec<_>>();
    let before = held();
    let observer = world.store("observer").await;
    for _ in 0..200 {
        sleep(Duration::from_secs(37)).await;
        assert_eq!(held(), before);
        for ownership in observer.list_ownerships().await.unwrap().records {
            assert!(ownership.age <= Duration::from_secs(31), "{ownership:?}");
        }
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_at_latest_is_recorded_before_a_crash() {
    let mut world = World::new(1);
    world.config = world.config.with_start_position(StartPosition::Latest);
    world.checkpoint = false;
    world.hub.publish(0, "old");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_secs(1)).await;
    a.crash().await;
    world.hub.publish(0, "while down");
    let b = world.start("b").await;
    world.log.wait_for("the event", |log| log.times("while down") > 0).await;
    assert_eq!(world.log.times("old"), 0);
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restarted_instance_reclaims_its_partitions() {
    let world = World::new(4);
    let mut first = world.start("a").await;
    first.wait_until_it_holds(4).await;
    first.crash().await;
    sleep(Duration::from_secs(2)).await;
    let mut second = world.start("a").await;
    let began = Instant::now();
    second.wait_until_it_holds(4).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    second.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_with_the_same_owner_id() {
    let (log, _guard) = Captured::begin();
    let world = World::new(2);
    let mut first = world.start("a").await;
    first.wait_until_it_holds(2).await;
    sleep(Duration::from_secs(2)).await;
    let mut second = world.start("a").await;
    second.wait_until_it_holds(2).await;
    let error = first.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced);
    let stops = world.log.stops.lock().unwrap().clone();
    assert!(stops.iter().all(|(_, _, reason)| matches!(reason, StopReason::Replaced)), "{stops:?}");
    assert!(error.to_string().contains("give every instance a unique owner id"), "{error}");
    let reported = log.text();
    let end = reported.lines().find(|line| line.contains("processor stopped unexpectedly"));
    assert!(end.is_some_and(|end| end.contains("ERROR") && end.contains("a unique owner id")), "{reported}");
    second.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn added_partitions_are_claimed() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.grow_to(3);
    world.hub.publish(2, "new");
    world.log.wait_for("new", |log| log.times("new") == 1).await;
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_ownership_record_is_written_again() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    world.container.remove(name).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    a.wait_until_it_holds(2).await;
    assert_eq!(world.owners().await["0"], "a");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_reported_before_the_start() {
    let empty = World::new(0);
    let error = empty.start("a").await.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("has no partitions"), "{error}");

    let world = World { hub: MemoryHub::new("another", 1), ..World::new(1) };
    let error = world.start("a").await.ended().await.unwrap_err();
    assert!(error.to_string().contains(r#"the client reads event hub "another""#), "{error}");
    assert!(world.owners().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn invalid_settings_are_rejected_with_value_and_rule() {
    let world = World::new(1);
    let seconds = Duration::from_secs;
    let balancing =
        |interval| ProcessorConfig::default().with_balancer(|balancer| balancer.with_load_balancing_interval(interval));
    let checkpoints = CheckpointPolicy::default().with_interval(Duration::ZERO);
    let endless = CheckpointPolicy::default().with_interval(Duration::MAX);
    for (config, named) in [
        (
            balancing(seconds(21)),
            "`with_lease_duration` is 60s, but must be at least three times `with_load_balancing_interval`, 21s",
        ),
        (balancing(Duration::ZERO), "`with_load_balancing_interval` is 0s"),
        (ProcessorConfig::default().with_max_batch_size(0), "`with_max_batch_size` is 0"),
        (ProcessorConfig::default().with_prefetch(0), "`with_prefetch` is 0"),
        (ProcessorConfig::default().with_checkpoint_policy(checkpoints), "`CheckpointPolicy::with_interval` is 0s"),
        (balancing(Duration::MAX), "at least three times"),
        (ProcessorConfig::default().with_drain_timeout(Duration::MAX), "must be at most a day"),
        (ProcessorConfig::default().with_checkpoint_policy(endless), "must be at most a day"),
    ] {
        let handler = Recorder { owner: "a".into(), log: Log::default(), checkpoint: true };
        let built = Processor::builder(world.hub.source(), world.store("a").await, handler).with_config(config).build();
        let error = built.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
    }
}

/// A closure may panic before it has created its future.
#[tokio::test(start_paused = true)]
async fn a_panicking_closure_restarts_its_partition() {
    let world = World::new(1);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
        assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "panicked on request");
        async { Ok(()) }
    });
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    let ownership = a.snapshots.borrow().owned.clone();
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(a.snapshots.borrow().owned, ownership);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broken_link_is_reopened_after_the_last_event() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    for number in 0..30u32 {
        world.hub.publish(0, number.to_string());
        world.log.wait_for("the event", |log| log.times(&number.to_string()) == 1).await;
        world.hub.break_link(0);
    }
    assert_eq!(world.log.bodies(), (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(world.log.stops.lock().unwrap().is_empty());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn balanced_claims_one_partition_at_a_time() {
    let world = World::new(8);
    let mut a = world.start("a").await;
    for expected in 1..=3 {
        a.wait_until_it_holds(expected).await;
        sleep(Duration::from_millis(800)).await;
        assert_eq!(a.held(), expected);
    }
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn checkpoints_by_count_are_written_immediately() {
    let mut world = World::new(1);
    let policy = CheckpointPolicy::default().with_max_events(10).without_interval();
    world.config = world.config.with_checkpoint_policy(policy);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    for (events, written) in [(9, -1), (10, 9), (15, 9), (20, 19)] {
        while world.log.bodies().len() < events {
            world.hub.publish(0, "x");
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_secs(20)).await;
        assert_eq!(world.checkpoint().await, Some(written), "after {events} events");
    }
    a.shut_down().await.unwrap();
}

/// Events handled again after each failure are not progress, and must not reset the delay.
#[tokio::test(start_paused = true)]
async fn a_poisoned_event_backs_off() {
    let mut world = World::new(1);
    world.config = world.config.with_max_batch_size(1);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { if &*events[0].body == "poison" { Err("poisoned".into()) } else { Ok(()) } }
    });
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "good");
    world.hub.publish(0, "poison");
    sleep(Duration::from_secs(600)).await;
    let calls = calls.load(Ordering::Relaxed);
    assert!((30..80).contains(&calls), "{calls} calls in ten minutes");
    a.shut_down().await.unwrap();
}
