//! Partitions whose handler fails, hangs or panics: restarts and their waits, parking, releases.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::admin::{Check, HubRanges};
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, HealthIssue, OnFailure, PartitionContext, PartitionState, StopReason, handler_fn,
};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, Positioned, StartPosition,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::support::operator::operator;
use crate::support::{MINUTE, SECOND, wait_for, wait_for_checkpoint};
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn a_failing_handler_restarts_at_the_checkpoint() {
    for body in ["fail", "panic"] {
        let world = World::new(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        for body in ["before", body, "after"] {
            world.hub.publish(0, body);
        }
        world.hub.publish(1, "elsewhere");
        world.log.wait_for("after", |log| log.times("after") == 1 && log.times("elsewhere") == 1).await;
        assert_eq!(world.log.times(body), 2);
        assert_eq!(world.log.times("elsewhere"), 1);
        let stops = world.log.stops.lock().unwrap().clone();
        let [(_, partition, StopReason::Failed { error })] = &stops[..] else { panic!("{stops:?}") };
        assert_eq!((partition.as_str(), error.kind()), ("0", ErrorKind::Handler));
        let reported = format!("{error}: {:?}", error.source().map(ToString::to_string));
        assert!(reported.contains("on request"), "the cause is missing: {reported}");
        a.shut_down().await.unwrap();
    }
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

/// Each restart adopts the checkpoint, which writes its blob again.
#[tokio::test(start_paused = true)]
async fn a_partition_that_always_fails_is_stuck() {
    let world = World::new(1);
    let mut a = world.start_with("a", world.hub.source(), FailingHandler::times(0, u32::MAX)).await;
    a.wait_until_it_holds(1).await;
    for _ in 0..10 {
        world.hub.publish(0, "event");
        sleep(MINUTE).await;
    }
    let hub = HubRanges::read(&world.hub.source()).await.unwrap();
    let records = operator(&world).await.read().await.unwrap();
    let checkpoint = world.store("reader").await.checkpoint_of(&0.into()).await.unwrap().unwrap();
    assert!(checkpoint.last_modified - checkpoint.record.updated_at.unwrap() > 5 * MINUTE, "{checkpoint:?}");
    let found = records.diagnose(Some(&hub), 5 * MINUTE);
    assert_eq!(found.iter().map(|finding| finding.check).collect::<Vec<_>>(), [Check::StuckPartition]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_cancelled() {
    let mut world = World::new(2);
    world.config = world.config.with_handler_timeout(20 * SECOND);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.hub.publish(1, "elsewhere");
    world.log.wait_for("a stop", |log| !log.stops.lock().unwrap().is_empty()).await;
    assert_eq!(world.log.times("elsewhere"), 1);
    let stops = world.log.stops.lock().unwrap().clone();
    let [(_, partition, StopReason::Failed { error })] = &stops[..] else { panic!("{stops:?}") };
    assert_eq!((partition.as_str(), error.kind()), ("0", ErrorKind::Handler));
    assert!(error.to_string().contains("handler timeout of 20s"), "{error}");
    a.shut_down().await.unwrap();
}

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

    async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
        self.record("started");
        sleep(self.starting).await;
        assert!(!Self::count_down(&self.panics_at_start), "panicked on request");
        Ok(())
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
    let [HealthIssue::Parked { partition, error: Some(error), .. }] = &degraded[..] else { panic!("{degraded:?}") };
    assert_eq!((partition.as_str(), error.message.as_str()), ("0", "the handler failed: failed on request"));
    assert_eq!(handler.calls().iter().filter(|call| call.starts_with("handle")).count(), 1);
    assert!(a.handle.resume(&0.into()));
    sleep(SECOND).await;
    assert_eq!(a.handle.health().issues, []);
    assert_eq!(a.handle.partitions()[0].handled, Some(2));
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

#[tokio::test(start_paused = true)]
async fn tasks_of_an_earlier_start_are_stopped() {
    let world = World::new(1);
    let stopped = Arc::new(AtomicU32::new(0));
    let counter = stopped.clone();
    let first = AtomicU32::new(1);
    let handler = handler_fn(move |_: Vec<MemoryEvent>, context: PartitionContext| {
        let counter = counter.clone();
        tokio::spawn(async move {
            context.run_until_stopping(pending::<()>()).await;
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

mod failed_is_called {
    use super::*;

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
        wait_for_checkpoint(&world, 0).await;
        world.hub.break_link(0);
        wait_for("the second failure", || handler.failures.lock().unwrap().len() == 2).await;
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

mod back_off {
    use super::*;

    /// Events handled again after each failure are not progress, and must not reset the delay.
    #[tokio::test(start_paused = true)]
    async fn a_poisoned_event_backs_off() {
        let mut world = World::new(1);
        world.config = world.config.with_max_batch_size(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move { if &*events[0].body == b"poison" { Err("poisoned".into()) } else { Ok(()) } }
        });
        let mut a = world.start_with("a", world.hub.source(), handler).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish(0, "good");
        world.hub.publish(0, "poison");
        sleep(Duration::from_secs(600)).await;
        let calls = calls.load(Ordering::Relaxed);
        assert!((30..80).contains(&calls), "{calls} calls in ten minutes");
        a.shut_down().await.unwrap();
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

    /// Each event of the new event hub fails once. Its numbers are smaller than those that were finished before.
    #[tokio::test(start_paused = true)]
    async fn progress_in_a_recreated_hub_ends_the_back_off() {
        let (world, failures) = (World::new(1), Arc::new(Mutex::new(Vec::new())));
        let (failed_at, failed) = (Arc::clone(&failures), Arc::new(Mutex::new(BTreeSet::new())));
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            let (failed_at, failed) = (Arc::clone(&failed_at), Arc::clone(&failed));
            async move {
                for event in &events {
                    if event.text().unwrap().starts_with("fail") && failed.lock().unwrap().insert(event.body.clone()) {
                        failed_at.lock().unwrap().push(Instant::now());
                        return Err("failed on request".into());
                    }
                    context.checkpoint(event);
                }
                Ok(())
            }
        });
        world.hub.publish_many(0, 50, "old");
        world.hub.publish(0, "fail");
        let a = world.start_with("a", world.hub.source(), handler).await;
        a.wait_for_status("51 events", |status| status.handled == Some(50)).await;
        world.hub.recreate();
        for number in 0..20 {
            world.hub.publish(0, format!("fail {number}"));
        }
        sleep(10 * MINUTE).await;
        let failures = failures.lock().unwrap()[1..].to_owned();
        let waits: Vec<_> = failures.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(waits.len() == 19 && waits.iter().all(|wait| *wait < Duration::from_secs(1)), "{waits:?}");
        a.shut_down().await.unwrap();
    }

    /// Fails the token of each "poison", immediately or shortly after.
    struct FailingTokens {
        poisoned: Arc<AtomicUsize>,
        later: bool,
    }

    impl Handler<MemoryEvent> for FailingTokens {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            for event in &events {
                let token = context.track(event);
                if &*event.body != b"poison" {
                    token.finish();
                    continue;
                }
                self.poisoned.fetch_add(1, Ordering::Relaxed);
                if self.later {
                    tokio::spawn(async move {
                        sleep(SECOND / 10).await;
                        token.fail("failed on request");
                    });
                } else {
                    token.fail("failed on request");
                }
            }
            Ok(())
        }
    }

    /// New events after the failing one in the same batch are not progress.
    #[tokio::test(start_paused = true)]
    async fn a_repeatedly_failing_token_backs_off() {
        for later in [false, true] {
            let world = World::new(1);
            let poisoned = Arc::new(AtomicUsize::new(0));
            let handler = FailingTokens { poisoned: poisoned.clone(), later };
            let a = world.start_with("a", world.hub.source(), handler).await;
            a.wait_until_all_idle(1).await;
            world.hub.publish(0, "poison");
            for _ in 0..120 {
                sleep(5 * SECOND).await;
                world.hub.publish(0, "x");
            }
            let calls = poisoned.load(Ordering::Relaxed);
            assert!((20..60).contains(&calls), "later: {later}: {calls} calls in ten minutes");
            a.crash().await;
        }
    }
}

/// Panics of the application's code outside of the calls of its handler, or in the last moment of one.
mod panics {
    use super::*;

    /// A closure may panic before it has created its future.
    #[tokio::test(start_paused = true)]
    async fn a_panicking_closure_restarts_its_partition() {
        let world = World::new(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
            assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "panicked on request");
            async { Ok(()) }
        });
        let mut a = world.start_with("a", world.hub.source(), handler).await;
        a.wait_until_it_holds(1).await;
        let ownership = a.snapshots.borrow().owned.clone();
        world.hub.publish(0, "x");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert_eq!(a.snapshots.borrow().owned, ownership);
        a.shut_down().await.unwrap();
    }

    /// What panics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum PanicIn {
        /// Dropping the call at the handler timeout.
        DropAtTimeout,
        /// Dropping the call at the drain timeout.
        DropAtDrain,
        /// The text of the handler's error.
        ErrorText,
        /// The position of an event.
        Position,
    }

    /// Panics when it is dropped.
    #[derive(Debug)]
    struct Panicking;

    impl Drop for Panicking {
        fn drop(&mut self) {
            panic!("panicked in drop");
        }
    }

    #[derive(Debug)]
    struct PanickingError;

    impl std::error::Error for PanickingError {}

    impl fmt::Display for PanickingError {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("panicked in the text of an error");
        }
    }

    /// An event whose position can be read, unless it is broken.
    struct Fragile {
        number: i64,
        is_broken: bool,
    }

    impl Positioned for Fragile {
        fn sequence_number(&self) -> Option<i64> {
            assert!(!self.is_broken, "panicked in the position of an event");
            Some(self.number)
        }

        fn offset(&self) -> Option<&str> {
            Some("x")
        }
    }

    /// Delivers good events, and the broken one a moment later.
    struct FragileSource {
        hub: MemorySource,
        broken: i64,
    }

    impl EventSource for FragileSource {
        type Event = Fragile;

        async fn event_hub_properties(&self) -> Result<EventHubProperties> {
            self.hub.event_hub_properties().await
        }

        async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
            self.hub.partition_properties(partition).await
        }

        async fn open_receiver(
            &self,
            _: &PartitionId,
            from: StartPosition,
            _: usize,
            _: i64,
        ) -> Result<EventReceiver<Fragile>> {
            let broken = self.broken;
            let next = if let StartPosition::AfterSequenceNumber(last) = from { last + 1 } else { 0 };
            let good = stream::iter((next..broken).map(|number| Ok(Fragile { number, is_broken: false })));
            let last = stream::once(sleep(SECOND / 100)).map(move |()| Ok(Fragile { number: broken, is_broken: true }));
            Ok(EventReceiver::new(move |_| good.chain(last.boxed()).chain(stream::pending())))
        }
    }

    /// Records its starts, failures and stops. Its calls panic in one way.
    #[derive(Clone, Debug)]
    struct PanickingHandler {
        panics_in: PanicIn,
        calls: Arc<Mutex<Vec<&'static str>>>,
    }

    impl<E: Send + 'static> Handler<E> for PanickingHandler {
        async fn handle(&self, _: Vec<E>, _: PartitionContext) -> Result<(), HandlerError> {
            match self.panics_in {
                PanicIn::DropAtTimeout | PanicIn::DropAtDrain => {
                    let panicking = Panicking;
                    pending::<()>().await;
                    drop(panicking);
                    Ok(())
                }
                PanicIn::ErrorText => Err(PanickingError.into()),
                PanicIn::Position => Ok(()),
            }
        }

        async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
            self.calls.lock().unwrap().push("started");
            Ok(())
        }

        async fn stopped(&self, _: PartitionContext, reason: StopReason) {
            let failed = matches!(reason, StopReason::Failed { .. });
            self.calls.lock().unwrap().push(if failed { "stopped after a failure" } else { "stopped" });
        }

        fn failed(&self, _: &PartitionId, _: &Error) {
            self.calls.lock().unwrap().push("failed");
        }
    }

    /// Returns what an instance calls within a minute, and when it shuts down.
    async fn calls_with_panics_in(panics_in: PanicIn) -> Vec<&'static str> {
        // Only a subscriber formats errors.
        let (_captured, _guard) = Captured::begin();
        let mut world = World::new(1);
        if panics_in == PanicIn::DropAtTimeout {
            world.config = world.config.with_handler_timeout(5 * SECOND);
        }
        world.hub.publish(0, "x");
        let handler = PanickingHandler { panics_in, calls: Arc::default() };
        let mut a = if panics_in == PanicIn::Position {
            world.start_with("a", FragileSource { hub: world.hub.source(), broken: 0 }, handler.clone()).await
        } else {
            world.start_with("a", world.hub.source(), handler.clone()).await
        };
        a.wait_until_it_holds(1).await;
        sleep(60 * SECOND).await;
        a.shut_down().await.unwrap();
        handler.calls.lock().unwrap().clone()
    }

    /// The handler is called again and again, and every start ends.
    async fn assert_every_start_ends(panics_in: PanicIn) {
        let calls = calls_with_panics_in(panics_in).await;
        assert!(calls.len() > 6, "{calls:?}");
        for start in calls.chunks_exact(3) {
            assert_eq!(start, ["started", "failed", "stopped after a failure"], "{calls:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_at_the_handler_timeout_ends_the_start() {
        assert_every_start_ends(PanicIn::DropAtTimeout).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_at_the_drain_timeout_ends_the_start() {
        assert_eq!(calls_with_panics_in(PanicIn::DropAtDrain).await, ["started", "failed", "stopped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_the_text_of_an_error_ends_the_start() {
        assert_every_start_ends(PanicIn::ErrorText).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_the_position_of_an_event_is_a_failure() {
        assert_every_start_ends(PanicIn::Position).await;
    }

    /// Each start finishes one more event before the panic.
    #[tokio::test(start_paused = true)]
    async fn progress_before_a_panic_ends_the_back_off() {
        let (world, open) = (World::new(1), Mutex::new(Vec::new()));
        world.hub.publish_many(0, 11, "x");
        let handler = handler_fn(move |events: Vec<Fragile>, context: PartitionContext| {
            let mut tokens: Vec<_> = events.iter().map(|event| context.track(event)).collect();
            tokens.remove(0).finish();
            *open.lock().unwrap() = tokens;
            std::future::ready(Ok(()))
        });
        let mut a = world.start_with("a", FragileSource { hub: world.hub.source(), broken: 10 }, handler).await;
        a.wait_until_it_holds(1).await;
        sleep(10 * SECOND).await;
        assert_eq!(world.checkpoint().await, Some(9), "{:?}", a.status());
        a.shut_down().await.unwrap();
    }
}
