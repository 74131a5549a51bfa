//! Own positions, dead letters and epochs together: nothing is lost, and nothing is moved that did not fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    DeadLetter, DeadLetterPolicy, EventError, Handler, HandlerError, HandlerExt, PartitionContext, PartitionStart,
    handler_fn,
};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use tokio::time::sleep;

use crate::world::{Instance, World};

const SECOND: Duration = Duration::from_secs(1);

type Letters = Arc<Mutex<Vec<(i64, u32, String)>>>;

fn quick() -> DeadLetterPolicy {
    DeadLetterPolicy::default().with_max_attempts(3).with_min_failing_time(Duration::ZERO)
}

fn world(events: i64, poison: &[i64]) -> World {
    let world = World::new(1);
    publish(&world, events, poison);
    world
}

fn publish(world: &World, events: i64, poison: &[i64]) {
    for number in 0..events {
        world.hub.publish(0, if poison.contains(&number) { "poison" } else { "good" });
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn start(
    world: &World,
    handler: impl Handler<MemoryEvent>,
    letters: &Letters,
    sink_down: &Arc<AtomicBool>,
    policy: DeadLetterPolicy,
) -> Instance {
    let (letters, down) = (Arc::clone(letters), Arc::clone(sink_down));
    let sink = move |letter: DeadLetter<MemoryEvent>| {
        let (letters, down) = (Arc::clone(&letters), Arc::clone(&down));
        async move {
            if down.load(Ordering::Relaxed) {
                return Err("the sink is down".into());
            }
            letters.lock().unwrap().push((letter.event.sequence_number, letter.attempts, chain(&*letter.error)));
            Ok(())
        }
    };
    world.start_with("a", world.hub.source(), handler.with_dead_letters(sink, policy)).await
}

fn moved(letters: &Letters) -> Vec<i64> {
    letters.lock().unwrap().iter().map(|(number, ..)| *number).collect()
}

/// A handler that waits until its checkpoint is durable.
async fn checkpointing_now(poison: i64) -> (Vec<i64>, usize, Option<i64>) {
    let (world, letters, processed) =
        (world(100, &[poison]), Letters::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let seen = Arc::clone(&seen);
        async move {
            for event in &events {
                if &*event.body == "poison" {
                    return Err("poisoned".into());
                }
                seen.lock().unwrap().insert(event.sequence_number);
            }
            context.checkpoint_now(events.last().unwrap()).await?;
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, &Arc::default(), quick()).await;
    sleep(600 * SECOND).await;
    let checkpoint = world.checkpoint().await;
    let result = (moved(&letters), processed.lock().unwrap().len(), checkpoint);
    a.shut_down().await.unwrap();
    result
}

#[tokio::test(start_paused = true)]
async fn checkpoint_now_does_not_keep_the_poison() {
    assert_eq!(checkpointing_now(37).await, (vec![37], 99, Some(99)));
}

#[tokio::test(start_paused = true)]
async fn checkpoint_now_moves_only_the_poison() {
    assert_eq!(checkpointing_now(95).await, (vec![95], 99, Some(99)));
}

/// Tracks one event after the other; on an error the token is dropped, and the batch fails.
#[tokio::test(start_paused = true)]
async fn tokens_of_failed_calls_hold_nothing_back() {
    let mut world = world(100, &[37]);
    world.config = world.config.with_max_in_flight(150);
    let (letters, processed) = (Letters::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let seen = Arc::clone(&seen);
        async move {
            let tokens: Vec<_> = events.iter().map(|event| context.track(event)).collect();
            for (event, token) in events.iter().zip(tokens) {
                if &*event.body == "poison" {
                    return Err("poisoned".into());
                }
                seen.lock().unwrap().insert(event.sequence_number);
                token.finish();
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, &Arc::default(), quick()).await;
    sleep(60 * SECOND).await;
    publish(&world, 300, &[]);
    sleep(600 * SECOND).await;
    let (status, checkpoint) = (a.status(), world.checkpoint().await);
    assert_eq!(
        (moved(&letters), processed.lock().unwrap().len(), checkpoint, status.in_flight),
        (vec![37], 399, Some(399), 0),
        "{status:?}"
    );
    a.shut_down().await.unwrap();
}

#[derive(Debug, Default)]
struct Rows {
    epoch: i64,
    position: Option<i64>,
    counted: BTreeMap<i64, usize>,
}

/// The fenced write of docs/effects.md, batch by batch. With `dedupe`, the second pattern instead.
#[derive(Clone, Debug, Default)]
struct Effects {
    rows: Arc<Mutex<Rows>>,
    dedupe: bool,
    /// The first commit takes this long, on a thread of its own.
    slow: Duration,
    calls: Arc<AtomicUsize>,
}

impl Effects {
    fn commit(&self, events: &[i64], epoch: i64) -> bool {
        let mut rows = self.rows.lock().unwrap();
        if self.dedupe {
            for number in events {
                if rows.position < Some(*number) {
                    rows.position = Some(*number);
                    *rows.counted.entry(*number).or_default() += 1;
                }
            }
            return true;
        }
        if rows.epoch > epoch || rows.position >= events.first().copied() {
            return false;
        }
        rows.position = events.last().copied();
        for number in events {
            *rows.counted.entry(*number).or_default() += 1;
        }
        true
    }

    fn lost(&self, events: i64, letters: &Letters) -> Vec<i64> {
        let (rows, letters) = (self.rows.lock().unwrap(), moved(letters));
        (0..events).filter(|number| !rows.counted.contains_key(number) && !letters.contains(number)).collect()
    }
}

impl Handler<MemoryEvent> for Effects {
    async fn start_position(&self, start: PartitionStart) -> std::result::Result<Option<StartPosition>, HandlerError> {
        if self.dedupe {
            return Ok(None);
        }
        let mut rows = self.rows.lock().unwrap();
        rows.epoch = rows.epoch.max(start.epoch());
        Ok(rows.position.map(StartPosition::AfterSequenceNumber))
    }

    async fn handle(
        &self,
        events: Vec<MemoryEvent>,
        context: PartitionContext,
    ) -> std::result::Result<(), HandlerError> {
        // The second pattern skips an event that is not after the stored position before it looks at the content.
        let skipped = if self.dedupe { self.rows.lock().unwrap().position } else { None };
        if events.iter().any(|event| &*event.body == "poison" && Some(event.sequence_number) > skipped) {
            return Err("poisoned".into());
        }
        let (numbers, epoch): (Vec<_>, _) =
            (events.iter().map(|event| event.sequence_number).collect(), context.epoch());
        let delay = if self.calls.fetch_add(1, Ordering::Relaxed) == 0 { self.slow } else { Duration::ZERO };
        let this = self.clone();
        let committing = tokio::spawn(async move {
            sleep(delay).await;
            this.commit(&numbers, epoch)
        });
        if !committing.await? {
            return Err("fenced".into());
        }
        context.checkpoint(events.last().unwrap());
        Ok(())
    }
}

async fn effects_with_a_sink_that_is_down(dedupe: bool) -> (Vec<i64>, Vec<i64>) {
    let (world, letters, down) = (world(100, &[37]), Letters::default(), Arc::new(AtomicBool::new(true)));
    let effects = Effects { dedupe, ..Effects::default() };
    let a = start(&world, effects.clone(), &letters, &down, quick()).await;
    sleep(120 * SECOND).await;
    down.store(false, Ordering::Relaxed);
    sleep(600 * SECOND).await;
    a.shut_down().await.unwrap();
    (effects.lost(100, &letters), moved(&letters))
}

#[tokio::test(start_paused = true)]
async fn own_positions_and_dead_letters_lose_nothing() {
    assert_eq!(effects_with_a_sink_that_is_down(false).await, (vec![], vec![37]));
}

#[tokio::test(start_paused = true)]
async fn dedupe_and_dead_letters_lose_nothing() {
    assert_eq!(effects_with_a_sink_that_is_down(true).await, (vec![], vec![37]));
}

/// Every event fails once, and is processed at its second attempt.
#[tokio::test(start_paused = true)]
async fn an_event_that_failed_once_is_not_moved() {
    let (world, letters, failed) = (world(60, &[]), Letters::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let failed = Arc::clone(&failed);
        async move {
            for event in &events {
                if failed.lock().unwrap().insert(event.sequence_number) {
                    return Err(EventError::new(event, "a timeout").into());
                }
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, &Arc::default(), DeadLetterPolicy::default()).await;
    sleep(3600 * SECOND).await;
    assert_eq!(*letters.lock().unwrap(), []);
    a.shut_down().await.unwrap();
}

/// Loses the partition in `started`, before the event is moved, and does not know it.
#[tokio::test(start_paused = true)]
async fn a_displaced_owner_moves_nothing() {
    struct Displaced(World, AtomicUsize);
    impl Handler<MemoryEvent> for Displaced {
        async fn started(&self, _: PartitionContext) {
            if self.1.fetch_add(1, Ordering::Relaxed) == 3 {
                self.0.give_to("another").await;
            }
        }
        async fn handle(&self, _: Vec<MemoryEvent>, _: PartitionContext) -> std::result::Result<(), HandlerError> {
            Err("poisoned".into())
        }
    }
    let (world, letters) = (world(1, &[0]), Letters::default());
    let handler = Displaced(world.clone(), AtomicUsize::new(0));
    let a = start(&world, handler, &letters, &Arc::default(), quick()).await;
    sleep(60 * SECOND).await;
    assert_eq!(world.owners().await["0"], "another");
    assert_eq!(moved(&letters), Vec::<i64>::new());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_letter_has_the_error_of_the_event() {
    let (world, letters, down) = (world(10, &[4]), Letters::default(), Arc::new(AtomicBool::new(true)));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            let token = context.track(event);
            if &*event.body == "poison" { token.fail("poisoned") } else { token.finish() }
        }
        Ok(())
    });
    let a = start(&world, handler, &letters, &down, quick()).await;
    sleep(60 * SECOND).await;
    down.store(false, Ordering::Relaxed);
    sleep(60 * SECOND).await;
    let letters = letters.lock().unwrap().clone();
    assert!(letters.len() == 1 && letters[0].2.contains("poisoned"), "{letters:?}");
    a.shut_down().await.unwrap();
}

/// The handler timeout drops the call, but not its transaction on another thread. The epoch of the restart is the same.
#[tokio::test(start_paused = true)]
async fn a_late_commit_of_the_same_owner_is_rejected() {
    let mut world = world(10, &[]);
    world.config = world.config.with_handler_timeout(20 * SECOND);
    let effects = Effects { slow: 25 * SECOND, ..Effects::default() };
    let a = world.start_with("a", world.hub.source(), effects.clone()).await;
    sleep(120 * SECOND).await;
    let rows = std::mem::take(&mut *effects.rows.lock().unwrap());
    assert!(rows.counted.len() == 10 && rows.counted.values().all(|times| *times == 1), "{rows:?}");
    a.shut_down().await.unwrap();
}

/// Before the event hub was recreated it had more events. One failure per hour, each cured by the restart.
#[tokio::test(start_paused = true)]
async fn attempts_start_again_in_a_recreated_event_hub() {
    let (world, attempts) = (world(500, &[]), Arc::new(Mutex::new(Vec::new())));
    let (seen, failed) = (Arc::clone(&attempts), Arc::new(Mutex::new(BTreeSet::new())));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (seen, failed) = (Arc::clone(&seen), Arc::clone(&failed));
        async move {
            for event in &events {
                if event.body.starts_with("fail") && failed.lock().unwrap().insert(event.body.to_string()) {
                    seen.lock().unwrap().push(context.attempt());
                    return Err("a timeout".into());
                }
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    sleep(60 * SECOND).await;
    world.hub.recreate();
    sleep(600 * SECOND).await;
    for number in 0..5 {
        world.hub.publish(0, format!("fail {number}"));
        sleep(3600 * SECOND).await;
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 1, 1, 1, 1], "{:?}", a.status());
    a.shut_down().await.unwrap();
}

/// The checkpoint and the own position are the same event, which has expired since; all later events exist.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_at_the_own_position_stays() {
    struct At(i64);
    impl Handler<MemoryEvent> for At {
        async fn start_position(&self, _: PartitionStart) -> std::result::Result<Option<StartPosition>, HandlerError> {
            Ok(Some(StartPosition::AfterSequenceNumber(self.0)))
        }
        async fn handle(&self, _: Vec<MemoryEvent>, _: PartitionContext) -> std::result::Result<(), HandlerError> {
            Ok(())
        }
    }
    let world = world(5, &[]);
    let a = world.start("a").await;
    sleep(30 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(4));
    let offset = async || {
        let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
        eventhubs_checkpoint::blob::BlobContainer::get(&*world.container, name).await.unwrap().metadata["offset"]
            .to_owned()
    };
    let before = offset().await;
    publish(&world, 5, &[]);
    world.hub.expire_before(0, 5);
    let b = world.start_with("b", world.hub.source(), At(4)).await;
    sleep(30 * SECOND).await;
    assert_eq!(offset().await, before, "a checkpoint at the same sequence number stays");
    b.shut_down().await.unwrap();
}

/// A handler error that has the `EventError` as its source.
#[tokio::test(start_paused = true)]
async fn an_event_error_may_be_a_cause_of_another() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot process the batch")]
    struct Batch(#[from] EventError);

    let (world, letters) = (world(10, &[4]), Letters::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            if &*event.body == "poison" {
                return Err(Batch(EventError::new(event, "poisoned")).into());
            }
            context.checkpoint(event);
        }
        Ok(())
    });
    let a = start(&world, handler, &letters, &Arc::default(), quick().with_isolation(false)).await;
    sleep(300 * SECOND).await;
    assert_eq!(moved(&letters), [4]);
    a.shut_down().await.unwrap();
}

/// A poison event 150, and a checkpoint only at the end of each batch of the application's 1000 events: events 0 to 99
/// are processed again at each restart. One of them then fails once.
#[tokio::test(start_paused = true)]
async fn attempts_count_for_one_event_only() {
    let (world, letters, calls) = (world(200, &[150]), Letters::default(), Arc::new(AtomicUsize::new(0)));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
        let calls = Arc::clone(&calls);
        async move {
            for event in &events {
                if &*event.body == "poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                if event.sequence_number == 5 && calls.fetch_add(1, Ordering::Relaxed) == 3 {
                    return Err(EventError::new(event, "a timeout").into());
                }
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, &Arc::default(), quick()).await;
    sleep(300 * SECOND).await;
    assert_eq!(moved(&letters), [150], "event 5 failed once, after three times without a failure");
    a.shut_down().await.unwrap();
}

/// Events 0 to 4 fail four times as tracked events, and are then finished a second later. One hour later there are new
/// events, of which one fails once.
#[tokio::test(start_paused = true)]
async fn new_events_have_the_first_attempt() {
    let (world, letters, seen) = (world(5, &[]), Letters::default(), Arc::new(Mutex::new(Vec::new())));
    let (attempts, failures) = (Arc::clone(&seen), Arc::new(AtomicUsize::new(0)));
    let twice = Arc::new(AtomicUsize::new(0));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (attempts, failures, twice) = (Arc::clone(&attempts), Arc::clone(&failures), Arc::clone(&twice));
        async move {
            attempts.lock().unwrap().push((events[0].sequence_number, context.attempt()));
            for event in &events {
                if event.sequence_number == 7 && twice.fetch_add(1, Ordering::Relaxed) < 2 {
                    return Err(EventError::new(event, "a timeout").into());
                }
                let (number, token, failures) = (event.sequence_number, context.track(event), Arc::clone(&failures));
                tokio::spawn(async move {
                    sleep(SECOND).await;
                    if number == 0 && failures.fetch_add(1, Ordering::Relaxed) < 4 {
                        token.fail("a timeout");
                    } else {
                        token.finish();
                    }
                });
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, &Arc::default(), DeadLetterPolicy::default()).await;
    sleep(3600 * SECOND).await;
    publish(&world, 5, &[]);
    sleep(600 * SECOND).await;
    let seen = seen.lock().unwrap().clone();
    assert!(moved(&letters).is_empty() && seen.contains(&(5, 1)), "{:?} {seen:?}", letters.lock());
    a.shut_down().await.unwrap();
}

/// Rejects all starts after a sequence number.
struct Rejecting(MemorySource);

impl EventSource for Rejecting {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.0.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.0.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        match from {
            StartPosition::AfterSequenceNumber(_) => Err(Error::new(ErrorKind::InvalidPosition, "rejected")),
            _ => self.0.open_receiver(partition, from, prefetch, epoch).await,
        }
    }
}

/// The broker rejects the position. With a checkpoint there, `OnInvalidCheckpoint` decides.
async fn rejected(position: Option<StartPosition>) -> usize {
    struct At(Option<StartPosition>, Arc<AtomicUsize>);
    impl Handler<MemoryEvent> for At {
        async fn start_position(&self, _: PartitionStart) -> std::result::Result<Option<StartPosition>, HandlerError> {
            Ok(self.0.clone())
        }
        async fn handle(&self, events: Vec<MemoryEvent>, _: PartitionContext) -> std::result::Result<(), HandlerError> {
            self.1.fetch_add(events.len(), Ordering::Relaxed);
            Ok(())
        }
    }
    let world = world(5, &[]);
    let a = world.start("a").await;
    sleep(30 * SECOND).await;
    a.shut_down().await.unwrap();
    publish(&world, 5, &[]);
    let counted = Arc::new(AtomicUsize::new(0));
    let b = world.start_with("b", Rejecting(world.hub.source()), At(position, Arc::clone(&counted))).await;
    sleep(3600 * SECOND).await;
    b.shut_down().await.unwrap();
    counted.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_rejected_checkpoint_is_invalid() {
    assert_eq!(rejected(None).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_own_position_is_invalid() {
    assert_eq!(rejected(Some(StartPosition::AfterSequenceNumber(4))).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_own_offset_is_invalid() {
    assert_eq!(rejected(Some(StartPosition::AfterOffset("40".into()))).await, 10);
}

/// A shutdown in the middle of the isolation, with the fenced write: no sink fails, and no process crashes.
#[tokio::test(start_paused = true)]
async fn a_release_in_the_isolation_loses_nothing() {
    #[derive(Clone)]
    struct Released(Effects, Arc<AtomicBool>);
    impl Handler<MemoryEvent> for Released {
        async fn start_position(
            &self,
            start: PartitionStart,
        ) -> std::result::Result<Option<StartPosition>, HandlerError> {
            self.0.start_position(start).await
        }
        async fn handle(
            &self,
            events: Vec<MemoryEvent>,
            context: PartitionContext,
        ) -> std::result::Result<(), HandlerError> {
            if context.attempt() > 3 && events[0].sequence_number >= 50 && !self.1.swap(true, Ordering::Relaxed) {
                self.0.handle(events, context.clone()).await?;
                context.release(Duration::ZERO);
                // Longer than the drain timeout.
                std::future::pending::<()>().await;
                return Ok(());
            }
            self.0.handle(events, context).await
        }
    }
    let (world, letters) = (world(100, &[37]), Letters::default());
    let handler = Released(Effects::default(), Arc::default());
    let a = start(&world, handler.clone(), &letters, &Arc::default(), quick()).await;
    sleep(600 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!((handler.0.lost(100, &letters), moved(&letters)), (vec![], vec![37]));
}
