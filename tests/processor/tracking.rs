//! Events finished out of order, and their effect on checkpoints and backpressure.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, OnFailure, PartitionContext, PartitionState, StopReason, TrackedEvent,
};
use eventhubs_checkpoint::source::Positioned;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Tracks every event and lets the test finish it.
#[derive(Clone, Debug, Default)]
struct OpenTokens {
    tokens: Arc<Mutex<BTreeMap<i64, TrackedEvent>>>,
    delivered: Arc<Mutex<Vec<i64>>>,
    /// Fails at this event.
    poison: Option<i64>,
    stops: Arc<Mutex<Vec<String>>>,
}

impl Handler<MemoryEvent> for OpenTokens {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            self.delivered.lock().unwrap().push(event.sequence_number);
            self.tokens.lock().unwrap().insert(event.sequence_number, context.track(event));
        }
        let poisoned = events.iter().any(|event| Some(event.sequence_number) == self.poison);
        if poisoned { Err("failed on request".into()) } else { Ok(()) }
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        self.stops.lock().unwrap().push(format!("{reason:?}"));
    }
}

impl OpenTokens {
    fn finish(&self, numbers: impl IntoIterator<Item = i64>) {
        for number in numbers {
            self.tokens.lock().unwrap().remove(&number).expect("no such token").finish();
        }
    }

    fn delivered(&self) -> usize {
        self.delivered.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_follows_the_finished_prefix() {
    let world = World::new(1);
    let handler = OpenTokens::default();
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 10, "x");
    sleep(2 * SECOND).await;
    for (finished, reached) in [(vec![9, 3, 4], -1), (vec![1, 0], 1), (vec![2], 4), (vec![5, 6, 8], 6), (vec![7], 9)] {
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
    let old: Vec<_> = std::mem::take(&mut *handler.tokens.lock().unwrap()).into_values().collect();
    assert_eq!(old.len(), 4);
    sleep(2 * SECOND).await;
    assert!(handler.delivered() >= 8, "delivered again");
    old.into_iter().for_each(TrackedEvent::finish);
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
    handler.tokens.lock().unwrap().clear();
    assert_eq!(a.status().in_flight, 2, "they still hold the checkpoint back");
    let began = Instant::now();
    let report = a.shut_down().await.unwrap();
    assert!(began.elapsed() < SECOND && report.aborted.is_empty(), "{report:?}");
    assert_eq!(report.held_back, [0.into()].into());
    assert_eq!(world.checkpoint().await, Some(0));
}

/// The first event stays open, so that nothing is finished.
#[tokio::test(start_paused = true)]
async fn links_that_deliver_are_reopened_at_once() {
    let (world, handler) = (World::new(1), OpenTokens::default());
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_all_idle(1).await;
    let began = Instant::now();
    for number in 0..20 {
        world.hub.publish(0, "x");
        a.wait_for_status("in flight", |status| status.in_flight == number + 1).await;
        world.hub.break_link(0);
    }
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
    a.shut_down().await.unwrap();
}
