//! Events that the source cannot decode: `OnUndecodable`.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy, DeadLetterSink, UndecodableEvent};
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, HealthIssue, OnUndecodable, PartitionContext, PartitionState, TrackedEvent,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::captured::Captured;
use crate::support::operator::reset;
use crate::support::sources::{ScriptedSource, SourceFaults, start_scripted};
use crate::support::{MINUTE, wait_for_checkpoint};
use crate::world::{Instance, World};

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
    wait_for_checkpoint(&world, 3).await;
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
    wait_for_checkpoint(&world, 6).await;
    let lag = a.wait_for_status("checked", |status| status.lag.events == Some(0)).await.lag;
    assert_eq!(lag.events, Some(0), "the last event is one of them");
    a.shut_down().await.unwrap();
}

/// Events 0 and 1 are good, 2 cannot be decoded, 3 to 5 are good. All before event 4 expire while the partition is
/// paused, after the link has ended at event 2.
#[tokio::test(start_paused = true)]
async fn an_event_that_has_expired_stands_for_no_other() {
    let world = world(OnUndecodable::Skip);
    world.hub.publish(0, "e");
    world.hub.publish(0, "f");
    let handler = Tracking { is_slow: true, ..Tracking::default() };
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_for_status("handling", |status| status.state == PartitionState::Handling).await;
    sleep(Duration::from_secs(1)).await;
    world.hub.expire_before(0, 4);
    a.wait_for_status("all handled", |status| status.in_flight == 4).await;
    sleep(MINUTE).await;
    assert_eq!((handler.numbers(), a.status().undecodable), (vec![0, 1, 4, 5], 0));
    a.crash().await;
}

/// The first link starts at event 5, which cannot be decoded, instead of at event 0.
#[tokio::test(start_paused = true)]
async fn a_link_that_starts_too_late_skips_nothing() {
    for number in [None, Some(5)] {
        let mut world = World::new(1);
        world.config = world.config.with_on_undecodable(OnUndecodable::Skip);
        world.hub.publish_many(0, 5, "good");
        assert_eq!(world.hub.publish_undecodable(0), Some(5));
        world.hub.publish(0, "last");
        world.log.contiguity.lacks(5);
        let (undecodable_links, undecodable_number) = (Arc::new(AtomicUsize::new(1)), number);
        let faults = SourceFaults { undecodable_links, undecodable_number, ..SourceFaults::default() };
        let a = start_scripted(&world, "a", faults).await;
        world.log.wait_for("the last event", |log| log.times("last") == 1).await;
        assert_eq!((world.log.times("good"), a.status().undecodable), (5, 1), "reported {number:?}");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_of_an_earlier_event_is_not_believed() {
    let mut world = World::new(1);
    world.config = world.config.with_on_undecodable(OnUndecodable::Skip);
    world.hub.publish_many(0, 5, "good");
    let a = world.start("a").await;
    wait_for_checkpoint(&world, 4).await;
    a.shut_down().await.unwrap();
    let (undecodable_links, undecodable_number) = (Arc::new(AtomicUsize::new(usize::MAX)), Some(2));
    let faults = SourceFaults { undecodable_links, undecodable_number, ..SourceFaults::default() };
    let handler = Tracking::default();
    let a = world.start_with("a", ScriptedSource::new(&world.hub, faults), handler.clone()).await;
    sleep(10 * MINUTE).await;
    let status = a.status();
    assert!((5..100).contains(&status.failures) && status.undecodable == 0, "{status:?}");
    assert_eq!(*handler.noted.lock().unwrap(), [0_i64; 0]);
    a.shut_down().await.unwrap();
}

/// The first event after the start cannot be decoded, so its number is not known.
#[tokio::test(start_paused = true)]
async fn a_start_at_a_time_may_be_before_it() {
    for older in [true, false] {
        let mut world = World::new(1);
        if older {
            world.hub.publish(0, "older");
            sleep(30 * MINUTE).await;
        }
        let start = world.hub.now();
        sleep(Duration::from_secs(1)).await;
        let number = world.hub.publish_undecodable(0).unwrap();
        world.hub.publish(0, "newer");
        world.log.contiguity.lacks(number);
        world.config = world
            .config
            .with_on_undecodable(OnUndecodable::Skip)
            .with_start_position(StartPosition::EnqueuedAfter(start));
        let a = world.start("a").await;
        world.log.wait_for("the newer event", |log| log.times("newer") == 1).await;
        assert_eq!(a.status().undecodable, 1);
        a.shut_down().await.unwrap();
    }
}

/// Keeps the tokens of its events, and the notes about undecodable ones.
#[derive(Clone, Default)]
struct Tracking {
    tokens: Arc<Mutex<Vec<TrackedEvent>>>,
    numbers: Arc<Mutex<Vec<i64>>>,
    noted: Arc<Mutex<Vec<i64>>>,
    refuses: Arc<AtomicBool>,
    is_slow: bool,
}

impl Tracking {
    fn numbers(&self) -> Vec<i64> {
        self.numbers.lock().unwrap().clone()
    }
}

impl Handler<MemoryEvent> for Tracking {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.tokens.lock().unwrap().extend(events.iter().map(|event| context.track(event)));
        self.numbers.lock().unwrap().extend(events.iter().map(|event| event.sequence_number));
        if self.is_slow {
            sleep(Duration::from_secs(5)).await;
        }
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
    wait_for_checkpoint(&world, 2).await;
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

/// Starts an instance whose sink is down, and waits until the partition fails.
async fn start_with_failing_sink(world: &World) -> (Letters, Instance) {
    let sink = Letters { is_down: Arc::new(AtomicBool::new(true)), ..Letters::default() };
    let policy = DeadLetterPolicy::default();
    let a = world.start_with_dead_letters("a", world.recorder("a"), sink.clone(), policy).await;
    a.wait_for_status("failing", |status| status.failures > 2).await;
    (sink, a)
}

#[tokio::test(start_paused = true)]
async fn dead_letters_store_it_before_it_is_skipped() {
    let world = world(OnUndecodable::Skip);
    let (sink, a) = start_with_failing_sink(&world).await;
    assert_eq!((world.log.times("d"), world.checkpoint().await), (0, Some(1)));
    sink.is_down.store(false, Ordering::Relaxed);
    world.log.wait_for("the next event", |log| log.times("d") == 1).await;
    assert_eq!(*sink.numbers.lock().unwrap(), [2]);
    a.shut_down().await.unwrap();
}

/// Event 0 is in flight while the note about event 2 fails.
#[tokio::test(start_paused = true)]
async fn a_failed_note_blames_no_other_event() {
    let world = world(OnUndecodable::Skip);
    let sink = Letters { is_down: Arc::new(AtomicBool::new(true)), ..Letters::default() };
    let handler = Tracking::default();
    let policy = DeadLetterPolicy::default().with_min_failing_time(Duration::ZERO);
    let a = world.start_with_dead_letters("a", handler.clone(), sink.clone(), policy).await;
    a.wait_for_status("failing", |status| status.failures > 20).await;
    sink.is_down.store(false, Ordering::Relaxed);
    a.wait_for_status("skipped", |status| status.undecodable == 1).await;
    assert_eq!((a.status().dead_letters, world.checkpoint().await), (0, Some(-1)));
    a.crash().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_stores_what_it_skips() {
    let world = world(OnUndecodable::Skip);
    let (sink, mut a) = start_with_failing_sink(&world).await;
    world.give_to("b").await;
    sink.is_down.store(false, Ordering::Relaxed);
    a.wait_until_it_holds(1).await;
    sleep(MINUTE).await;
    assert_eq!(*sink.numbers.lock().unwrap(), [0_i64; 0]);
    a.shut_down().await.unwrap();
}

/// Never ends the call that an undecodable event causes.
#[derive(Debug)]
struct HangsAtUndecodable;

impl Handler<MemoryEvent> for HangsAtUndecodable {
    async fn handle(&self, _: Vec<MemoryEvent>, _: PartitionContext) -> Result<(), HandlerError> {
        Ok(())
    }

    async fn undecodable(&self, _: UndecodableEvent, _: PartitionContext) -> Result<(), HandlerError> {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_undecodable_callback_is_reported() {
    let world = world(OnUndecodable::Skip);
    let a = world.start_with("a", world.hub.source(), HangsAtUndecodable).await;
    a.wait_for_status("two events", |status| status.handled == Some(1)).await;
    sleep(MINUTE).await;
    assert_eq!(a.status().state, PartitionState::Handling);
    sleep(5 * MINUTE).await;
    let (status, issues) = (a.status(), a.handle.health().issues);
    assert_eq!(status.state, PartitionState::HandlerStalled);
    let stalled = HealthIssue::HandlerStalled { partition: 0.into(), stalled_for: status.state_for };
    assert!(issues == [stalled] && status.state_for > 5 * MINUTE, "{issues:?}");
    a.crash().await;
}
