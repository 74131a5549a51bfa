//! Which events are moved to the dead letters: several failing events, tracked events, redelivery, attempts, and time
//! without attempts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{EventError, Handler, HandlerError, OnFailure, PartitionContext, handler_fn};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::support::dead_letters::{Sink, SinkState, poisoned, publish_poisoned, quick, start};
use crate::support::{HOUR, SECOND, wait_for};
use crate::world::{Instance, World};

/// Tracks the event, and ends its token after this time, as its body says.
fn end_later(context: &PartitionContext, after: Duration, event: MemoryEvent) {
    let token = context.track(&event);
    tokio::spawn(async move {
        sleep(after).await;
        if &*event.body == b"poison" { token.fail("poisoned") } else { token.finish() }
    });
}

/// Fails if not exactly these events are stored after a day, or not all events up to `last` are covered.
async fn assert_moved_within_a_day(world: &World, a: Instance, sink: &Sink, moved: &[i64], last: i64) {
    sleep(24 * HOUR).await;
    let status = a.status();
    a.shut_down().await.unwrap();
    let mut stored = sink.numbers();
    stored.sort_unstable();
    assert_eq!((stored.as_slice(), world.checkpoint().await), (moved, Some(last)), "{status:?}");
}

/// A handler that collects, and checkpoints at each 1000th event only.
#[tokio::test(start_paused = true)]
async fn two_poison_events_with_rare_checkpoints() {
    let (world, sink) = (poisoned(1000, &[37, 70]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            if &*event.body == b"poison" {
                return Err(EventError::new(event, "poisoned").into());
            }
            if event.sequence_number == 999 {
                context.checkpoint(event);
            }
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, quick()).await;
    assert_moved_within_a_day(&world, a, &sink, &[37, 70], 999).await;
}

/// One poison event only, rare checkpoints, and then a single failure of another event.
#[tokio::test(start_paused = true)]
async fn rare_checkpoints_and_another_failure() {
    let (world, sink, calls) = (poisoned(1000, &[37]), Sink::default(), Arc::new(AtomicUsize::new(0)));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let calls = Arc::clone(&calls);
        async move {
            for event in &events {
                if &*event.body == b"poison" {
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
    let a = start(&world, handler, &sink, quick()).await;
    sleep(HOUR).await;
    let status = a.status();
    a.shut_down().await.unwrap();
    assert_eq!((sink.numbers(), world.checkpoint().await), (vec![37], Some(999)), "{status:?}");
}

/// A poison event 150, and a checkpoint only at the end of each batch of the application's 1000 events: events 0 to 99
/// are processed again at each restart. One of them then fails once.
#[tokio::test(start_paused = true)]
async fn attempts_count_for_one_event_only() {
    let (world, sink, calls) = (poisoned(200, &[150]), Sink::default(), Arc::new(AtomicUsize::new(0)));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, _: PartitionContext| {
        let calls = Arc::clone(&calls);
        async move {
            for event in &events {
                if &*event.body == b"poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                if event.sequence_number == 5 && calls.fetch_add(1, Ordering::Relaxed) == 3 {
                    return Err(EventError::new(event, "a timeout").into());
                }
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &sink, quick()).await;
    sleep(300 * SECOND).await;
    assert_eq!(sink.numbers(), [150], "event 5 failed once, after three times without a failure");
    a.shut_down().await.unwrap();
}

/// Tracked events in tasks of their own. The later poison event fails sooner.
#[tokio::test(start_paused = true)]
async fn tracked_events_that_fail_in_turns() {
    let (world, sink) = (poisoned(100, &[12, 37]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            end_later(&context, if event.sequence_number == 12 { 2 * SECOND } else { SECOND }, event);
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, quick()).await;
    assert_moved_within_a_day(&world, a, &sink, &[12, 37], 99).await;
}

/// Event 37 fails as a tracked event, a moment later; event 70 fails its call.
#[tokio::test(start_paused = true)]
async fn a_tracked_event_and_a_call_that_fail_in_turns() {
    let (world, sink) = (poisoned(100, &[37, 70]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            if event.sequence_number == 70 {
                return Err(EventError::new(&event, "poisoned").into());
            }
            end_later(&context, SECOND, event);
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, quick()).await;
    assert_moved_within_a_day(&world, a, &sink, &[37, 70], 99).await;
}

/// Two adjacent poison events, tracked, all with the same latency.
#[tokio::test(start_paused = true)]
async fn two_adjacent_tracked_events_are_moved() {
    let (world, sink) = (poisoned(100, &[37, 38]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            end_later(&context, SECOND, event);
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, quick()).await;
    assert_moved_within_a_day(&world, a, &sink, &[37, 38], 99).await;
}

/// The last event is poison and tracked events before it are in flight while it is stored.
#[tokio::test(start_paused = true)]
async fn a_tracked_last_event_is_moved() {
    let (mut world, sink) = (poisoned(100, &[99]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in events {
            end_later(&context, SECOND / 2 + SECOND * u32::from(&*event.body == b"poison"), event);
        }
        Ok(())
    });
    // The first events are redelivered together with it.
    world.config = world.config.with_on_failure(OnFailure::Restart);
    let a = start(&world, handler, &sink, quick()).await;
    sleep(HOUR).await;
    let status = a.status();
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(99), "{status:?}, stored {:?}", sink.numbers());
}

/// Tracks one event after the other; on an error the token is dropped, and the batch fails.
#[tokio::test(start_paused = true)]
async fn tokens_of_failed_calls_hold_nothing_back() {
    let mut world = poisoned(100, &[37]);
    world.config = world.config.with_max_in_flight(150);
    let (sink, processed) = (Sink::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let seen = Arc::clone(&seen);
        async move {
            let tokens: Vec<_> = events.iter().map(|event| context.track(event)).collect();
            for (event, token) in events.iter().zip(tokens) {
                if &*event.body == b"poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                seen.lock().unwrap().insert(event.sequence_number);
                token.finish();
            }
            Ok(())
        }
    });
    let a = start(&world, handler, &sink, quick()).await;
    sleep(60 * SECOND).await;
    publish_poisoned(&world, 300, &[]);
    sleep(600 * SECOND).await;
    let (status, checkpoint) = (a.status(), world.checkpoint().await);
    assert_eq!(
        (sink.numbers(), processed.lock().unwrap().len(), checkpoint, status.in_flight),
        (vec![37], 399, Some(399), 0),
        "{status:?}"
    );
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_letter_has_the_error_of_the_event() {
    let (world, sink) = (poisoned(10, &[4]), Sink::new(SinkState::Down));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            let token = context.track(event);
            if &*event.body == b"poison" { token.fail("poisoned") } else { token.finish() }
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, quick()).await;
    sleep(60 * SECOND).await;
    sink.set(SinkState::Up);
    sleep(60 * SECOND).await;
    let letters = sink.letters();
    assert!(letters.len() == 1 && letters[0].2.contains("poisoned"), "{letters:?}");
    a.shut_down().await.unwrap();
}

/// A handler error that has the `EventError` as its source.
#[tokio::test(start_paused = true)]
async fn an_event_error_may_be_a_cause_of_another() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot process the batch")]
    struct Batch(#[from] EventError);

    let (world, sink) = (poisoned(10, &[4]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            if &*event.body == b"poison" {
                return Err(Batch(EventError::new(event, "poisoned")).into());
            }
            context.checkpoint(event);
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, quick()).await;
    sleep(300 * SECOND).await;
    assert_eq!(sink.numbers(), [4]);
    a.shut_down().await.unwrap();
}

/// A wrapped permanent error of a tracked event.
#[tokio::test(start_paused = true)]
async fn a_wrapped_permanent_error_is_permanent() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot process")]
    struct Wrapped(#[source] EventError);
    let (world, sink) = (poisoned(10, &[4]), Sink::default());
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
        for event in &events {
            let token = context.track(event);
            if &*event.body == b"poison" {
                token.fail(Wrapped(EventError::permanent(event, "unknown format")));
            } else {
                token.finish();
            }
        }
        Ok(())
    });
    let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
    sleep(30 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(sink.numbers(), [4]);
}

/// A handler that waits until its checkpoint is durable.
async fn checkpointing_now(poison: i64) -> (Vec<i64>, usize, Option<i64>) {
    let (world, sink, processed) = (poisoned(100, &[poison]), Sink::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let seen = Arc::clone(&seen);
        async move {
            for event in &events {
                if &*event.body == b"poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                seen.lock().unwrap().insert(event.sequence_number);
            }
            context.checkpoint_now(events.last().unwrap()).await?;
            Ok(())
        }
    });
    let a = start(&world, handler, &sink, quick()).await;
    sleep(600 * SECOND).await;
    let checkpoint = world.checkpoint().await;
    let result = (sink.numbers(), processed.lock().unwrap().len(), checkpoint);
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

/// Every event fails once, and is processed at its second attempt.
#[tokio::test(start_paused = true)]
async fn an_event_that_failed_once_is_not_moved() {
    let (world, sink, failed) = (poisoned(60, &[]), Sink::default(), Arc::new(Mutex::new(BTreeSet::new())));
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
    let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
    sleep(HOUR).await;
    assert_eq!(sink.numbers(), [0_i64; 0]);
    a.shut_down().await.unwrap();
}

/// Events 0 to 4 fail four times as tracked events, and are then finished a second later. One hour later there are new
/// events, of which one fails once.
#[tokio::test(start_paused = true)]
async fn new_events_have_the_first_attempt() {
    let (world, sink, seen) = (poisoned(5, &[]), Sink::default(), Arc::new(Mutex::new(Vec::new())));
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
    let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
    sleep(HOUR).await;
    publish_poisoned(&world, 5, &[]);
    sleep(600 * SECOND).await;
    let seen = seen.lock().unwrap().clone();
    assert!(sink.numbers().is_empty() && seen.contains(&(5, 1)), "{:?} {seen:?}", sink.numbers());
    a.shut_down().await.unwrap();
}

/// Before the event hub was recreated it had more events. One failure per hour, each cured by the restart.
#[tokio::test(start_paused = true)]
async fn attempts_start_again_in_a_recreated_event_hub() {
    let (world, attempts) = (poisoned(500, &[]), Arc::new(Mutex::new(Vec::new())));
    let (seen, failed) = (Arc::clone(&attempts), Arc::new(Mutex::new(BTreeSet::new())));
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let (seen, failed) = (Arc::clone(&seen), Arc::clone(&failed));
        async move {
            for event in &events {
                if event.text().unwrap().starts_with("fail")
                    && failed.lock().unwrap().insert(event.text().unwrap().to_owned())
                {
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
        sleep(HOUR).await;
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 1, 1, 1, 1], "{:?}", a.status());
    a.shut_down().await.unwrap();
}

/// Event 5 fails until the event hub is recreated. The new event 5 is good.
#[tokio::test(start_paused = true)]
async fn a_recreated_hub_has_no_poison_event() {
    let (world, sink, processed) = (poisoned(6, &[5]), Sink::default(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let seen = Arc::clone(&seen);
        async move {
            for event in &events {
                if &*event.body == b"poison" {
                    return Err(EventError::new(event, "poisoned").into());
                }
                seen.lock().unwrap().push(event.text().unwrap().to_owned());
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    let policy = DeadLetterPolicy::default().with_min_failing_time(300 * SECOND);
    let a = start(&world, handler, &sink, policy).await;
    sleep(200 * SECOND).await;
    world.hub.recreate();
    sleep(200 * SECOND).await;
    for _ in 0..10 {
        world.hub.publish(0, "new");
    }
    sleep(600 * SECOND).await;
    let new = processed.lock().unwrap().iter().filter(|body| *body == "new").count();
    let status = a.status();
    a.shut_down().await.unwrap();
    assert_eq!((sink.numbers(), new), (vec![], 10), "{status:?}");
}

/// Fails while its database is down.
#[derive(Clone, Debug, Default)]
struct WithDatabase {
    is_down: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    /// Pauses the partition at its fifth failure.
    pauses: bool,
}

impl WithDatabase {
    fn down() -> Self {
        Self { is_down: Arc::new(AtomicBool::new(true)), ..Self::default() }
    }
}

impl Handler<MemoryEvent> for WithDatabase {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        if self.is_down.load(Ordering::Relaxed) {
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            if self.pauses && failures >= 5 {
                context.pause();
            }
            return Err(EventError::new(&events[0], "the database is down").into());
        }
        context.checkpoint(events.last().unwrap());
        Ok(())
    }
}

/// The application pauses the partition while its database is down, after five failures within seconds.
#[tokio::test(start_paused = true)]
async fn time_without_attempts_counts() {
    let (world, sink) = (poisoned(1, &[]), Sink::default());
    let handler = WithDatabase { pauses: true, ..WithDatabase::down() };
    let a = start(&world, handler.clone(), &sink, DeadLetterPolicy::default()).await;
    sleep(30 * SECOND).await;
    assert_eq!(handler.failures.load(Ordering::Relaxed), 5);
    sleep(600 * SECOND).await;
    handler.is_down.store(false, Ordering::Relaxed);
    a.handle.resume(&0.into());
    sleep(60 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(sink.numbers(), [0_i64; 0], "5 failures within 8 s, then the database is back");
}

/// The operator corrects the cause, and resumes.
#[tokio::test(start_paused = true)]
async fn a_poison_event_parks_the_partition() {
    let (mut world, sink, handler) = (poisoned(1, &[]), Sink::default(), WithDatabase::down());
    world.config = world.config.with_on_failure(OnFailure::Park);
    let a = start(&world, handler.clone(), &sink, DeadLetterPolicy::default()).await;
    for _ in 0..4 {
        sleep(5 * SECOND).await;
        a.handle.resume(&0.into());
    }
    sleep(1800 * SECOND).await;
    handler.is_down.store(false, Ordering::Relaxed);
    a.handle.resume(&0.into());
    sleep(60 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(sink.numbers(), [0_i64; 0]);
}

/// The default policy, one outage of two minutes, an idle partition, one event: failures only in the first seconds, and
/// then the storage of the checkpoints is down, too.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_storage_moves_no_good_event() {
    let (world, sink, handler) = (poisoned(1, &[]), Sink::default(), WithDatabase::down());
    let a = start(&world, handler.clone(), &sink, DeadLetterPolicy::default()).await;
    wait_for("five failures", || handler.failures.load(Ordering::Relaxed) >= 5).await;
    world.faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    sleep(75 * SECOND).await;
    handler.is_down.store(false, Ordering::Relaxed);
    world.faulty.set_plan(FaultPlan::default());
    sleep(120 * SECOND).await;
    a.shut_down().await.unwrap();
    assert_eq!(sink.numbers(), [0_i64; 0], "{} failures", handler.failures.load(Ordering::Relaxed));
}
