//! What handlers may rely on: which events come, in which order, in which batches, and in which epoch.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionState, ProcessorConfig, handler_fn,
};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::support::handlers::CallRecorder;
use crate::support::sources::{ScriptedSource, SourceFaults};
use crate::support::{SECOND, record, wait_for};
use crate::world::{Instance, World};

#[tokio::test(start_paused = true)]
async fn three_instances_process_every_event_once() {
    let world = World::new(8);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance
            .wait_until("all owned, by three", |s| s.counts().values().sum::<usize>() == 8 && s.counts().len() == 3)
            .await;
    }
    sleep(Duration::from_secs(60)).await;
    let mut held: Vec<_> = instances.iter().map(Instance::held).collect();
    held.sort_unstable();
    assert_eq!(held, [2, 3, 3]);
    for number in 0..80u32 {
        world.hub.publish(number % 8, number.to_string());
    }
    world.log.wait_for("80 events", |log| log.bodies().len() >= 80).await;
    let mut bodies: Vec<u32> = world.log.bodies().iter().map(|body| body.parse().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..80).collect::<Vec<_>>());
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crashed_instance_is_replaced_without_losses() {
    let world = World::new(4);
    let mut a = world.start("a").await;
    let mut b = world.start("b").await;
    a.wait_until_it_holds(2).await;
    b.wait_until_it_holds(2).await;
    for number in 0..40u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    a.crash().await;
    let crashed_at = Instant::now();
    for number in 40..80u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    b.wait_until_it_holds(4).await;
    let unowned = crashed_at.elapsed();
    assert!(unowned >= Duration::from_secs(30), "taken from a valid lease after {unowned:?}");
    assert!(unowned <= Duration::from_secs(62 + 11 + 11), "still unowned after {unowned:?}");
    world.log.wait_for("all 80", |log| (0..80).all(|number| log.times(&number.to_string()) > 0)).await;
    b.shut_down().await.unwrap();
}

/// Work is marked as done only after it was processed: if an instance crashes or its handler panics, the next one
/// processes it.
#[tokio::test(start_paused = true)]
async fn unfinished_work_is_processed_by_the_next_owner() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "done");
    world.log.wait_for("done", |log| log.times("done") == 1).await;
    sleep(2 * SECOND).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    a.crash().await;
    let b = world.start("b").await;
    world.log.wait_for("hang again", |log| log.times("hang") == 2).await;
    assert_eq!(world.log.times("done"), 1);
    b.crash().await;
    let world = World::new(1);
    world.hub.publish(0, "panic");
    let c = world.start("c").await;
    world.log.wait_for("panic again", |log| log.times("panic") == 2).await;
    c.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_wait_until_started_has_returned() {
    let world = World::new(1);
    let handler = CallRecorder { starting: Duration::from_secs(100), ..CallRecorder::default() };
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(handler.calls(), ["started", "handle x", "handled x"]);
    a.shut_down().await.unwrap();
}

/// The partition is lost and claimed again while the handler finishes: the second start waits for the end of the first.
#[tokio::test(start_paused = true)]
async fn one_partition_is_never_handled_twice_at_once() {
    let world = World::new(1);
    let handler = CallRecorder { handling: Duration::from_secs(14), ..CallRecorder::default() };
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(1)).await;
    world.give_to("").await;
    sleep(Duration::from_secs(60)).await;
    let calls = handler.calls();
    let stopped = calls.iter().position(|call| call.starts_with("stopped")).unwrap();
    assert_eq!(calls[..stopped], ["started", "handle x", "handled x"]);
    assert_eq!(calls.iter().filter(|call| *call == "started").count(), 2, "{calls:?}");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_finish_during_a_shutdown() {
    let world = World::new(1);
    let handler = CallRecorder { handling: Duration::from_secs(10), ..CallRecorder::default() };
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(1)).await;
    a.shut_down().await.unwrap();
    assert_eq!(handler.calls(), ["started", "handle x", "handled x", "stopped: Shutdown"]);
    assert_eq!(world.checkpoint().await, Some(0));
}

/// Returns the sizes of the batches with these settings, from 10 events, two per second.
async fn batches(change: impl FnOnce(ProcessorConfig) -> ProcessorConfig) -> Vec<usize> {
    let mut world = World::new(1);
    world.config = change(world.config);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
        seen.lock().unwrap().push(events.len());
        async { Ok(()) }
    });
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    for _ in 0..5 {
        world.hub.publish_many(0, 2, "x");
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(60)).await;
    a.shut_down().await.unwrap();
    let sizes = sizes.lock().unwrap().clone();
    assert_eq!(sizes.iter().sum::<usize>(), 10, "{sizes:?}");
    sizes
}

#[tokio::test(start_paused = true)]
async fn batch_sizes_follow_the_settings() {
    assert_eq!(batches(|config| config).await, [2, 2, 2, 2, 2]);
    assert_eq!(batches(|config| config.with_max_batch_size(1)).await, [1; 10]);
    assert_eq!(batches(|config| config.with_max_batch_wait(Duration::from_millis(2500))).await, [6, 4]);
    let both = |config: ProcessorConfig| config.with_max_batch_wait(Duration::from_secs(30)).with_max_batch_size(4);
    assert_eq!(batches(both).await, [4, 4, 2]);
}

/// A slow handler of one partition delays no other partition.
#[tokio::test(start_paused = true)]
async fn a_slow_partition_delays_no_other() {
    let mut world = World::new(2);
    world.config = world.config.with_max_batch_size(10).with_prefetch(50);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    world.hub.publish_many(0, 10_000, "delayed");
    let began = Instant::now();
    world.hub.publish_many(1, 10_000, "x");
    world.log.wait_for("10,000", |log| log.times("x") == 10_000).await;
    assert!(began.elapsed() < SECOND);
    assert_eq!(world.log.times("delayed"), 0);
    a.shut_down().await.unwrap();
}

/// If the source and the handler are always ready, nothing else waits in the partition's task.
#[tokio::test(start_paused = true)]
async fn a_source_that_is_always_ready_blocks_no_task() {
    const EVENTS: i64 = 5000;
    let mut world = World::new(1);
    world.config = world.config.with_max_batch_size(1);
    let turns = Arc::new(AtomicUsize::new(0));
    let before_last = Arc::new(AtomicUsize::new(0));
    let recorded = Arc::clone(&before_last);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
        match events[0].sequence_number {
            0 => {
                tokio::spawn(take_turns(Arc::clone(&turns)));
            }
            last if last == EVENTS - 1 => recorded.store(turns.load(Ordering::Relaxed), Ordering::Relaxed),
            _ => {}
        }
        std::future::ready(Ok(()))
    });
    let source_faults = SourceFaults { always_ready: Some(EVENTS), ..SourceFaults::default() };
    let a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), handler).await;
    sleep(Duration::from_secs(60)).await;
    let before_last = before_last.load(Ordering::Relaxed);
    assert!(before_last > 10, "the other task has run {before_last} times");
    a.crash().await;
}

/// Counts how many times the runtime lets this task run.
async fn take_turns(turns: Arc<AtomicUsize>) {
    for _ in 0..1000 {
        turns.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_is_kept_and_continues() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "1");
    world.log.wait_for("1", |log| log.times("1") == 1).await;
    let ownership = a.snapshots.borrow().owned.clone();
    assert!(a.handle.pause(&0.into()));
    world.hub.publish(0, "2");
    sleep(600 * SECOND).await;
    assert_eq!(a.status().state, PartitionState::Paused);
    assert_eq!(world.log.times("2"), 0);
    assert_eq!(a.snapshots.borrow().owned, ownership);
    assert!(a.handle.resume(&0.into()));
    world.log.wait_for("2", |log| log.times("2") == 1).await;
    assert!(world.log.stops.lock().unwrap().is_empty());
    assert!(!a.handle.pause(&7.into()), "there is no such partition");
    a.shut_down().await.unwrap();
}

/// The owner, the call, and the epoch.
type Seen = (&'static str, &'static str, i64);

/// Records the owner and the epoch of each call.
#[derive(Clone)]
struct EpochRecorder {
    owner: &'static str,
    seen: Arc<Mutex<Vec<Seen>>>,
    fails: Arc<AtomicBool>,
}

impl EpochRecorder {
    fn of(&self, owner: &'static str) -> Self {
        Self { owner, ..self.clone() }
    }

    fn record(&self, call: &'static str, context: &PartitionContext) {
        self.seen.lock().unwrap().push((self.owner, call, context.epoch()));
    }
}

impl Handler<MemoryEvent> for EpochRecorder {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.record("started", &context);
        Ok(())
    }

    async fn handle(&self, _: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.record("handle", &context);
        if self.fails.swap(false, Ordering::Relaxed) { Err("failed on request".into()) } else { Ok(()) }
    }
}

/// A restart in the same epoch passes the same epoch, and the record contains it.
#[tokio::test(start_paused = true)]
async fn a_takeover_has_a_greater_epoch() {
    let world = World::new(1);
    let epochs = EpochRecorder { owner: "a", seen: Arc::default(), fails: Arc::new(AtomicBool::new(true)) };
    let a = world.start_with("a", world.hub.source(), epochs.clone()).await;
    world.hub.publish(0, "x");
    let calls = || epochs.seen.lock().unwrap().len();
    wait_for("four calls", || calls() >= 4).await;
    let recorded: i64 = record(&world, "ownership/0").await.unwrap()["ehcepoch"].parse().unwrap();
    let first = epochs.seen.lock().unwrap().clone();
    let expected = ["started", "handle", "started", "handle"].map(|call| ("a", call, recorded));
    assert_eq!(first, expected, "it started again after the failure");

    a.crash().await;
    let b = world.start_with("b", world.hub.source(), epochs.of("b")).await;
    wait_for("six calls", || calls() >= 6).await;
    let seen = epochs.seen.lock().unwrap()[4..].to_vec();
    assert!(
        matches!(seen[..], [("b", "started", first), ("b", "handle", second)] if first == second && first > recorded)
    );
    b.shut_down().await.unwrap();
}
