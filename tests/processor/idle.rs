//! Handlers that act without events: empty batches, failures that a task reports, and positions that are kept for later.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::Position;
use eventhubs_checkpoint::processor::{
    DeadLetterPolicy, Handler, HandlerError, PartitionContext, PartitionState, StopReason,
};
use eventhubs_checkpoint::source::Positioned;
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
    stops: Arc<Mutex<Vec<StopReason>>>,
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

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        self.stops.lock().unwrap().push(reason);
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
    wait_for("an empty batch", || windows.sizes() == [1, 0]).await;
    a.shut_down().await.unwrap();
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
