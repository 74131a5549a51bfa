//! Events that fail again and again in a handler of batches: `ProcessorBuilder::with_dead_letters`.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy};
use eventhubs_checkpoint::processor::{
    EventError, Handler, HandlerError, OnFailure, OwnPosition, PartitionContext, PartitionStart, PartitionState,
    StopReason, handler_fn,
};
use eventhubs_checkpoint::source::Positioned;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::support::dead_letters::{Sink, SinkState, poisoned, quick, start};
use crate::support::{SECOND, wait_for, wait_for_checkpoint};
use crate::world::World;

/// How the handler fails at a poison event.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    Unnamed,
    Named,
    Tracked,
    Panic,
    Hang,
}

/// Fails at the events with the body "poison", and at all events while it is down. Otherwise it records them.
#[derive(Clone, Debug)]
struct Picky {
    failure: Failure,
    down: Arc<AtomicBool>,
    /// The sequence numbers of processed events, in order.
    processed: Arc<Mutex<Vec<i64>>>,
    /// How often the handler got a poison event, and the attempts that it saw.
    poisoned: Arc<Mutex<Vec<u32>>>,
    calls: Arc<AtomicUsize>,
    /// Fails this many times to return the start position.
    failing_starts: Arc<AtomicUsize>,
    /// The position that the application keeps. Negative if it keeps none.
    position: Arc<AtomicI64>,
}

impl Picky {
    fn new(failure: Failure) -> Self {
        Self {
            failure,
            down: Arc::default(),
            processed: Arc::default(),
            poisoned: Arc::default(),
            calls: Arc::default(),
            failing_starts: Arc::default(),
            position: Arc::new(AtomicI64::new(-1)),
        }
    }

    fn processed(&self) -> Vec<i64> {
        self.processed.lock().unwrap().clone()
    }

    fn distinct(&self) -> BTreeSet<i64> {
        self.processed().into_iter().collect()
    }

    async fn fail(&self, event: &MemoryEvent, context: &PartitionContext) -> Result<(), HandlerError> {
        self.poisoned.lock().unwrap().push(context.attempt());
        match self.failure {
            Failure::Unnamed => Err("poisoned".into()),
            Failure::Named => Err(EventError::new(event, "poisoned").into()),
            Failure::Tracked => {
                context.track(event).fail("poisoned");
                Ok(())
            }
            Failure::Panic => panic!("poisoned"),
            Failure::Hang => pending().await,
        }
    }
}

impl Handler<MemoryEvent> for Picky {
    async fn start_position(&self, _: PartitionStart) -> Result<OwnPosition, HandlerError> {
        let failing =
            self.failing_starts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if failing.is_ok() {
            return Err("the position cannot be read".into());
        }
        let position = self.position.load(Ordering::Relaxed);
        Ok(OwnPosition::after((position >= 0).then_some(position)))
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for event in &events {
            if self.down.load(Ordering::Relaxed) {
                if self.failure == Failure::Tracked {
                    context.track(event).fail("the database is down");
                    continue;
                }
                return Err("the database is down".into());
            }
            if &*event.body == b"poison" {
                self.fail(event, &context).await?;
                continue;
            }
            self.processed.lock().unwrap().push(event.sequence_number);
            // Only if it keeps one.
            let advance = |kept: i64| (kept >= 0).then_some(event.sequence_number);
            let _ = self.position.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
            context.checkpoint(event);
        }
        Ok(())
    }
}

/// A partition with 100 events, of which these are poison.
fn hundred_events(poison: &[i64]) -> World {
    let mut world = poisoned(100, poison);
    world.config = world.config.with_handler_timeout(20 * SECOND);
    world
}

/// Returns the first occurrence of each number.
fn first_times(numbers: &[i64]) -> Vec<i64> {
    let mut seen = BTreeSet::new();
    numbers.iter().copied().filter(|number| seen.insert(*number)).collect()
}

mod a_poison_event {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_moved_and_all_others_are_processed_in_order() {
        for failure in [Failure::Named, Failure::Tracked] {
            for position in [0, 37, 99] {
                let (log, _guard) = Captured::begin();
                let (world, handler, sink) = (hundred_events(&[position]), Picky::new(failure), Sink::default());
                let a = start(&world, handler.clone(), &sink, quick()).await;
                wait_for_checkpoint(&world, 99).await;
                let expected: Vec<_> = (0..100).filter(|number| *number != position).collect();
                assert_eq!(first_times(&handler.processed()), expected, "{failure:?} at {position}");
                assert_eq!(sink.letters(), [(position, 3, "poisoned".to_owned())], "{failure:?}");
                let seen = handler.poisoned.lock().unwrap().clone();
                assert!(seen.starts_with(&[1]) && seen.ends_with(&[2, 3]), "{failure:?}: the handler sees {seen:?}");
                let status = a.status();
                assert_eq!((status.dead_letters, status.last_error.is_none()), (1, true));
                assert!(log.text().contains("event moved to the dead letters"), "{}", log.text());
                a.shut_down().await.unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_hide_the_next_one() {
        for failure in [Failure::Named, Failure::Tracked] {
            let poison = [10, 11, 60, 99];
            let mut world = hundred_events(&poison);
            world.config = world.config.with_max_batch_size(30);
            let (handler, sink) = (Picky::new(failure), Sink::default());
            let a = start(&world, handler.clone(), &sink, quick()).await;
            wait_for_checkpoint(&world, 99).await;
            assert_eq!(sink.numbers(), poison, "{failure:?}");
            assert_eq!(handler.distinct().len(), 96);
            a.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn that_is_not_named_stays() {
        for failure in [Failure::Unnamed, Failure::Panic, Failure::Hang] {
            let (world, handler, sink) = (hundred_events(&[37]), Picky::new(failure), Sink::default());
            let a = start(&world, handler.clone(), &sink, quick()).await;
            wait_for("many attempts", || handler.poisoned.lock().unwrap().len() > 10).await;
            assert_eq!(sink.letters(), [], "{failure:?}");
            assert_eq!(world.checkpoint().await, Some(36));
            a.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn is_moved_as_soon_as_the_policy_allows() {
        let (world, handler, sink) = (hundred_events(&[37]), Picky::new(Failure::Named), Sink::default());
        let policy = DeadLetterPolicy::default();
        let a = start(&world, handler.clone(), &sink, policy.clone()).await;
        wait_for("the first failure", || !handler.poisoned.lock().unwrap().is_empty()).await;
        let began = Instant::now();
        wait_for("the letter", || !sink.letters().is_empty()).await;
        let took = began.elapsed();
        assert!(took >= policy.min_failing_time && took < policy.min_failing_time + 2 * SECOND, "{took:?}");
        assert!(sink.letters()[0].1 >= policy.max_attempts);
        a.shut_down().await.unwrap();
    }

    /// Another instance would count the attempts anew, and a partition that is parked makes none.
    #[tokio::test(start_paused = true)]
    async fn that_is_due_is_moved_with_any_failure_policy() {
        for on_failure in [OnFailure::Park, OnFailure::Release { cooldown: 600 * SECOND }] {
            let (mut world, handler, sink) = (hundred_events(&[37]), Picky::new(Failure::Named), Sink::default());
            world.config = world.config.clone().with_on_failure(on_failure);
            let a = start(&world, handler.clone(), &sink, quick().with_max_attempts(1)).await;
            wait_for_checkpoint(&world, 99).await;
            assert_eq!(sink.numbers(), [37], "{on_failure:?}");
            a.shut_down().await.unwrap();
        }
    }

    /// The handler names events that it never gets: the partition must not restart without a wait.
    #[tokio::test(start_paused = true)]
    async fn that_never_comes_is_no_reason_to_hurry() {
        let (world, sink, calls) = (hundred_events(&[]), Sink::default(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let handler = handler_fn(move |_: Vec<MemoryEvent>, _: PartitionContext| {
            let number = i64::try_from(counted.fetch_add(1, Ordering::Relaxed)).unwrap();
            async move { Err(EventError::permanent(&MemoryEvent::new(5000 + number, "another"), "unknown").into()) }
        });
        let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
        sleep(60 * SECOND).await;
        let calls = calls.load(Ordering::Relaxed);
        assert!((5..12).contains(&calls), "{calls}");
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn counts_failures_of_the_handler_only() {
        let (world, handler, sink) = (hundred_events(&[37]), Picky::new(Failure::Named), Sink::default());
        handler.failing_starts.store(10, Ordering::Relaxed);
        let a = start(&world, handler.clone(), &sink, quick()).await;
        wait_for_checkpoint(&world, 99).await;
        assert_eq!(sink.letters(), [(37, 3, "poisoned".to_owned())]);
        a.shut_down().await.unwrap();
    }
}

mod batches {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn without_poison_are_unchanged() {
        let (world, handler, sink) = (hundred_events(&[]), Picky::new(Failure::Unnamed), Sink::default());
        let a = start(&world, handler.clone(), &sink, quick()).await;
        wait_for_checkpoint(&world, 99).await;
        assert_eq!(handler.calls.load(Ordering::Relaxed), 1);
        assert_eq!(a.status().dead_letters, 0);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn with_a_permanent_error_are_attempted_once() {
        let (world, sink, calls) = (hundred_events(&[3, 4, 50]), Sink::default(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            let calls = Arc::clone(&counted);
            async move {
                for event in &events {
                    if &*event.body == b"poison" {
                        calls.fetch_add(1, Ordering::Relaxed);
                        return Err(EventError::permanent(event, "an unknown format").into());
                    }
                    context.checkpoint(event);
                }
                Ok(())
            }
        });
        let began = Instant::now();
        let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
        wait_for_checkpoint(&world, 99).await;
        assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
        let moved: Vec<_> = sink.letters().into_iter().map(|(number, attempts, _)| (number, attempts)).collect();
        assert_eq!((moved, calls.load(Ordering::Relaxed)), (vec![(3, 1), (4, 1), (50, 1)], 3));
        a.shut_down().await.unwrap();
    }
}

mod an_outage {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shorter_than_the_minimum_time_moves_nothing() {
        let (world, handler, sink) = (hundred_events(&[]), Picky::new(Failure::Tracked), Sink::default());
        handler.down.store(true, Ordering::Relaxed);
        let policy = quick().with_min_failing_time(600 * SECOND);
        let a = start(&world, handler.clone(), &sink, policy).await;
        sleep(550 * SECOND).await;
        assert!(a.status().failures > 15, "{:?}", a.status());
        handler.down.store(false, Ordering::Relaxed);
        wait_for_checkpoint(&world, 99).await;
        assert_eq!((handler.distinct().len(), sink.letters()), (100, Vec::new()));
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn moves_one_named_event_in_each_minimum_time() {
        let (world, handler, sink) = (hundred_events(&[]), Picky::new(Failure::Tracked), Sink::default());
        handler.down.store(true, Ordering::Relaxed);
        let a = start(&world, handler.clone(), &sink, DeadLetterPolicy::default()).await;
        sleep(3600 * SECOND).await;
        let moved = sink.letters().len();
        assert!((50..=60).contains(&moved), "{moved}");
        handler.down.store(false, Ordering::Relaxed);
        wait_for_checkpoint(&world, 99).await;
        assert_eq!(handler.distinct().len() + sink.letters().len(), 100, "all others are processed");
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn moves_nothing_that_is_not_named() {
        let (world, handler, sink) = (hundred_events(&[]), Picky::new(Failure::Unnamed), Sink::default());
        handler.down.store(true, Ordering::Relaxed);
        let a = start(&world, handler.clone(), &sink, quick()).await;
        sleep(3600 * SECOND).await;
        assert_eq!((sink.letters(), world.checkpoint().await), (Vec::new(), Some(-1)));
        a.shut_down().await.unwrap();
    }
}

mod a_failing_sink {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fails_the_partition_until_it_is_back() {
        for failure in [Failure::Named, Failure::Tracked] {
            for (state, message) in [
                (SinkState::Down, "the sink is down"),
                (SinkState::Hangs, "the dead-letter sink did not finish within the handler timeout of 20s"),
                (SinkState::Panics, "the sink panicked"),
            ] {
                let (log, _guard) = Captured::begin();
                let (world, handler, sink) = (hundred_events(&[37]), Picky::new(failure), Sink::new(state));
                let a = start(&world, handler.clone(), &sink, quick()).await;
                wait_for("it is asked", || sink.asked.load(Ordering::Relaxed) >= 3).await;
                let status = a.status();
                assert_eq!(world.checkpoint().await, Some(36), "{failure:?}: it never passes the event");
                assert_eq!(status.dead_letters, 0);
                let text = log.text();
                assert!(text.contains("event 37 was not moved to the dead letters"), "{text}");
                assert!(text.contains(message), "{text}");
                sink.set(SinkState::Up);
                wait_for_checkpoint(&world, 99).await;
                assert_eq!(sink.letters().len(), 1, "{failure:?}, {state:?}");
                assert_eq!(handler.distinct().len(), 99);
                a.shut_down().await.unwrap();
            }
        }
    }

    /// Later events wait for the sink, too, unless they were processed while the event was tracked.
    #[tokio::test(start_paused = true)]
    async fn holds_the_checkpoint_back() {
        for (failure, processed) in [(Failure::Named, 37), (Failure::Tracked, 99)] {
            let mut world = hundred_events(&[37]);
            world.config = world.config.with_handler_timeout(500 * SECOND);
            let (handler, sink) = (Picky::new(failure), Sink::new(SinkState::Hangs));
            let a = start(&world, handler.clone(), &sink, quick()).await;
            wait_for("it is asked", || sink.asked.load(Ordering::Relaxed) == 1).await;
            sleep(60 * SECOND).await;
            assert_eq!((world.checkpoint().await, handler.distinct().len()), (Some(36), processed), "{failure:?}");
            sink.set(SinkState::Up);
            a.crash().await;
            let b = start(&world, handler.clone(), &sink, quick()).await;
            wait_for_checkpoint(&world, 99).await;
            assert_eq!(sink.letters().len(), 1, "{failure:?}");
            assert_eq!(sink.letters()[0].1, 3, "the new owner counts from the beginning");
            b.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn holds_the_position_of_the_application_back() {
        let (world, handler, sink) = (hundred_events(&[37]), Picky::new(Failure::Named), Sink::new(SinkState::Down));
        handler.position.store(20, Ordering::Relaxed);
        let a = start(&world, handler.clone(), &sink, quick()).await;
        wait_for("it is asked", || sink.asked.load(Ordering::Relaxed) >= 3).await;
        assert_eq!(handler.position.load(Ordering::Relaxed), 36);
        sink.set(SinkState::Up);
        wait_for_checkpoint(&world, 99).await;
        assert_eq!((sink.letters().len(), handler.position.load(Ordering::Relaxed)), (1, 99));
        assert_eq!(handler.distinct().len(), 78);
        a.shut_down().await.unwrap();
    }
}

mod the_checkpoint {
    use super::*;

    /// The last event is poison. Without an advance over it, a restart would deliver it again.
    #[tokio::test(start_paused = true)]
    async fn advances_over_the_last_event() {
        let (world, handler, sink) = (hundred_events(&[99]), Picky::new(Failure::Named), Sink::default());
        let a = start(&world, handler.clone(), &sink, quick()).await;
        wait_for_checkpoint(&world, 99).await;
        a.shut_down().await.unwrap();
        let b = start(&world, handler.clone(), &sink, quick()).await;
        b.wait_until_all_idle(1).await;
        assert_eq!((sink.letters().len(), handler.distinct().len()), (1, 99));
        b.shut_down().await.unwrap();
    }

    /// A handler that collects events in memory, and checkpoints when they are durable.
    #[tokio::test(start_paused = true)]
    async fn never_passes_an_event_that_it_does_not_cover() {
        let (world, sink) = (hundred_events(&[37]), Sink::default());
        let handler = handler_fn(|events: Vec<MemoryEvent>, _: PartitionContext| async move {
            match events.iter().find(|event| &*event.body == b"poison") {
                Some(event) => Err(EventError::new(event, "poisoned").into()),
                None => Ok(()),
            }
        });
        let a = start(&world, handler, &sink, quick()).await;
        wait_for("the letter", || sink.letters().len() == 1).await;
        sleep(60 * SECOND).await;
        a.shut_down().await.unwrap();
        assert_eq!(world.checkpoint().await, Some(-1));
    }
}

mod an_owner_that_stops {
    use super::*;

    /// It cannot read the ownership record, so another instance may own the partition.
    #[tokio::test(start_paused = true)]
    async fn moves_nothing_while_the_storage_is_down() {
        let (world, handler, sink) = (hundred_events(&[37]), Picky::new(Failure::Named), Sink::new(SinkState::Down));
        let a = start(&world, handler.clone(), &sink, quick()).await;
        wait_for("attempts", || sink.asked.load(Ordering::Relaxed) >= 2).await;
        world.faulty.set_plan(FaultPlan::default().with(1.0, Fault::Unreachable));
        sink.set(SinkState::Up);
        sleep(40 * SECOND).await;
        assert_eq!(sink.letters(), []);
        world.faulty.set_plan(FaultPlan::default());
        wait_for_checkpoint(&world, 99).await;
        assert_eq!(sink.letters().len(), 1);
        a.shut_down().await.unwrap();
    }

    /// A handler that fails because its partition stops says nothing about the event.
    #[tokio::test(start_paused = true)]
    async fn moves_no_event_whose_handling_was_interrupted() {
        struct Waiting(Arc<AtomicUsize>);

        impl Handler<MemoryEvent> for Waiting {
            async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
                if self.0.fetch_add(1, Ordering::Relaxed) >= 2 {
                    context.stopping().await;
                }
                Err(EventError::new(&events[0], "not finished").into())
            }
        }

        let world = World::new(1);
        world.hub.publish(0, "one");
        let (sink, calls) = (Sink::default(), Arc::default());
        let a = start(&world, Waiting(Arc::clone(&calls)), &sink, quick()).await;
        wait_for("the last attempt", || calls.load(Ordering::Relaxed) == 3).await;
        a.shut_down().await.unwrap();
        assert_eq!((sink.letters(), world.checkpoint().await), (Vec::new(), Some(-1)));
    }
}

/// Fails at every event. Its second start loses the partition.
struct LosesAtSecondStart {
    world: World,
    starts: AtomicUsize,
    stops: Arc<Mutex<Vec<StopReason>>>,
}

impl Handler<MemoryEvent> for LosesAtSecondStart {
    async fn handle(&self, events: Vec<MemoryEvent>, _: PartitionContext) -> Result<(), HandlerError> {
        Err(EventError::permanent(&events[0], "poisoned").into())
    }

    async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
        if self.starts.fetch_add(1, Ordering::Relaxed) == 1 {
            self.world.give_to("b").await;
        }
        Ok(())
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        self.stops.lock().unwrap().push(reason);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_found_by_a_dead_letter_is_no_failure() {
    let world = World::new(1);
    world.hub.publish(0, "poison");
    let stops = Arc::new(Mutex::new(Vec::new()));
    let handler = LosesAtSecondStart { world: world.clone(), starts: AtomicUsize::default(), stops: stops.clone() };
    let sink = |_: DeadLetter<MemoryEvent>| async { panic!("the partition is lost") };
    let mut a = world.start_with_dead_letters("a", handler, sink, DeadLetterPolicy::default()).await;
    a.wait_until_it_holds(1).await;
    sleep(5 * SECOND).await;
    let stops = stops.lock().unwrap().clone();
    let [StopReason::Failed { .. }, StopReason::OwnershipLost { by: Some(by) }] = &stops[..] else {
        panic!("{stops:?}");
    };
    assert_eq!(by.as_str(), "b");
    a.crash().await;
}

/// Loses the partition in `started`, before the event is moved, and does not know it.
#[tokio::test(start_paused = true)]
async fn a_displaced_owner_moves_nothing() {
    struct Displaced(World, AtomicUsize);
    impl Handler<MemoryEvent> for Displaced {
        async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
            if self.1.fetch_add(1, Ordering::Relaxed) == 3 {
                self.0.give_to("another").await;
            }
            Ok(())
        }
        async fn handle(&self, events: Vec<MemoryEvent>, _: PartitionContext) -> Result<(), HandlerError> {
            Err(EventError::new(&events[0], "poisoned").into())
        }
    }
    let (world, sink) = (poisoned(1, &[0]), Sink::default());
    let handler = Displaced(world.clone(), AtomicUsize::new(0));
    let a = start(&world, handler, &sink, quick()).await;
    sleep(60 * SECOND).await;
    assert_eq!(world.owners().await["0"], "another");
    assert_eq!(sink.numbers(), [0_i64; 0]);
    a.shut_down().await.unwrap();
}

mod from_inside_the_handler {
    use super::*;

    /// Moves poison events itself, and checkpoints the others.
    async fn move_poison(events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in events {
            if &*event.body == b"poison" {
                context.dead_letter(event, "an unknown format").await?;
            } else {
                context.checkpoint(&event);
            }
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_moved_and_nothing_restarts() {
        let (world, sink) = (hundred_events(&[0, 37, 38, 99]), Sink::default());
        let a = start(&world, handler_fn(move_poison), &sink, DeadLetterPolicy::default()).await;
        wait_for_checkpoint(&world, 99).await;
        let letters: Vec<_> = [0, 37, 38, 99].map(|number| (number, 1, "an unknown format".to_owned())).into();
        assert_eq!(sink.letters(), letters);
        assert_eq!((a.status().dead_letters, a.status().failures), (4, 0));
        a.shut_down().await.unwrap();
    }

    /// Then the event is not moved again when it is redelivered.
    #[tokio::test(start_paused = true)]
    async fn a_sink_that_fails_fails_the_partition() {
        let (world, sink) = (hundred_events(&[37, 60]), Sink::new(SinkState::Down));
        let a = start(&world, handler_fn(move_poison), &sink, quick()).await;
        wait_for("it is asked", || sink.asked.load(Ordering::Relaxed) >= 5).await;
        assert_eq!(world.checkpoint().await, Some(36));
        let error = a.status().last_error.unwrap().message;
        assert!(error.contains("event 37 was not moved to the dead letters") && error.contains("the sink is down"));
        sink.set(SinkState::Up);
        wait_for_checkpoint(&world, 99).await;
        assert_eq!(sink.numbers(), [37, 60]);
        a.shut_down().await.unwrap();
    }

    /// Event 0 is tracked and fails once, after event 1 was moved.
    #[tokio::test(start_paused = true)]
    async fn a_redelivered_event_is_not_moved_again() {
        let (world, sink) = (hundred_events(&[1]), Sink::default());
        let has_failed = Arc::new(AtomicBool::new(false));
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            let fails = !has_failed.swap(true, Ordering::Relaxed);
            async move {
                let first = context.track(&events[0]);
                move_poison(events[1..].to_vec(), context.clone()).await?;
                if fails {
                    first.fail("a timeout");
                } else {
                    first.finish();
                }
                Ok(())
            }
        });
        let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
        wait_for_checkpoint(&world, 99).await;
        assert_eq!((sink.numbers(), a.status().failures), (vec![1], 1));
        a.shut_down().await.unwrap();
    }

    /// The batch that a stopping partition may finish has a bad event.
    #[tokio::test(start_paused = true)]
    async fn an_event_is_moved_while_the_batch_is_finished() {
        let (world, sink) = (hundred_events(&[37]), Sink::default());
        let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
            context.stopping().await;
            move_poison(events, context).await
        });
        let a = start(&world, handler, &sink, DeadLetterPolicy::default()).await;
        a.wait_for_status("handling", |status| status.state == PartitionState::Handling).await;
        assert!(a.shut_down().await.unwrap().is_clean());
        assert_eq!((sink.numbers(), world.checkpoint().await), (vec![37], Some(99)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_checkpoint_waits_for_tracked_events_before_it() {
        let (world, sink) = (hundred_events(&[1]), Sink::default());
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let finished = Arc::new(Mutex::new(Some(finished)));
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            let finished = finished.lock().unwrap().take();
            async move {
                let first = context.track(&events[0]);
                tokio::spawn(async move {
                    if let Some(finished) = finished {
                        let _ = finished.await;
                    }
                    first.finish();
                });
                move_poison(events[1..].to_vec(), context).await
            }
        });
        let a = start(&world, handler, &sink, quick()).await;
        wait_for("the letter", || sink.numbers() == [1]).await;
        sleep(60 * SECOND).await;
        assert_eq!(world.checkpoint().await, Some(-1));
        finish.send(()).unwrap();
        wait_for_checkpoint(&world, 99).await;
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_says_why_nothing_was_moved() {
        let world = World::new(1);
        world.hub.publish(0, "poison");
        let errors = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&errors);
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            let seen = Arc::clone(&seen);
            async move {
                for event in events {
                    let error = context.dead_letter(event, "an unknown format").await.unwrap_err();
                    seen.lock().unwrap().push((error.kind(), error.to_string()));
                }
                Ok(())
            }
        });
        let a = world.start_with("a", world.hub.source(), handler).await;
        wait_for("the error", || !errors.lock().unwrap().is_empty()).await;
        let (kind, message) = errors.lock().unwrap().remove(0);
        assert!(kind == ErrorKind::InvalidArgument && message.contains("ProcessorBuilder::with_dead_letters"));
        a.shut_down().await.unwrap();
    }

    /// It does not know yet that it has lost the partition.
    #[tokio::test(start_paused = true)]
    async fn a_displaced_owner_moves_nothing() {
        let (world, sink) = (hundred_events(&[37]), Sink::default());
        let other = world.clone();
        let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
            let other = other.clone();
            async move {
                other.give_to("another").await;
                move_poison(events, context).await
            }
        });
        let a = start(&world, handler, &sink, quick()).await;
        sleep(60 * SECOND).await;
        assert_eq!(sink.numbers(), [0_i64; 0]);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_of_another_type_is_refused() {
        #[derive(Clone)]
        struct Other(MemoryEvent);
        impl Positioned for Other {
            fn sequence_number(&self) -> Option<i64> {
                self.0.sequence_number()
            }
            fn offset(&self) -> Option<&str> {
                self.0.offset()
            }
        }
        let (world, sink) = (hundred_events(&[]), Sink::default());
        let kinds = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&kinds);
        let handler = handler_fn(move |mut events: Vec<MemoryEvent>, context: PartitionContext| {
            let seen = Arc::clone(&seen);
            async move {
                let error = context.dead_letter(Other(events.remove(0)), "wrong").await.unwrap_err();
                seen.lock().unwrap().push(error.kind());
                Ok(())
            }
        });
        let a = start(&world, handler, &sink, quick()).await;
        wait_for("the error", || !kinds.lock().unwrap().is_empty()).await;
        assert_eq!(kinds.lock().unwrap()[0], ErrorKind::InvalidArgument);
        a.shut_down().await.unwrap();
    }
}
