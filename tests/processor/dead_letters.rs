//! Events that fail again and again: `Handler::with_dead_letters`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    CheckpointPolicy, DeadLetter, DeadLetterPolicy, DeadLetterSink, EventError, Handler, HandlerError, HandlerExt,
    PartitionContext, PartitionStart, StartPosition,
};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep, timeout};

use crate::captured::Captured;
use crate::world::{Instance, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

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
            Failure::Hang => std::future::pending().await,
        }
    }
}

impl Handler<MemoryEvent> for Picky {
    async fn start_position(&self, _: PartitionStart) -> Result<Option<StartPosition>, HandlerError> {
        let failing =
            self.failing_starts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if failing.is_ok() {
            return Err("the position cannot be read".into());
        }
        let position = self.position.load(Ordering::Relaxed);
        Ok((position >= 0).then_some(StartPosition::AfterSequenceNumber(position)))
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for event in &events {
            if self.down.load(Ordering::Relaxed) {
                return Err("the database is down".into());
            }
            if &*event.body == "poison" {
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

#[derive(Clone, Copy, Debug, PartialEq)]
enum SinkState {
    Up,
    Down,
    Hangs,
    Panics,
}

#[derive(Clone, Debug)]
struct Sink {
    state: Arc<Mutex<SinkState>>,
    letters: Arc<Mutex<Vec<DeadLetter<MemoryEvent>>>>,
    asked: Arc<AtomicUsize>,
}

impl Sink {
    fn new(state: SinkState) -> Self {
        Self { state: Arc::new(Mutex::new(state)), letters: Arc::default(), asked: Arc::default() }
    }

    fn letters(&self) -> Vec<(i64, u32, String)> {
        let letters = self.letters.lock().unwrap();
        let cause = |letter: &DeadLetter<MemoryEvent>| match std::error::Error::source(&*letter.error) {
            Some(source) => std::error::Error::source(source).unwrap_or(source).to_string(),
            None => letter.error.to_string(),
        };
        letters.iter().map(|letter| (letter.event.sequence_number, letter.attempts, cause(letter))).collect()
    }

    fn set(&self, state: SinkState) {
        *self.state.lock().unwrap() = state;
    }
}

impl DeadLetterSink<MemoryEvent> for Sink {
    async fn store(&self, letter: DeadLetter<MemoryEvent>) -> Result<(), HandlerError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let state = *self.state.lock().unwrap();
        match state {
            SinkState::Up => self.letters.lock().unwrap().push(letter),
            SinkState::Down => return Err("the sink is down".into()),
            SinkState::Hangs => std::future::pending().await,
            SinkState::Panics => panic!("the sink panicked"),
        }
        Ok(())
    }
}

fn quick() -> DeadLetterPolicy {
    DeadLetterPolicy::default().with_max_attempts(3).with_min_failing_time(Duration::ZERO)
}

/// A partition with 100 events, of which these are poison.
fn poisoned(poison: &[i64]) -> World {
    let mut world = World::new(1);
    world.config = world.config.with_handler_timeout(20 * SECOND);
    publish(&world, 100, poison);
    world
}

fn publish(world: &World, events: i64, poison: &[i64]) {
    for number in 0..events {
        world.hub.publish(0, if poison.contains(&number) { "poison" } else { "good" });
    }
}

async fn start(world: &World, handler: &Picky, sink: &Sink, policy: DeadLetterPolicy) -> Instance {
    let handler = handler.clone().with_dead_letters(sink.clone(), policy);
    world.start_with("a", world.hub.source(), handler).await
}

fn failures(instance: &Instance) -> u64 {
    instance.handle.partitions().first().map_or(0, |status| status.failures)
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

async fn checkpoint_at(world: &World, expected: i64) {
    let waiting = async {
        while world.checkpoint().await != Some(expected) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("the checkpoint never reaches {expected}"));
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
        let cases = [
            (Failure::Unnamed, "poisoned", 4),
            (Failure::Named, "poisoned", 4),
            // The event fails after the handler has returned, so it is not given to the handler again.
            (Failure::Tracked, "poisoned", 3),
            (Failure::Panic, "the handler panicked: poisoned", 4),
            (Failure::Hang, "the handler did not finish within the handler timeout of 20s", 4),
        ];
        for (failure, cause, attempts) in cases {
            for position in [0, 37, 99] {
                let (log, _guard) = Captured::begin();
                let (world, handler, sink) = (poisoned(&[position]), Picky::new(failure), Sink::new(SinkState::Up));
                let a = start(&world, &handler, &sink, quick()).await;
                checkpoint_at(&world, 99).await;
                let expected: Vec<_> = (0..100).filter(|number| *number != position).collect();
                assert_eq!(first_times(&handler.processed()), expected, "{failure:?} at {position}");
                assert_eq!(sink.letters(), [(position, attempts, cause.to_owned())], "{failure:?}");
                let seen = handler.poisoned.lock().unwrap().clone();
                assert_eq!(seen[..3], [1, 2, 3], "{failure:?}: the handler sees the attempts");
                assert!(seen.is_sorted());
                let status = a.status();
                assert_eq!((status.dead_letters, status.last_error.is_none()), (1, true));
                assert!(log.text().contains("event moved to the dead letters"), "{}", log.text());
                a.shut_down().await.unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_hide_the_next_one() {
        for failure in [Failure::Unnamed, Failure::Named, Failure::Tracked] {
            let poison = [10, 11, 60, 99];
            let mut world = poisoned(&poison);
            // Events 10 and 11 are in different batches.
            world.config = world.config.with_max_batch_size(11);
            let (handler, sink) = (Picky::new(failure), Sink::new(SinkState::Up));
            let a = start(&world, &handler, &sink, quick()).await;
            checkpoint_at(&world, 99).await;
            let moved: Vec<_> = sink.letters().into_iter().map(|(number, ..)| number).collect();
            assert_eq!(first_times(&moved), poison, "{failure:?}");
            assert_eq!(handler.distinct().len(), 96);
            a.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn that_is_not_named_stays_without_isolation() {
        let (world, handler, sink) = (poisoned(&[37]), Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
        let a = start(&world, &handler, &sink, quick().with_isolate(false)).await;
        wait_for("many attempts", || handler.poisoned.lock().unwrap().len() > 10).await;
        assert_eq!(sink.letters(), []);
        assert_eq!(world.checkpoint().await, Some(36));
        a.shut_down().await.unwrap();

        let named = Picky::new(Failure::Named);
        let b = start(&world, &named, &sink, quick().with_isolate(false)).await;
        checkpoint_at(&world, 99).await;
        assert_eq!(sink.letters(), [(37, 4, "poisoned".to_owned())]);
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn is_tried_for_the_minimum_time() {
        let (world, handler, sink) = (poisoned(&[37]), Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
        let began = Instant::now();
        let policy = DeadLetterPolicy::default();
        let a = start(&world, &handler, &sink, policy.clone()).await;
        wait_for("the letter", || !sink.letters().is_empty()).await;
        let took = began.elapsed();
        assert!(took >= policy.min_failing_time && took < policy.min_failing_time + 45 * SECOND, "{took:?}");
        assert!(sink.letters()[0].1 > policy.max_attempts);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn counts_failures_of_the_handler_only() {
        let (world, handler, sink) = (poisoned(&[37]), Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
        handler.failing_starts.store(10, Ordering::Relaxed);
        let a = start(&world, &handler, &sink, quick()).await;
        checkpoint_at(&world, 99).await;
        assert_eq!(sink.letters(), [(37, 4, "poisoned".to_owned())]);
        a.shut_down().await.unwrap();
    }
}

mod batches {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn without_poison_are_unchanged() {
        let (world, handler, sink) = (poisoned(&[]), Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
        let a = start(&world, &handler, &sink, quick()).await;
        checkpoint_at(&world, 99).await;
        assert_eq!(handler.calls.load(Ordering::Relaxed), 1);
        assert_eq!(a.status().dead_letters, 0);
        a.shut_down().await.unwrap();
    }

    /// Three failed attempts, then the whole batch, its halves, and the halves of those that fail.
    #[tokio::test(start_paused = true)]
    async fn are_halved_until_the_event_is_found() {
        let (world, handler, sink) = (poisoned(&[70]), Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
        let a = start(&world, &handler, &sink, quick()).await;
        checkpoint_at(&world, 99).await;
        // After the first attempt the checkpoint is at 69. The first of 30 events is found in halves of 15, 7, 3 and 1.
        assert_eq!(handler.calls.load(Ordering::Relaxed), 3 + 1 + 2 * 4);
        a.shut_down().await.unwrap();
    }
}

mod an_outage {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn moves_nothing() {
        let (world, handler, sink) = (poisoned(&[]), Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
        handler.down.store(true, Ordering::Relaxed);
        let a = start(&world, &handler, &sink, quick()).await;
        wait_for("many attempts", || failures(&a) > 20).await;
        assert_eq!((sink.letters(), world.checkpoint().await), (Vec::new(), Some(-1)));
        handler.down.store(false, Ordering::Relaxed);
        checkpoint_at(&world, 99).await;
        assert_eq!(handler.distinct().len(), 100);
        assert_eq!(sink.letters(), []);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn of_more_events_than_allowed_moves_nothing() {
        for (allowed, moved) in [(2, 0), (3, 3)] {
            let world = poisoned(&[20, 50, 80]);
            let (handler, sink) = (Picky::new(Failure::Unnamed), Sink::new(SinkState::Up));
            let a = start(&world, &handler, &sink, quick().with_max_events_per_batch(allowed)).await;
            wait_for("many attempts or letters", || failures(&a) > 20 || sink.letters().len() == 3).await;
            assert_eq!(sink.letters().len(), moved, "{allowed} allowed");
            assert!(handler.distinct().len() >= if moved == 0 { 78 } else { 97 });
            a.shut_down().await.unwrap();
        }
    }

    /// If nothing succeeds, only an error that names the event is certain.
    #[tokio::test(start_paused = true)]
    async fn of_a_whole_batch_moves_named_events_only() {
        for (failure, moved) in [(Failure::Unnamed, 0), (Failure::Named, 3)] {
            let world = World::new(1);
            publish(&world, 3, &[0, 1, 2]);
            let (handler, sink) = (Picky::new(failure), Sink::new(SinkState::Up));
            let a = start(&world, &handler, &sink, quick()).await;
            wait_for("many attempts or letters", || failures(&a) > 20 || sink.letters().len() == 3).await;
            assert_eq!(sink.letters().len(), moved, "{failure:?}");
            a.shut_down().await.unwrap();
        }
    }
}

mod a_failing_sink {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fails_the_partition_until_it_is_back() {
        for failure in [Failure::Unnamed, Failure::Named, Failure::Tracked] {
            for (state, message) in [
                (SinkState::Down, "the sink is down"),
                (SinkState::Hangs, "the dead-letter sink did not finish within the handler timeout of 20s"),
                (SinkState::Panics, "the sink panicked"),
            ] {
                let (log, _guard) = Captured::begin();
                let (world, handler, sink) = (poisoned(&[37]), Picky::new(failure), Sink::new(state));
                let a = start(&world, &handler, &sink, quick()).await;
                wait_for("it is asked", || sink.asked.load(Ordering::Relaxed) >= 3).await;
                let status = a.status();
                assert_eq!(world.checkpoint().await, Some(36), "{failure:?}: it never passes the event");
                assert_eq!(status.dead_letters, 0);
                let text = log.text();
                assert!(text.contains("event 37 failed, and was not moved to the dead letters"), "{text}");
                assert!(text.contains(message), "{text}");
                assert!(!text.contains("dropped unfinished"), "giving up is not reported as a mistake: {text}");
                sink.set(SinkState::Up);
                checkpoint_at(&world, 99).await;
                assert_eq!(sink.letters().len(), 1, "{failure:?}, {state:?}");
                assert_eq!(handler.distinct().len(), 99);
                a.shut_down().await.unwrap();
            }
        }
    }

    /// The checkpoint waits for the sink. A named event is stored before later events are processed, any other one after
    /// them.
    #[tokio::test(start_paused = true)]
    async fn holds_the_checkpoint_back() {
        for (failure, processed) in
            [(Failure::Unnamed, 99), (Failure::Named, 37), (Failure::Tracked, 99), (Failure::Panic, 99)]
        {
            let mut world = poisoned(&[37]);
            world.config = world.config.with_handler_timeout(500 * SECOND);
            let (handler, sink) = (Picky::new(failure), Sink::new(SinkState::Hangs));
            let a = start(&world, &handler, &sink, quick()).await;
            wait_for("it is asked", || sink.asked.load(Ordering::Relaxed) == 1).await;
            sleep(60 * SECOND).await;
            assert_eq!((world.checkpoint().await, handler.distinct().len()), (Some(36), processed), "{failure:?}");
            sink.set(SinkState::Up);
            a.crash().await;
            let b = start(&world, &handler, &sink, quick()).await;
            checkpoint_at(&world, 99).await;
            let letters = sink.letters();
            assert_eq!(letters.len(), 1, "{failure:?}");
            assert!(letters[0].1 <= 4, "the new owner counts from the beginning: {letters:?}");
            b.shut_down().await.unwrap();
        }
    }

    /// Processing a later event would move the position past an event that is not stored yet.
    #[tokio::test(start_paused = true)]
    async fn holds_the_position_of_the_application_back() {
        for (failure, moved) in [(Failure::Unnamed, 0), (Failure::Panic, 0), (Failure::Named, 1)] {
            let (world, handler, sink) = (poisoned(&[37]), Picky::new(failure), Sink::new(SinkState::Up));
            handler.position.store(20, Ordering::Relaxed);
            let a = start(&world, &handler, &sink, quick()).await;
            wait_for("many attempts or a letter", || failures(&a) > 20 || sink.letters().len() == 1).await;
            sleep(SECOND).await;
            assert_eq!(sink.letters().len(), moved, "{failure:?}");
            let last = if moved == 0 { 36 } else { 99 };
            assert_eq!(handler.position.load(Ordering::Relaxed), last, "{failure:?}");
            assert_eq!(handler.distinct().len(), if moved == 0 { 16 } else { 78 });
            a.shut_down().await.unwrap();
        }
    }
}

mod an_owner_that_stops {
    use super::*;

    /// Fails at the poison event. In the isolation it first requests checkpoints of the events before, and then calls
    /// `interrupt`, once.
    struct Interrupted<F> {
        inner: Picky,
        interrupt: F,
        done: AtomicBool,
    }

    impl<F: Fn() -> Fut + Send + Sync + 'static, Fut: Future<Output = ()> + Send> Handler<MemoryEvent> for Interrupted<F> {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            let isolating = context.attempt() > 3;
            for event in &events {
                if &*event.body != "poison" {
                    self.inner.processed.lock().unwrap().push(event.sequence_number);
                    if isolating {
                        context.checkpoint(event);
                    }
                } else if isolating && events.len() == 1 && !self.done.swap(true, Ordering::Relaxed) {
                    (self.interrupt)().await;
                    return Err("poisoned".into());
                } else {
                    return Err("poisoned".into());
                }
            }
            Ok(())
        }
    }

    async fn start<F, Fut>(world: &World, sink: &Sink, interrupt: F) -> (Instance, Picky)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let inner = Picky::new(Failure::Unnamed);
        let handler = Interrupted { inner: inner.clone(), interrupt, done: AtomicBool::new(false) };
        (world.start_with("a", world.hub.source(), handler.with_dead_letters(sink.clone(), quick())).await, inner)
    }

    fn without_checkpoints_of_its_own() -> World {
        let mut world = poisoned(&[37]);
        let policy = CheckpointPolicy::default().with_interval(Duration::from_secs(3600));
        world.config = world.config.with_checkpoint_policy(policy);
        world
    }

    /// It does not know yet that another owner has taken over the checkpoint. The write of a checkpoint shows it.
    #[tokio::test(start_paused = true)]
    async fn moves_nothing_after_it_lost_the_partition() {
        let world = without_checkpoints_of_its_own();
        let sink = Sink::new(SinkState::Up);
        let other = world.clone();
        let (a, _) = start(&world, &sink, move || {
            let world = other.clone();
            async move {
                world.give_to("another").await;
                world.checkpoint_as_another_sdk(0).await;
            }
        })
        .await;
        let lost = async {
            while world.owners().await.get("0").is_none_or(|owner| owner != "another") {
                sleep(SECOND / 10).await;
            }
        };
        timeout(TIMEOUT, lost).await.expect("the isolation begins");
        wait_for("the partition stops", || a.handle.partitions().is_empty()).await;
        assert_eq!((sink.asked.load(Ordering::Relaxed), world.owners().await["0"].as_str()), (0, "another"));
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn moves_nothing_while_the_storage_is_down() {
        let world = without_checkpoints_of_its_own();
        let sink = Sink::new(SinkState::Up);
        let faulty = world.faulty.clone();
        let (a, handler) = start(&world, &sink, move || {
            faulty.set_plan(FaultPlan::default().with(1.0, Fault::Unreachable));
            std::future::ready(())
        })
        .await;
        wait_for("a failed checkpoint", || failures(&a) >= 4).await;
        sleep(10 * SECOND).await;
        assert_eq!(sink.asked.load(Ordering::Relaxed), 0, "the outage shows that the fence cannot be checked");
        world.faulty.set_plan(FaultPlan::default());
        wait_for("the letter", || sink.letters().len() == 1).await;
        wait_for("all others", || handler.distinct().len() == 99).await;
        a.shut_down().await.unwrap();
    }

    /// A handler that fails because its partition stops says nothing about the event.
    #[tokio::test(start_paused = true)]
    async fn moves_no_event_whose_handling_was_interrupted() {
        struct Waiting(Arc<AtomicUsize>);

        impl Handler<MemoryEvent> for Waiting {
            async fn handle(&self, _: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
                if self.0.fetch_add(1, Ordering::Relaxed) >= 3 {
                    context.stopping().await;
                }
                Err("not finished".into())
            }
        }

        let world = World::new(1);
        world.hub.publish(0, "one");
        let (sink, calls) = (Sink::new(SinkState::Up), Arc::default());
        let handler = Waiting(Arc::clone(&calls)).with_dead_letters(sink.clone(), quick());
        let a = world.start_with("a", world.hub.source(), handler).await;
        wait_for("the isolation", || calls.load(Ordering::Relaxed) == 4).await;
        a.shut_down().await.unwrap();
        assert_eq!((sink.letters(), world.checkpoint().await), (Vec::new(), Some(-1)));
    }
}
