//! The last checkpoints and releases of a shutdown, under every fault.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, HealthIssue, OnFailure, PartitionContext, PartitionState, Processor,
    ShutdownReport,
};
use eventhubs_checkpoint::store::StorageOperation as Purpose;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, Result};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::captured::Captured;
use crate::handoffs::write_faults;
use crate::intercepted::{Intercept, Intercepted};
use crate::ownership_log::{OwnershipLog, SlowHandler, requesting_instance};
use crate::world::{Instance, Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

/// The longest clean shutdown with the default settings.
const MAX_SHUTDOWN: Duration = Duration::from_secs(94);

const CHECKPOINT: &str = "/checkpoint/";
const OWNERSHIP: &str = "/ownership/";
const HEARTBEAT: &str = "/heartbeat/";

/// One instance claims all partitions at once. It writes no checkpoint before the shutdown.
fn world(partitions: u32) -> World {
    let mut world = World::new(partitions);
    world.config = world
        .config
        .clone()
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    world.config = world
        .config
        .without_lag_checks()
        .with_checkpoint_policy(CheckpointPolicy::default().with_interval(600 * SECOND));
    world
}

/// Starts an instance, and waits until it has handled five events of each partition.
async fn with_five_handled(world: &World, partitions: u32) -> Instance {
    let mut a = world.start("a").await;
    a.wait_until_it_holds(partitions as usize).await;
    a.wait_until_all_idle(partitions as usize).await;
    for partition in 0..partitions {
        world.hub.publish_many(partition, 5, "x");
    }
    world.log.wait_for("all events", |log| log.times("x") == 5 * partitions as usize).await;
    a
}

/// Returns the sequence number of each partition's checkpoint.
async fn checkpoints(world: &World) -> BTreeMap<String, Option<i64>> {
    let listing = world.store("observer").await.list_checkpoints().await.unwrap();
    listing.records.into_iter().map(|seen| (seen.partition.to_string(), seen.record.sequence_number)).collect()
}

async fn live_heartbeats(world: &World) -> usize {
    let listing = world.store("observer").await.list_heartbeats().await.unwrap();
    listing.records.iter().filter(|seen| seen.record.declared_dead_by.is_none()).count()
}

async fn blobs(world: &World, kind: &str) -> usize {
    world.container.list("").await.unwrap().blobs.iter().filter(|blob| blob.name.contains(kind)).count()
}

fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Every fault of a write, and a concurrent write.
fn faults() -> Vec<Fault> {
    let concurrent_write = Fault::ConcurrentWrite(metadata(&[("sequencenumber", "-1"), ("offset", "-1")]));
    write_faults().into_iter().chain([concurrent_write]).collect()
}

/// The last checkpoint, the release and the end of the heartbeat, each with every fault, of one partition and of many.
/// The heartbeat has ended when that is written. Its deletion only tidies up, and is not repeated.
#[tokio::test(start_paused = true)]
async fn every_fault_at_every_write_of_a_shutdown() {
    let writes = [
        (CHECKPOINT, BlobOperation::Write),
        (OWNERSHIP, BlobOperation::Write),
        (HEARTBEAT, BlobOperation::Write),
        (HEARTBEAT, BlobOperation::Delete),
    ];
    for (name, operation) in writes {
        for (fault, partitions) in faults().into_iter().flat_map(|fault| [(fault.clone(), 1), (fault, 8)]) {
            if matches!(fault, Fault::ConcurrentWrite(_)) && name != CHECKPOINT {
                // The concurrent write would leave another owner's record, or no record.
                continue;
            }
            let case = format!("{name} {fault:?} {partitions}");
            let world = world(partitions);
            let a = with_five_handled(&world, partitions).await;
            for _ in 0..if name == HEARTBEAT { 1 } else { partitions } {
                world.faulty.inject_on(Target::from(operation).named(name), fault.clone());
            }
            let report = a.shut_down().await.unwrap();
            assert!(report.is_clean(), "{case}: {report:?}");
            assert_eq!(world.faulty.pending(), 0, "{case}");
            assert!(checkpoints(&world).await.values().all(|number| *number == Some(4)), "{case}");
            assert!(world.owners().await.values().all(String::is_empty), "{case}");
            assert_eq!(live_heartbeats(&world).await, 0, "{case}");
            assert!(blobs(&world, HEARTBEAT).await <= usize::from(operation == BlobOperation::Delete), "{case}");
        }
    }
}

/// Shuts down while every request fails with `fault` for `duration`.
async fn shut_down_with_fault(fault: &Fault, partitions: u32, duration: Duration) -> (World, ShutdownReport, Duration) {
    let world = world(partitions);
    let a = with_five_handled(&world, partitions).await;
    world.faulty.set_plan(FaultPlan::always(fault.clone()));
    let began = Instant::now();
    let ending = tokio::spawn(a.shut_down());
    let (faulty, over) = (world.faulty.clone(), began + duration);
    tokio::spawn(async move {
        sleep_until(over).await;
        faulty.set_plan(FaultPlan::default());
    });
    let report = ending.await.unwrap().unwrap();
    let took = began.elapsed();
    world.faulty.set_plan(FaultPlan::default());
    (world, report, took)
}

fn refusals() -> [Fault; 4] {
    let throttled = |retry_after| Fault::Throttled { retry_after };
    [throttled(None), throttled(Some(2 * SECOND)), Fault::Unreachable, Fault::Hang]
}

#[tokio::test(start_paused = true)]
async fn the_storage_recovers_during_the_shutdown() {
    for (fault, partitions) in refusals().into_iter().flat_map(|fault| [(fault.clone(), 1), (fault, 8)]) {
        let (world, report, took) = shut_down_with_fault(&fault, partitions, 3 * SECOND).await;
        assert!(report.is_clean() && took < 20 * SECOND, "{fault:?}: {report:?} after {took:?}");
        assert!(checkpoints(&world).await.values().all(|number| *number == Some(4)), "{fault:?}");
        assert!(world.owners().await.values().all(String::is_empty), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_storage_does_not_recover() {
    for (fault, partitions) in refusals().into_iter().flat_map(|fault| [(fault.clone(), 1), (fault, 8)]) {
        let (_, report, took) = shut_down_with_fault(&fault, partitions, 3600 * SECOND).await;
        assert_eq!(report.uncheckpointed, (0..partitions).map(Into::into).collect(), "{fault:?}: {report:?}");
        assert_eq!(report.unreleased, partitions as usize, "{fault:?}: {report:?}");
        assert!(report.aborted.is_empty(), "{fault:?}: {report:?}");
        assert!(took > 60 * SECOND && took <= MAX_SHUTDOWN, "{fault:?}: {took:?}");
    }
}

/// Refuses all writes to names with `name` from a given time on, as if the permission were missing.
struct ForbiddenWrites {
    name: &'static str,
    from: Instant,
}

#[async_trait]
impl Intercept for ForbiddenWrites {
    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        if name.contains(self.name) && Instant::now() >= self.from {
            return Err(Error::new(ErrorKind::Unauthorized, "no permission"));
        }
        inner.write(name, metadata, condition).await
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_end_the_shutdown_immediately() {
    for name in [CHECKPOINT, OWNERSHIP] {
        let mut world = world(2);
        let forbidden = ForbiddenWrites { name, from: Instant::now() + 60 * SECOND };
        let container = Intercepted { inner: world.container.clone(), interceptor: forbidden };
        world.faulty = FaultyContainer::new(Arc::new(container), 11);
        let a = with_five_handled(&world, 2).await;
        sleep(60 * SECOND).await;
        let began = Instant::now();
        let report = a.shut_down().await.unwrap();
        assert!(began.elapsed() < SECOND, "{name}: {:?}", began.elapsed());
        assert_eq!(report.uncheckpointed.len(), if name == CHECKPOINT { 2 } else { 0 }, "{report:?}");
        assert_eq!(report.unreleased, if name == OWNERSHIP { 2 } else { 0 }, "{report:?}");
    }
}

/// Takes `time` for each request to blobs with `name` in their names.
struct SlowContainer {
    name: &'static str,
    time: Duration,
}

impl SlowContainer {
    fn over(world: &World, name: &'static str, time: Duration) -> FaultyContainer {
        FaultyContainer::new(
            Arc::new(Intercepted { inner: world.container.clone(), interceptor: Self { name, time } }),
            11,
        )
    }

    async fn delay(&self, name: &str) {
        if name.contains(self.name) {
            sleep(self.time / 2).await;
        }
    }
}

#[async_trait]
impl Intercept for SlowContainer {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        self.delay(prefix).await;
        let list = inner.list(prefix).await;
        self.delay(prefix).await;
        list
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        self.delay(name).await;
        let blob = inner.get(name).await;
        self.delay(name).await;
        blob
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        self.delay(name).await;
        let written = inner.write(name, metadata, condition).await;
        self.delay(name).await;
        written
    }

    async fn delete(&self, inner: &dyn BlobContainer, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.delay(name).await;
        let deleted = inner.delete(name, etag).await;
        self.delay(name).await;
        deleted
    }
}

/// This many partitions with this many concurrent requests behave like 1024 partitions with the default of 32.
const MANY: u32 = 128;
const CONCURRENT_REQUESTS: usize = 4;

/// Starts an instance on a storage that takes `time` for each request to blobs with `name` in their names.
async fn start_on_slow_storage(world: &mut World, name: &'static str, time: Duration) -> Instance {
    world.faulty = SlowContainer::over(world, name, time);
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let builder = GroupStore::builder(Arc::new(world.faulty.clone()), group, OwnerId::new("a").unwrap());
    let config =
        StoreConfig::default().with_lease_duration(world.expiry).with_max_concurrent_requests(CONCURRENT_REQUESTS);
    let store = builder.with_config(config).connect().await.unwrap();
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_on(store, world.hub.source(), recorder);
    a.wait_until_it_holds(MANY as usize).await;
    a.wait_until_all_idle(MANY as usize).await;
    a
}

/// A round of all checkpoints takes 16 s, or 32 s.
#[tokio::test(start_paused = true)]
async fn a_slow_storage_starves_no_checkpoint() {
    for millis in [500, 1000] {
        let mut world = world(MANY);
        world.config.checkpoint_policy = CheckpointPolicy::default().with_interval(SECOND);
        let a = start_on_slow_storage(&mut world, CHECKPOINT, Duration::from_millis(millis)).await;
        for _ in 0..60 {
            for partition in 0..MANY {
                world.hub.publish(partition, "x");
            }
            sleep(2 * SECOND).await;
        }
        let never = a.handle.partitions().iter().filter(|status| status.checkpoint < Some(0)).count();
        assert_eq!(never, 0, "never written, of {MANY} at {millis} ms");
        a.crash().await;
    }
}

/// The bound is that of the phase `drain`: three times the drain timeout and four request timeouts, 65 s. These take 13
/// s.
#[tokio::test(start_paused = true)]
async fn the_shutdown_starves_no_checkpoint() {
    let mut world = world(MANY);
    let a = start_on_slow_storage(&mut world, "", Duration::from_millis(400)).await;
    for partition in 0..MANY {
        world.hub.publish(partition, "x");
    }
    world.log.wait_for("all events", |log| log.times("x") == MANY as usize).await;
    let report = a.shut_down().await.unwrap();
    assert!(report.is_clean(), "{} unwritten, {} unreleased", report.uncheckpointed.len(), report.unreleased);
    assert!(report.drain.took < 30 * SECOND, "{:?}", report.drain);
}

/// Returns how many checkpoints are sent in `time`, with one event per second in each partition.
async fn checkpoints_sent(world: &World, partitions: u32, store: &GroupStore, time: Duration) -> u64 {
    let before = store.request_counts().total(Purpose::Checkpoint);
    let until = Instant::now() + time;
    while Instant::now() < until {
        for partition in 0..partitions {
            world.hub.publish(partition, "x");
        }
        sleep(SECOND).await;
    }
    store.request_counts().total(Purpose::Checkpoint) - before
}

#[tokio::test(start_paused = true)]
async fn a_failing_storage_gets_no_more_checkpoints() {
    const PARTITIONS: u32 = 8;
    let throttled = |seconds: Option<u32>| Fault::Throttled { retry_after: seconds.map(|seconds| seconds * SECOND) };
    let (usual, rare) = (CheckpointPolicy::default(), CheckpointPolicy::default().with_interval(30 * SECOND));
    for (policy, fault) in [
        (&usual, throttled(None)),
        (&usual, throttled(Some(3))),
        (&usual, throttled(Some(20))),
        (&usual, Fault::Unreachable),
        (&rare, throttled(None)),
    ] {
        let mut world = world(PARTITIONS);
        world.config.checkpoint_policy = policy.clone();
        let store = world.store("a").await;
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let mut a = world.start_on(store.clone(), world.hub.source(), recorder);
        a.wait_until_it_holds(PARTITIONS as usize).await;
        checkpoints_sent(&world, PARTITIONS, &store, 60 * SECOND).await;
        let calm = checkpoints_sent(&world, PARTITIONS, &store, 300 * SECOND).await;
        let checkpoints = Target::from(BlobOperation::Write).named(CHECKPOINT);
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, checkpoints, fault.clone()));
        let refused = checkpoints_sent(&world, PARTITIONS, &store, 300 * SECOND).await;
        assert!(refused <= calm, "{policy:?} {fault:?}: {refused}, normally {calm}");
        world.faulty.set_plan(FaultPlan::default());
        checkpoints_sent(&world, PARTITIONS, &store, 60 * SECOND).await;
        assert!(a.handle.health().issues.is_empty(), "{:?}", a.handle.health());
        let after = checkpoints_sent(&world, PARTITIONS, &store, 60 * SECOND).await;
        assert!(after * 5 >= calm * 9 / 10, "{policy:?} {fault:?}: {after} in one minute, normally {calm} in five");
        a.crash().await;
    }
}

/// Shuts down an instance while the handler of the first of eight partitions hangs.
async fn shut_down_with_hanging_handler(world: &World) -> JoinHandle<Result<ShutdownReport>> {
    let a = with_five_handled(world, 8).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    tokio::spawn(a.shut_down())
}

#[tokio::test(start_paused = true)]
async fn each_partition_is_released_when_it_has_stopped() {
    let mut world = world(8);
    let ending = shut_down_with_hanging_handler(&world).await;
    sleep(SECOND).await;
    assert!(!ending.is_finished());
    let owners = world.owners().await;
    assert_eq!(owners.iter().filter(|(_, owner)| !owner.is_empty()).map(|(id, _)| &**id).collect::<Vec<_>>(), ["0"]);

    // `b` claims only free partitions.
    let alone = LoadBalancingStrategy::Static(Assignment::index(0, 1).unwrap());
    world.config =
        world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_strategy(alone).with_handoff(false));
    let b = world.start("b").await;
    for partition in 1..8 {
        world.hub.publish(partition, "y");
    }
    world.log.wait_for("the other partitions", |log| log.times("y") == 7).await;
    assert!(!ending.is_finished());
    let report = ending.await.unwrap().unwrap();
    assert_eq!((report.aborted, report.unreleased), ([0.into()].into(), 0));
    b.crash().await;
}

/// The instance claims nothing again, although no other instance is running.
#[tokio::test(start_paused = true)]
async fn released_partitions_stay_released() {
    let world = world(8);
    let ending = shut_down_with_hanging_handler(&world).await;
    sleep(SECOND).await;
    let mut seconds = 0;
    while !ending.is_finished() {
        let mut owners = world.owners().await;
        owners.remove("0");
        assert!(owners.len() == 7 && owners.values().all(String::is_empty), "{owners:?}");
        seconds += 1;
        sleep(SECOND).await;
    }
    assert!(seconds > 10, "{seconds}");
    assert!(world.owners().await.values().all(String::is_empty));
}

/// The release is repeated while other partitions drain, and its reason is `Shutdown`.
#[tokio::test(start_paused = true)]
async fn a_release_fails_while_others_drain() {
    let world = world(8);
    let a = with_five_handled(&world, 8).await;
    let mut log_a = OwnershipLog::of(&a);
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let releases = Target::from(BlobOperation::Write).named(OWNERSHIP);
    let throttled = Fault::Throttled { retry_after: None };
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, releases, throttled));
    let ending = tokio::spawn(a.shut_down());
    sleep(5 * SECOND).await;
    assert!(world.owners().await.values().all(|owner| owner == "a"));
    world.faulty.set_plan(FaultPlan::default());
    sleep(8 * SECOND).await;
    assert!(!ending.is_finished());
    assert_eq!(world.owners().await.values().filter(|owner| owner.is_empty()).count(), 7);
    assert_eq!(ending.await.unwrap().unwrap().unreleased, 0);
    let reported = log_a.take();
    assert_eq!(reported.iter().filter(|reported| *reported == "releasing: Shutdown").count(), 8, "{reported:?}");
    assert_eq!(reported.iter().filter(|reported| *reported == "released").count(), 8, "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn streams_are_shut_down_after_their_handle() {
    for wait in [Duration::ZERO, SECOND / 2, 3 * SECOND] {
        let world = world(1);
        world.hub.publish_many(0, 5, "x");
        let builder = Processor::streams(world.hub.source(), world.store("a").await);
        let mut partitions = builder.with_config(world.config.clone()).build().unwrap().start_streams();
        let mut partition = partitions.next().await.unwrap();
        let batch = partition.next().await.unwrap();
        partition.context().checkpoint(batch.last().unwrap());
        partitions.handle().shutdown();
        sleep(wait).await;
        let working = tokio::spawn(async move {
            sleep(5 * SECOND).await;
            partition.next().await
        });
        let report = partitions.shutdown().await.unwrap();
        assert!(report.is_clean(), "{wait:?}: {report:?}");
        assert!(working.await.unwrap().is_none());
        assert_eq!(world.checkpoint().await, Some(4));
        assert!(world.owners().await.values().all(String::is_empty));
    }
}

/// The future passed to `run` and the handle: both may react to the same signal.
#[tokio::test(start_paused = true)]
async fn run_is_shut_down_by_its_future_and_its_handle() {
    let world = world(1);
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let slow = SlowHandler { recorder, stop_delay: 3 * SECOND };
    let mut a = world.start_with("a", world.hub.source(), slow).await;
    a.wait_until_all_idle(1).await;
    let handle = a.handle.clone();
    a.shutdown.take().unwrap().send(()).unwrap();
    sleep(Duration::from_millis(2)).await;
    handle.shutdown();
    let report = a.ended().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn simultaneous_shutdown_requests_are_one() {
    for (gap, forced) in [(2, false), (999, false), (1000, true), (1500, true)] {
        let (log, _guard) = Captured::begin();
        let world = world(1);
        let a = with_five_handled(&world, 1).await;
        world.hub.publish(0, "hang");
        world.log.wait_for("hang", |log| log.times("hang") == 1).await;
        a.handle.shutdown();
        sleep(Duration::from_millis(gap)).await;
        a.handle.shutdown();
        let report = a.ended().await.unwrap();
        assert_eq!(report.forced, forced, "{gap} ms: {report:?}");
        let times = |event: &str| log.text().lines().filter(|line| line.ends_with(event)).count();
        assert_eq!(
            (times("shutdown requested"), times("shutdown requested again; stopping immediately")),
            (1, usize::from(forced))
        );
    }
}

/// The handler fails and stops slowly. Meanwhile, the instance receives a handoff request for the partition.
#[tokio::test(start_paused = true)]
async fn a_failure_releases_a_partition_in_a_handoff() {
    let mut world = World::new(2);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_interval(5 * SECOND));
    world.config =
        world.config.with_drain_timeout(16 * SECOND).with_on_failure(OnFailure::Release { cooldown: 600 * SECOND });
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let slow = SlowHandler { recorder, stop_delay: 15 * SECOND };
    let mut a = world.start_with("a", world.hub.source(), slow).await;
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    let mut log_a = OwnershipLog::of(&a);
    let (b, requested) = requesting_instance(&world).await;
    world.hub.publish(requested.as_str().parse().unwrap(), "fail");
    world.log.wait_for("a failure", |log| log.times("fail") == 1).await;
    log_a.wait_for("released").await;
    assert_eq!(
        log_a.take(),
        ["requested by b", "releasing: HandedOver", "duplicates: CheckpointNotWritten", "released"]
    );
    a.crash().await;
    b.crash().await;
}

/// Tracks each event. Drops the token of "poison", keeps that of "wait" until the partition stops, fails that of
/// "broken" once, and finishes the others.
#[derive(Clone, Debug, Default)]
struct TokenHandler(Arc<Mutex<Vec<String>>>);

impl Handler<MemoryEvent> for TokenHandler {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            self.0.lock().unwrap().push(event.body.to_string());
            let (token, context) = (context.track(event), context.clone());
            match &*event.body {
                "poison" => drop(token),
                "broken" if self.times("broken") == 1 => token.fail("failed on request"),
                "wait" => drop(tokio::spawn(async move {
                    if context.run_until_stopping(sleep(3600 * SECOND)).await.is_some() {
                        token.finish();
                    }
                })),
                _ => token.finish(),
            }
        }
        Ok(())
    }
}

impl TokenHandler {
    fn times(&self, body: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|seen| *seen == body).count()
    }

    /// Starts an instance, and waits until it has handled all these events.
    async fn start_with_events(&self, world: &World, bodies: &[&str]) -> Instance {
        for body in bodies {
            world.hub.publish(0, *body);
        }
        let a = world.start_with("a", world.hub.source(), self.clone()).await;
        a.wait_for_status("the last event", |status| status.handled == i64::try_from(bodies.len() - 1).ok()).await;
        sleep(2 * SECOND).await;
        a
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_dropped_during_processing() {
    let (log, _guard) = Captured::begin();
    let world = World::new(1);
    let a =
        TokenHandler::default().start_with_events(&world, &["x", "x", "x", "poison", "x", "poison", "x", "x"]).await;
    let held = a.handle.health().issues;
    let [HealthIssue::CheckpointHeld { event: 3, checkpoint: Some(2), finished_after: 4, held_for, .. }] = held[..]
    else {
        panic!("{held:?}");
    };
    assert!(held_for >= 2 * SECOND, "{held_for:?}");
    let reported = log.text();
    let dropped: Vec<_> = reported.lines().filter(|line| line.contains("tracked event dropped unfinished")).collect();
    assert!(dropped.len() == 1 && dropped[0].contains("WARN"), "{reported}");
    assert!(
        ["partition_id=0", "sequence_number=3", "checkpoint="].iter().all(|part| dropped[0].contains(part)),
        "{reported}"
    );
    let report = a.shut_down().await.unwrap();
    assert!(!report.is_clean() && report.aborted.is_empty() && report.uncheckpointed.is_empty(), "{report:?}");
    assert_eq!(report.held_back, [0.into()].into());
}

/// Work abandoned because the partition stops is not an error, unless an event after it was finished.
#[tokio::test(start_paused = true)]
async fn tokens_dropped_because_of_the_stop() {
    for (bodies, clean) in [(["x", "x", "wait", "wait"], true), (["x", "wait", "wait", "x"], false)] {
        let (log, _guard) = Captured::begin();
        let world = World::new(1);
        let a = TokenHandler::default().start_with_events(&world, &bodies).await;
        assert!(a.handle.health().issues.is_empty());
        let report = a.shut_down().await.unwrap();
        assert_eq!((report.is_clean(), report.held_back.is_empty()), (clean, clean), "{bodies:?}: {report:?}");
        assert!(!log.text().contains("dropped unfinished"), "{}", log.text());
    }
}

/// Events finished after the dropped token are processed twice.
#[tokio::test(start_paused = true)]
async fn a_handoff_with_a_dropped_token() {
    let world = World::new(2);
    for partition in 0..2 {
        world.hub.publish(partition, "poison");
    }
    let mut a = world.start_with("a", world.hub.source(), TokenHandler::default()).await;
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    let mut log_a = OwnershipLog::of(&a);
    let (b, _) = requesting_instance(&world).await;
    log_a.wait_for("released").await;
    assert_eq!(
        log_a.take(),
        ["requested by b", "releasing: HandedOver", "duplicates: CheckpointNotWritten", "released"]
    );
    a.crash().await;
    b.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_that_fails() {
    let (log, _guard) = Captured::begin();
    let world = World::new(1);
    let handler = TokenHandler::default();
    let a = handler.start_with_events(&world, &["x", "x", "broken", "y", "y"]).await;
    assert_eq!((handler.times("x"), handler.times("broken"), handler.times("y")), (2, 2, 4));
    assert_eq!(world.checkpoint().await, Some(4));
    let reported = log.text();
    let failed = reported.lines().find(|line| line.contains("handler failed")).unwrap();
    assert!(failed.contains("event 2 could not be processed: failed on request"), "{failed}");
    assert!(a.handle.health().issues.is_empty());
    assert!(a.shut_down().await.unwrap().is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_fails_parks_the_partition() {
    let mut world = World::new(1);
    world.config = world.config.with_on_failure(OnFailure::Park);
    let handler = TokenHandler::default();
    let a = handler.start_with_events(&world, &["x", "broken", "y"]).await;
    let status = a.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
    assert!(status.last_error.unwrap().message.contains("event 1 could not be processed"));
    assert_eq!(world.checkpoint().await, Some(0));
    assert!(a.handle.resume(&0.into()));
    a.wait_for_status("all", |status| status.checkpoint == Some(2)).await;
    assert!(a.shut_down().await.unwrap().is_clean());
}
