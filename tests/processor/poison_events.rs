//! Dead letters with several failing events, redelivery, and time without attempts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    DeadLetter, DeadLetterPolicy, EventError, Handler, HandlerError, HandlerExt, OnFailure, PartitionContext,
    PartitionStart, handler_fn,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::world::{Instance, World};

const SECOND: Duration = Duration::from_secs(1);
type Letters = Arc<Mutex<Vec<i64>>>;

fn quick() -> DeadLetterPolicy {
    DeadLetterPolicy::default().with_max_attempts(3).with_min_failing_time(Duration::ZERO)
}

fn publish(world: &World, events: i64, poison: &[i64]) {
    for number in 0..events {
        world.hub.publish(0, if poison.contains(&number) { "poison" } else { "good" });
    }
}

fn world(events: i64, poison: &[i64]) -> World {
    let world = World::new(1);
    publish(&world, events, poison);
    world
}

async fn start(
    world: &World,
    handler: impl Handler<MemoryEvent>,
    letters: &Letters,
    policy: DeadLetterPolicy,
) -> Instance {
    let letters = Arc::clone(letters);
    let sink = move |letter: DeadLetter<MemoryEvent>| {
        let letters = Arc::clone(&letters);
        async move {
            letters.lock().unwrap().push(letter.event.sequence_number);
            Ok(())
        }
    };
    world.start_with("a", world.hub.source(), handler.with_dead_letters(sink, policy)).await
}

/// Tracks the event, and ends its token after this time, as its body says.
fn end_later(context: &PartitionContext, after: Duration, event: MemoryEvent) {
    let token = context.track(&event);
    tokio::spawn(async move {
        sleep(after).await;
        if &*event.body == "poison" { token.fail("poisoned") } else { token.finish() }
    });
}

/// Fails if not exactly two events are stored after a day, or not all of 100 events are covered.
async fn both_are_moved_within_a_day(world: &World, a: Instance, letters: &Letters) {
    sleep(24 * 3600 * SECOND).await;
    let result = format!("one day: {:?} {}", a.status(), summary(letters));
    a.shut_down().await.unwrap();
    let stored = letters.lock().unwrap().clone();
    assert!(stored.len() == 2 && world.checkpoint().await == Some(99), "{result}");
}

fn summary(letters: &Letters) -> String {
    let letters = letters.lock().unwrap();
    let distinct: BTreeSet<_> = letters.iter().copied().collect();
    let counts: Vec<_> =
        distinct.iter().map(|number| (*number, letters.iter().filter(|other| *other == number).count())).collect();
    format!("(event, times stored): {counts:?}")
}

/// The fenced write of docs/effects.md: each call commits all or nothing, and moves the position.
#[derive(Clone, Default)]
struct Fenced {
    position: Arc<Mutex<Option<i64>>>,
    counted: Arc<Mutex<Vec<i64>>>,
    down: Arc<AtomicBool>,
    named: Option<bool>,
}

impl Handler<MemoryEvent> for Fenced {
    async fn start_position(&self, _: PartitionStart) -> Result<Option<StartPosition>, HandlerError> {
        Ok(self.position.lock().unwrap().map(StartPosition::AfterSequenceNumber))
    }
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        if self.down.load(Ordering::Relaxed) {
            return Err("down".into());
        }
        for event in &events {
            if &*event.body == "poison" {
                return match self.named {
                    Some(true) => Err(EventError::permanent(event, "poisoned").into()),
                    Some(false) => Err(EventError::new(event, "poisoned").into()),
                    None => Err("poisoned".into()),
                };
            }
        }
        let mut position = self.position.lock().unwrap();
        if *position >= Some(events[0].sequence_number) {
            return Err("fenced".into());
        }
        *position = events.last().map(|event| event.sequence_number);
        self.counted.lock().unwrap().extend(events.iter().map(|event| event.sequence_number));
        context.checkpoint(events.last().unwrap());
        Ok(())
    }
}

async fn fenced(poison: &[i64], named: Option<bool>) {
    let (world, letters, handler) = (world(100, poison), Letters::default(), Fenced { named, ..Fenced::default() });
    let a = start(&world, handler.clone(), &letters, quick()).await;
    sleep(24 * 3600 * SECOND).await;
    let (counted, status) = (handler.counted.lock().unwrap().len(), a.status());
    let result = format!(
        "one day: counted {counted}, position {:?}, checkpoint {:?}, {}, failures {}",
        handler.position.lock().unwrap(),
        status.checkpoint,
        summary(&letters),
        status.failures
    );
    a.shut_down().await.unwrap();
    assert!(counted == 100 - poison.len() && letters.lock().unwrap().len() == poison.len(), "{result}");
}

#[tokio::test(start_paused = true)]
async fn two_adjacent_events_with_own_positions() {
    fenced(&[37, 38], None).await;
}

#[tokio::test(start_paused = true)]
async fn two_events_with_own_positions() {
    fenced(&[37, 70], None).await;
}

#[tokio::test(start_paused = true)]
async fn two_adjacent_named_events_with_own_positions() {
    fenced(&[37, 38], Some(false)).await;
}

#[tokio::test(start_paused = true)]
async fn two_named_events_with_own_positions() {
    fenced(&[37, 70], Some(false)).await;
}

#[tokio::test(start_paused = true)]
async fn two_permanent_errors_with_own_positions() {
    fenced(&[37, 70], Some(true)).await;
}

/// An outage of ten minutes with own positions: how often is which event stored, and is it counted, too?
#[tokio::test(start_paused = true)]
async fn an_outage_moves_no_event_twice() {
    let (world, letters, handler) = (world(100, &[]), Letters::default(), Fenced::default());
    handler.down.store(true, Ordering::Relaxed);
    let a = start(&world, handler.clone(), &letters, DeadLetterPolicy::default()).await;
    sleep(1800 * SECOND).await;
    handler.down.store(false, Ordering::Relaxed);
    sleep(600 * SECOND).await;
    let counted = handler.counted.lock().unwrap().clone();
    let both: BTreeSet<_> = letters.lock().unwrap().iter().copied().filter(|n| counted.contains(n)).collect();
    let result = format!("counted {}, {}, stored and counted: {both:?}", counted.len(), summary(&letters));
    a.shut_down().await.unwrap();
    let stored = letters.lock().unwrap().clone();
    let distinct: BTreeSet<_> = stored.iter().collect();
    assert!(both.is_empty() && distinct.len() == stored.len(), "{result}");
}

/// A handler that collects, and checkpoints at each 1000th event only.
#[tokio::test(start_paused = true)]
async fn two_poison_events_with_rare_checkpoints() {
    for named in [true, false] {
        let (world, letters) = (world(1000, &[37, 70]), Letters::default());
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
            for event in &events {
                if &*event.body == "poison" {
                    return if named { Err(EventError::new(event, "poisoned").into()) } else { Err("poisoned".into()) };
                }
                if event.sequence_number == 999 {
                    context.checkpoint(event);
                }
            }
            Ok(())
        });
        let a = start(&world, handler, &letters, quick()).await;
        sleep(24 * 3600 * SECOND).await;
        let result = format!("named {named}: one day: {:?} {}", a.status(), summary(&letters));
        a.shut_down().await.unwrap();
        assert!(letters.lock().unwrap().len() == 2 && world.checkpoint().await == Some(999), "{result}");
    }
}

/// Tracked events in tasks of their own. The later poison event fails sooner.
#[tokio::test(start_paused = true)]
async fn tracked_events_that_fail_in_turns() {
    let (world, letters) = (world(100, &[12, 37]), Letters::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            end_later(&context, if event.sequence_number == 12 { 2 * SECOND } else { SECOND }, event);
        }
        Ok(())
    });
    let a = start(&world, handler, &letters, quick()).await;
    both_are_moved_within_a_day(&world, a, &letters).await;
}

/// Two adjacent poison events, tracked, all with the same latency.
#[tokio::test(start_paused = true)]
async fn two_adjacent_tracked_events_are_moved() {
    let (world, letters) = (world(100, &[37, 38]), Letters::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            end_later(&context, SECOND, event);
        }
        Ok(())
    });
    let a = start(&world, handler, &letters, quick()).await;
    sleep(24 * 3600 * SECOND).await;
    let result = format!("one day: {:?} {}", a.status(), summary(&letters));
    a.shut_down().await.unwrap();
    let stored = letters.lock().unwrap().clone();
    assert!(stored == [37, 38] && world.checkpoint().await == Some(99), "{result}");
}

/// The last event is poison and tracked events before it are in flight while it is stored.
#[tokio::test(start_paused = true)]
async fn a_tracked_last_event_is_moved() {
    let (world, letters) = (world(100, &[99]), Letters::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            end_later(&context, SECOND / 2 + SECOND * u32::from(&*event.body == "poison"), event);
        }
        Ok(())
    });
    // The first events are redelivered together with it.
    let mut world = world;
    world.config = world.config.with_on_failure(OnFailure::Restart);
    let a = start(&world, handler, &letters, quick()).await;
    sleep(3600 * SECOND).await;
    let result = format!("{:?} {}", a.status(), summary(&letters));
    a.shut_down().await.unwrap();
    assert!(world.checkpoint().await == Some(99), "{result}");
}

/// The application pauses the partition while its database is down, after six failures within seconds.
#[tokio::test(start_paused = true)]
async fn time_without_attempts_counts() {
    let (world, letters, down) = (World::new(1), Letters::default(), Arc::new(AtomicBool::new(true)));
    world.hub.publish(0, "good");
    let (is_down, calls, processed) = (Arc::clone(&down), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, seen) = (Arc::clone(&calls), Arc::clone(&processed));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (down, calls, processed) = (Arc::clone(&is_down), Arc::clone(&counted), Arc::clone(&seen));
        async move {
            if down.load(Ordering::Relaxed) {
                if calls.fetch_add(1, Ordering::Relaxed) + 1 >= 5 {
                    context.pause();
                }
                return Err("the database is down".into());
            }
            processed.fetch_add(events.len(), Ordering::Relaxed);
            context.checkpoint(events.last().unwrap());
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, DeadLetterPolicy::default()).await;
    sleep(30 * SECOND).await;
    assert_eq!(calls.load(Ordering::Relaxed), 5);
    sleep(600 * SECOND).await;
    down.store(false, Ordering::Relaxed);
    a.handle.resume(&0.into());
    sleep(60 * SECOND).await;
    let result = format!("processed {}, {}", processed.load(Ordering::Relaxed), summary(&letters));
    a.shut_down().await.unwrap();
    assert!(letters.lock().unwrap().is_empty(), "5 failures within 8 s, then the database is back: {result}");
}

/// The same with `Park`: the operator corrects the cause, and resumes.
#[tokio::test(start_paused = true)]
async fn a_poison_event_parks_the_partition() {
    let (mut world, letters, down) = (World::new(1), Letters::default(), Arc::new(AtomicBool::new(true)));
    world.config = world.config.with_on_failure(OnFailure::Park);
    world.hub.publish(0, "good");
    let (is_down, processed) = (Arc::clone(&down), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (down, processed) = (Arc::clone(&is_down), Arc::clone(&seen));
        async move {
            if down.load(Ordering::Relaxed) {
                return Err("the database is down".into());
            }
            processed.fetch_add(events.len(), Ordering::Relaxed);
            context.checkpoint(events.last().unwrap());
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, DeadLetterPolicy::default()).await;
    for _ in 0..4 {
        sleep(5 * SECOND).await;
        a.handle.resume(&0.into());
    }
    sleep(1800 * SECOND).await;
    down.store(false, Ordering::Relaxed);
    a.handle.resume(&0.into());
    sleep(60 * SECOND).await;
    let result = format!("processed {}, {}", processed.load(Ordering::Relaxed), summary(&letters));
    a.shut_down().await.unwrap();
    assert!(letters.lock().unwrap().is_empty(), "{result}");
}

/// Event 5 fails until the event hub is recreated. The new event 5 is good.
#[tokio::test(start_paused = true)]
async fn a_recreated_hub_has_no_poison_event() {
    let (world, letters, processed) = (world(6, &[5]), Letters::default(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let seen = Arc::clone(&seen);
        async move {
            for event in &events {
                if &*event.body == "poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                seen.lock().unwrap().push(event.body.to_string());
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    let policy = DeadLetterPolicy::default().with_min_failing_time(300 * SECOND);
    let a = start(&world, handler, &letters, policy).await;
    sleep(200 * SECOND).await;
    world.hub.recreate();
    sleep(200 * SECOND).await;
    for _ in 0..10 {
        world.hub.publish(0, "new");
    }
    sleep(600 * SECOND).await;
    let new = processed.lock().unwrap().iter().filter(|body| *body == "new").count();
    let result = format!("new events processed: {new} of 10, {}, {:?}", summary(&letters), a.status());
    a.shut_down().await.unwrap();
    assert!(letters.lock().unwrap().is_empty() && new == 10, "{result}");
}

/// A handler around the dead letters that passes at most ten events at once. Nothing is ever checkpointed.
#[tokio::test(start_paused = true)]
async fn a_wrapper_with_smaller_batches_checkpoints_none() {
    struct Chunks<H>(H);
    impl<H: Handler<MemoryEvent>> Handler<MemoryEvent> for Chunks<H> {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            for chunk in events.chunks(10) {
                self.0.handle(chunk.to_vec(), context.clone()).await?;
            }
            Ok(())
        }
    }
    let (world, letters) = (world(100, &[30]), Letters::default());
    let handler = handler_fn(|events: Vec<MemoryEvent>, _: PartitionContext| async move {
        if events.iter().any(|event| &*event.body == "poison") { Err("poisoned".into()) } else { Ok(()) }
    });
    let stored = Arc::clone(&letters);
    let sink = move |letter: DeadLetter<MemoryEvent>| {
        let stored = Arc::clone(&stored);
        async move {
            stored.lock().unwrap().push(letter.event.sequence_number);
            Ok(())
        }
    };
    let a = world.start_with("a", world.hub.source(), Chunks(handler.with_dead_letters(sink, quick()))).await;
    sleep(600 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(-1), "the handler has requested no checkpoint; {}", summary(&letters));
}

/// A wrapped permanent error of a tracked event.
#[tokio::test(start_paused = true)]
async fn a_wrapped_permanent_error_is_permanent() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot process")]
    struct Wrapped(#[source] EventError);
    let (world, letters) = (world(10, &[4]), Letters::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            let token = context.track(event);
            if &*event.body == "poison" {
                token.fail(Wrapped(EventError::permanent(event, "unknown format")));
            } else {
                token.finish();
            }
        }
        Ok(())
    });
    let a = start(&world, handler, &letters, DeadLetterPolicy::default()).await;
    sleep(30 * SECOND).await;
    let result = summary(&letters);
    a.shut_down().await.unwrap();
    assert_eq!(*letters.lock().unwrap(), [4], "{result}");
}

/// As `p02`, after the application has stored a position.
#[tokio::test(start_paused = true)]
async fn outage_with_a_stored_own_position() {
    let (world, letters, handler) = (world(10, &[]), Letters::default(), Fenced::default());
    let a = start(&world, handler.clone(), &letters, DeadLetterPolicy::default()).await;
    sleep(60 * SECOND).await;
    handler.down.store(true, Ordering::Relaxed);
    publish(&world, 90, &[]);
    sleep(3600 * SECOND).await;
    handler.down.store(false, Ordering::Relaxed);
    sleep(600 * SECOND).await;
    let counted = handler.counted.lock().unwrap().clone();
    let both: BTreeSet<_> = letters.lock().unwrap().iter().copied().filter(|n| counted.contains(n)).collect();
    let result = format!("counted {}, {}, stored and counted: {both:?}", counted.len(), summary(&letters));
    a.shut_down().await.unwrap();
    let stored = letters.lock().unwrap().clone();
    let distinct: BTreeSet<_> = stored.iter().collect();
    assert!(both.is_empty() && distinct.len() == stored.len(), "{result}");
}

/// Event 37 fails as a tracked event, a moment later; event 70 fails its call.
#[tokio::test(start_paused = true)]
async fn a_tracked_event_and_a_call_that_fail_in_turns() {
    let (world, letters) = (world(100, &[37, 70]), Letters::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            if event.sequence_number == 70 {
                return Err(EventError::new(&event, "poisoned").into());
            }
            end_later(&context, SECOND, event);
        }
        Ok(())
    });
    let a = start(&world, handler, &letters, quick()).await;
    both_are_moved_within_a_day(&world, a, &letters).await;
}

/// One poison event only, rare checkpoints, and then a single failure of another event.
#[tokio::test(start_paused = true)]
async fn rare_checkpoints_and_another_failure() {
    let (world, letters, calls) = (world(1000, &[37]), Letters::default(), Arc::new(AtomicUsize::new(0)));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let calls = Arc::clone(&calls);
        async move {
            for event in &events {
                if &*event.body == "poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                if event.sequence_number == 800 && calls.fetch_add(1, Ordering::Relaxed) < 2 {
                    return Err("a timeout".into());
                }
                if event.sequence_number == 999 {
                    context.checkpoint(event);
                }
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, quick()).await;
    sleep(3600 * SECOND).await;
    let result = format!("{:?} {}", a.status(), summary(&letters));
    a.shut_down().await.unwrap();
    assert!(letters.lock().unwrap().len() == 1 && world.checkpoint().await == Some(999), "{result}");
}

/// Two poison events in different batches, with own positions.
#[tokio::test(start_paused = true)]
async fn own_positions_poison_in_different_batches() {
    let (world, letters, handler) = (world(300, &[37, 250]), Letters::default(), Fenced::default());
    let a = start(&world, handler.clone(), &letters, quick()).await;
    sleep(3600 * SECOND).await;
    let result = format!("{:?} {}", handler.position.lock().unwrap(), summary(&letters));
    a.shut_down().await.unwrap();
    assert!(letters.lock().unwrap().len() == 2 && handler.counted.lock().unwrap().len() == 298, "{result}");
}

/// The default policy, one outage of two minutes, an idle partition, one event: failures only in the first seconds, and
/// then the storage of the checkpoints is down, too.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_storage_moves_no_good_event() {
    use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
    let (world, letters, down) = (World::new(1), Letters::default(), Arc::new(AtomicBool::new(true)));
    world.hub.publish(0, "good");
    let (is_down, calls) = (Arc::clone(&down), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (down, calls) = (Arc::clone(&is_down), Arc::clone(&counted));
        async move {
            if down.load(Ordering::Relaxed) {
                calls.fetch_add(1, Ordering::Relaxed);
                return Err("the database is down".into());
            }
            context.checkpoint(events.last().unwrap());
            Ok(())
        }
    });
    let a = start(&world, handler, &letters, DeadLetterPolicy::default()).await;
    while calls.load(Ordering::Relaxed) < 5 {
        sleep(SECOND / 10).await;
    }
    world.faulty.set_plan(FaultPlan::default().with(1.0, Fault::Unreachable));
    sleep(75 * SECOND).await;
    down.store(false, Ordering::Relaxed);
    world.faulty.set_plan(FaultPlan::default());
    sleep(120 * SECOND).await;
    let result = format!("calls {} {}", calls.load(Ordering::Relaxed), summary(&letters));
    a.shut_down().await.unwrap();
    assert!(letters.lock().unwrap().is_empty(), "{result}");
}
