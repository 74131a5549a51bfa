//! How a processor shuts down.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionState, Processor, ProcessorHandle, StopReason, handler_fn,
};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep, timeout};

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_second_request_ends_the_processor_immediately() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let began = Instant::now();
    a.handle.shutdown();
    sleep(2 * SECOND).await;
    assert!(!a.running.is_finished());
    assert!(!a.handle.health().ready, "it has left the group");
    a.handle.shutdown();
    let report = timeout(SECOND, a.running).await.unwrap().unwrap().unwrap();
    assert!(report.forced && !report.is_clean(), "{report:?}");
    assert!(began.elapsed() < 3 * SECOND);
    assert_eq!(world.owners().await["0"], "a", "like after a crash");
}

#[tokio::test(start_paused = true)]
async fn partitions_that_do_not_stop_in_time_are_reported() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let report = a.shut_down().await.unwrap();
    assert!(report.drain.complete && report.release.complete && report.close.complete, "{report:?}");
    assert_eq!(report.aborted, [0.into()].into());
    assert!(!report.is_clean());
}

#[tokio::test(start_paused = true)]
async fn failed_checkpoints_and_releases_are_reported() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    world.faulty.set_plan(FaultPlan::always(Fault::Hang));
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    let began = Instant::now();
    let report = a.shut_down().await.unwrap();
    assert_eq!(report.uncheckpointed, [0.into()].into());
    assert_eq!(report.unreleased, 1);
    assert!(began.elapsed() <= 94 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_for_the_stop_sees_it() {
    let world = World::new(1);
    let (end, requested) = tokio::sync::watch::channel(false);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        end.send_replace(true);
        let last = events.into_iter().next_back();
        async move {
            // Until the partition stops, not for ten minutes.
            let slept = context.run_until_stopping(sleep(600 * SECOND)).await;
            assert!(slept.is_none() && context.is_stopping());
            if let Some(event) = &last {
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "last");
    let mut requested = requested;
    requested.wait_for(|requested| *requested).await.unwrap();
    let began = Instant::now();
    a.handle.shutdown();
    let report = a.ended().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(began.elapsed() < SECOND);
    assert_eq!(world.checkpoint().await, Some(0));
}

/// Nothing can cancel a handler that blocks its thread, but no other partition waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_delays_no_other() {
    let mut world = World::new(1);
    world.config = world.config.with_drain_timeout(SECOND / 100);
    world.expiry = 40 * SECOND;
    let (end, blocked) = std::sync::mpsc::channel::<()>();
    let (blocks, is_blocked) = tokio::sync::watch::channel(false);
    let blocked = std::sync::Mutex::new(blocked);
    let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
        blocks.send_replace(true);
        // Until the test ends.
        let _ = blocked.lock().unwrap().recv();
        async { Ok(()) }
    });
    let store = world.quick_store("a").await;
    let a = world.start_on(store, world.hub.source(), handler);
    world.hub.publish(0, "x");
    let mut is_blocked = is_blocked;
    is_blocked.wait_for(|blocked| *blocked).await.unwrap();
    let report = timeout(60 * SECOND, a.shut_down()).await.expect("the shutdown waits for the handler").unwrap();
    assert!(!report.drain.complete && report.release.complete, "{report:?}");
    assert!(world.owners().await.values().all(String::is_empty));
    drop(end);
}

/// Handles nothing, and keeps its contexts.
#[derive(Clone, Debug, Default)]
struct ContextKeeper(Arc<Mutex<Vec<PartitionContext>>>);

impl Handler<MemoryEvent> for ContextKeeper {
    async fn handle(&self, _: Vec<MemoryEvent>, _: PartitionContext) -> Result<(), HandlerError> {
        Ok(())
    }

    async fn started(&self, context: PartitionContext) {
        self.0.lock().unwrap().push(context);
    }
}

/// How a processor ends without a shutdown.
#[derive(Clone, Copy, Debug)]
enum Abrupt {
    Dropped,
    Aborted,
    Panicked,
}

/// Runs a processor with all partitions for a minute. Returns its handle and the contexts of its handler.
async fn end_abruptly(world: &World, end: Abrupt) -> (ProcessorHandle, Vec<PartitionContext>) {
    let handler = ContextKeeper::default();
    let builder = Processor::builder(world.hub.source(), world.store("a").await, handler.clone());
    let processor = builder.with_config(world.config.clone()).build().unwrap();
    let handle = processor.handle();
    match end {
        Abrupt::Dropped => assert!(timeout(60 * SECOND, processor.run(pending())).await.is_err()),
        Abrupt::Aborted => {
            let running = tokio::spawn(processor.run(pending()));
            sleep(60 * SECOND).await;
            running.abort();
            assert!(running.await.unwrap_err().is_cancelled());
        }
        Abrupt::Panicked => {
            let panicking = async {
                sleep(60 * SECOND).await;
                panic!("panicked on request");
            };
            assert!(tokio::spawn(processor.run(panicking)).await.unwrap_err().is_panic());
        }
    }
    let contexts = handler.0.lock().unwrap().clone();
    (handle, contexts)
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_is_gone_shows_it() {
    for end in [Abrupt::Dropped, Abrupt::Aborted, Abrupt::Panicked] {
        let world = World::new(4);
        let (handle, contexts) = end_abruptly(&world, end).await;
        // Aborted tasks are dropped when the runtime comes to them.
        sleep(SECOND).await;
        assert_eq!(contexts.len(), 4);
        assert!(contexts.iter().all(PartitionContext::is_stopping), "{end:?}");
        let health = handle.health();
        assert!(!health.ready && health.issues.is_empty(), "{end:?}: {health:?}");
        assert_eq!(handle.partitions(), [], "{end:?}");
        let partition = contexts[0].partition_id();
        assert!(!handle.pause(partition) && !handle.release(partition, SECOND), "{end:?}");
        let snapshot = handle.snapshots().borrow();
        assert!(snapshot.owned.is_empty() && snapshot.counts().is_empty(), "{end:?}: {snapshot:?}");
    }
}

/// Finishes its batch a moment after the partition is requested to stop, and takes a while to stop.
#[derive(Debug)]
struct FinishesAtTheEnd;

impl Handler<MemoryEvent> for FinishesAtTheEnd {
    async fn handle(&self, _: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        context.stopping().await;
        sleep(SECOND / 10).await;
        Ok(())
    }

    async fn stopped(&self, _: PartitionContext, _: StopReason) {
        sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_ends_while_draining_is_handled() {
    let world = World::new(1);
    world.hub.publish_many(0, 3, "x");
    let a = world.start_with("a", world.hub.source(), FinishesAtTheEnd).await;
    a.wait_for_status("a batch", |status| status.state == PartitionState::Handling).await;
    a.handle.shutdown();
    let status = a.wait_for_status("stopping", |status| status.state == PartitionState::Stopping).await;
    assert_eq!(status.handled, Some(2));
    assert!(a.ended().await.unwrap().is_clean());
}
