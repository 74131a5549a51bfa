//! Events that the source cannot decode: `OnUndecodable`.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::{
    DeadLetter, DeadLetterPolicy, DeadLetterSink, Handler, HandlerError, HandlerExt, OnUndecodable, PartitionContext,
    TrackedEvent, UndecodableEvent,
};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::captured::Captured;
use crate::resets::reset;
use crate::world::{Instance, Recorder, World};

const MINUTE: Duration = Duration::from_secs(60);

/// Two partitions. The third event of the first one cannot be decoded: `a`, `b`, number 2, `d`.
fn world(on_undecodable: OnUndecodable) -> World {
    let world = World::new(2);
    world.hub.publish(0, "a");
    world.hub.publish(0, "b");
    assert_eq!(world.hub.publish_undecodable(0), Some(2));
    world.hub.publish(0, "d");
    world.log.contiguity.lacks(2);
    World { config: world.config.clone().with_on_undecodable(on_undecodable), ..world }
}

async fn checkpoint_is(world: &World, number: i64) {
    for _ in 0..600 {
        if world.checkpoint().await == Some(number) {
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("the checkpoint is {:?}, not {number}", world.checkpoint().await);
}

/// Starts an instance whose first partition has failed at the event, for a minute.
async fn start_and_fail(world: &World) -> Instance {
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    sleep(MINUTE).await;
    assert_eq!(world.log.bodies(), ["a", "b"]);
    a
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_event_stops_its_partition_alone() {
    let world = world(OnUndecodable::Fail);
    let a = start_and_fail(&world).await;
    let status = a.status();
    assert!((3..60).contains(&status.failures), "it backs off: {} failures", status.failures);
    let error = status.last_error.unwrap();
    assert_eq!(error.kind, ErrorKind::Undecodable);
    assert!(error.message.contains("cannot decode event 2 of partition 0"), "{}", error.message);
    assert!(error.message.contains("ehcp reset -p 0 --to-sequence 2 --live --execute"), "{}", error.message);
    assert!(!a.handle.health().issues.is_empty());
    world.hub.publish(1, "elsewhere");
    world.log.wait_for("the other partition", |log| log.times("elsewhere") == 1).await;
    assert_eq!(world.checkpoint().await, Some(1), "it has not passed the event");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_expired_event_is_waited_for_no_longer() {
    let world = world(OnUndecodable::Fail);
    let a = start_and_fail(&world).await;
    world.hub.expire_before(0, 3);
    world.log.wait_for("the next event", |log| log.times("d") == 1).await;
    assert!(a.status().last_error.is_none());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_operator_moves_the_checkpoint_behind_it() {
    let world = world(OnUndecodable::Fail);
    let a = start_and_fail(&world).await;
    reset(&world, &[(0, 2)]).await;
    world.log.wait_for("the next event", |log| log.times("d") == 1).await;
    assert_eq!(world.log.bodies(), ["a", "b", "d"]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_event_is_skipped_if_configured() {
    let world = world(OnUndecodable::Skip);
    let (log, _guard) = Captured::begin();
    let a = world.start("a").await;
    world.log.wait_for("the next event", |log| log.times("d") == 1).await;
    assert_eq!(world.log.bodies(), ["a", "b", "d"]);
    let status = a.status();
    assert_eq!((status.undecodable, status.failures, status.last_error.is_none()), (1, 0, true));
    let logged = log.text();
    let line = logged.lines().find(|line| line.contains("skipped an event that cannot be decoded"));
    assert!(line.is_some_and(|line| line.contains("WARN") && line.contains("sequence_number=2")), "{logged}");
    checkpoint_is(&world, 3).await;
    a.shut_down().await.unwrap();
    let b = world.start("b").await;
    sleep(MINUTE).await;
    assert_eq!((b.status().undecodable, world.log.bodies().len()), (0, 3), "it was skipped once");
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn several_undecodable_events_are_skipped_in_order() {
    let world = world(OnUndecodable::Skip);
    for number in [4, 5, 6] {
        assert_eq!(world.hub.publish_undecodable(0), Some(number));
        world.log.contiguity.lacks(number);
    }
    let a = world.start("a").await;
    a.wait_for_status("skipped", |status| status.undecodable == 4).await;
    checkpoint_is(&world, 6).await;
    let lag = a.wait_for_status("checked", |status| status.lag.events == Some(0)).await.lag;
    assert_eq!(lag.events, Some(0), "the last event is one of them");
    a.shut_down().await.unwrap();
}

/// Keeps the tokens of its events, and the notes about undecodable ones.
#[derive(Clone, Default)]
struct Tracking {
    tokens: Arc<Mutex<Vec<TrackedEvent>>>,
    noted: Arc<Mutex<Vec<i64>>>,
    refuses: Arc<AtomicBool>,
}

impl Handler<MemoryEvent> for Tracking {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.tokens.lock().unwrap().extend(events.iter().map(|event| context.track(event)));
        Ok(())
    }

    async fn undecodable(&self, event: UndecodableEvent, context: PartitionContext) -> Result<(), HandlerError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err("the note cannot be stored".into());
        }
        assert_eq!((&event.partition_id, event.epoch), (context.partition_id(), context.epoch()));
        self.noted.lock().unwrap().push(event.sequence_number);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_passes_it_after_those_in_flight() {
    let world = world(OnUndecodable::Skip);
    let handler = Tracking::default();
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_for_status("all in flight", |status| status.in_flight == 3).await;
    assert_eq!(*handler.noted.lock().unwrap(), [2]);
    sleep(MINUTE).await;
    assert_eq!(world.checkpoint().await, Some(-1));
    let mut tokens = std::mem::take(&mut *handler.tokens.lock().unwrap());
    let last = tokens.pop();
    tokens.remove(1).finish();
    sleep(MINUTE).await;
    assert_eq!(world.checkpoint().await, Some(-1), "event 0 is in flight");
    tokens.remove(0).finish();
    checkpoint_is(&world, 2).await;
    drop(last);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_is_skipped_only_if_the_handler_allows() {
    let world = world(OnUndecodable::Skip);
    let handler = Tracking { refuses: Arc::new(AtomicBool::new(true)), ..Tracking::default() };
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    let failed = a.wait_for_status("failing", |status| status.failures > 2).await;
    assert_eq!((failed.undecodable, failed.last_error.unwrap().kind), (0, ErrorKind::Handler));
    handler.refuses.store(false, Ordering::Relaxed);
    a.wait_for_status("skipped", |status| status.undecodable == 1).await;
    assert_eq!(*handler.noted.lock().unwrap(), [2]);
    a.shut_down().await.unwrap();
}

/// Stores the numbers of dead letters while it is up.
#[derive(Clone, Default)]
struct Letters {
    is_down: Arc<AtomicBool>,
    numbers: Arc<Mutex<Vec<i64>>>,
}

impl DeadLetterSink<MemoryEvent> for Letters {
    async fn store(&self, letter: DeadLetter<MemoryEvent>) -> Result<(), HandlerError> {
        panic!("{letter:?} was processed");
    }

    async fn store_undecodable(&self, event: UndecodableEvent) -> Result<(), HandlerError> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err("the sink is down".into());
        }
        self.numbers.lock().unwrap().push(event.sequence_number);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn dead_letters_store_it_before_it_is_skipped() {
    let world = world(OnUndecodable::Skip);
    let sink = Letters { is_down: Arc::new(AtomicBool::new(true)), ..Letters::default() };
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let handler = recorder.with_dead_letters(sink.clone(), DeadLetterPolicy::default());
    let a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_for_status("failing", |status| status.failures > 2).await;
    assert_eq!((world.log.times("d"), world.checkpoint().await), (0, Some(1)));
    sink.is_down.store(false, Ordering::Relaxed);
    world.log.wait_for("the next event", |log| log.times("d") == 1).await;
    assert_eq!(*sink.numbers.lock().unwrap(), [2]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_stores_what_it_skips() {
    let world = world(OnUndecodable::Skip);
    let sink = Letters { is_down: Arc::new(AtomicBool::new(true)), ..Letters::default() };
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let handler = recorder.with_dead_letters(sink.clone(), DeadLetterPolicy::default());
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_for_status("failing", |status| status.failures > 2).await;
    world.give_to("b").await;
    sink.is_down.store(false, Ordering::Relaxed);
    a.wait_until_it_holds(1).await;
    sleep(MINUTE).await;
    assert_eq!(*sink.numbers.lock().unwrap(), [0_i64; 0]);
    a.shut_down().await.unwrap();
}
