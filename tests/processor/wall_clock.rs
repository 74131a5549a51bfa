//! The local wall clock affects nothing: regardless of its time and its jumps, whole instances send the same requests
//! at the same moments and process the same events.
//!
//! `tests/package` shows that only the probe and the signatures read it, and `tests/process_wide/credentials` that a
//! signature with a wrong date is corrected.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::store::StorageWarning;
use eventhubs_checkpoint::testing::WallClock;
use eventhubs_checkpoint::testing::faulty::{FaultPlan, FaultyContainer};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{Instance, World, random_faults};

/// The initial time of the container in memory.
const EPOCH: OffsetDateTime = datetime!(2026-01-01 00:00:00 UTC);

const OWNERS: [&str; 3] = ["a", "b", "c"];

/// A clock that jumps by the given number of seconds at the given times after the start.
#[derive(Debug)]
struct JumpingClock {
    started: Instant,
    jumps: Vec<(Duration, i64)>,
    reads: AtomicUsize,
}

impl JumpingClock {
    fn new(jumps: Vec<(Duration, i64)>) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), jumps, reads: AtomicUsize::new(0) })
    }
}

impl WallClock for JumpingClock {
    fn now(&self) -> OffsetDateTime {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let elapsed = self.started.elapsed();
        let jumped: i64 = self.jumps.iter().filter(|(at, _)| *at <= elapsed).map(|(_, by)| by).sum();
        EPOCH + elapsed + time::Duration::seconds(jumped)
    }
}

/// Records every request: its time, name, condition and outcome.
#[derive(Clone)]
struct RecordingContainer {
    inner: Arc<dyn BlobContainer>,
    started: Instant,
    requests: Arc<Mutex<Vec<String>>>,
}

impl RecordingContainer {
    fn new(inner: Arc<dyn BlobContainer>) -> Self {
        Self { inner, started: Instant::now(), requests: Arc::default() }
    }

    fn record<T: fmt::Debug>(&self, request: impl fmt::Display, outcome: &Result<T>) {
        let outcome = match outcome {
            Ok(response) => without_instants(format!("{response:?}")),
            Err(error) => format!("{:?}", error.kind()),
        };
        self.requests.lock().unwrap().push(format!("{:?} {request}: {outcome}", self.started.elapsed()));
    }
}

/// Removes instants, which differ between two runs.
fn without_instants(mut text: String) -> String {
    while let Some(start) = text.find(", received_at: Instant {") {
        let end = text[start..].find('}').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    text
}

impl fmt::Debug for RecordingContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordingContainer").field(&self.inner).finish()
    }
}

#[async_trait]
impl BlobContainer for RecordingContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let outcome = self.inner.list(prefix).await;
        self.record(format_args!("list {prefix}"), &outcome);
        outcome
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        let outcome = self.inner.get(name).await;
        self.record(format_args!("get {name}"), &outcome);
        outcome
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let outcome = self.inner.write(name, metadata, condition).await;
        self.record(format_args!("write {name} {metadata:?} {condition:?}"), &outcome);
        outcome
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        let outcome = self.inner.delete(name, etag).await;
        self.record(format_args!("delete {name} {etag:?}"), &outcome);
        outcome
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self { inner: self.inner.with_new_connections()?, ..self.clone() }))
    }
}

/// Everything that happened in a run, as text.
#[derive(Debug, PartialEq)]
struct Trace {
    requests: Vec<String>,
    faults: Vec<String>,
    processed: Vec<(String, String, String)>,
    stops: Vec<String>,
}

/// Starts, crashes and shuts down instances according to the seed.
async fn run_instances(world: &World, rng: &mut StdRng) {
    let mut running: [Option<Instance>; 3] = [const { None }; 3];
    for number in 0..150u32 {
        world.hub.publish(number % 5, number.to_string());
        let index = rng.random_range(0..OWNERS.len());
        let crashes = rng.random_bool(0.5);
        match running[index].take() {
            Some(instance) if rng.random_bool(0.1) => {
                if crashes {
                    instance.crash().await;
                } else {
                    // It may have been replaced or ended otherwise. The trace shows that.
                    let _ = timeout(Duration::from_secs(600), instance.shut_down()).await;
                }
            }
            None => {
                world.faulty.set_plan(FaultPlan::default());
                running[index] = Some(world.start(OWNERS[index]).await);
                world.faulty.set_plan(random_faults());
            }
            kept => running[index] = kept,
        }
        sleep(Duration::from_millis(rng.random_range(0..6000))).await;
    }
    for instance in running.into_iter().flatten() {
        instance.crash().await;
    }
}

/// Runs this seed with a clock that jumps. Also returns how often the clock was read.
fn run(seed: u64, jumps: Vec<(Duration, i64)>) -> (Trace, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(5);
        let recorded = RecordingContainer::new(world.container.clone());
        let clock = JumpingClock::new(jumps);
        world.faulty = FaultyContainer::new(Arc::new(recorded.clone()), seed);
        world.wall_clock = Some(clock.clone());
        run_instances(&world, &mut StdRng::seed_from_u64(seed)).await;
        let trace = Trace {
            requests: std::mem::take(&mut recorded.requests.lock().unwrap()),
            faults: world.faulty.trace().iter().map(|fault| format!("{fault:?}")).collect(),
            processed: world.log.events.lock().unwrap().clone(),
            stops: world.log.stops.lock().unwrap().iter().map(|stop| format!("{stop:?}")).collect(),
        };
        (trace, clock.reads.load(Ordering::Relaxed))
    })
}

fn jumps() -> impl Strategy<Value = Vec<(Duration, i64)>> {
    const WEEK: i64 = 7 * 24 * 3600;
    let by = prop_oneof![-120..120i64, -WEEK..WEEK];
    let at = (0..450u64).prop_map(Duration::from_secs);
    proptest::collection::vec((at, by), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jumps_of_the_local_clock_change_nothing(seed: u64, jumps in jumps()) {
        let (steady, reads) = run(seed, Vec::new());
        let (jumping, other_reads) = run(seed, jumps);
        prop_assert!(reads > 0 && reads == other_reads);
        prop_assert!(steady.requests.len() > 300 && steady.processed.len() >= 100, "too few requests or events");
        for (one, other) in steady.requests.iter().zip(&jumping.requests) {
            prop_assert_eq!(one, other);
        }
        prop_assert!(steady == jumping);
    }
}

/// Two running owners hold one partition each. An instance that considered them expired would claim both.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_steals_nothing() {
    const HOUR: i64 = 3600;
    for ahead in [61, 5 * 60, HOUR, 24 * HOUR, 365 * 24 * HOUR, -HOUR] {
        let mut world = World::new(2);
        let mut live = [world.start("a").await, world.start("b").await];
        live[1].wait_until_it_holds(1).await;
        // It may have held both, without having detected the loss yet.
        live[0].wait_until_it_holds(1).await;
        let held = live.each_ref().map(|instance| instance.snapshots.borrow().owned.clone());

        world.wall_clock = Some(JumpingClock::new(vec![(Duration::ZERO, ahead)]));
        let findings = world.store("c").await.storage_warnings().to_vec();
        assert!(matches!(findings.as_slice(), [StorageWarning::ClockSkew { .. }]), "{ahead}: {findings:?}");
        let mut skewed = world.start("c").await;
        for _ in 0..100 {
            sleep(Duration::from_secs(7)).await;
            assert_eq!(skewed.held(), 0, "{ahead}");
            assert_eq!(live.each_ref().map(|instance| instance.snapshots.borrow().owned.clone()), held, "{ahead}");
        }

        let [a, b] = live;
        a.crash().await;
        skewed.wait_until_it_holds(1).await;
        for instance in [b, skewed] {
            instance.shut_down().await.unwrap();
        }
    }
}
