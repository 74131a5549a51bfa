//! What handlers may rely on: order, time, and correct stop reasons.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, ProcessorConfig, StopReason, handler_fn,
};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::World;

/// Records its calls, and takes the given time.
#[derive(Clone, Debug, Default)]
struct SlowHandler {
    calls: Arc<Mutex<Vec<String>>>,
    starting: Duration,
    handling: Duration,
    durable: bool,
}

impl SlowHandler {
    fn record(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Handler<MemoryEvent> for SlowHandler {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.record(format!("handle {}", events[0].body));
        sleep(self.handling).await;
        if self.durable {
            context.checkpoint_now(&events[0]).await?;
        } else {
            context.checkpoint(&events[0]);
        }
        self.record(format!("handled {}", events[0].body));
        Ok(())
    }

    async fn started(&self, _: PartitionContext) {
        sleep(self.starting).await;
        self.record("started");
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        let reason = match reason {
            StopReason::OwnershipLost { by } => format!("lost to {}", by.map(|by| by.to_string()).unwrap_or_default()),
            other => format!("{other:?}"),
        };
        self.record(format!("stopped: {reason}"));
    }
}

#[tokio::test(start_paused = true)]
async fn events_wait_until_started_has_returned() {
    let world = World::new(1);
    let handler = SlowHandler { starting: Duration::from_secs(100), ..SlowHandler::default() };
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(handler.calls(), ["started", "handle x", "handled x"]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_finish_during_a_shutdown() {
    let world = World::new(1);
    let handler = SlowHandler { handling: Duration::from_secs(10), ..SlowHandler::default() };
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(1)).await;
    a.shut_down().await.unwrap();
    assert_eq!(handler.calls(), ["started", "handle x", "handled x", "stopped: Shutdown"]);
    assert_eq!(world.checkpoint().await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_refused_checkpoint_reports_the_loss() {
    let world = World::new(1);
    let handler = SlowHandler { durable: true, ..SlowHandler::default() };
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.checkpoint().await, Some(0));
    world.give_to("b").await;
    let adopted = Metadata::from([("sequencenumber", "0"), ("offset", "0")]);
    let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
    world.container.overwrite(name, &adopted).await.unwrap();
    world.hub.publish(0, "y");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(handler.calls()[3..], ["handle y", "stopped: lost to b"]);
    a.shut_down().await.unwrap();
}

/// The partition is lost and claimed again while the handler finishes: the second start waits for the end of the first.
#[tokio::test(start_paused = true)]
async fn one_partition_is_never_handled_twice_at_once() {
    let world = World::new(1);
    let handler = SlowHandler { handling: Duration::from_secs(14), ..SlowHandler::default() };
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
async fn an_instance_that_drains_claims_nothing_more() {
    let world = World::new(2);
    let handler = SlowHandler { handling: Duration::from_secs(14), ..SlowHandler::default() };
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

#[tokio::test(start_paused = true)]
async fn an_unresponsive_hub_is_reported() {
    for hub_responds in [false, true] {
        let world = World::new(1);
        let silent =
            SourceFaults { hub_unresponsive: !hub_responds, check_unresponsive: true, ..SourceFaults::default() };
        let source = || ScriptedSource::new(&world.hub, silent.clone());
        let (captured, _guard) = Captured::begin();
        let waiting = world.start_with("a", source(), SlowHandler::default()).await;
        sleep(Duration::from_secs(31)).await;
        assert!(captured.text().contains("the event hub did not respond within 30s"), "{}", captured.text());
        sleep(Duration::from_secs(300)).await;
        assert!(!waiting.handle.health().ready);
        waiting.shut_down().await.unwrap();
        let stopped = world.start_with("a", source(), SlowHandler::default()).await;
        let requested = Instant::now();
        stopped.shut_down().await.unwrap();
        assert!(requested.elapsed() < Duration::from_secs(1));
    }
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
    async fn started(&self, context: PartitionContext) {
        self.record("started", &context);
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
    let wait_for = async |count: usize| {
        while epochs.seen.lock().unwrap().len() < count {
            sleep(Duration::from_millis(100)).await;
        }
    };
    wait_for(4).await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    let recorded: i64 = world.container.get(name).await.unwrap().metadata["ehcepoch"].parse().unwrap();
    let first = epochs.seen.lock().unwrap().clone();
    let expected = ["started", "handle", "started", "handle"].map(|call| ("a", call, recorded));
    assert_eq!(first, expected, "it started again after the failure");

    a.crash().await;
    let b = world.start_with("b", world.hub.source(), epochs.of("b")).await;
    wait_for(6).await;
    let seen = epochs.seen.lock().unwrap()[4..].to_vec();
    assert!(
        matches!(seen[..], [("b", "started", first), ("b", "handle", second)] if first == second && first > recorded)
    );
    b.shut_down().await.unwrap();
}

/// If the source and the handler are always ready, nothing else waits in the partition's task.
#[tokio::test(start_paused = true)]
async fn a_source_that_is_always_ready_blocks_no_task() {
    const EVENTS: i64 = 5000;
    let mut world = World::new(1);
    world.config = world.config.with_max_batch_size(1);
    let turns = Arc::new(AtomicUsize::new(0));
    let (before_last, counted) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&turns));
    let recorded = Arc::clone(&before_last);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
        if events[0].sequence_number == EVENTS - 1 {
            recorded.store(counted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        std::future::ready(Ok(()))
    });
    let source_faults = SourceFaults { always_ready: Some(EVENTS), ..SourceFaults::default() };
    let a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), handler).await;
    let other_task = tokio::spawn(async move {
        for _ in 0..100_000 {
            turns.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    sleep(Duration::from_secs(60)).await;
    let before_last = before_last.load(Ordering::Relaxed);
    assert!(before_last > 10, "the other task has run {before_last} times");
    other_task.await.unwrap();
    a.crash().await;
}

/// Every call finishes its first event and fails, so that no batch is ever handled as a whole.
#[tokio::test(start_paused = true)]
async fn progress_inside_failed_batches_is_shown() {
    let world = World::new(1);
    let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
        context.checkpoint(&events[0]);
        Err("failed on request".into())
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    world.hub.publish_many(0, 20, "x");
    let status = a.wait_for_status("all are processed", |status| status.checkpoint == Some(19)).await;
    assert_eq!(status.handled, Some(19));
    a.crash().await;
}
