//! Checkpoints that the event hub cannot continue at: expired events, recreated event hubs, lost events, refused
//! positions, and hubs that report too late or too little to tell.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    Handler, HandlerError, InvalidReason, OnInvalidCheckpoint, OwnPosition, PartitionContext, PartitionStart,
    ProcessorConfig,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{ErrorKind, Position};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::placing::place;
use crate::support::sources::{Counted, ScriptedSource, SourceFaults, start_scripted};
use crate::support::{EMPTIED_REPORTS, HOUR, MINUTE, SECOND, recorded_position, write_record};
use crate::world::{Instance, Recorder, World};

/// A group that has processed 50 events, without a running instance.
async fn with_checkpoint_at_49() -> World {
    let world = World::new(1);
    world.hub.publish_many(0, 50, "old");
    let a = world.start("a").await;
    world.log.wait_for("50 events", |log| log.times("old") == 50).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(49));
    world
}

/// A group whose checkpoint is a minute old, so that a hub that is recreated now is newer than the checkpoint.
async fn with_old_checkpoint_at_49() -> World {
    let world = with_checkpoint_at_49().await;
    sleep(MINUTE).await;
    world
}

fn with_policy(world: &World, policy: OnInvalidCheckpoint) -> ProcessorConfig {
    world.config.clone().with_on_invalid_checkpoint(policy)
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

#[tokio::test(start_paused = true)]
async fn an_expired_unprocessed_last_event_is_reported() {
    for report in EMPTIED_REPORTS {
        let mut world = World::new(1);
        world.hub.report_emptied(report);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.hub.publish(0, "processed");
        world.log.wait_for("it", |log| log.times("processed") == 1).await;
        a.shut_down().await.unwrap();
        world.hub.publish(0, "missed");
        world.hub.expire_before(0, i64::MAX);

        let reasons = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&reasons);
        world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::custom(move |invalid| {
            noted.lock().unwrap().push(invalid.reason);
            StartPosition::Earliest
        }));
        let mut b = world.start("b").await;
        b.wait_until_it_holds(1).await;
        b.wait_until_all_idle(1).await;
        assert_eq!(*reasons.lock().unwrap(), [InvalidReason::Expired], "{report:?}");
        b.shut_down().await.unwrap();
    }
}

/// The events after the recorded start have expired.
#[tokio::test(start_paused = true)]
async fn an_expired_start_is_an_invalid_checkpoint() {
    for (policy, handled) in [(OnInvalidCheckpoint::Earliest, 4), (OnInvalidCheckpoint::Latest, 0)] {
        let mut world = World { checkpoint: false, ..World::new(1) };
        world.hub.publish_many(0, 10, "old");
        world.config = with_policy(&world, policy).with_start_position(StartPosition::AfterSequenceNumber(9));
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        a.wait_until_all_idle(1).await;
        a.crash().await;
        world.hub.publish_many(0, 6, "expired");
        world.hub.publish_many(0, 4, "left");
        world.hub.expire_before(0, 16);
        sleep(90 * SECOND).await;
        let mut b = world.start("b").await;
        b.wait_until_it_holds(1).await;
        b.wait_until_all_idle(1).await;
        sleep(5 * SECOND).await;
        assert_eq!((world.log.times("expired"), world.log.times("left")), (0, handled));
        b.shut_down().await.unwrap();
    }
}

/// The application chooses a position for a checkpoint of a deleted hub. The instance ends before it writes another
/// checkpoint.
#[tokio::test(start_paused = true)]
async fn a_chosen_position_is_recorded() {
    use StartPosition::{AfterOffset, AfterSequenceNumber, EnqueuedAfter};
    for kind in 0..3 {
        let mut world = World::new(1);
        world.hub.publish_many(0, 50, "old");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.log.wait_for("50", |log| log.times("old") == 50).await;
        a.shut_down().await.unwrap();
        world.hub.recreate();
        world.hub.publish_many(0, 3, "before");
        let time = world.hub.now();
        sleep(SECOND).await;
        let chosen = [AfterSequenceNumber(2), AfterOffset("20".into()), EnqueuedAfter(time)][kind].clone();
        let policy = OnInvalidCheckpoint::custom(move |_| chosen.clone());
        world.config = with_policy(&world, policy);
        world.checkpoint = false;
        let b = world.start("b").await;
        b.wait_until_all_idle(1).await;
        b.crash().await;
        assert_eq!(recorded_position(&world, 0).await, Some((2, "20".into(), false)), "{kind}");
        world.hub.publish_many(0, 5, "after");
        let c = world.start("c").await;
        world.log.wait_for("5 events", |log| log.times("after") == 5).await;
        assert_eq!(world.log.times("before"), 0, "{kind}");
        c.shut_down().await.unwrap();
    }
}

/// The broker decides, regardless of the sequence numbers.
#[tokio::test(start_paused = true)]
async fn a_refused_position_is_no_endless_loop() {
    let world = World::new(1);
    let source_faults = || SourceFaults { earliest_only: true, ..SourceFaults::default() };
    world.hub.publish_many(0, 5, "x");
    let mut a = start_scripted(&world, "a", source_faults()).await;
    a.wait_until_it_holds(1).await;
    world.log.wait_for("5", |log| log.times("x") == 5).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(4));
    let mut b = start_scripted(&world, "b", source_faults()).await;
    b.wait_until_it_holds(1).await;
    world.log.wait_for("5 again", |log| log.times("x") == 10).await;
    b.shut_down().await.unwrap();
}

/// An application that keeps its own position, if it has one.
struct StartsAt {
    position: Option<StartPosition>,
    recorder: Recorder,
}

impl Handler<MemoryEvent> for StartsAt {
    async fn start_position(&self, _: PartitionStart) -> Result<OwnPosition, HandlerError> {
        Ok(OwnPosition::Kept(self.position.clone()))
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.recorder.handle(events, context).await
    }
}

/// The broker rejects the position. With a checkpoint there, `OnInvalidCheckpoint` decides. Returns how many of ten
/// events are processed after that.
async fn rejected(position: Option<StartPosition>) -> usize {
    let world = World::new(1);
    world.hub.publish_many(0, 5, "x");
    let a = world.start("a").await;
    sleep(30 * SECOND).await;
    a.shut_down().await.unwrap();
    world.hub.publish_many(0, 5, "x");
    let source = ScriptedSource::new(&world.hub, SourceFaults { numbers_refused: true, ..SourceFaults::default() });
    let b = world.start_with("b", source, StartsAt { position, recorder: world.recorder("b") }).await;
    sleep(HOUR).await;
    b.shut_down().await.unwrap();
    world.log.bodies().len() - 5
}

#[tokio::test(start_paused = true)]
async fn a_rejected_checkpoint_is_invalid() {
    assert_eq!(rejected(None).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_own_position_is_invalid() {
    assert_eq!(rejected(Some(StartPosition::AfterSequenceNumber(4))).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_own_offset_is_invalid() {
    assert_eq!(rejected(Some(StartPosition::AfterOffset("40".into()))).await, 10);
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

/// The recorded start is then a checkpoint of the deleted hub, and the policy for invalid checkpoints applies.
#[tokio::test(start_paused = true)]
async fn a_hub_recreated_before_the_first_checkpoint() {
    let mut world = World::new(1);
    world.checkpoint = false;
    world.config = world.config.with_start_position(StartPosition::AfterSequenceNumber(1));
    world.hub.publish_many(0, 50, "old");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.log.wait_for("48", |log| log.times("old") == 48).await;
    world.hub.recreate();
    world.hub.publish_many(0, 5, "new");
    world.log.wait_for("5", |log| log.times("new") == 5).await;
    assert!(!a.running.is_finished());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_has_grown_past_the_checkpoint() {
    let (log, _guard) = Captured::begin();
    let world = with_old_checkpoint_at_49().await;
    world.hub.recreate();
    world.hub.publish_many(0, 100, "new");
    let b = world.start("b").await;
    world.log.wait_for("all events", |log| log.times("new") == 100).await;
    assert!(log.text().contains("the event hub was recreated after the checkpoint was written"), "{}", log.text());
    b.shut_down().await.unwrap();
}

/// Records of other SDKs do not show in which event hub their position was read.
#[tokio::test(start_paused = true)]
async fn a_record_of_another_sdk_is_judged_by_its_time() {
    for (since, processed) in [(Duration::ZERO, 50), (MINUTE, 100)] {
        let world = World::new(1);
        write_record(&world, "checkpoint/0", &[("sequencenumber", "49"), ("offset", "490")]).await;
        sleep(since).await;
        world.hub.recreate();
        world.hub.publish_many(0, 100, "new");
        world.log.contiguity.lacks(-1);
        let a = world.start("a").await;
        world.log.wait_for("the last event", |log| log.times("new") >= processed).await;
        a.wait_until_all_idle(1).await;
        assert_eq!(world.log.times("new"), processed, "written {since:?} before the creation");
        a.shut_down().await.unwrap();
    }
}

/// The link breaks, so the partition starts again before the instance has read when the new event hub was created.
#[tokio::test(start_paused = true)]
async fn a_start_at_the_latest_event_is_made_once() {
    let mut world = World::new(1);
    world.config = world
        .config
        .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_secs(20)))
        .with_on_invalid_checkpoint(OnInvalidCheckpoint::Latest);
    world.hub.reject_positions(true);
    world.hub.publish_many(0, 500, "old");
    let a = world.start("a").await;
    world.log.wait_for("500 events", |log| log.times("old") == 500).await;
    sleep(MINUTE + Duration::from_secs(1)).await;
    world.hub.recreate();
    for number in 0..400 {
        world.hub.publish(0, number.to_string());
        sleep(Duration::from_millis(100)).await;
    }
    world.log.wait_for("the last event", |log| log.times("399") == 1).await;
    let bodies = world.log.bodies();
    let handled: Vec<u32> = bodies.iter().filter_map(|body| body.parse().ok()).collect();
    let expected: Vec<u32> = (handled[0]..400).collect();
    assert_eq!(handled, expected, "nothing is skipped after the start");
    a.shut_down().await.unwrap();
}

/// As of an application that has processed nothing.
#[tokio::test(start_paused = true)]
async fn a_position_before_all_events_is_always_valid() {
    let mut world = with_old_checkpoint_at_49().await;
    world.hub.recreate();
    world.hub.publish_many(0, 100, "new");
    world.config = with_policy(&world, OnInvalidCheckpoint::Fail);
    let position = Some(StartPosition::AfterSequenceNumber(-1));
    let handler = StartsAt { position, recorder: world.recorder("b") };
    let b = world.start_with("b", world.hub.source(), handler).await;
    world.log.wait_for("all events", |log| log.times("new") == 100).await;
    b.shut_down().await.unwrap();
}

/// 1000 events were processed. Then the next `reports` of the hub, one per second, lack the last event.
async fn with_stale_reports(reports: usize, policy: OnInvalidCheckpoint) -> (World, Instance) {
    let mut world = World::new(1);
    world.config = with_policy(&world, policy).with_lag_check_interval(SECOND);
    let stale_reports = Arc::new(AtomicUsize::new(0));
    let source_faults = SourceFaults { stale_reports: stale_reports.clone(), ..SourceFaults::default() };
    let a = start_scripted(&world, "a", source_faults).await;
    a.wait_until_all_idle(1).await;
    world.hub.publish_many(0, 1000, "x");
    world.log.wait_for("1000 events", |log| log.times("x") == 1000).await;
    sleep(10 * SECOND).await;
    stale_reports.store(reports, Ordering::Relaxed);
    (world, a)
}

/// Two stale reports are too close to each other to prove anything. With 16, the partition starts again, and must find
/// its position valid.
#[tokio::test(start_paused = true)]
async fn stale_reports_repeat_nothing() {
    for reports in [2, 16] {
        let (world, a) = with_stale_reports(reports, OnInvalidCheckpoint::Earliest).await;
        sleep(120 * SECOND).await;
        assert_eq!(world.log.times("x"), 1000, "{reports} reports");
        world.hub.publish(0, "later");
        world.log.wait_for("the next event", |log| log.times("later") == 1).await;
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stale_reports_skip_nothing() {
    let (world, a) = with_stale_reports(16, OnInvalidCheckpoint::Latest).await;
    a.wait_for_status("a failure", |status| status.failures > 0).await;
    world.hub.publish_many(0, 50, "new");
    sleep(120 * SECOND).await;
    assert_eq!((world.log.times("x"), world.log.times("new")), (1000, 50));
    assert_eq!(world.checkpoint().await, Some(1049));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stale_reports_do_not_end_the_processor() {
    let (world, a) = with_stale_reports(16, OnInvalidCheckpoint::Fail).await;
    sleep(120 * SECOND).await;
    assert!(!a.running.is_finished());
    assert_eq!(world.log.times("x"), 1000);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn frequent_reports_detect_a_recreated_hub() {
    let (world, a) = with_stale_reports(0, OnInvalidCheckpoint::Earliest).await;
    world.hub.recreate();
    world.hub.publish_many(0, 3, "new");
    let began = Instant::now();
    world.log.wait_for("3 events", |log| log.times("new") == 3).await;
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    a.shut_down().await.unwrap();
}

mod a_busy_hub {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_no_partition_with_a_checkpoint() {
        let world = with_old_checkpoint_at_49().await;
        world.hub.publish(0, "new");
        let source = Counted::new(&world.hub);
        source.set_busy(true);
        let began = Instant::now();
        let b = world.start_with("b", source.clone(), world.recorder("b")).await;
        world.log.wait_for("the event", |log| log.times("new") == 1).await;
        assert!(began.elapsed() < 5 * SECOND, "processed after {:?}", began.elapsed());
        source.set_busy(false);
        sleep(MINUTE).await;
        assert_eq!((world.log.times("old"), world.log.stops.lock().unwrap().len()), (50, 1), "nothing has restarted");
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn delays_a_partition_without_a_checkpoint() {
        let world = World::new(1);
        world.hub.publish(0, "first");
        let source = Counted::new(&world.hub);
        source.set_busy(true);
        let a = world.start_with("a", source.clone(), world.recorder("a")).await;
        sleep(MINUTE).await;
        assert_eq!((world.log.times("first"), source.requests.links.load(Ordering::Relaxed)), (0, 0));
        source.set_busy(false);
        world.log.wait_for("the event", |log| log.times("first") == 1).await;
        a.shut_down().await.unwrap();
    }

    /// The policy decides about events that have expired, also if that is found out later.
    #[tokio::test(start_paused = true)]
    async fn hides_no_expired_events() {
        for emptied in [false, true] {
            let (log, _guard) = Captured::begin();
            let mut world = with_old_checkpoint_at_49().await;
            world.config = with_policy(&world, OnInvalidCheckpoint::Latest);
            world.hub.publish_many(0, 50, "new");
            world.hub.expire_before(0, if emptied { i64::MAX } else { 60 });
            let source = Counted::new(&world.hub);
            source.set_busy(true);
            let b = world.start_with("b", source.clone(), world.recorder("b")).await;
            sleep(MINUTE).await;
            assert_eq!(world.log.times("new"), 0, "delivered before it was clear what the policy is");
            source.set_busy(false);
            sleep(2 * MINUTE).await;
            assert!(log.text().contains("events after it expired before they were processed"), "{}", log.text());
            world.hub.publish(0, "last");
            world.log.wait_for("the last event", |log| log.times("last") == 1).await;
            assert_eq!(world.log.times("new"), 0, "the start is at the latest event");
            b.shut_down().await.unwrap();
        }
    }

    /// The hub lets a reader wait after an event that does not exist, as some brokers do.
    #[tokio::test(start_paused = true)]
    async fn hides_no_checkpoint_after_the_end() {
        let (log, _guard) = Captured::begin();
        let world = World::new(1);
        world.hub.publish_many(0, 20, "other");
        place(&world.store("former").await, 0, &Position::new(49, "490")).await;
        let source = Counted::new(&world.hub);
        source.set_busy(true);
        let b = world.start_with("b", source.clone(), world.recorder("b")).await;
        sleep(MINUTE).await;
        source.set_busy(false);
        world.log.wait_for("20 events", |log| log.times("other") == 20).await;
        assert!(log.text().contains("the event hub has lost its last events"), "{}", log.text());
        b.shut_down().await.unwrap();
    }
}
