//! Applications that store their position together with their results: `Handler::start_position`, and its combination
//! with dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::admin::{ResetError, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{
    EventError, Handler, HandlerError, OnEarlierStart, OnFailure, OnInvalidCheckpoint, OwnPosition, PartitionContext,
    PartitionStart, PartitionState, StopReason,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::{sleep, timeout};

use crate::captured::Captured;
use crate::support::operator::{after, at, executed, operator, planned};
use crate::support::sources::Counted;
use crate::support::{HOUR, SECOND, publish_numbers, recorded_position, wait_for, wait_for_checkpoint};
use crate::world::{Instance, World, random_faults};

/// A database with one row per partition. Each method is one transaction.
#[derive(Clone, Debug, Default)]
struct Database(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    /// The last epoch and the position of each partition.
    positions: BTreeMap<String, (i64, i64)>,
    /// How often each event was counted.
    counted: BTreeMap<String, usize>,
    rejected: usize,
    skipped: usize,
}

impl Database {
    fn at(position: i64) -> Self {
        let database = Self::default();
        database.0.lock().unwrap().positions.insert("0".into(), (0, position));
        database
    }

    fn begin(&self, partition: &str, epoch: i64) -> Option<i64> {
        let mut content = self.0.lock().unwrap();
        let (stored, position) = content.positions.get(partition).copied().unwrap_or((0, -1));
        assert!(stored <= epoch, "epoch {epoch} began after epoch {stored}");
        content.positions.insert(partition.into(), (epoch, position));
        (position >= 0).then_some(position)
    }

    fn set_position(&self, partition: &str, position: i64) {
        if let Some((_, stored)) = self.0.lock().unwrap().positions.get_mut(partition) {
            *stored = position;
        }
    }

    fn count(&self, partition: &str, epoch: i64, event: &MemoryEvent) -> Result<(), HandlerError> {
        let mut content = self.0.lock().unwrap();
        let stored = content.positions.get_mut(partition).ok_or("count before begin")?;
        if stored.0 > epoch {
            content.rejected += 1;
            return Err("a later owner has written".into());
        }
        if stored.1 >= event.sequence_number {
            content.skipped += 1;
            return Ok(());
        }
        *stored = (epoch, event.sequence_number);
        *content.counted.entry(event.text().unwrap().to_owned()).or_default() += 1;
        Ok(())
    }

    fn counted(&self) -> usize {
        let content = self.0.lock().unwrap();
        assert!(content.counted.values().all(|times| *times == 1), "counted twice: {:?}", content.counted);
        content.counted.len()
    }

    async fn wait_until_counted(&self, events: usize) {
        let waiting = async {
            while self.counted() < events {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(HOUR, waiting).await.expect("all events are counted");
    }
}

#[derive(Clone, Debug, Default)]
struct Counter {
    database: Database,
    checkpoints: bool,
    /// The wait before each event is counted.
    delay: Duration,
    started: Arc<Mutex<Vec<Option<i64>>>>,
}

impl Handler<MemoryEvent> for Counter {
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        assert_eq!(start.group().name(), "$Default");
        Ok(OwnPosition::after(self.database.begin(start.partition_id().as_str(), start.epoch())))
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.started.lock().unwrap().push(context.started_elsewhere());
        if let Some(position) = context.started_elsewhere() {
            self.database.set_position(context.partition_id().as_str(), position);
        }
        Ok(())
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            sleep(self.delay).await;
            self.database.count(context.partition_id().as_str(), context.epoch(), event)?;
            if self.checkpoints {
                context.checkpoint(event);
            }
        }
        Ok(())
    }
}

fn published(events: usize) -> World {
    let world = World::new(1);
    publish_numbers(&world.hub, 0..events);
    world
}

/// Writes the checkpoint with an instance that processes all events.
async fn checkpointed(world: &World, checkpoint: i64) {
    let a = world.start("a").await;
    wait_for_checkpoint(world, checkpoint).await;
    a.shut_down().await.unwrap();
}

async fn start(world: &World, counter: &Counter) -> Instance {
    world.start_with("b", world.hub.source(), counter.clone()).await
}

mod the_position_counts {
    use super::*;

    /// The record moves backward, and forward, before any event is processed.
    #[tokio::test(start_paused = true)]
    async fn more_than_the_checkpoint() {
        for (stored, checkpoint, expected) in [(3, 9, 6), (9, 4, 0), (9, 9, 0)] {
            let world = published(checkpoint + 1);
            checkpointed(&world, checkpoint.try_into().unwrap()).await;
            publish_numbers(&world.hub, checkpoint + 1..10);
            let counter = Counter { database: Database::at(stored), ..Counter::default() };
            let (log, _guard) = Captured::begin();
            let b = start(&world, &counter).await;
            b.wait_until_all_idle(1).await;
            counter.database.wait_until_counted(expected).await;
            assert_eq!(world.checkpoint().await, Some(stored), "the record follows the position");
            assert_eq!(b.status().checkpoint, Some(stored), "and the status");
            let is_other = stored != i64::try_from(checkpoint).unwrap();
            assert_eq!(log.text().contains("handler chose a start position other than the checkpoint"), is_other);
            assert_eq!(*counter.started.lock().unwrap(), [None]);
            b.shut_down().await.unwrap();
        }
    }

    /// The checkpoint lags behind the position, as it usually does after a crash.
    #[tokio::test(start_paused = true)]
    async fn and_needs_no_link_of_its_own() {
        let world = published(10);
        checkpointed(&world, 9).await;
        publish_numbers(&world.hub, 10..20);
        let source = Counted::new(&world.hub);
        let counter = Counter { database: Database::at(14), ..Counter::default() };
        let b = world.start_with("b", source.clone(), counter.clone()).await;
        counter.database.wait_until_counted(5).await;
        assert_eq!(source.requests.links.load(Ordering::Relaxed), 1);
        assert_eq!(world.checkpoint().await, Some(14));
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_checkpoint() {
        for (stored, expected) in [(3, 6), (9, 0), (-1, 10)] {
            let world = published(10);
            let counter = Counter { database: Database::at(stored), ..Counter::default() };
            // The position of the application is negative only if the hub is empty, so here the first start sets it.
            let earliest = FromEarliest(counter.clone());
            let b = if stored < 0 {
                world.start_with("b", world.hub.source(), earliest).await
            } else {
                start(&world, &counter).await
            };
            b.wait_until_all_idle(1).await;
            counter.database.wait_until_counted(expected).await;
            assert_eq!(world.checkpoint().await, Some(stored), "the start is recorded");
            b.shut_down().await.unwrap();
        }
    }

    /// Returns the first position for an empty database.
    struct FromEarliest(Counter);

    impl Handler<MemoryEvent> for FromEarliest {
        async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
            assert!(start.checkpoint().is_none(), "the start of the configuration is not recorded first");
            Ok(match self.0.start_position(start).await? {
                OwnPosition::Kept(None) => OwnPosition::after(Some(-1)),
                position => position,
            })
        }

        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            self.0.handle(events, context).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn at_every_start() {
        let world = published(4);
        let counter = Counter { checkpoints: true, ..Counter::default() };
        for events in [4, 8, 12] {
            let b = start(&world, &counter).await;
            counter.database.wait_until_counted(events).await;
            b.crash().await;
            publish_numbers(&world.hub, events..events + 4);
        }
        assert_eq!(counter.database.0.lock().unwrap().skipped, 0, "no event was delivered again");
    }
}

mod a_position_out_of_range {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_an_invalid_checkpoint() {
        let cases = [
            (12, 0, OnInvalidCheckpoint::Earliest, 10, -1, "the event hub has lost its last events"),
            (12, 0, OnInvalidCheckpoint::Latest, 0, 9, "the event hub has lost its last events"),
            (1, 5, OnInvalidCheckpoint::Earliest, 5, 4, "events after it expired"),
        ];
        for (stored, first, policy, expected, from, reason) in cases {
            let mut world = published(10);
            world.hub.expire_before(0, first);
            world.config = world.config.with_on_invalid_checkpoint(policy);
            let counter = Counter { database: Database::at(stored), ..Counter::default() };
            let (log, _guard) = Captured::begin();
            let b = start(&world, &counter).await;
            b.wait_until_all_idle(1).await;
            counter.database.wait_until_counted(expected).await;
            let text = log.text();
            assert!(text.contains("invalid checkpoint") && text.contains(reason), "{text}");
            assert!(text.contains(&format!("is at sequence number {stored}")), "it names the position: {text}");
            let started = counter.started.lock().unwrap().clone();
            assert_eq!(started, [Some(from)], "the handler learns where the partition starts");
            assert_eq!(world.checkpoint().await, Some(from));
            b.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ends_the_processor_if_configured() {
        let mut world = published(3);
        world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Fail);
        let counter = Counter { database: Database::at(7), ..Counter::default() };
        let error = start(&world, &counter).await.ended().await.unwrap_err();
        assert!(error.to_string().contains("is at sequence number 7"), "{error}");
        assert_eq!(counter.database.counted(), 0);
    }
}

mod a_failure_to_choose {
    use super::*;

    #[derive(Clone, Debug)]
    enum Answer {
        Error,
        Panic,
        Hang,
        BeforeTime(OffsetDateTime),
        Default,
    }

    /// Does this once, and then starts at the checkpoint.
    #[derive(Clone, Debug)]
    struct Failing {
        answer: Arc<Mutex<Answer>>,
        counter: Counter,
    }

    impl Failing {
        fn with(answer: Answer) -> Self {
            Self { answer: Arc::new(Mutex::new(answer)), counter: Counter::default() }
        }
    }

    impl Handler<MemoryEvent> for Failing {
        async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
            let answer = std::mem::replace(&mut *self.answer.lock().unwrap(), Answer::Default);
            match answer {
                Answer::Error => Err("the database is down".into()),
                Answer::Panic => panic!("panicked on request"),
                Answer::Hang => pending().await,
                Answer::BeforeTime(time) => Ok(OwnPosition::Kept(Some(StartPosition::EnqueuedAfter(time)))),
                Answer::Default => self.counter.start_position(start).await,
            }
        }

        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            self.counter.handle(events, context).await
        }

        async fn stopped(&self, _: PartitionContext, _: StopReason) {
            assert!(matches!(&*self.answer.lock().unwrap(), Answer::Default), "stopped, but never started");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_the_partition() {
        let cases = [
            (Answer::Error, "the database is down"),
            (Answer::Panic, "panicked on request"),
            (Answer::Hang, "`start_position` did not finish within the handler timeout of 20s"),
            (Answer::BeforeTime(datetime!(1969-01-01 00:00 UTC)), "the result of `start_position` is 1969"),
        ];
        for (answer, message) in cases {
            let mut world = published(3);
            world.config = world.config.with_handler_timeout(Duration::from_secs(20));
            let failing = Failing::with(answer);
            let (log, _guard) = Captured::begin();
            let b = world.start_with("b", world.hub.source(), failing.clone()).await;
            failing.counter.database.wait_until_counted(3).await;
            assert!(log.text().contains("handler failed") && log.text().contains(message), "{}", log.text());
            assert_eq!(b.status().failures, 1);
            b.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn parks_the_partition_if_configured() {
        let mut world = published(3);
        world.config = world.config.with_on_failure(OnFailure::Park);
        let failing = Failing::with(Answer::Error);
        let b = world.start_with("b", world.hub.source(), failing.clone()).await;
        let parked = b.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
        assert_eq!(failing.counter.database.counted(), 0);
        b.handle.resume(&parked.partition);
        failing.counter.database.wait_until_counted(3).await;
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn by_hanging_is_a_stall_and_delays_no_stop() {
        let mut world = published(3);
        world.config = world.config.with_balancer(|balancer| balancer.with_stall_timeout(Duration::from_secs(60)));
        let failing = Failing::with(Answer::Hang);
        let mut b = world.start_with("b", world.hub.source(), failing.clone()).await;
        b.wait_until_it_holds(1).await;
        sleep(Duration::from_secs(100)).await;
        assert!(!b.handle.health().issues.is_empty(), "a stall is reported");
        let report = b.shut_down().await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

mod an_old_owner {
    use super::*;

    /// The first owner keeps its batch while it loses its lease and the second owner counts, and then tries to count
    /// the same events.
    #[tokio::test(start_paused = true)]
    async fn commits_nothing_after_the_next_one_began() {
        let world = published(50);
        let database = Database::default();
        let slow = Counter { database: database.clone(), delay: Duration::from_secs(5), ..Counter::default() };
        let a = world.start_with("a", world.hub.source(), slow).await;
        database.wait_until_counted(3).await;
        world.give_to("b").await;
        let quick = Counter { database: database.clone(), ..Counter::default() };
        let b = world.start_with("b", world.hub.source(), quick).await;
        database.wait_until_counted(50).await;
        sleep(Duration::from_secs(60)).await;
        assert!(database.0.lock().unwrap().rejected > 0, "the old owner tried");
        b.shut_down().await.unwrap();
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn and_lost_answers_count_nothing_twice() {
        for seed in 0..6 {
            let mut world = published(0);
            world.config = world.config.with_balancer(|balancer| balancer.with_seed(seed));
            let database = Database::default();
            let counter = |checkpoints| Counter {
                database: database.clone(),
                checkpoints,
                delay: Duration::from_millis(300),
                ..Counter::default()
            };
            world.faulty.set_plan(random_faults());
            let mut events = 0;
            for owner in ["a", "b", "c"] {
                let instance = world.start_with(owner, world.hub.source(), counter(seed % 2 == 0)).await;
                publish_numbers(&world.hub, events..events + 20);
                events += 20;
                database.wait_until_counted(events).await;
                instance.crash().await;
            }
            assert_eq!(database.counted(), 60, "seed {seed}");
        }
    }
}

/// The checkpoint and the own position are the same event, which has expired since; all later events exist.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_at_the_own_position_stays() {
    let world = published(5);
    checkpointed(&world, 4).await;
    let before = recorded_position(&world, 0).await;
    publish_numbers(&world.hub, 5..10);
    world.hub.expire_before(0, 5);
    let counter = Counter { database: Database::at(4), ..Counter::default() };
    let b = start(&world, &counter).await;
    sleep(30 * SECOND).await;
    assert_eq!(recorded_position(&world, 0).await, before, "a checkpoint at the same sequence number stays");
    b.shut_down().await.unwrap();
}

/// The first start has no position yet, so only the type says that the application keeps one.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_shows_that_positions_are_kept() {
    let is_shown = async |world: &World| {
        world.store("reader").await.checkpoint_of(&0.into()).await.unwrap().unwrap().record.own_position
    };
    let world = published(10);
    let counter = Counter { checkpoints: true, ..Counter::default() };
    for _ in 0..2 {
        let b = start(&world, &counter).await;
        wait_for_checkpoint(&world, 9).await;
        assert!(is_shown(&world).await);
        b.shut_down().await.unwrap();
    }
    publish_numbers(&world.hub, [10]);
    checkpointed(&world, 10).await;
    assert!(!is_shown(&world).await, "an application that keeps no positions");
}

#[tokio::test(start_paused = true)]
async fn a_reset_of_a_kept_position_is_refused() {
    let world = published(10);
    let counter = Counter { checkpoints: true, ..Counter::default() };
    let b = start(&world, &counter).await;
    wait_for_checkpoint(&world, 9).await;
    let operator = operator(&world).await;
    let plan = planned(&world, &operator, &after(4)).await;
    assert!(plan.changes[0].own_position);
    let epoch = async || world.store("reader").await.list_ownerships().await.unwrap().records[0].record.epoch;
    let before = epoch().await;
    let outcomes = executed(&plan, &operator, &ResetOptions::default()).await;
    assert!(matches!(outcomes["0"], ResetOutcome::NotDone(ResetError::OwnPosition)), "{outcomes:?}");
    let outcomes = operator.reset(vec![(0.into(), at(4))], &ResetOptions::default()).await.unwrap();
    assert!(matches!(outcomes[0].1, ResetOutcome::NotDone(ResetError::OwnPosition)), "{outcomes:?}");
    assert_eq!((world.checkpoint().await, epoch().await), (Some(9), before), "its owner is not displaced");
    let allowed = ResetOptions::default().with_allow_own_positions(true);
    let outcomes = executed(&plan, &operator, &allowed).await;
    assert!(matches!(outcomes["0"], ResetOutcome::Done), "{outcomes:?}");
    wait_for_checkpoint(&world, 9).await;
    assert_eq!(counter.database.counted(), 10, "the position of the application counts");
    b.shut_down().await.unwrap();
}

/// The instance has a database of its own, which is older than the checkpoint.
#[tokio::test(start_paused = true)]
async fn an_earlier_start_is_refused_on_request() {
    let mut world = published(10);
    checkpointed(&world, 9).await;
    let counter = Counter { database: Database::at(3), ..Counter::default() };
    world.config = world.config.with_on_earlier_start(OnEarlierStart::Fail);
    let b = start(&world, &counter).await;
    let failed = b.wait_for_status("the failure", |status| status.last_error.is_some()).await;
    let error = failed.last_error.unwrap().message;
    assert!(error.contains("starts the partition after 3, before the checkpoint 9"), "{error}");
    sleep(120 * SECOND).await;
    assert_eq!((world.checkpoint().await, counter.database.counted()), (Some(9), 0));
    counter.database.set_position("0", 9);
    publish_numbers(&world.hub, 10..12);
    counter.database.wait_until_counted(2).await;
    b.shut_down().await.unwrap();
}

/// The events after the old position have expired, so the partition would start at the first one that is left.
#[tokio::test(start_paused = true)]
async fn an_expired_earlier_start_is_refused_too() {
    for (policy, counted) in [(OnEarlierStart::Accept, 5), (OnEarlierStart::Fail, 0)] {
        let mut world = published(10);
        checkpointed(&world, 9).await;
        world.hub.expire_before(0, 5);
        let counter = Counter { database: Database::at(1), ..Counter::default() };
        world.config = world.config.with_on_earlier_start(policy);
        let b = start(&world, &counter).await;
        sleep(120 * SECOND).await;
        assert_eq!((counter.database.counted(), b.status().failures > 0), (counted, counted == 0), "{policy:?}");
        b.crash().await;
    }
}

/// How the fenced write fails at a poison event.
#[derive(Clone, Copy, Debug, Default)]
enum Failure {
    #[default]
    Named,
    Permanent,
}

#[derive(Debug, Default)]
struct Rows {
    epoch: i64,
    position: Option<i64>,
    counted: BTreeMap<i64, usize>,
}

/// The fenced write of docs/effects.md: each call commits all of its events or none. With `dedupe`, the second pattern
/// instead.
#[derive(Clone, Debug, Default)]
struct Effects {
    rows: Arc<Mutex<Rows>>,
    dedupe: bool,
    failure: Failure,
    is_down: Arc<AtomicBool>,
    /// The first commit takes this long, in a task of its own.
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

    fn failure_of(&self, poison: &MemoryEvent) -> HandlerError {
        match self.failure {
            Failure::Named => EventError::new(poison, "poisoned").into(),
            Failure::Permanent => EventError::permanent(poison, "poisoned").into(),
        }
    }

    /// Returns the numbers of the events that were counted, in order. Fails if one was counted twice.
    fn counted(&self) -> Vec<i64> {
        let rows = self.rows.lock().unwrap();
        assert!(rows.counted.values().all(|times| *times == 1), "{rows:?}");
        rows.counted.keys().copied().collect()
    }
}

impl Handler<MemoryEvent> for Effects {
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        if self.dedupe {
            return Ok(OwnPosition::NotKept);
        }
        let mut rows = self.rows.lock().unwrap();
        rows.epoch = rows.epoch.max(start.epoch());
        Ok(OwnPosition::after(rows.position))
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(EventError::new(&events[0], "the database is down").into());
        }
        // The second pattern skips an event that is not after the stored position before it looks at the content.
        let skipped = if self.dedupe { self.rows.lock().unwrap().position } else { None };
        let is_poison = |event: &&MemoryEvent| &*event.body == b"poison" && Some(event.sequence_number) > skipped;
        if let Some(poison) = events.iter().find(is_poison) {
            return Err(self.failure_of(poison));
        }
        let numbers: Vec<_> = events.iter().map(|event| event.sequence_number).collect();
        let delay = if self.calls.fetch_add(1, Ordering::Relaxed) == 0 { self.slow } else { Duration::ZERO };
        let (this, epoch) = (self.clone(), context.epoch());
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

/// The handler timeout drops the call, but not its transaction in another task. The epoch of the restart is the same.
#[tokio::test(start_paused = true)]
async fn a_late_commit_of_the_same_owner_is_rejected() {
    let mut world = published(10);
    world.config = world.config.with_handler_timeout(20 * SECOND);
    let effects = Effects { slow: 25 * SECOND, ..Effects::default() };
    let a = world.start_with("a", world.hub.source(), effects.clone()).await;
    sleep(120 * SECOND).await;
    assert_eq!(effects.counted().len(), 10);
    a.shut_down().await.unwrap();
}

/// The recipe of docs/effects.md to process events again: change the position, raise the epoch, release the partition.
#[tokio::test(start_paused = true)]
async fn a_changed_position_counts_after_a_release() {
    let world = published(10);
    let effects = Effects::default();
    let a = world.start_with("a", world.hub.source(), effects.clone()).await;
    wait_for_checkpoint(&world, 9).await;
    let owned = a.snapshots.borrow().owned[&0.into()];
    {
        let mut rows = effects.rows.lock().unwrap();
        (rows.position, rows.epoch) = (Some(4), rows.epoch + 1);
    }
    assert!(!effects.commit(&[5], owned), "the old ownership commits nothing");
    assert!(a.handle.release(&0.into(), Duration::ZERO));
    wait_for("the events again", || effects.rows.lock().unwrap().counted[&9] == 2).await;
    let counted: Vec<_> = effects.rows.lock().unwrap().counted.values().copied().collect();
    assert_eq!(counted, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    a.shut_down().await.unwrap();
}

mod with_dead_letters {
    use super::*;
    use crate::support::dead_letters::{Sink, SinkState, poisoned, publish_poisoned, quick, start};

    /// Fails unless exactly these of the events were moved, and all others were counted once.
    fn assert_effects(effects: &Effects, sink: &Sink, events: i64, moved: &[i64]) {
        assert_eq!(sink.numbers(), moved);
        let expected: Vec<_> = (0..events).filter(|number| !moved.contains(number)).collect();
        assert_eq!(effects.counted(), expected);
    }

    async fn check_with_a_sink_that_is_down(effects: Effects) {
        let (world, sink) = (poisoned(100, &[37]), Sink::new(SinkState::Down));
        let a = start(&world, effects.clone(), &sink, quick()).await;
        sleep(120 * SECOND).await;
        sink.set(SinkState::Up);
        sleep(600 * SECOND).await;
        a.shut_down().await.unwrap();
        assert_effects(&effects, &sink, 100, &[37]);
    }

    #[tokio::test(start_paused = true)]
    async fn own_positions_and_dead_letters_lose_nothing() {
        check_with_a_sink_that_is_down(Effects::default()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn dedupe_and_dead_letters_lose_nothing() {
        check_with_a_sink_that_is_down(Effects { dedupe: true, ..Effects::default() }).await;
    }

    /// Requests a release in the call after the moved event, and hangs for longer than the drain timeout.
    #[derive(Clone, Default)]
    struct Released {
        effects: Effects,
        has_released: Arc<AtomicBool>,
    }

    impl Handler<MemoryEvent> for Released {
        async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
            self.effects.start_position(start).await
        }

        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            let is_after_move = events[0].sequence_number == 38;
            self.effects.handle(events, context.clone()).await?;
            if is_after_move && !self.has_released.swap(true, Ordering::Relaxed) {
                context.release(Duration::ZERO);
                pending::<()>().await;
            }
            Ok(())
        }
    }

    /// No sink fails, and no process crashes.
    #[tokio::test(start_paused = true)]
    async fn a_release_after_a_move_loses_nothing() {
        let (world, sink, handler) = (poisoned(100, &[37]), Sink::default(), Released::default());
        let a = start(&world, handler.clone(), &sink, quick()).await;
        sleep(600 * SECOND).await;
        a.shut_down().await.unwrap();
        assert!(handler.has_released.load(Ordering::Relaxed));
        assert_effects(&handler.effects, &sink, 100, &[37]);
    }

    async fn check_poison(events: i64, poison: &[i64], failure: Failure) {
        let (world, sink) = (poisoned(events, poison), Sink::default());
        let effects = Effects { failure, ..Effects::default() };
        let a = start(&world, effects.clone(), &sink, quick()).await;
        sleep(24 * HOUR).await;
        a.shut_down().await.unwrap();
        assert_effects(&effects, &sink, events, poison);
    }

    #[tokio::test(start_paused = true)]
    async fn two_adjacent_named_events_with_own_positions() {
        check_poison(100, &[37, 38], Failure::Named).await;
    }

    #[tokio::test(start_paused = true)]
    async fn two_named_events_with_own_positions() {
        check_poison(100, &[37, 70], Failure::Named).await;
    }

    #[tokio::test(start_paused = true)]
    async fn two_permanent_errors_with_own_positions() {
        check_poison(100, &[37, 70], Failure::Permanent).await;
    }

    #[tokio::test(start_paused = true)]
    async fn own_positions_poison_in_different_batches() {
        check_poison(300, &[37, 250], Failure::Named).await;
    }

    /// The database is down for this time, and up for ten minutes. Fails if an event was stored twice, or stored and
    /// counted.
    async fn assert_outage_moves_no_event_twice(effects: &Effects, sink: &Sink, outage: Duration) {
        sleep(outage).await;
        effects.is_down.store(false, Ordering::Relaxed);
        sleep(600 * SECOND).await;
        let (stored, counted) = (sink.numbers(), effects.counted());
        let distinct: BTreeSet<_> = stored.iter().copied().collect();
        assert_eq!(distinct.len(), stored.len(), "{stored:?}");
        assert!(counted.iter().all(|number| !distinct.contains(number)), "{stored:?}, counted {counted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_moves_no_event_twice() {
        let (world, sink, effects) = (poisoned(100, &[]), Sink::default(), Effects::default());
        effects.is_down.store(true, Ordering::Relaxed);
        let a = start(&world, effects.clone(), &sink, DeadLetterPolicy::default()).await;
        assert_outage_moves_no_event_twice(&effects, &sink, HOUR / 2).await;
        a.shut_down().await.unwrap();
    }

    /// The application has stored a position before.
    #[tokio::test(start_paused = true)]
    async fn outage_with_a_stored_own_position() {
        let (world, sink, effects) = (poisoned(10, &[]), Sink::default(), Effects::default());
        let a = start(&world, effects.clone(), &sink, DeadLetterPolicy::default()).await;
        sleep(60 * SECOND).await;
        effects.is_down.store(true, Ordering::Relaxed);
        publish_poisoned(&world, 90, &[]);
        assert_outage_moves_no_event_twice(&effects, &sink, HOUR).await;
        a.shut_down().await.unwrap();
    }
}
