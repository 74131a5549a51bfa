//! Recreated event hubs, recognized by their creation time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, OnInvalidCheckpoint, PartitionContext, PartitionStart, PartitionState, handler_fn,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::world::{Recorder, World};

const MINUTE: Duration = Duration::from_secs(60);
const RECORD: &str = "ns.servicebus.windows.net/hub/$default/checkpoint/0";

/// A group that has processed 50 events, without a running instance.
pub async fn with_checkpoint_at_49() -> World {
    let world = World::new(1);
    world.hub.publish_many(0, 50, "old");
    let a = world.start("a").await;
    world.log.wait_for("50 events", |log| log.times("old") == 50).await;
    a.shut_down().await.unwrap();
    sleep(MINUTE).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_has_grown_past_the_checkpoint() {
    let (log, _guard) = Captured::begin();
    let world = with_checkpoint_at_49().await;
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
        let record = Metadata::from([("sequencenumber", "49"), ("offset", "490")]);
        world.container.overwrite(RECORD, &record).await.unwrap();
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

/// Starts before all events, as an application does that has processed nothing.
struct FromTheBeginning(Recorder);

impl Handler<MemoryEvent> for FromTheBeginning {
    async fn start_position(&self, _: PartitionStart) -> Result<Option<StartPosition>, HandlerError> {
        Ok(Some(StartPosition::AfterSequenceNumber(-1)))
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.handle(events, context).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_position_before_all_events_is_always_valid() {
    let mut world = with_checkpoint_at_49().await;
    world.hub.recreate();
    world.hub.publish_many(0, 100, "new");
    world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Fail);
    let recorder = Recorder { owner: "b".into(), log: world.log.clone(), checkpoint: true };
    let b = world.start_with("b", world.hub.source(), FromTheBeginning(recorder)).await;
    world.log.wait_for("all events", |log| log.times("new") == 100).await;
    b.shut_down().await.unwrap();
}

/// Each event of the new event hub fails once. Its numbers are smaller than those that were finished before.
#[tokio::test(start_paused = true)]
async fn progress_in_a_recreated_hub_ends_the_back_off() {
    let (world, failures) = (World::new(1), Arc::new(Mutex::new(Vec::new())));
    let (failed_at, failed) = (Arc::clone(&failures), Arc::new(Mutex::new(BTreeSet::new())));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (failed_at, failed) = (Arc::clone(&failed_at), Arc::clone(&failed));
        async move {
            for event in &events {
                if event.body.starts_with("fail") && failed.lock().unwrap().insert(event.body.clone()) {
                    failed_at.lock().unwrap().push(Instant::now());
                    return Err("failed on request".into());
                }
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    world.hub.publish_many(0, 50, "old");
    world.hub.publish(0, "fail");
    let a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_for_status("51 events", |status| status.handled == Some(50)).await;
    world.hub.recreate();
    for number in 0..20 {
        world.hub.publish(0, format!("fail {number}"));
    }
    sleep(10 * MINUTE).await;
    let failures = failures.lock().unwrap()[1..].to_owned();
    let waits: Vec<_> = failures.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(waits.len() == 19 && waits.iter().all(|wait| *wait < Duration::from_secs(1)), "{waits:?}");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_status_forgets_the_events_of_a_former_hub() {
    let world = World::new(1);
    world.hub.publish_many(0, 50, "old");
    let a = world.start("a").await;
    a.wait_for_status("50 events", |status| status.handled == Some(49)).await;
    world.hub.recreate();
    world.hub.publish(0, "hang");
    world.log.wait_for("an event", |log| log.times("hang") == 1).await;
    sleep(2 * MINUTE).await;
    let status = a.status();
    assert_eq!((status.state, status.handled), (PartitionState::Handling, None));
    assert!(status.behind.is_some_and(|behind| (MINUTE..3 * MINUTE).contains(&behind)), "{status:?}");
    a.crash().await;
}
