//! Known problems of event processors, and tests that this crate does not have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    HealthIssue, InvalidReason, OnInvalidCheckpoint, PartitionContext, PartitionState, ProcessorConfig, StopReason,
    handler_fn,
};
use eventhubs_checkpoint::source::{LagState, StartPosition};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, PartitionId};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_stalled_link_is_detected_and_reopened() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "before");
    world.log.wait_for("before", |log| log.times("before") == 1).await;
    world.hub.stall_link(0, true);
    let began = Instant::now();
    world.hub.publish(0, "delayed");
    let status = a.wait_for_status("silent", |status| status.state == PartitionState::LinkStalled).await;
    assert_eq!(status.partition, PartitionId::from(0));
    let silent = HealthIssue::LinkStalled { partition: 0.into() };
    assert_eq!(a.handle.health().issues, [silent]);
    world.log.wait_for("delayed", |log| log.times("delayed") == 1).await;
    assert!(began.elapsed() <= 62 * SECOND, "{:?}", began.elapsed());
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler is not restarted");
    assert_eq!(a.handle.health().issues, []);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_and_stalled_in_the_handler_differ() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(1, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let stalled = a.wait_for_status("stuck", |status| status.state == PartitionState::HandlerStalled).await;
    assert_eq!(stalled.partition, PartitionId::from(1));
    assert!(stalled.state_for > 300 * SECOND);
    assert_eq!(a.status().state, PartitionState::Idle);
    let health = a.handle.health();
    assert!(health.ready);
    assert!(
        matches!(&health.issues[..], [HealthIssue::HandlerStalled { partition, .. }] if *partition == 1.into()),
        "{health:?}"
    );
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lag_counts_events_and_has_a_state() {
    let mut world = World::new(1);
    world.checkpoint = false;
    let silent = Arc::new(AtomicBool::new(false));
    let source = ScriptedSource::new(
        &world.hub,
        SourceFaults { partitions_unavailable: silent.clone(), ..SourceFaults::default() },
    );
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: false };
    let mut a = world.start_with("a", source, recorder).await;
    a.wait_until_it_holds(1).await;
    let status = a.wait_for_status("idle", |status| status.state == PartitionState::Idle).await;
    assert_eq!((status.lag.events, status.lag.state), (Some(0), LagState::Empty));

    world.hub.publish_many(0, 25, "x");
    let status = a.wait_for_status("25 behind", |status| status.lag.events == Some(25)).await;
    assert_eq!((status.lag.state, status.handled, status.last_enqueued), (LagState::Known, Some(24), Some(24)));
    world.hub.expire_before(0, 20);
    a.wait_for_status("the 5 remaining events", |status| status.lag.events == Some(5)).await;

    silent.store(true, Ordering::Relaxed);
    let status = a.wait_for_status("stale", |status| status.lag.state == LagState::Stale).await;
    assert_eq!(status.lag.events, Some(5), "the last known value");
    silent.store(false, Ordering::Relaxed);
    world.hub.recreate();
    let status = a.wait_for_status("known again", |status| status.lag.state == LagState::Empty).await;
    assert_eq!(status.lag.events, Some(0), "never negative");
    a.shut_down().await.unwrap();
}

/// A group that has processed 50 events, without a running instance.
async fn with_checkpoint_at_49() -> World {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 50, "old");
    world.log.wait_for("50", |log| log.times("old") == 50).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(49));
    world
}

fn with_policy(world: &World, policy: OnInvalidCheckpoint) -> ProcessorConfig {
    world.config.clone().with_on_invalid_checkpoint(policy)
}

#[tokio::test(start_paused = true)]
async fn a_recreated_hub_is_processed_from_its_start() {
    let (captured, _guard) = Captured::begin();
    let world = with_checkpoint_at_49().await;
    world.hub.recreate();
    world.hub.publish_many(0, 3, "new");
    let mut b = world.start("b").await;
    world.log.wait_for("3", |log| log.times("new") == 3).await;
    b.wait_until_it_holds(1).await;
    b.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(2));
    let reported = captured.text();
    assert!(
        reported.contains("sequence number 49") && reported.contains("holds 0 to 2"),
        "both positions are logged: {reported}"
    );
}

/// Repeated sequence numbers are not duplicates then.
#[tokio::test(start_paused = true)]
async fn a_running_processor_detects_a_recreated_hub() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 50, "old");
    world.log.wait_for("50", |log| log.times("old") == 50).await;
    world.hub.recreate();
    world.hub.publish_many(0, 3, "new");
    world.log.wait_for("3", |log| log.times("new") == 3).await;
    sleep(2 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(2));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_invalid_checkpoint_policy_applies() {
    for (policy, processed) in [
        (OnInvalidCheckpoint::Earliest, 3),
        (OnInvalidCheckpoint::Latest, 0),
        (OnInvalidCheckpoint::custom(|_| StartPosition::AfterSequenceNumber(0)), 2),
    ] {
        let mut world = with_checkpoint_at_49().await;
        world.hub.recreate();
        world.hub.publish_many(0, 3, "new");
        world.config = with_policy(&world, policy.clone());
        let mut b = world.start("b").await;
        b.wait_until_it_holds(1).await;
        sleep(20 * SECOND).await;
        assert_eq!(world.log.times("new"), processed, "{policy:?}");
        world.hub.publish(0, "later");
        world.log.wait_for("later", |log| log.times("later") == 1).await;
        b.shut_down().await.unwrap();
        assert_eq!(world.checkpoint().await, Some(3), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn fail_names_the_partition_and_both_positions() {
    let mut world = with_checkpoint_at_49().await;
    world.hub.recreate();
    world.config = with_policy(&world, OnInvalidCheckpoint::Fail);
    let error = world.start("b").await.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let reported = error.to_string();
    assert!(
        reported.contains("partition 0") && reported.contains("49") && reported.contains("never held an event"),
        "{reported}"
    );
    assert_eq!(world.checkpoint().await, Some(49), "the checkpoint is unchanged");
}

#[tokio::test(start_paused = true)]
async fn expired_events_are_reported() {
    let mut world = with_checkpoint_at_49().await;
    world.hub.publish_many(0, 10, "gone");
    world.hub.publish_many(0, 10, "left");
    world.hub.expire_before(0, 60);
    let reported = Arc::new(AtomicBool::new(false));
    let requested = reported.clone();
    world.config = with_policy(
        &world,
        OnInvalidCheckpoint::custom(move |invalid| {
            assert_eq!(invalid.reason, InvalidReason::Expired);
            requested.store(true, Ordering::Relaxed);
            StartPosition::Earliest
        }),
    );
    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    world.log.wait_for("10", |log| log.times("left") == 10).await;
    assert!(reported.load(Ordering::Relaxed));
    assert_eq!(world.log.times("gone"), 0);
    b.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(69));
}

/// The broker decides, regardless of the sequence numbers.
#[tokio::test(start_paused = true)]
async fn a_refused_position_is_no_endless_loop() {
    let world = World::new(1);
    let source = || ScriptedSource::new(&world.hub, SourceFaults { earliest_only: true, ..SourceFaults::default() });
    let recorder = |owner: &str| Recorder { owner: owner.into(), log: world.log.clone(), checkpoint: true };
    world.hub.publish_many(0, 5, "x");
    let mut a = world.start_with("a", source(), recorder("a")).await;
    a.wait_until_it_holds(1).await;
    world.log.wait_for("5", |log| log.times("x") == 5).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(4));
    let mut b = world.start_with("b", source(), recorder("b")).await;
    b.wait_until_it_holds(1).await;
    world.log.wait_for("5 again", |log| log.times("x") == 10).await;
    b.shut_down().await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_ordered_and_reported() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish_many(0, 5, "x");
    world.log.wait_for("5", |log| log.times("x") == 5).await;
    let observed = world.clone();
    // Once the partition is free, its last checkpoint has been written.
    let observing = tokio::spawn(async move {
        while observed.owners().await.values().any(|owner| !owner.is_empty()) {
            sleep(SECOND / 100).await;
        }
        observed.checkpoint().await
    });
    let report = a.shut_down().await.unwrap();
    assert_eq!(observing.await.unwrap(), Some(4));
    assert!(report.is_clean(), "{report:?}");
    let whole = [report.drain, report.release, report.close].iter().map(|phase| phase.took).sum::<Duration>();
    assert!(whole < SECOND, "{report:?}");
}

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
async fn a_stale_owner_moves_no_checkpoint() {
    let world = World::new(1);
    // Only `a` loses the storage.
    let cut = FaultyContainer::new(world.container.clone(), 3);
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let store =
        GroupStore::builder(Arc::new(cut.clone()), group, OwnerId::new("a").unwrap()).with_seed(1).connect().await;
    let log = world.log.clone();
    let handler = SlowHandler { log: log.clone() };
    let mut a = world.start_on(store.unwrap(), world.hub.source(), handler);
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "first");
    log.wait_for("first", |log| log.times("first") == 1).await;
    sleep(2 * SECOND).await;
    world.hub.publish(0, "slow");
    log.wait_for("slow", |log| log.times("slow") == 1).await;
    cut.set_plan(FaultPlan::always(Fault::Unreachable));

    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 10, "more");
    log.wait_for("more", |log| log.times("more") == 10).await;
    sleep(5 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(11));
    cut.set_plan(FaultPlan::default());
    log.wait_for("the stop of a", |log| log.stops.lock().unwrap().iter().any(|(owner, ..)| owner == "a")).await;
    let stops = log.stops.lock().unwrap().clone();
    assert!(matches!(&stops[0].2, StopReason::OwnershipLost { by: Some(by) } if by.as_str() == "b"), "{stops:?}");
    assert_eq!(world.checkpoint().await, Some(11), "it recorded event 1 meanwhile");
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// Takes ten minutes for the event "slow", then records it.
struct SlowHandler {
    log: crate::world::Log,
}

impl eventhubs_checkpoint::processor::Handler<MemoryEvent> for SlowHandler {
    async fn handle(
        &self,
        events: Vec<MemoryEvent>,
        context: PartitionContext,
    ) -> Result<(), eventhubs_checkpoint::processor::HandlerError> {
        for event in events {
            self.log.events.lock().unwrap().push(("a".into(), "0".into(), event.body.to_string()));
            self.log.changed.send_replace(());
            if &*event.body == "slow" {
                sleep(600 * SECOND).await;
            }
            context.checkpoint(&event);
        }
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.log.stops.lock().unwrap().push(("a".into(), context.partition_id().to_string(), reason));
        self.log.changed.send_replace(());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_cancelled() {
    let mut world = World::new(2);
    world.config = world.config.with_handler_timeout(20 * SECOND);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.hub.publish(1, "elsewhere");
    world.log.wait_for("a stop", |log| !log.stops.lock().unwrap().is_empty()).await;
    assert_eq!(world.log.times("elsewhere"), 1);
    let stops = world.log.stops.lock().unwrap().clone();
    let [(_, partition, StopReason::Failed { error })] = &stops[..] else { panic!("{stops:?}") };
    assert_eq!((partition.as_str(), error.kind()), ("0", ErrorKind::Handler));
    assert!(error.to_string().contains("handler timeout of 20s"), "{error}");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_is_kept_and_continues() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "1");
    world.log.wait_for("1", |log| log.times("1") == 1).await;
    let ownership = a.snapshots.borrow().owned.clone();
    assert!(a.handle.pause(&0.into()));
    world.hub.publish(0, "2");
    sleep(600 * SECOND).await;
    assert_eq!(a.status().state, PartitionState::Paused);
    assert_eq!(world.log.times("2"), 0);
    assert_eq!(a.snapshots.borrow().owned, ownership);
    assert!(a.handle.resume(&0.into()));
    world.log.wait_for("2", |log| log.times("2") == 1).await;
    assert!(world.log.stops.lock().unwrap().is_empty());
    assert!(!a.handle.pause(&7.into()), "there is no such partition");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_released_partition_stays_away_for_a_while() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    assert!(a.handle.release(&0.into(), 100 * SECOND));
    a.wait_until_it_holds(0).await;
    let released = Instant::now();
    assert_eq!(world.checkpoint().await, Some(0), "the recorded position is written first");
    assert!(matches!(world.first_stop().await, StopReason::Released { .. }));
    a.wait_until_it_holds(1).await;
    let elapsed = released.elapsed();
    assert!(elapsed >= 100 * SECOND && elapsed < 150 * SECOND, "{elapsed:?}");
    a.shut_down().await.unwrap();
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

/// Two instances that start at once claim the same partitions and conflict.
#[tokio::test(start_paused = true)]
async fn expected_conflicts_are_no_warnings() {
    let (captured, _guard) = Captured::begin();
    let world = World::new(8);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 8).await;
    }
    sleep(600 * SECOND).await;
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    let reported = captured.text();
    assert!(reported.contains("partition claimed"));
    assert!(!reported.contains("WARN") && !reported.contains("ERROR"), "{reported}");
}
