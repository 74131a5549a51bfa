//! Processors with an end position: which events they process, and when they return.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::admin::{ResetOptions, ResetOutcome};
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::processor::{
    HandlerError, PartitionContext, ProcessorConfig, StopReason, TrackedEvent, handler_fn,
};
use eventhubs_checkpoint::source::EndPosition;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::testing::EmptiedReport;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::support::operator::{operator, publish, reset, times};
use crate::support::{SECOND, checkpoint_of, checkpoints};
use crate::world::{World, random_faults};

fn ending(partitions: u32, end: EndPosition) -> World {
    let mut world = World::new(partitions);
    world.config = world.config.with_end_position(end);
    world
}

/// Checks that each of these events was processed, and no other.
fn check_processed(world: &World, partitions: u32, events: Range<i64>) {
    for partition in 0..partitions {
        assert!(times(world, partition, events.clone()).iter().all(|times| *times > 0), "{partition}");
        assert_eq!(times(world, partition, events.end..events.end + 20).iter().sum::<usize>(), 0, "{partition}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_processor_returns_at_the_latest_events() {
    let world = ending(4, EndPosition::Latest);
    publish(&world, 4, 0..250);
    let a = world.start("a").await;
    world.log.wait_for("a start", |log| !log.bodies().is_empty()).await;
    let began = Instant::now();
    let report = a.ended().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
    check_processed(&world, 4, 0..250);
    assert!(checkpoints(&world).await.values().all(|number| *number == Some(249)));
    assert!(world.owners().await.values().all(String::is_empty), "all partitions are released");
    let stops = world.log.stops.lock().unwrap();
    assert!(stops.iter().all(|(_, _, reason)| matches!(reason, StopReason::EndReached)), "{stops:?}");
}

/// Events that arrive meanwhile belong to the next run.
#[tokio::test(start_paused = true)]
async fn later_events_are_left_to_the_next_run() {
    let world = ending(2, EndPosition::Latest);
    for run in 0..3 {
        publish(&world, 2, run * 10..run * 10 + 10);
        let a = world.start("a").await;
        // Both partitions have started.
        world
            .log
            .wait_for("events of both", |_| {
                (0..2).all(|partition| times(&world, partition, run * 10..run * 10 + 1) == [1])
            })
            .await;
        if run == 2 {
            publish(&world, 2, 30..35);
        }
        a.ended().await.unwrap();
        check_processed(&world, 2, 0..run * 10 + 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_without_new_events_returns_at_once() {
    let world = ending(3, EndPosition::Latest);
    publish(&world, 2, 0..10);
    world.start("a").await.ended().await.unwrap();
    let stops = world.log.stops.lock().unwrap().len();
    assert_eq!(stops, 2, "an empty partition does not start");
    let began = Instant::now();
    world.start("a").await.ended().await.unwrap();
    assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
    assert_eq!(world.log.stops.lock().unwrap().len(), stops, "no handler is started");
    check_processed(&world, 2, 0..10);
}

/// What is assigned to no instance, or to another one, is not awaited.
#[tokio::test(start_paused = true)]
async fn a_static_instance_returns_when_its_own_have_ended() {
    let mut world = ending(3, EndPosition::Latest);
    let assigned = LoadBalancingStrategy::Static(Assignment::partitions([1.into()]));
    world.config = world.config.with_balancer(|balancer| balancer.with_load_balancing_strategy(assigned));
    publish(&world, 3, 0..10);
    let began = Instant::now();
    world.start("a").await.ended().await.unwrap();
    assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
    assert_eq!(checkpoints(&world).await.into_iter().collect::<Vec<_>>(), [("1".to_owned(), Some(9))]);
}

#[tokio::test(start_paused = true)]
async fn partitions_can_have_different_ends() {
    let mut world = ending(3, EndPosition::SequenceNumber(4));
    world.config = world
        .config
        .with_end_position_of(1.into(), EndPosition::SequenceNumber(7))
        .with_end_position_of(2.into(), EndPosition::SequenceNumber(12));
    publish(&world, 3, 0..10);
    let a = world.start("a").await;
    sleep(300 * SECOND).await;
    assert!(!a.running.is_finished(), "event 12 of partition 2 does not exist yet");
    publish(&world, 3, 10..20);
    a.ended().await.unwrap();
    let last = checkpoints(&world).await;
    assert_eq!(last.values().copied().collect::<Vec<_>>(), [Some(4), Some(7), Some(12)]);
}

#[tokio::test(start_paused = true)]
async fn a_time_ends_a_busy_and_a_quiet_partition() {
    for is_in_the_future in [false, true] {
        let mut world = World::new(2);
        publish(&world, 2, 0..10);
        let until = world.hub.now() + if is_in_the_future { 100 * SECOND } else { Duration::ZERO };
        world.config = world.config.with_end_position(EndPosition::EnqueuedUntil(until));
        sleep(SECOND).await;
        let hub = world.hub.clone();
        let publishing = tokio::spawn(async move {
            for number in 10..200 {
                hub.publish(0, format!("0:{number}"));
                sleep(SECOND).await;
            }
        });
        let a = world.start("a").await;
        a.ended().await.unwrap();
        publishing.abort();
        assert_eq!(times(&world, 1, 0..10), [1; 10]);
        let last = checkpoint_of(&world, 0).await.unwrap();
        assert!(if is_in_the_future { (100..115).contains(&last) } else { last == 9 }, "{last}");
    }
}

/// A failure before the end starts the partition again, up to the same end.
#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_end() {
    let world = ending(1, EndPosition::Latest);
    publish(&world, 1, 0..5);
    world.hub.publish(0, "fail");
    let a = world.start("a").await;
    world.log.wait_for("the failure", |log| log.times("fail") == 1).await;
    for number in 6..30 {
        world.hub.publish(0, format!("0:{number}"));
    }
    a.ended().await.unwrap();
    assert_eq!(world.log.times("fail"), 2);
    assert_eq!(world.log.times("0:6"), 0);
    assert_eq!(checkpoint_of(&world, 0).await, Some(5));
}

/// Several instances share the work, and all of them return.
#[tokio::test(start_paused = true)]
async fn all_instances_of_a_group_return() {
    let world = ending(6, EndPosition::Latest);
    publish(&world, 6, 0..50);
    let group = [world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in group {
        assert!(instance.ended().await.unwrap().is_clean());
    }
    check_processed(&world, 6, 0..50);
    assert_eq!(world.log.bodies().len(), 300, "nothing is processed twice");
    let owners: BTreeSet<_> = world.log.events.lock().unwrap().iter().map(|event| event.0.clone()).collect();
    assert!(owners.len() > 1, "{owners:?}");
}

/// If an instance crashes, the last one that returns has seen each partition at its end.
#[tokio::test(start_paused = true)]
async fn the_work_of_a_crashed_instance_is_finished() {
    for crash_after in [1, 20, 45, 61, 90] {
        let world = ending(4, EndPosition::SequenceNumber(99));
        publish(&world, 4, 0..50);
        let a = world.start("a").await;
        let b = world.start("b").await;
        sleep(crash_after * SECOND).await;
        a.crash().await;
        publish(&world, 4, 50..120);
        b.ended().await.unwrap();
        check_processed(&world, 4, 0..100);
        assert!(checkpoints(&world).await.values().all(|number| *number == Some(99)));
    }
}

/// An instance that has ended still hands partitions over, and more instances than partitions end, too.
#[tokio::test(start_paused = true)]
async fn a_late_instance_finds_everything_at_its_end() {
    let world = ending(2, EndPosition::SequenceNumber(9));
    publish(&world, 1, 0..10);
    let a = world.start("a").await;
    sleep(200 * SECOND).await;
    assert!(!a.running.is_finished(), "partition 1 has no events yet");
    let [b, c] = [world.start("b").await, world.start("c").await];
    sleep(200 * SECOND).await;
    assert_eq!(a.held() + b.held() + c.held(), 2);
    for number in 0..10 {
        world.hub.publish(1, format!("1:{number}"));
    }
    for instance in [a, b, c] {
        instance.ended().await.unwrap();
    }
    check_processed(&world, 2, 0..10);
    assert_eq!(world.log.bodies().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn an_open_tracked_event_is_awaited() {
    let world = ending(1, EndPosition::Latest);
    publish(&world, 1, 0..10);
    let open: Arc<Mutex<Vec<TrackedEvent>>> = Arc::default();
    let tokens = Arc::clone(&open);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        tokens.lock().unwrap().extend(events.iter().map(|event| context.track(event)));
        std::future::ready(Ok::<_, HandlerError>(()))
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    sleep(600 * SECOND).await;
    assert!(!a.running.is_finished());
    let tokens = std::mem::take(&mut *open.lock().unwrap());
    assert_eq!(tokens.len(), 10);
    tokens.into_iter().for_each(TrackedEvent::finish);
    assert!(a.ended().await.unwrap().is_clean());
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
}

/// An event that was dropped unfinished is delivered again.
#[tokio::test(start_paused = true)]
async fn a_dropped_event_is_processed_before_the_end() {
    let world = ending(1, EndPosition::Latest);
    publish(&world, 1, 0..10);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        for event in &events {
            let token = context.track(event);
            log.lock().unwrap().push(event.sequence_number);
            if event.sequence_number != 5 || log.lock().unwrap().iter().filter(|number| **number == 5).count() > 1 {
                token.finish();
            }
        }
        std::future::ready(Ok::<_, HandlerError>(()))
    });
    world.start_with("a", world.hub.source(), handler).await.ended().await.unwrap();
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
    assert_eq!(seen.lock().unwrap().iter().filter(|number| **number == 5).count(), 2);
}

/// The last checkpoint is written before the processor returns, however long the storage fails.
#[tokio::test(start_paused = true)]
async fn the_last_checkpoint_is_awaited() {
    let world = ending(1, EndPosition::Latest);
    publish(&world, 1, 0..10);
    let faulty = world.faulty.clone();
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        faulty.set_plan(FaultPlan::always(Fault::Unreachable));
        for event in &events {
            context.checkpoint(event);
        }
        std::future::ready(Ok::<_, HandlerError>(()))
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    sleep(50 * SECOND).await;
    assert!(!a.running.is_finished());
    assert_eq!(a.held(), 1);
    world.faulty.set_plan(FaultPlan::default());
    a.ended().await.unwrap();
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
}

#[tokio::test(start_paused = true)]
async fn with_random_faults_everything_is_processed() {
    let world = ending(6, EndPosition::Latest);
    publish(&world, 6, 0..100);
    world.faulty.set_plan(random_faults());
    let group = [world.start("a").await, world.start("b").await];
    for instance in group {
        instance.ended().await.unwrap();
    }
    check_processed(&world, 6, 0..100);
}

/// A paused partition has not ended.
#[tokio::test(start_paused = true)]
async fn a_paused_partition_does_not_end() {
    let world = ending(2, EndPosition::Latest);
    publish(&world, 2, 0..10);
    let operator = operator(&world).await;
    reset(&world, &[(0, -1)]).await;
    let paused = operator.pause(vec![0.into()], None, None, &ResetOptions::default()).await.unwrap();
    assert!(matches!(paused[..], [(_, ResetOutcome::Done)]), "{paused:?}");
    let a = world.start("a").await;
    sleep(600 * SECOND).await;
    assert!(!a.running.is_finished());
    operator.resume(vec![0.into()], &ResetOptions::default()).await.unwrap();
    a.ended().await.unwrap();
    check_processed(&world, 2, 0..10);
}

/// The last events, which the event hub reports and no link delivers, are not awaited.
#[tokio::test(start_paused = true)]
async fn an_end_that_is_never_delivered_is_no_obstacle() {
    let world = ending(1, EndPosition::Latest);
    publish(&world, 1, 0..10);
    for number in [7, 8, 9] {
        world.hub.remove_event(0, number);
        world.log.contiguity.lacks(number);
    }
    let a = world.start("a").await;
    sleep(400 * SECOND).await;
    assert!(!a.running.is_finished(), "the links may have stalled");
    a.ended().await.unwrap();
    assert_eq!(times(&world, 0, 0..10), [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]);
}

/// A partition whose events have all expired, before the first start.
#[tokio::test(start_paused = true)]
async fn expired_events_are_not_awaited() {
    for report in [EmptiedReport::BeginIsLast, EmptiedReport::BeginAfterLast] {
        for end in [EndPosition::Latest, EndPosition::SequenceNumber(9)] {
            let world = ending(2, end);
            world.hub.report_emptied(report);
            publish(&world, 2, 0..10);
            world.hub.expire_before(0, i64::MAX);
            world.start("a").await.ended().await.unwrap();
            assert_eq!(times(&world, 1, 0..10), [1; 10]);
        }
    }
}

/// The events that arrive again are in one batch with those after the end.
#[tokio::test(start_paused = true)]
async fn a_link_that_restarts_loses_no_event_before_the_end() {
    let mut world = ending(1, EndPosition::SequenceNumber(99));
    world.config = world.config.with_max_batch_size(1000).with_prefetch(1000);
    publish(&world, 1, 0..60);
    let a = world.start("a").await;
    world.log.wait_for("60 events", |log| log.bodies().len() == 60).await;
    world.hub.reattach(0);
    publish(&world, 1, 60..120);
    a.ended().await.unwrap();
    check_processed(&world, 1, 0..100);
}

/// A handler that writes what it has gathered when no more events come.
#[tokio::test(start_paused = true)]
async fn at_the_end_idle_handlers_are_called() {
    let mut world = ending(1, EndPosition::Latest);
    world.config = world.config.with_idle_interval(5 * SECOND);
    publish(&world, 1, 0..10);
    let gathered: Mutex<Vec<TrackedEvent>> = Mutex::default();
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let mut gathered = gathered.lock().unwrap();
        if events.is_empty() {
            gathered.drain(..).for_each(TrackedEvent::finish);
        }
        gathered.extend(events.iter().map(|event| context.track(event)));
        std::future::ready(Ok::<_, HandlerError>(()))
    });
    world.start_with("a", world.hub.source(), handler).await.ended().await.unwrap();
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
}

/// The last event fails at first.
#[tokio::test(start_paused = true)]
async fn a_failed_event_is_processed_before_the_end() {
    let world = ending(1, EndPosition::Latest);
    publish(&world, 1, 0..10);
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        for event in &events {
            let token = context.track(event);
            if event.sequence_number == 9 && counted.fetch_add(1, Ordering::Relaxed) < 2 {
                token.fail("the database is down");
            } else {
                token.finish();
            }
        }
        std::future::ready(Ok::<_, HandlerError>(()))
    });
    world.start_with("a", world.hub.source(), handler).await.ended().await.unwrap();
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
    assert_eq!(failures.load(Ordering::Relaxed), 3);
}

/// An instance with a limit does not end before the partitions that it leaves unowned are processed.
#[tokio::test(start_paused = true)]
async fn partitions_above_the_limit_are_awaited() {
    let mut world = ending(4, EndPosition::Latest);
    publish(&world, 4, 0..10);
    let unlimited = world.config.clone();
    world.config = world.config.with_balancer(|balancer| balancer.with_max_partitions(2));
    let a = world.start("a").await;
    sleep(400 * SECOND).await;
    assert!(!a.running.is_finished());
    world.config = unlimited;
    let b = world.start("b").await;
    a.ended().await.unwrap();
    b.ended().await.unwrap();
    check_processed(&world, 4, 0..10);
}

#[test]
fn an_end_position_needs_lag_checks() {
    let config = ProcessorConfig::default().with_end_position(EndPosition::Latest).without_lag_checks();
    let error = config.check_settings(&StoreConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("without_lag_checks"), "{error}");
}
