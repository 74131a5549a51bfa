//! How a processor shuts down: its order, its report, its time, and its last writes under every fault.

use std::future::pending;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata, WriteResult};
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionState, Processor, ProcessorHandle, ShutdownReport, StopReason,
    handler_fn,
};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::captured::Captured;
use crate::intercepted::Intercept;
use crate::support::handlers::{CallRecorder, owner_of_all};
use crate::support::ownership_log::OwnershipLog;
use crate::support::{
    CHECKPOINT, MAX_SHUTDOWN, OWNERSHIP, SECOND, checkpoints, greedy, intercept, rarely_checkpointing, write_faults,
};
use crate::world::{Instance, World};

#[tokio::test(start_paused = true)]
async fn shutdown_checkpoints_and_releases() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "x");
    world.hub.publish(0, "y");
    world.log.wait_for("y", |log| log.times("y") == 1).await;
    a.shut_down().await.unwrap();
    assert!(world.owners().await.values().all(String::is_empty));
    assert_eq!(world.checkpoint().await, Some(1));
    assert!(world.log.stops.lock().unwrap().iter().all(|(_, _, reason)| matches!(reason, StopReason::Shutdown)));

    let began = Instant::now();
    let mut b = world.start("b").await;
    b.wait_until_it_holds(2).await;
    assert!(began.elapsed() < Duration::from_secs(12));
    world.hub.publish(0, "z");
    world.log.wait_for("z", |log| log.times("z") == 1).await;
    assert_eq!((world.log.times("x"), world.log.times("y")), (1, 1));
    b.shut_down().await.unwrap();
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
    assert!(began.elapsed() <= MAX_SHUTDOWN, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_hanging_handler_delays_only_for_the_drain_time() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "done");
    world.log.wait_for("done", |log| log.times("done") == 1).await;
    sleep(Duration::from_secs(2)).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let began = Instant::now();
    a.shut_down().await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(world.checkpoint().await, Some(0));
    assert!(world.owners().await.values().all(String::is_empty));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_at_its_timeout() {
    for (timeout, hangs) in [(None, false), (Some(5 * SECOND), false), (Some(5 * SECOND), true)] {
        let mut world = World::new(2);
        world.config.shutdown_timeout = timeout;
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        let body = if hangs { "hang" } else { "done" };
        world.hub.publish(0, body);
        world.log.wait_for(body, |log| log.times(body) == 1).await;
        let began = Instant::now();
        let report = a.shut_down().await.unwrap();
        assert_eq!((report.forced, report.is_clean()), (hangs, !hangs));
        assert!(if hangs { began.elapsed() == 5 * SECOND } else { began.elapsed() < SECOND }, "{:?}", began.elapsed());
        let released = world.owners().await.values().filter(|owner| owner.is_empty()).count();
        assert_eq!(released, if hangs { 1 } else { 2 }, "a partition whose handler has finished is released");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_for_the_stop_sees_it() {
    let world = World::new(1);
    let (end, mut requested) = watch::channel(false);
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
    requested.wait_for(|requested| *requested).await.unwrap();
    let began = Instant::now();
    a.handle.shutdown();
    let report = a.ended().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(began.elapsed() < SECOND);
    assert_eq!(world.checkpoint().await, Some(0));
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

/// Nothing can cancel a handler that blocks its thread, but no other partition waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_delays_no_other() {
    let mut world = World::new(1);
    world.config = world.config.with_drain_timeout(SECOND / 100);
    world.expiry = 40 * SECOND;
    let (end, blocked) = mpsc::channel::<()>();
    let (blocks, mut is_blocked) = watch::channel(false);
    let blocked = Mutex::new(blocked);
    let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
        blocks.send_replace(true);
        // Until the test ends.
        let _ = blocked.lock().unwrap().recv();
        async { Ok(()) }
    });
    let store = world.quick_store("a").await;
    let a = world.start_on(store, world.hub.source(), handler);
    world.hub.publish(0, "x");
    is_blocked.wait_for(|blocked| *blocked).await.unwrap();
    let report = timeout(60 * SECOND, a.shut_down()).await.expect("the shutdown waits for the handler").unwrap();
    assert!(!report.drain.complete && report.release.complete, "{report:?}");
    assert!(world.owners().await.values().all(String::is_empty));
    drop(end);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_drains_claims_nothing_more() {
    let world = World::new(2);
    let handler = CallRecorder { handling: Duration::from_secs(14), ..CallRecorder::default() };
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(1, "x");
    sleep(Duration::from_secs(1)).await;
    let draining = tokio::spawn(a.shut_down());
    sleep(Duration::from_millis(10)).await;
    world.give_to("").await;
    sleep(Duration::from_secs(12)).await;
    assert_eq!(world.owners().await["0"], "");
    assert_eq!(world.owners().await["1"], "a");
    draining.await.unwrap().unwrap();
}

/// A claim that is in flight during the shutdown must not be applied after the release.
#[tokio::test(start_paused = true)]
async fn a_claim_in_flight_is_released_at_shutdown() {
    let world = World::new(1);
    world.faulty.inject_on(Target::from(BlobOperation::Write).named(OWNERSHIP), Fault::Latency(Duration::from_secs(3)));
    let a = world.start("a").await;
    sleep(Duration::from_secs(1)).await;
    a.shut_down().await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.owners().await["0"], "");
}

/// Handles nothing, and keeps its contexts.
#[derive(Clone, Debug, Default)]
struct ContextKeeper(Arc<Mutex<Vec<PartitionContext>>>);

impl Handler<MemoryEvent> for ContextKeeper {
    async fn handle(&self, _: Vec<MemoryEvent>, _: PartitionContext) -> Result<(), HandlerError> {
        Ok(())
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.lock().unwrap().push(context);
        Ok(())
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

/// The future passed to `run` and the handle: both may react to the same signal.
#[tokio::test(start_paused = true)]
async fn run_is_shut_down_by_its_future_and_its_handle() {
    let world = rarely_checkpointing(1);
    let mut a = owner_of_all(&world, 1, 3 * SECOND).await;
    a.wait_until_all_idle(1).await;
    let handle = a.handle.clone();
    a.shutdown.take().unwrap().send(()).unwrap();
    sleep(Duration::from_millis(2)).await;
    handle.shutdown();
    let report = a.ended().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

const HEARTBEAT: &str = "/heartbeat/";

/// Starts an instance, and waits until it has handled five events of each partition.
async fn with_five_handled(world: &World, partitions: u32) -> Instance {
    let mut a = world.start("a").await;
    a.wait_until_it_holds(partitions as usize).await;
    a.wait_until_all_idle(partitions as usize).await;
    for partition in 0..partitions {
        world.hub.publish_many(partition, 5, "x");
    }
    world.log.wait_for("all events", |log| log.times("x") == 5 * partitions as usize).await;
    a
}

#[tokio::test(start_paused = true)]
async fn simultaneous_shutdown_requests_are_one() {
    for (gap, forced) in [(2, false), (999, false), (1000, true), (1500, true)] {
        let (log, _guard) = Captured::begin();
        let world = rarely_checkpointing(1);
        let a = with_five_handled(&world, 1).await;
        world.hub.publish(0, "hang");
        world.log.wait_for("hang", |log| log.times("hang") == 1).await;
        a.handle.shutdown();
        sleep(Duration::from_millis(gap)).await;
        a.handle.shutdown();
        let report = a.ended().await.unwrap();
        assert_eq!(report.forced, forced, "{gap} ms: {report:?}");
        let times = |event: &str| log.text().lines().filter(|line| line.ends_with(event)).count();
        assert_eq!(
            (times("shutdown requested"), times("shutdown requested again; stopping immediately")),
            (1, usize::from(forced))
        );
    }
}

async fn live_heartbeats(world: &World) -> usize {
    let listing = world.store("observer").await.list_heartbeats().await.unwrap();
    listing.records.iter().filter(|seen| seen.record.declared_dead_by.is_none()).count()
}

async fn blobs(world: &World, kind: &str) -> usize {
    world.container.list("").await.unwrap().blobs.iter().filter(|blob| blob.name.contains(kind)).count()
}

/// Every fault of a write, and a concurrent write.
fn faults() -> Vec<Fault> {
    let concurrent_write = Fault::ConcurrentWrite(Metadata::from([("sequencenumber", "-1"), ("offset", "-1")]));
    write_faults().into_iter().chain([concurrent_write]).collect()
}

/// The last checkpoint, the release and the end of the heartbeat, each with every fault, of one partition and of many.
/// The heartbeat has ended when that is written. Its deletion only tidies up, and is not repeated.
#[tokio::test(start_paused = true)]
async fn every_fault_at_every_write_of_a_shutdown() {
    let writes = [
        (CHECKPOINT, BlobOperation::Write),
        (OWNERSHIP, BlobOperation::Write),
        (HEARTBEAT, BlobOperation::Write),
        (HEARTBEAT, BlobOperation::Delete),
    ];
    for (name, operation) in writes {
        for (fault, partitions) in faults().into_iter().flat_map(|fault| [(fault.clone(), 1), (fault, 8)]) {
            if matches!(fault, Fault::ConcurrentWrite(_)) && name != CHECKPOINT {
                // The concurrent write would leave another owner's record, or no record.
                continue;
            }
            let case = format!("{name} {fault:?} {partitions}");
            let world = rarely_checkpointing(partitions);
            let a = with_five_handled(&world, partitions).await;
            for _ in 0..if name == HEARTBEAT { 1 } else { partitions } {
                world.faulty.inject_on(Target::from(operation).named(name), fault.clone());
            }
            let report = a.shut_down().await.unwrap();
            assert!(report.is_clean(), "{case}: {report:?}");
            assert_eq!(world.faulty.pending(), 0, "{case}");
            assert!(checkpoints(&world).await.values().all(|number| *number == Some(4)), "{case}");
            assert!(world.owners().await.values().all(String::is_empty), "{case}");
            assert_eq!(live_heartbeats(&world).await, 0, "{case}");
            assert!(blobs(&world, HEARTBEAT).await <= usize::from(operation == BlobOperation::Delete), "{case}");
        }
    }
}

/// Shuts down while every request fails with `fault` for `duration`.
async fn shut_down_with_fault(fault: &Fault, partitions: u32, duration: Duration) -> (World, ShutdownReport, Duration) {
    let world = rarely_checkpointing(partitions);
    let a = with_five_handled(&world, partitions).await;
    world.faulty.set_plan(FaultPlan::always(fault.clone()));
    let began = Instant::now();
    let ending = tokio::spawn(a.shut_down());
    let (faulty, over) = (world.faulty.clone(), began + duration);
    tokio::spawn(async move {
        sleep_until(over).await;
        faulty.set_plan(FaultPlan::default());
    });
    let report = ending.await.unwrap().unwrap();
    let took = began.elapsed();
    world.faulty.set_plan(FaultPlan::default());
    (world, report, took)
}

fn refusals() -> [Fault; 4] {
    let throttled = |retry_after| Fault::Throttled { retry_after };
    [throttled(None), throttled(Some(2 * SECOND)), Fault::Unreachable, Fault::Hang]
}

#[tokio::test(start_paused = true)]
async fn the_storage_recovers_during_the_shutdown() {
    for (fault, partitions) in refusals().into_iter().flat_map(|fault| [(fault.clone(), 1), (fault, 8)]) {
        let (world, report, took) = shut_down_with_fault(&fault, partitions, 3 * SECOND).await;
        assert!(report.is_clean() && took < 20 * SECOND, "{fault:?}: {report:?} after {took:?}");
        assert!(checkpoints(&world).await.values().all(|number| *number == Some(4)), "{fault:?}");
        assert!(world.owners().await.values().all(String::is_empty), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_storage_does_not_recover() {
    for (fault, partitions) in refusals().into_iter().flat_map(|fault| [(fault.clone(), 1), (fault, 8)]) {
        let (_, report, took) = shut_down_with_fault(&fault, partitions, 3600 * SECOND).await;
        assert_eq!(report.uncheckpointed, (0..partitions).map(Into::into).collect(), "{fault:?}: {report:?}");
        assert_eq!(report.unreleased, partitions as usize, "{fault:?}: {report:?}");
        assert!(report.aborted.is_empty(), "{fault:?}: {report:?}");
        assert!(took > 60 * SECOND && took <= MAX_SHUTDOWN, "{fault:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_in_time_if_the_storage_hangs() {
    for target in [Target::any(), BlobOperation::Write.into(), Target::from(BlobOperation::Write).named(OWNERSHIP)] {
        let world = greedy(64);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(64).await;
        for partition in 0..64 {
            world.hub.publish(partition, "x");
        }
        world.log.wait_for("all events", |log| log.times("x") == 64).await;
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, target.clone(), Fault::Hang));
        let requested = Instant::now();
        a.shut_down().await.unwrap();
        assert!(requested.elapsed() <= MAX_SHUTDOWN, "{target:?}: {:?}", requested.elapsed());
    }
}

/// Refuses all writes to names with `name` from a given time on, as if the permission were missing.
struct ForbiddenWrites {
    name: &'static str,
    from: Instant,
}

#[async_trait]
impl Intercept for ForbiddenWrites {
    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        if name.contains(self.name) && Instant::now() >= self.from {
            return Err(Error::new(ErrorKind::Unauthorized, "no permission"));
        }
        inner.write(name, metadata, condition).await
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_end_the_shutdown_immediately() {
    for name in [CHECKPOINT, OWNERSHIP] {
        let mut world = rarely_checkpointing(2);
        intercept(&mut world, ForbiddenWrites { name, from: Instant::now() + 60 * SECOND });
        let a = with_five_handled(&world, 2).await;
        sleep(60 * SECOND).await;
        let began = Instant::now();
        let report = a.shut_down().await.unwrap();
        assert!(began.elapsed() < SECOND, "{name}: {:?}", began.elapsed());
        assert_eq!(report.uncheckpointed.len(), if name == CHECKPOINT { 2 } else { 0 }, "{report:?}");
        assert_eq!(report.unreleased, if name == OWNERSHIP { 2 } else { 0 }, "{report:?}");
    }
}

/// Shuts down an instance while the handler of the first of eight partitions hangs.
async fn shut_down_with_hanging_handler(world: &World) -> JoinHandle<Result<ShutdownReport>> {
    let a = with_five_handled(world, 8).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    tokio::spawn(a.shut_down())
}

#[tokio::test(start_paused = true)]
async fn each_partition_is_released_when_it_has_stopped() {
    let mut world = rarely_checkpointing(8);
    let ending = shut_down_with_hanging_handler(&world).await;
    sleep(SECOND).await;
    assert!(!ending.is_finished());
    let owners = world.owners().await;
    assert_eq!(owners.iter().filter(|(_, owner)| !owner.is_empty()).map(|(id, _)| &**id).collect::<Vec<_>>(), ["0"]);

    // `b` claims only free partitions.
    let alone = LoadBalancingStrategy::Static(Assignment::index(0, 1).unwrap());
    world.config =
        world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_strategy(alone).with_handoff(false));
    let b = world.start("b").await;
    for partition in 1..8 {
        world.hub.publish(partition, "y");
    }
    world.log.wait_for("the other partitions", |log| log.times("y") == 7).await;
    assert!(!ending.is_finished());
    let report = ending.await.unwrap().unwrap();
    assert_eq!((report.aborted, report.unreleased), ([0.into()].into(), 0));
    b.crash().await;
}

/// The instance claims nothing again, although no other instance is running.
#[tokio::test(start_paused = true)]
async fn released_partitions_stay_released() {
    let world = rarely_checkpointing(8);
    let ending = shut_down_with_hanging_handler(&world).await;
    sleep(SECOND).await;
    let mut seconds = 0;
    while !ending.is_finished() {
        let mut owners = world.owners().await;
        owners.remove("0");
        assert!(owners.len() == 7 && owners.values().all(String::is_empty), "{owners:?}");
        seconds += 1;
        sleep(SECOND).await;
    }
    assert!(seconds > 10, "{seconds}");
    assert!(world.owners().await.values().all(String::is_empty));
}

/// The release is repeated while other partitions drain, and its reason is `Shutdown`.
#[tokio::test(start_paused = true)]
async fn a_release_fails_while_others_drain() {
    let world = rarely_checkpointing(8);
    let a = with_five_handled(&world, 8).await;
    let mut log_a = OwnershipLog::of(&a);
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let releases = Target::from(BlobOperation::Write).named(OWNERSHIP);
    let throttled = Fault::Throttled { retry_after: None };
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, releases, throttled));
    let ending = tokio::spawn(a.shut_down());
    sleep(5 * SECOND).await;
    assert!(world.owners().await.values().all(|owner| owner == "a"));
    world.faulty.set_plan(FaultPlan::default());
    sleep(8 * SECOND).await;
    assert!(!ending.is_finished());
    assert_eq!(world.owners().await.values().filter(|owner| owner.is_empty()).count(), 7);
    assert_eq!(ending.await.unwrap().unwrap().unreleased, 0);
    let reported = log_a.take();
    assert_eq!(reported.iter().filter(|reported| *reported == "releasing: Shutdown").count(), 8, "{reported:?}");
    assert_eq!(reported.iter().filter(|reported| *reported == "released").count(), 8, "{reported:?}");
}
