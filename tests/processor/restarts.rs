//! A partition that is stopped and started again on request: `ProcessorHandle::restart`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    Handler, HandlerError, OnFailure, OwnPosition, PartitionContext, PartitionStart, PartitionState, handler_fn,
};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::support::handlers::CallRecorder;
use crate::support::{SECOND, rarely_checkpointing, wait_for, wait_for_checkpoint};
use crate::world::{Instance, World};

/// Starts an instance with this handler and one event.
async fn start(event: &str, handler: CallRecorder) -> (World, CallRecorder, Instance) {
    let world = rarely_checkpointing(1);
    world.hub.publish(0, event);
    let instance = world.start_with("a", world.hub.source(), handler.clone()).await;
    (world, handler, instance)
}

/// The rule that a restart repeats no event: the batch is finished, and its checkpoint is written.
#[tokio::test(start_paused = true)]
async fn a_restart_finishes_the_batch_and_repeats_nothing() {
    let handler = CallRecorder { handling: 5 * SECOND, ..CallRecorder::default() };
    let (world, handler, instance) = start("one", handler).await;
    wait_for("the event", || handler.calls().contains(&"handle one".to_owned())).await;
    let epoch = instance.snapshots.borrow().owned.clone();
    assert!(instance.handle.restart(&0.into()));
    assert!(!instance.handle.restart(&0.into()), "it is already stopping");
    wait_for("the next start", || handler.calls().iter().filter(|call| *call == "started").count() == 2).await;
    assert_eq!(world.checkpoint().await, Some(0));
    world.hub.publish(0, "two");
    wait_for("the next event", || handler.calls().contains(&"handled two".to_owned())).await;
    let expected =
        ["started", "handle one", "handled one", "stopped: Restarting", "started", "handle two", "handled two"];
    assert_eq!(handler.calls(), expected);
    assert_eq!(instance.snapshots.borrow().owned, epoch, "it was not given up");
    assert_eq!(instance.status().failures, 0);
    assert!(instance.shut_down().await.unwrap().is_clean());
}

/// An application that keeps its own position.
#[derive(Clone, Default)]
struct Positioned(Arc<AtomicI64>);

impl Handler<MemoryEvent> for Positioned {
    async fn start_position(&self, _: PartitionStart) -> Result<OwnPosition, HandlerError> {
        Ok(OwnPosition::after(Some(self.0.load(Ordering::Relaxed))))
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            self.0.store(event.sequence_number, Ordering::Relaxed);
            context.checkpoint(event);
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_asks_for_the_position_again() {
    let world = World::new(1);
    world.hub.publish_many(0, 10, "x");
    let handler = Positioned(Arc::new(AtomicI64::new(-1)));
    let instance = world.start_with("a", world.hub.source(), handler.clone()).await;
    wait_for_checkpoint(&world, 9).await;
    world.hub.stall_link(0, true);
    handler.0.store(4, Ordering::Relaxed);
    assert!(instance.handle.restart(&0.into()));
    wait_for_checkpoint(&world, 4).await;
    world.hub.stall_link(0, false);
    wait_for_checkpoint(&world, 9).await;
    instance.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_partition_restarts_at_once() {
    for policy in [OnFailure::Restart, OnFailure::Park] {
        let mut world = World::new(1);
        world.config = world.config.with_on_failure(policy);
        let calls = Arc::new(AtomicI64::new(0));
        let counted = Arc::clone(&calls);
        let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Err("down".into()) }
        });
        world.hub.publish(0, "x");
        let instance = world.start_with("a", world.hub.source(), handler).await;
        sleep(100 * SECOND).await;
        instance
            .wait_for_status("it waits", |status| {
                matches!(status.state, PartitionState::Failing | PartitionState::Parked)
            })
            .await;
        let (before, began) = (calls.load(Ordering::Relaxed), Instant::now());
        assert!(instance.handle.restart(&0.into()));
        if policy == OnFailure::Restart {
            wait_for("the next attempt", || calls.load(Ordering::Relaxed) > before).await;
            assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        } else {
            sleep(100 * SECOND).await;
            assert_eq!(calls.load(Ordering::Relaxed), before, "only a resumption ends that");
        }
        instance.shut_down().await.unwrap();
    }
}

/// Whatever else ends the partition while it stops to restart counts.
#[tokio::test(start_paused = true)]
async fn a_shutdown_or_release_during_a_restart_counts() {
    let handler = || CallRecorder { handling: 5 * SECOND, ..CallRecorder::default() };
    let (world, recorder, instance) = start("one", handler()).await;
    wait_for("the event", || recorder.calls().contains(&"handle one".to_owned())).await;
    assert!(instance.handle.restart(&0.into()));
    sleep(SECOND).await;
    assert!(instance.shut_down().await.unwrap().is_clean());
    assert_eq!(recorder.calls(), ["started", "handle one", "handled one", "stopped: Shutdown"]);
    assert_eq!(world.owners().await["0"], "");

    let (world, recorder, mut instance) = start("one", handler()).await;
    wait_for("the event", || recorder.calls().contains(&"handle one".to_owned())).await;
    assert!(instance.handle.restart(&0.into()));
    sleep(SECOND).await;
    assert!(instance.handle.release(&0.into(), Duration::from_secs(600)), "a restart does not keep it");
    instance.wait_until_it_holds(0).await;
    assert_eq!((world.owners().await["0"].as_str(), world.checkpoint().await), ("", Some(0)));
    instance.shut_down().await.unwrap();
}

/// A restart that had to abort a call is no reason for a later shutdown to report anything.
#[tokio::test(start_paused = true)]
async fn a_shutdown_long_after_an_aborted_restart_is_clean() {
    let handler = CallRecorder { handling: 60 * SECOND, ..CallRecorder::default() };
    let (world, recorder, instance) = start("one", handler).await;
    wait_for("the event", || recorder.calls().contains(&"handle one".to_owned())).await;
    assert!(instance.handle.restart(&0.into()));
    wait_for("the event comes again", || recorder.calls().contains(&"handled one".to_owned())).await;
    wait_for_checkpoint(&world, -1).await;
    assert!(instance.shut_down().await.unwrap().is_clean());
    assert_eq!(world.checkpoint().await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_a_restart_counts() {
    let handler = CallRecorder { handling: 5 * SECOND, ..CallRecorder::default() };
    let (world, recorder, mut instance) = start("one", handler).await;
    wait_for("the event", || recorder.calls().contains(&"handle one".to_owned())).await;
    assert!(instance.handle.restart(&0.into()));
    world.give_to("b").await;
    instance.wait_until_it_holds(0).await;
    sleep(20 * SECOND).await;
    assert_eq!(recorder.calls()[..1], ["started"]);
    assert_eq!(recorder.calls().last().unwrap(), "stopped: lost to b");
    instance.crash().await;
}
