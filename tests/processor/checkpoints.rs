//! When checkpoints are written, and what they never pass: policies, tracked events, refused writes, displaced owners.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, HealthIssue, OnFailure, PartitionContext, PartitionState, StopReason,
    TrackedEvent, handler_fn,
};
use eventhubs_checkpoint::source::Positioned;
use eventhubs_checkpoint::store::{GroupStore, StorageOperation as Purpose};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultKind, FaultPlan, Target};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{ErrorKind, OwnerId};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::support::handlers::{CallRecorder, OpenTokens};
use crate::support::ownership_log::{OwnershipLog, requesting_instance};
use crate::support::{CHECKPOINT, SECOND, isolated, rarely_checkpointing, write_record};
use crate::world::{Instance, Recorder, World};

#[tokio::test(start_paused = true)]
async fn checkpoints_by_time_by_count_and_at_the_end() {
    let mut world = World::new(1);
    let policy = world.config.checkpoint_policy.clone().with_interval(10 * SECOND).with_max_events(100);
    world.config = world.config.with_checkpoint_policy(policy);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(SECOND).await;
    world.hub.publish_many(0, 5, "x");
    sleep(9 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(-1));
    sleep(2 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(4), "by time");
    world.hub.publish_many(0, 100, "x");
    sleep(SECOND).await;
    assert_eq!(world.checkpoint().await, Some(104), "by count");
    world.hub.publish_many(0, 5, "x");
    sleep(SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(109), "at the end");
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

/// Each restart continues after the last handled event, although the handler fails more often than the policy writes.
#[tokio::test(start_paused = true)]
async fn failures_between_two_checkpoints_allow_progress() {
    let mut world = World::new(1);
    let rare = CheckpointPolicy::default().with_interval(Duration::from_secs(240));
    world.config = world.config.clone().with_max_batch_size(1).with_checkpoint_policy(rare);
    let (calls, numbers) = (AtomicU32::new(0), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&numbers);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let fails = calls.fetch_add(1, Ordering::Relaxed) % 10 == 9;
        if !fails {
            log.lock().unwrap().push(events[0].sequence_number);
            context.checkpoint(&events[0]);
        }
        async move { if fails { Err("failed on request".into()) } else { Ok(()) } }
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    world.hub.publish_many(0, 100, "x");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(*numbers.lock().unwrap(), (0..100).collect::<Vec<_>>());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_checkpoint_passes_failed_work() {
    let world = World::new(1);
    let done = Arc::new(AtomicBool::new(false));
    let fixed = done.clone();
    // Each event is finished in its own task, out of order. The third one fails until it is fixed.
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let fixed = fixed.clone();
        async move {
            for event in events.into_iter().rev() {
                let token = context.track(&event);
                if event.sequence_number != 2 || fixed.load(Ordering::Relaxed) {
                    tokio::spawn(async move { token.finish() });
                }
            }
            Ok(())
        }
    });
    world.hub.publish_many(0, 10, "x");
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    sleep(10 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(1));
    assert_eq!(a.status().in_flight, 1);
    done.store(true, Ordering::Relaxed);
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(1), "nor does the last checkpoint");
}

/// The adoption by the new owner makes the checkpoint fail.
#[tokio::test(start_paused = true)]
async fn a_refused_checkpoint_stops_its_partition() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_millis(100)).await;
    world.give_to("b").await;
    world.checkpoint_as_another_sdk(0).await;
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
async fn a_refused_checkpoint_reports_the_loss() {
    let world = World::new(1);
    let handler = CallRecorder { durable: true, ..CallRecorder::default() };
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.checkpoint().await, Some(0));
    world.give_to("b").await;
    write_record(&world, "checkpoint/0", &[("sequencenumber", "0"), ("offset", "0")]).await;
    world.hub.publish(0, "y");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(handler.calls()[3..], ["handle y", "stopped: lost to b"]);
    a.shut_down().await.unwrap();
}

/// Takes ten minutes for the event "slow", then records it.
struct SlowHandler(Recorder);

impl Handler<MemoryEvent> for SlowHandler {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.handle(events.clone(), context.clone()).await?;
        if events.iter().any(|event| &*event.body == b"slow") {
            sleep(600 * SECOND).await;
        }
        context.checkpoint(events.last().unwrap());
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.0.stopped(context, reason).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_owner_moves_no_checkpoint() {
    let world = World::new(1);
    // Only `a` loses the storage.
    let isolated = isolated(&world);
    let handler = SlowHandler(Recorder { checkpoint: false, ..world.recorder("a") });
    let mut a = isolated.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "first");
    world.log.wait_for("first", |log| log.times("first") == 1).await;
    sleep(2 * SECOND).await;
    world.hub.publish(0, "slow");
    world.log.wait_for("slow", |log| log.times("slow") == 1).await;
    isolated.faulty.set_plan(FaultPlan::always(Fault::Unreachable));

    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 10, "more");
    world.log.wait_for("more", |log| log.times("more") == 10).await;
    sleep(5 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(11));
    isolated.faulty.set_plan(FaultPlan::default());
    world.log.wait_for("the stop of a", |log| log.stops.lock().unwrap().iter().any(|(owner, ..)| owner == "a")).await;
    let stops = world.log.stops.lock().unwrap().clone();
    assert!(matches!(&stops[0].2, StopReason::OwnershipLost { by: Some(by) } if by.as_str() == "b"), "{stops:?}");
    assert_eq!(world.checkpoint().await, Some(11), "it recorded event 1 meanwhile");
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_checkpoints_are_retried_with_backoff() {
    let mut world = World::new(1);
    let policy = CheckpointPolicy::default().with_max_events(1).with_interval(Duration::from_secs(5));
    world.config = world.config.with_checkpoint_policy(policy);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_secs(1)).await;
    let checkpoints = Target::from(BlobOperation::Write).named("/checkpoint/");
    let throttled = Fault::Throttled { retry_after: Some(Duration::from_secs(30)) };
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, checkpoints, throttled));
    for number in 0..1000u32 {
        world.hub.publish(0, number.to_string());
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.faulty.counts()[&FaultKind::Throttled], 1);
    world.faulty.set_plan(FaultPlan::default());
    sleep(Duration::from_secs(31)).await;
    assert_eq!(world.checkpoint().await, Some(999));
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

/// Returns how many checkpoints are sent in `time`, with one event per second in each partition.
async fn checkpoints_sent(world: &World, partitions: u32, store: &GroupStore, time: Duration) -> u64 {
    let before = store.request_counts().total(Purpose::Checkpoint);
    let until = Instant::now() + time;
    while Instant::now() < until {
        for partition in 0..partitions {
            world.hub.publish(partition, "x");
        }
        sleep(SECOND).await;
    }
    store.request_counts().total(Purpose::Checkpoint) - before
}

#[tokio::test(start_paused = true)]
async fn a_failing_storage_gets_no_more_checkpoints() {
    const PARTITIONS: u32 = 8;
    let throttled = |seconds: Option<u32>| Fault::Throttled { retry_after: seconds.map(|seconds| seconds * SECOND) };
    let (usual, rare) = (CheckpointPolicy::default(), CheckpointPolicy::default().with_interval(30 * SECOND));
    for (policy, fault) in [
        (&usual, throttled(None)),
        (&usual, throttled(Some(3))),
        (&usual, throttled(Some(20))),
        (&usual, Fault::Unreachable),
        (&rare, throttled(None)),
    ] {
        let mut world = rarely_checkpointing(PARTITIONS);
        world.config.checkpoint_policy = policy.clone();
        let store = world.store("a").await;
        let mut a = world.start_on(store.clone(), world.hub.source(), world.recorder("a"));
        a.wait_until_it_holds(PARTITIONS as usize).await;
        checkpoints_sent(&world, PARTITIONS, &store, 60 * SECOND).await;
        let calm = checkpoints_sent(&world, PARTITIONS, &store, 300 * SECOND).await;
        let checkpoints = Target::from(BlobOperation::Write).named(CHECKPOINT);
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, checkpoints, fault.clone()));
        let refused = checkpoints_sent(&world, PARTITIONS, &store, 300 * SECOND).await;
        assert!(refused <= calm, "{policy:?} {fault:?}: {refused}, normally {calm}");
        world.faulty.set_plan(FaultPlan::default());
        checkpoints_sent(&world, PARTITIONS, &store, 60 * SECOND).await;
        assert!(a.handle.health().issues.is_empty(), "{:?}", a.handle.health());
        let after = checkpoints_sent(&world, PARTITIONS, &store, 60 * SECOND).await;
        assert!(after * 5 >= calm * 9 / 10, "{policy:?} {fault:?}: {after} in one minute, normally {calm} in five");
        a.crash().await;
    }
}

/// Events finished out of order, and their effect on checkpoints and backpressure.
mod tracked_events {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_checkpoint_follows_the_finished_prefix() {
        let world = World::new(1);
        let handler = OpenTokens::default();
        let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish_many(0, 10, "x");
        sleep(2 * SECOND).await;
        for (finished, reached) in
            [(vec![9, 3, 4], -1), (vec![1, 0], 1), (vec![2], 4), (vec![5, 6, 8], 6), (vec![7], 9)]
        {
            handler.finish(finished.clone());
            sleep(2 * SECOND).await;
            assert_eq!(world.checkpoint().await, Some(reached), "after {finished:?}");
        }
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_events_in_flight_stop_the_delivery() {
        let mut world = World::new(1);
        world.config = world.config.with_max_in_flight(7).with_max_batch_size(5);
        let handler = OpenTokens::default();
        let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish_many(0, 100, "x");
        sleep(2 * SECOND).await;
        assert_eq!((handler.delivered(), a.status().in_flight), (7, 7));
        handler.finish([4, 5]);
        sleep(2 * SECOND).await;
        assert_eq!((handler.delivered(), a.status().in_flight), (9, 7));
        sleep(301 * SECOND).await;
        assert_eq!(a.status().state, PartitionState::InFlightFull);
        assert_eq!(world.checkpoint().await, Some(-1));
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn events_in_flight_are_redelivered_after_a_failure() {
        let world = World::new(1);
        let handler = OpenTokens { poison: Some(3), ..OpenTokens::default() };
        let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish_many(0, 4, "x");
        sleep(SECOND / 10).await;
        let old = handler.take();
        assert_eq!(old.len(), 4);
        sleep(2 * SECOND).await;
        assert!(handler.delivered() >= 8, "delivered again");
        old.into_values().for_each(TrackedEvent::finish);
        sleep(2 * SECOND).await;
        assert_eq!(world.checkpoint().await, Some(-1), "tokens of an earlier start");
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn events_in_flight_at_the_end_have_the_drain_time() {
        for in_time in [true, false] {
            let world = World::new(1);
            let handler = OpenTokens::default();
            let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
            a.wait_until_it_holds(1).await;
            world.hub.publish_many(0, 3, "x");
            sleep(SECOND).await;
            let later = handler.clone();
            let finishing = tokio::spawn(async move {
                sleep(if in_time { 10 * SECOND } else { 100 * SECOND }).await;
                later.finish([0, 1, 2]);
            });
            let report = a.shut_down().await.unwrap();
            assert_eq!(report.is_clean(), in_time, "{report:?}");
            assert_eq!(report.aborted.is_empty(), in_time);
            assert_eq!(world.checkpoint().await, Some(if in_time { 2 } else { -1 }));
            finishing.abort();
        }
    }

    /// Waits for its own checkpoint while an earlier event is in flight.
    #[derive(Clone, Debug, Default)]
    struct EarlyWaiter(Arc<Mutex<Vec<ErrorKind>>>);

    impl Handler<MemoryEvent> for EarlyWaiter {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            let open = context.track(&events[0]);
            let last = events.last().unwrap();
            let refused = context.checkpoint_now(last).await.unwrap_err();
            self.0.lock().unwrap().push(refused.kind());
            assert!(refused.to_string().contains("waits until the tracked event 0 is finished"), "{refused}");
            open.finish();
            context.flush().await?;
            assert_eq!(context.checkpoint_now(last).await.map_err(|error| error.kind()), Ok(()));
            assert_eq!(last.sequence_number(), Some(2));
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn checkpoint_now_names_the_event_that_it_waits_for() {
        let mut world = World::new(1);
        world.config = world.config.with_max_batch_wait(SECOND).with_on_failure(OnFailure::Park);
        world.hub.publish_many(0, 3, "x");
        let handler = EarlyWaiter::default();
        let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
        a.wait_until_it_holds(1).await;
        sleep(5 * SECOND).await;
        assert_eq!(*handler.0.lock().unwrap(), [ErrorKind::EventsInFlight]);
        assert_eq!(world.checkpoint().await, Some(2));
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_does_not_wait_for_dropped_tokens() {
        let world = World::new(1);
        let handler = OpenTokens::default();
        let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish_many(0, 3, "x");
        sleep(SECOND).await;
        handler.finish([0]);
        drop(handler.take());
        assert_eq!(a.status().in_flight, 2, "they still hold the checkpoint back");
        let began = Instant::now();
        let report = a.shut_down().await.unwrap();
        assert!(began.elapsed() < SECOND && report.aborted.is_empty(), "{report:?}");
        assert_eq!(report.held_back, [0.into()].into());
        assert_eq!(world.checkpoint().await, Some(0));
    }

    /// Tracks each event. Drops the token of "poison", keeps that of "wait" until the partition stops, fails that of
    /// "broken" once, and finishes the others.
    #[derive(Clone, Debug, Default)]
    struct TokenHandler(Arc<Mutex<Vec<String>>>);

    impl Handler<MemoryEvent> for TokenHandler {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            for event in &events {
                self.0.lock().unwrap().push(event.text().unwrap().to_owned());
                let (token, context) = (context.track(event), context.clone());
                match event.text().unwrap() {
                    "poison" => drop(token),
                    "broken" if self.times("broken") == 1 => token.fail("failed on request"),
                    "wait" => drop(tokio::spawn(async move {
                        if context.run_until_stopping(sleep(3600 * SECOND)).await.is_some() {
                            token.finish();
                        }
                    })),
                    _ => token.finish(),
                }
            }
            Ok(())
        }
    }

    impl TokenHandler {
        fn times(&self, body: &str) -> usize {
            self.0.lock().unwrap().iter().filter(|seen| *seen == body).count()
        }

        /// Starts an instance, and waits until it has handled all these events.
        async fn start_with_events(&self, world: &World, bodies: &[&str]) -> Instance {
            for body in bodies {
                world.hub.publish(0, *body);
            }
            let a = world.start_with("a", world.hub.source(), self.clone()).await;
            a.wait_for_status("the last event", |status| status.handled == i64::try_from(bodies.len() - 1).ok()).await;
            sleep(2 * SECOND).await;
            a
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_dropped_during_processing() {
        let (log, _guard) = Captured::begin();
        let world = World::new(1);
        let a = TokenHandler::default()
            .start_with_events(&world, &["x", "x", "x", "poison", "x", "poison", "x", "x"])
            .await;
        let held = a.handle.health().issues;
        let [HealthIssue::CheckpointHeld { event: 3, checkpoint: Some(2), finished_after: 4, held_for, .. }] = held[..]
        else {
            panic!("{held:?}");
        };
        assert!(held_for >= 2 * SECOND, "{held_for:?}");
        let reported = log.text();
        let dropped: Vec<_> =
            reported.lines().filter(|line| line.contains("tracked event dropped unfinished")).collect();
        assert!(dropped.len() == 1 && dropped[0].contains("WARN"), "{reported}");
        assert!(
            ["partition_id=0", "sequence_number=3", "checkpoint="].iter().all(|part| dropped[0].contains(part)),
            "{reported}"
        );
        let report = a.shut_down().await.unwrap();
        assert!(!report.is_clean() && report.aborted.is_empty() && report.uncheckpointed.is_empty(), "{report:?}");
        assert_eq!(report.held_back, [0.into()].into());
    }

    /// Work abandoned because the partition stops is not an error, unless an event after it was finished.
    #[tokio::test(start_paused = true)]
    async fn tokens_dropped_because_of_the_stop() {
        for (bodies, clean) in [(["x", "x", "wait", "wait"], true), (["x", "wait", "wait", "x"], false)] {
            let (log, _guard) = Captured::begin();
            let world = World::new(1);
            let a = TokenHandler::default().start_with_events(&world, &bodies).await;
            assert!(a.handle.health().issues.is_empty());
            let report = a.shut_down().await.unwrap();
            assert_eq!((report.is_clean(), report.held_back.is_empty()), (clean, clean), "{bodies:?}: {report:?}");
            assert!(!log.text().contains("dropped unfinished"), "{}", log.text());
        }
    }

    /// Events finished after the dropped token are processed twice.
    #[tokio::test(start_paused = true)]
    async fn a_handoff_with_a_dropped_token() {
        let world = World::new(2);
        for partition in 0..2 {
            world.hub.publish(partition, "poison");
        }
        let mut a = world.start_with("a", world.hub.source(), TokenHandler::default()).await;
        a.wait_until_it_holds(2).await;
        a.wait_until_all_idle(2).await;
        let mut log_a = OwnershipLog::of(&a);
        let (b, _) = requesting_instance(&world).await;
        log_a.wait_for("released").await;
        assert_eq!(
            log_a.take(),
            ["requested by b", "releasing: HandedOver", "duplicates: CheckpointNotWritten", "released"]
        );
        a.crash().await;
        b.crash().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_fails() {
        let (log, _guard) = Captured::begin();
        let world = World::new(1);
        let handler = TokenHandler::default();
        let a = handler.start_with_events(&world, &["x", "x", "broken", "y", "y"]).await;
        assert_eq!((handler.times("x"), handler.times("broken"), handler.times("y")), (2, 2, 4));
        assert_eq!(world.checkpoint().await, Some(4));
        let reported = log.text();
        let failed = reported.lines().find(|line| line.contains("handler failed")).unwrap();
        assert!(failed.contains("event 2 could not be processed: failed on request"), "{failed}");
        assert!(failed.contains("attempt=1 ") && failed.contains("retry_in=100ms"), "{failed}");
        assert!(a.handle.health().issues.is_empty());
        assert!(a.shut_down().await.unwrap().is_clean());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_fails_parks_the_partition() {
        let mut world = World::new(1);
        world.config = world.config.with_on_failure(OnFailure::Park);
        let handler = TokenHandler::default();
        let a = handler.start_with_events(&world, &["x", "broken", "y"]).await;
        let status = a.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
        assert!(status.last_error.unwrap().message.contains("event 1 could not be processed"));
        assert_eq!(world.checkpoint().await, Some(0));
        assert!(a.handle.resume(&0.into()));
        a.wait_for_status("all", |status| status.checkpoint == Some(2)).await;
        assert!(a.shut_down().await.unwrap().is_clean());
    }

    /// Takes the token after the checkpoint has passed its event, and drops it.
    struct LateTracker(Arc<AtomicUsize>);

    impl Handler<MemoryEvent> for LateTracker {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            for event in &events {
                context.checkpoint(event);
                drop(context.track(event));
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    }

    /// The token keeps no event open, so nothing has to wait for it.
    #[tokio::test(start_paused = true)]
    async fn a_late_token_is_not_in_flight_after_its_drop() {
        let mut world = World::new(1);
        world.config = world.config.with_max_in_flight(3);
        let handled = Arc::new(AtomicUsize::new(0));
        let a = world.start_with("a", world.hub.source(), LateTracker(handled.clone())).await;
        for _ in 0..10 {
            world.hub.publish(0, "x");
            sleep(SECOND).await;
        }
        sleep(60 * SECOND).await;
        assert_eq!((handled.load(Ordering::Relaxed), a.status().in_flight), (10, 0));
        assert!(a.shut_down().await.unwrap().is_clean());
    }
}
