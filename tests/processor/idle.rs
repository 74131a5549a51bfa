//! Handlers that act without events: empty batches, failures that a task reports, and positions that are kept for
//! later.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::Position;
use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionState, TrackedEvent, handler_fn,
};
use eventhubs_checkpoint::source::Positioned;
use eventhubs_checkpoint::testing::TestPartition;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::support::dead_letters::{Sink, SinkState};
use crate::support::{SECOND, wait_for, wait_for_checkpoint};
use crate::world::World;

const MINUTE: Duration = Duration::from_secs(60);

/// Writes a window of events when no more come for a minute: only then it requests a checkpoint.
#[derive(Clone, Debug, Default)]
struct Windows {
    /// The sizes of the batches, and when they came.
    calls: Arc<Mutex<Vec<(usize, Instant)>>>,
    last: Arc<Mutex<Option<Position>>>,
    failing: Arc<Mutex<usize>>,
}

impl Windows {
    fn sizes(&self) -> Vec<usize> {
        self.calls.lock().unwrap().iter().map(|(size, _)| *size).collect()
    }

    fn fails(&self) -> bool {
        let mut failing = self.failing.lock().unwrap();
        let fails = *failing > 0;
        *failing = failing.saturating_sub(1);
        fails
    }
}

impl Handler<MemoryEvent> for Windows {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.calls.lock().unwrap().push((events.len(), Instant::now()));
        if let Some(last) = events.last() {
            *self.last.lock().unwrap() = last.position();
            return Ok(());
        }
        if self.fails() {
            return Err("the window cannot be written".into());
        }
        if let Some(last) = self.last.lock().unwrap().take() {
            context.checkpoint(&last);
        }
        Ok(())
    }
}

fn world() -> World {
    let mut world = World::new(1);
    world.config = world.config.with_idle_interval(MINUTE);
    world.hub.publish(0, "x");
    world
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_events_gets_empty_batches() {
    let (world, windows) = (world(), Windows::default());
    let a = world.start_with("a", world.hub.source(), windows.clone()).await;
    wait_for("the window", || windows.sizes().len() == 3).await;
    wait_for_checkpoint(&world, 0).await;
    sleep(30 * SECOND).await;
    world.hub.publish(0, "x");
    wait_for("the next window", || windows.sizes().len() == 5).await;
    assert_eq!(windows.sizes(), [1, 0, 0, 1, 0]);
    let times: Vec<_> = windows.calls.lock().unwrap().iter().map(|(_, time)| *time).collect();
    for (before, after) in [(0, 1), (1, 2), (3, 4)] {
        let waited = times[after] - times[before];
        assert!(waited >= MINUTE && waited < MINUTE + SECOND, "{waited:?}");
    }
    assert_eq!(a.status().handled, Some(1), "empty batches show nothing");
    a.shut_down().await.unwrap();
}

/// Nor do dead letters take them for events.
#[tokio::test(start_paused = true)]
async fn an_empty_batch_may_fail() {
    let (world, windows, sink) = (world(), Windows::default(), Sink::new(SinkState::Up));
    *windows.failing.lock().unwrap() = 1;
    let a = world.start_with_dead_letters("a", windows.clone(), sink.clone(), DeadLetterPolicy::default()).await;
    wait_for_checkpoint(&world, 0).await;
    assert_eq!(windows.sizes(), [1, 0, 1, 0], "the event is delivered again");
    assert_eq!((a.status().failures, sink.numbers()), (1, vec![]));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_gets_no_empty_batches() {
    let (world, windows) = (world(), Windows::default());
    let a = world.start_with("a", world.hub.source(), windows.clone()).await;
    wait_for("the event", || windows.sizes() == [1]).await;
    assert!(a.handle.pause(&0.into()));
    sleep(10 * MINUTE).await;
    assert_eq!(windows.sizes(), [1]);
    assert!(a.handle.resume(&0.into()));
    let resumed = Instant::now();
    wait_for("an empty batch", || windows.sizes() == [1, 0]).await;
    assert!(resumed.elapsed() >= MINUTE, "the interval begins again");
    a.shut_down().await.unwrap();
}

/// Events that wait until their batch is full are events.
#[tokio::test(start_paused = true)]
async fn a_batch_that_fills_is_not_empty() {
    let (mut world, windows) = (world(), Windows::default());
    world.config = world.config.with_max_batch_wait(90 * SECOND);
    let a = world.start_with("a", world.hub.source(), windows.clone()).await;
    wait_for("the window", || windows.sizes().len() == 2).await;
    assert_eq!(windows.sizes(), [1, 0]);
    a.shut_down().await.unwrap();
}

/// Tracks all events, and finishes them in an empty batch, or never.
#[derive(Default)]
struct Tracking {
    finishes: bool,
    tracked: Mutex<Vec<TrackedEvent>>,
}

impl Handler<MemoryEvent> for Tracking {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        let mut tracked = self.tracked.lock().unwrap();
        if self.finishes && events.is_empty() {
            tracked.drain(..).for_each(TrackedEvent::finish);
        }
        tracked.extend(events.iter().map(|event| context.track(event)));
        Ok(())
    }
}

/// No events come at the limit, and only an empty batch finishes some.
#[tokio::test(start_paused = true)]
async fn a_full_partition_gets_empty_batches() {
    let mut world = world();
    world.hub.publish_many(0, 9, "x");
    world.config = world.config.with_max_in_flight(4);
    let a = world.start_with("a", world.hub.source(), Tracking { finishes: true, ..Tracking::default() }).await;
    wait_for_checkpoint(&world, 9).await;
    a.shut_down().await.unwrap();
}

/// Empty batches neither help nor hide it.
#[tokio::test(start_paused = true)]
async fn a_partition_that_stays_full_is_reported() {
    let mut world = world();
    world.config = world.config.with_max_in_flight(1);
    let a = world.start_with("a", world.hub.source(), Tracking::default()).await;
    a.wait_for_status("full", |status| status.state == PartitionState::InFlightFull).await;
    a.crash().await;
}

/// The events that wait come first, also if `started` takes longer than the interval.
#[tokio::test(start_paused = true)]
async fn an_empty_batch_does_not_overtake_events() {
    #[derive(Clone, Default)]
    struct Slow(Windows);

    impl Handler<MemoryEvent> for Slow {
        async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
            sleep(2 * MINUTE).await;
            Ok(())
        }

        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            self.0.handle(events, context).await
        }
    }

    let (world, slow) = (world(), Slow::default());
    let a = world.start_with("a", world.hub.source(), slow.clone()).await;
    wait_for("two calls", || slow.0.sizes().len() == 2).await;
    assert_eq!(slow.0.sizes(), [1, 0]);
    a.shut_down().await.unwrap();
}

/// The events before it are delivered, and not checkpointed.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_of_an_empty_batch_covers_nothing() {
    #[derive(Clone, Default)]
    struct MovesLast(Arc<Mutex<Option<MemoryEvent>>>);

    impl Handler<MemoryEvent> for MovesLast {
        async fn handle(&self, mut events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            let kept = std::mem::replace(&mut *self.0.lock().unwrap(), events.pop());
            if let Some(last) = kept {
                context.dead_letter(last, "bad").await?;
            }
            Ok(())
        }
    }

    let (world, sink) = (world(), Sink::new(SinkState::Up));
    world.hub.publish(0, "x");
    world.hub.publish(0, "x");
    let a = world.start_with_dead_letters("a", MovesLast::default(), sink.clone(), DeadLetterPolicy::default()).await;
    wait_for("the move", || sink.numbers() == [2]).await;
    sleep(MINUTE).await;
    assert_eq!(world.checkpoint().await, Some(-1));
    a.shut_down().await.unwrap();
}

/// As soon as the events before it are covered, the checkpoint passes it.
#[tokio::test]
async fn the_last_event_is_covered_with_those_before_it() {
    let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
        if events.is_empty() {
            context.checkpoint(&Position::new(1, "10"));
            context.dead_letter(MemoryEvent::new(2, "bad"), "bad").await?;
        }
        Ok(())
    });
    let mut partition = TestPartition::start(0).await.unwrap();
    partition.deliver(&handler, (0..3).map(|number| MemoryEvent::new(number, "x")).collect()).await.unwrap();
    partition.deliver(&handler, Vec::new()).await.unwrap();
    assert_eq!(partition.checkpoint(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_an_empty_batch_that_hangs() {
    struct Hangs;

    impl Handler<MemoryEvent> for Hangs {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            if events.is_empty() {
                pending::<()>().await;
            }
            for event in &events {
                context.checkpoint(event);
            }
            Ok(())
        }
    }

    let world = world();
    let a = world.start_with("a", world.hub.source(), Hangs).await;
    a.wait_for_status("the empty batch", |status| {
        status.state == PartitionState::Handling && status.handled == Some(0)
    })
    .await;
    let stopped = Instant::now();
    assert_eq!(a.shut_down().await.unwrap().unreleased, 0);
    assert!(stopped.elapsed() < 20 * SECOND, "the drain timeout is 15 s: {:?}", stopped.elapsed());
    assert_eq!(world.checkpoint().await, Some(0));
}

/// The task belongs to the partition, but has no event to fail.
#[tokio::test(start_paused = true)]
async fn a_task_may_fail_its_partition() {
    struct Background;

    impl Handler<MemoryEvent> for Background {
        async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
            tokio::spawn(async move {
                sleep(MINUTE).await;
                context.fail("the window cannot be written");
                context.fail("the second failure does not count");
            });
            Ok(())
        }

        async fn handle(&self, _: Vec<MemoryEvent>, _: PartitionContext) -> Result<(), HandlerError> {
            Ok(())
        }
    }

    let world = World::new(1);
    let a = world.start_with("a", world.hub.source(), Background).await;
    a.wait_until_all_idle(1).await;
    let failed = a.wait_for_status("the failure", |status| status.state == PartitionState::Failing).await;
    let error = failed.last_error.unwrap().message;
    assert!(error.contains("the application failed: the window cannot be written"), "{error}");
    a.wait_until_all_idle(1).await;
    assert_eq!(a.status().failures, 1);
    a.shut_down().await.unwrap();
}
