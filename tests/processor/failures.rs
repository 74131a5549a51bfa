//! Partitions whose handler fails, and events that are delivered twice.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, HealthIssue, OnFailure, PartitionContext, PartitionState, StopReason, handler_fn,
};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep, timeout};

use crate::captured::Captured;
use crate::world::{TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

/// Records its calls. Panics in `started` and fails in `handle` the given number of times.
#[derive(Clone, Debug, Default)]
struct FailingHandler {
    calls: Arc<Mutex<Vec<String>>>,
    panics_at_start: Arc<AtomicU32>,
    starting: Duration,
    stopping: Duration,
    failures: Arc<AtomicU32>,
}

impl FailingHandler {
    fn times(starts: u32, calls: u32) -> Self {
        Self { panics_at_start: Arc::new(starts.into()), failures: Arc::new(calls.into()), ..Self::default() }
    }

    fn record(&self, call: &str) {
        self.calls.lock().unwrap().push(call.to_owned());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn count_down(count: &AtomicU32) -> bool {
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

impl Handler<MemoryEvent> for FailingHandler {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.record(&format!("handle {}", events.len()));
        if Self::count_down(&self.failures) {
            return Err("failed on request".into());
        }
        context.checkpoint(events.last().unwrap());
        Ok(())
    }

    async fn started(&self, _: PartitionContext) {
        self.record("started");
        sleep(self.starting).await;
        assert!(!Self::count_down(&self.panics_at_start), "panicked on request");
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        sleep(self.stopping).await;
        let reason = if let StopReason::Failed { .. } = reason { "failed".to_owned() } else { format!("{reason:?}") };
        self.record(&format!("stopped: {reason}"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_start_has_its_stop_even_after_a_panic() {
    let world = World::new(1);
    world.hub.publish_many(0, 3, "x");
    let handler = FailingHandler::times(1, 1);
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    sleep(10 * SECOND).await;
    a.shut_down().await.unwrap();
    let failing = ["started", "stopped: failed", "started", "handle 3", "stopped: failed"];
    assert_eq!(handler.calls()[..5], failing);
    assert_eq!(handler.calls()[5..], ["started", "handle 3", "stopped: Shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn a_parked_partition_waits_until_it_is_resumed() {
    let mut world = World::new(2);
    world.config = world.config.with_on_failure(OnFailure::Park);
    let handler = FailingHandler::times(0, 1);
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    world.hub.publish_many(0, 3, "x");
    a.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
    sleep(600 * SECOND).await;
    assert_eq!(a.held(), 2);
    let degraded = a.handle.health().issues;
    let [HealthIssue::Parked { partition, error: Some(error) }] = &degraded[..] else { panic!("{degraded:?}") };
    assert_eq!((partition.as_str(), error.message.as_str()), ("0", "the handler failed: failed on request"));
    assert_eq!(handler.calls().iter().filter(|call| call.starts_with("handle")).count(), 1);
    assert!(a.handle.resume(&0.into()));
    sleep(SECOND).await;
    assert_eq!(a.handle.health().issues, []);
    assert_eq!(a.handle.partitions()[0].handled, Some(2));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failing_partition_can_move_to_another_instance() {
    let mut world = World::new(1);
    let cooldown = 200 * SECOND;
    world.config = world.config.with_on_failure(OnFailure::Release { cooldown });
    let failing = FailingHandler::times(0, u32::MAX);
    let mut a = world.start_with("a", world.hub.source(), failing.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 3, "x");
    a.wait_until_it_holds(0).await;
    let released = Instant::now();
    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    world.log.wait_for("3", |log| log.times("x") == 3).await;
    assert!(released.elapsed() < 60 * SECOND);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failing_partition_is_reclaimed_after_a_while() {
    let mut world = World::new(1);
    let cooldown = 200 * SECOND;
    world.config = world.config.with_on_failure(OnFailure::Release { cooldown });
    let mut a = world.start_with("a", world.hub.source(), FailingHandler::times(0, 1)).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 3, "x");
    a.wait_until_it_holds(0).await;
    let released = Instant::now();
    a.wait_until_it_holds(1).await;
    assert!(released.elapsed() >= cooldown && released.elapsed() < cooldown + 60 * SECOND);
    a.wait_for_status("handled", |status| status.handled == Some(2)).await;
    a.shut_down().await.unwrap();
}

/// The links of the official client attach again by themselves.
#[tokio::test(start_paused = true)]
async fn events_repeated_after_a_reattach_are_skipped() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 10, "x");
    world.log.wait_for("10", |log| log.times("x") == 10).await;
    world.hub.reattach(0);
    world.hub.publish(0, "y");
    world.log.wait_for("y", |log| log.times("y") == 1).await;
    assert_eq!(world.log.times("x"), 10);
    a.shut_down().await.unwrap();
}

/// The filter belongs to one start of the handler.
#[tokio::test(start_paused = true)]
async fn events_are_redelivered_after_a_failure() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "fail");
    world.hub.publish(0, "after");
    world.log.wait_for("after", |log| log.times("after") == 1).await;
    assert_eq!(world.log.times("fail"), 2);
    a.shut_down().await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_partition_resumed_before_it_parks_is_not_parked() {
    let mut world = World::new(1);
    world.config = world.config.with_on_failure(OnFailure::Park);
    let handler = FailingHandler { stopping: 10 * SECOND, ..FailingHandler::times(0, 1) };
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 3, "x");
    a.wait_for_status("stopping", |status| status.state == PartitionState::Stopping).await;
    assert!(a.handle.resume(&0.into()));
    a.wait_for_status("handled", |status| status.handled == Some(2)).await;
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_earlier_start_are_stopped() {
    let world = World::new(1);
    let stopped = Arc::new(AtomicU32::new(0));
    let counter = stopped.clone();
    let first = AtomicU32::new(1);
    let handler = handler_fn(move |_: Vec<MemoryEvent>, context: PartitionContext| {
        let counter = counter.clone();
        tokio::spawn(async move {
            context.run_until_stopping(std::future::pending::<()>()).await;
            assert!(context.is_stopping());
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let fails = FailingHandler::count_down(&first);
        async move { if fails { Err("failed on request".into()) } else { Ok(()) } }
    });
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    sleep(5 * SECOND).await;
    assert_eq!(stopped.load(Ordering::Relaxed), 1, "the task of the first start, not of the second");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_start_that_never_ends_is_reported() {
    let world = World::new(1);
    let handler = FailingHandler { starting: Duration::MAX, ..FailingHandler::default() };
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(1).await;
    sleep(200 * SECOND).await;
    assert_eq!(a.handle.health().issues, []);
    sleep(200 * SECOND).await;
    let degraded = a.handle.health().issues;
    assert!(matches!(&degraded[..], [HealthIssue::Starting { .. }]), "{degraded:?}");
    a.shut_down().await.unwrap();
}

/// The record is deleted and claimed again by the same incarnation: no later incarnation is running.
#[tokio::test(start_paused = true)]
async fn reclaiming_a_deleted_record_is_not_a_replacement() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    sleep(2 * SECOND).await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    world.container.remove(name).await.unwrap();
    for _ in 0..60 {
        world.hub.publish(0, "y");
        sleep(SECOND).await;
    }
    let stops = world.log.stops.lock().unwrap().clone();
    assert!(stops.iter().all(|(_, _, reason)| !matches!(reason, StopReason::Replaced)), "{stops:?}");
    assert!(!a.running.is_finished());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_adopted_is_released() {
    let world = World::new(1);
    let writes = Target::from(BlobOperation::Write).named("checkpoint/0");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Conflict));
    let instance = world.start("a").await;
    let released = async {
        while world.owners().await.get("0").is_none_or(|owner| !owner.is_empty()) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, released).await.expect("never released");
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    let etag = world.container.get(name).await.unwrap().etag;
    sleep(Duration::from_secs(9)).await;
    assert_eq!(world.container.get(name).await.unwrap().etag, etag, "claimed again immediately");

    world.faulty.set_plan(FaultPlan::default());
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    instance.shut_down().await.unwrap();
}

mod failed_is_called {
    use super::*;
    use eventhubs_checkpoint::{Error, ErrorKind, PartitionId};

    /// Notes its failures; fails once, and panics in `failed` if told so.
    #[derive(Clone, Default)]
    struct Reporting {
        failures: Arc<Mutex<Vec<(String, ErrorKind)>>>,
        panics: bool,
        due: Arc<AtomicU32>,
    }

    impl Handler<MemoryEvent> for Reporting {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            if FailingHandler::count_down(&self.due) {
                return Err("failed on request".into());
            }
            context.checkpoint(events.last().unwrap());
            Ok(())
        }

        fn failed(&self, partition_id: &PartitionId, error: &Error) {
            self.failures.lock().unwrap().push((partition_id.to_string(), error.kind()));
            assert!(!self.panics, "panicked on request");
        }
    }

    async fn failures_of(panics: bool) -> Vec<(String, ErrorKind)> {
        let world = World::new(1);
        world.hub.publish(0, "x");
        let handler = Reporting { panics, due: Arc::new(1.into()), ..Reporting::default() };
        let a = world.start_with("a", world.hub.source(), handler.clone()).await;
        while world.checkpoint().await != Some(0) {
            sleep(SECOND).await;
        }
        world.hub.break_link(0);
        while handler.failures.lock().unwrap().len() < 2 {
            sleep(SECOND).await;
        }
        a.shut_down().await.unwrap();

        handler.failures.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn for_the_handler_and_for_the_source() {
        let expected = [("0".to_owned(), ErrorKind::Handler), ("0".to_owned(), ErrorKind::EventSource)];
        assert_eq!(failures_of(false).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn and_its_panic_changes_nothing_else() {
        let (log, _guard) = Captured::begin();
        assert_eq!(failures_of(true).await.len(), 2);
        assert!(log.text().contains("the handler panicked: panicked on request"), "{}", log.text());
    }

    /// Its events fail, or its calls end too late, only when the partition stops.
    struct LateFailures {
        failures: Arc<Mutex<Vec<String>>>,
        hangs: &'static str,
    }

    impl LateFailures {
        async fn hang_in(&self, call: &str) {
            if self.hangs == call {
                pending::<()>().await;
            }
        }
    }

    impl Handler<MemoryEvent> for LateFailures {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            let tracked = context.track(&events[0]);
            tokio::spawn(async move {
                context.stopping().await;
                tracked.fail("failed at the end");
            });
            self.hang_in("handle").await;
            Ok(())
        }

        fn failed(&self, _: &PartitionId, error: &Error) {
            let mut cause: &dyn std::error::Error = error;
            while let Some(source) = cause.source() {
                cause = source;
            }
            self.failures.lock().unwrap().push(cause.to_string());
        }

        async fn stopped(&self, _: PartitionContext, _: StopReason) {
            self.hang_in("stopped").await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_partition_stops() {
        for (hangs, expected) in [
            ("nowhere", ["failed at the end"].as_slice()),
            ("handle", &["the handler did not finish within the drain timeout of 15s", "failed at the end"]),
            ("stopped", &["failed at the end", "`stopped` did not finish within the drain timeout of 15s"]),
        ] {
            let world = World::new(1);
            world.hub.publish(0, "x");
            let failures = Arc::new(Mutex::new(Vec::new()));
            let handler = LateFailures { failures: failures.clone(), hangs };
            let a = world.start_with("a", world.hub.source(), handler).await;
            a.wait_for_status("the event is in flight", |status| status.in_flight == 1).await;
            a.shut_down().await.unwrap();
            assert_eq!(*failures.lock().unwrap(), expected, "hangs in {hangs}");
        }
    }
}

/// How the handlers of these tests are finished with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finishes {
    ByCheckpoint,
    ByTracking,
}

/// Handles events one by one. Each event whose number is a multiple of this one fails, once.
fn handle_one_by_one(
    events: Vec<MemoryEvent>,
    context: &PartitionContext,
    (every, finishes): (i64, Finishes),
    failed: &Mutex<BTreeSet<i64>>,
) -> Result<(), HandlerError> {
    let tracked: Vec<_> = match finishes {
        Finishes::ByCheckpoint => events.iter().map(|_| None).collect(),
        Finishes::ByTracking => events.iter().map(|event| Some(context.track(event))).collect(),
    };
    for (event, tracked) in events.into_iter().zip(tracked) {
        let fails = event.sequence_number % every == 0 && failed.lock().unwrap().insert(event.sequence_number);
        match (tracked, fails) {
            (None, true) => return Err("failed on request".into()),
            (None, false) => context.checkpoint(&event),
            (Some(tracked), true) => tracked.fail("failed on request"),
            (Some(tracked), false) => tracked.finish(),
        }
    }
    Ok(())
}

/// The wait before a restart grows only while nothing is finished.
#[tokio::test(start_paused = true)]
async fn progress_inside_a_batch_ends_the_back_off() {
    for finishes in [Finishes::ByCheckpoint, Finishes::ByTracking] {
        let world = World::new(1);
        world.hub.publish_many(0, 500, "x");
        let failed = Arc::new(Mutex::new(BTreeSet::new()));
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            std::future::ready(handle_one_by_one(events, &context, (10, finishes), &failed))
        });
        let began = Instant::now();
        let a = world.start_with("a", world.hub.source(), handler).await;
        while world.checkpoint().await != Some(499) {
            assert!(began.elapsed() < 120 * SECOND, "{finishes:?}: {:?}", world.checkpoint().await);
            sleep(SECOND).await;
        }
        a.shut_down().await.unwrap();
    }
}
