//! Time: the local wall clock and its jumps affect nothing, and a blob service that answers each request, but slowly,
//! stops nothing.

/// Whatever time the local clock shows, whole instances send the same requests at the same moments and process the same
/// events.
///
/// `tests/package` shows that only the probe and the signatures read it, and `tests/process_wide/credentials` that a
/// signature with a wrong date is corrected.
mod wall_clock {
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
}

/// A storage that answers each request, but slowly.
mod slow_storage {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use eventhubs_checkpoint::blob::{
        Blob, BlobContainer, Condition, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
    };
    use eventhubs_checkpoint::processor::{CheckpointPolicy, ProcessorConfig, ReleaseReason, StopReason};
    use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
    use eventhubs_checkpoint::testing::faulty::{Latency, Platform};
    use eventhubs_checkpoint::{Error, ErrorKind, LeaseScope, OwnerId, Result};
    use tokio::time::sleep;

    use crate::intercepted::Intercept;
    use crate::service::{Manners, Service};
    use crate::support::{
        CHECKPOINT, MINUTE, SECOND, TAKEOVER_TIME, greedy, group, intercept, limited_store, rarely_checkpointing,
    };
    use crate::world::{Instance, World};

    /// A group with the default settings, or with those for a fast failover.
    #[derive(Clone, Debug)]
    struct Profile {
        store: StoreConfig,
        processor: ProcessorConfig,
    }

    impl Profile {
        fn default_in(scope: LeaseScope) -> Self {
            let processor = ProcessorConfig::default().with_balancer(|balancer| balancer.with_lease_scope(scope));
            Self { store: StoreConfig::default(), processor }
        }

        fn fast_failover() -> Self {
            Self { store: StoreConfig::fast_failover(), processor: ProcessorConfig::fast_failover() }
        }

        fn all() -> [Self; 3] {
            [Self::default_in(LeaseScope::Partition), Self::default_in(LeaseScope::Instance), Self::fast_failover()]
        }

        /// Returns the setting, or its default.
        fn request_timeout(&self) -> Duration {
            self.store.request_timeout.unwrap_or(Duration::from_secs(5))
        }

        /// Returns an event hub with 100 events in each of four partitions.
        fn world(&self) -> World {
            let mut world = World::new(4);
            world.config = self.processor.clone();
            for partition in 0..4 {
                world.hub.publish_many(partition, 100, "event").unwrap();
            }
            world
        }

        async fn start(&self, world: &World, owner: &str, container: Arc<dyn BlobContainer>) -> Instance {
            let builder = GroupStore::builder(container, group(), OwnerId::new(owner).unwrap());
            let store = builder.with_config(self.store.clone()).connect().await.unwrap();
            world.start_on(store, world.hub.source(), world.recorder(owner))
        }
    }

    /// An adoption is several requests in a row, and the sum of their times is longer than any of them may take.
    #[tokio::test(start_paused = true)]
    async fn slow_requests_do_not_keep_partitions_dark() {
        for (profile, milliseconds) in [
            (Profile::default_in(LeaseScope::Partition), [100, 1000, 2600, 4000, 4900]),
            (Profile::default_in(LeaseScope::Instance), [100, 1000, 2600, 4000, 4900]),
            (Profile::fast_failover(), [100, 500, 1100, 1500, 1900]),
        ] {
            for latency in milliseconds.map(Duration::from_millis) {
                let world = profile.world();
                let slow = Platform::new(world.container.clone(), 7).with_latency(Latency::constant(latency));
                let instance = profile.start(&world, "a", Arc::new(slow)).await;
                sleep(MINUTE).await;
                let soon = world.log.times("event");
                sleep(9 * MINUTE).await;
                assert_eq!(world.log.times("event"), 400, "{latency:?}, {soon} after a minute");
                instance.shut_down().await.unwrap();
            }
        }
    }

    /// From quick to almost too slow within ten minutes, in which the partitions move from one instance to another.
    #[tokio::test(start_paused = true)]
    async fn a_storage_that_gets_slower_stops_no_handoff() {
        for profile in Profile::all() {
            let world = profile.world();
            let last = profile.request_timeout().mul_f64(0.98);
            let slow = Platform::new(world.container.clone(), 7);
            let slow = Arc::new(slow.with_latency(Latency::growing(last / 50, last, 10 * MINUTE)));
            let a = profile.start(&world, "a", slow.clone()).await;
            sleep(9 * MINUTE).await;
            assert_eq!((a.held(), world.log.times("event")), (4, 400));
            let b = profile.start(&world, "b", slow).await;
            sleep(10 * MINUTE).await;
            assert_eq!((a.held(), b.held()), (2, 2), "{profile:?}");
            for (_, partition, stop) in &*world.log.stops.lock().unwrap() {
                let is_handed_over = matches!(stop, StopReason::Released { reason: ReleaseReason::HandedOver });
                assert!(is_handed_over, "partition {partition}, {profile:?}: {stop:?}");
            }
            a.shut_down().await.unwrap();
            sleep(10 * MINUTE).await;
            assert_eq!(b.held(), 4, "{profile:?}");
            world.log.contiguity.check();
            b.shut_down().await.unwrap();
        }
    }

    /// A page takes longer than a request usually may: its listing gets more time, in the clients of both SDKs.
    #[tokio::test(start_paused = true)]
    async fn slow_pages_do_not_stop_a_takeover() {
        for profile in Profile::all() {
            for client in 0..2 {
                let world = profile.world();
                let service = Service::on((*world.container).clone(), Manners::default());
                let container: Arc<dyn BlobContainer> = match client {
                    0 => Arc::new(service.azure()),
                    #[cfg(feature = "legacy-sdk")]
                    1 => Arc::new(service.legacy()),
                    _ => break,
                };
                let a = profile.start(&world, "a", container.clone()).await;
                let mut b = profile.start(&world, "b", container).await;
                b.wait_until_it_holds(2).await;
                service.change(|manners| manners.page_latency = profile.request_timeout().mul_f64(1.1));
                a.crash().await;
                b.wait_until_it_holds(4).await;
                b.shut_down().await.unwrap();
            }
        }
    }

    /// Listings take six seconds once the flag is set, which exceeds the request timeout.
    struct SlowListings(Arc<AtomicBool>);

    #[async_trait]
    impl Intercept for SlowListings {
        async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
            if self.0.load(Ordering::Relaxed) {
                sleep(Duration::from_secs(6)).await;
            }
            inner.list(prefix).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn takeover_with_slow_listings() {
        let (mut world, slow) = (greedy(4), Arc::new(AtomicBool::new(false)));
        intercept(&mut world, SlowListings(slow.clone()));
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(2).await;
        b.wait_until_it_holds(2).await;
        slow.store(true, Ordering::Relaxed);
        b.crash().await;
        // The first slow listings time out.
        sleep(TAKEOVER_TIME + Duration::from_secs(30)).await;
        assert_eq!((a.held(), a.handle.health().issues), (4, vec![]));
    }

    /// Once the flag is set, a listing of the ownerships takes 12 s, but every second one is throttled immediately.
    struct SlowOrThrottledListings(Arc<AtomicBool>, AtomicUsize);

    #[async_trait]
    impl Intercept for SlowOrThrottledListings {
        async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
            if self.0.load(Ordering::Relaxed) && prefix.ends_with("$default/ownership/") {
                if self.1.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                    return Err(Error::new(ErrorKind::Throttled { retry_after: None }, "busy"));
                }
                sleep(12 * SECOND).await;
            }
            inner.list(prefix).await
        }
    }

    /// A throttled listing does not show how long a listing takes.
    #[tokio::test(start_paused = true)]
    async fn a_throttled_listing_keeps_the_listing_timeout() {
        let (mut world, slow) = (World::new(1), Arc::new(AtomicBool::new(false)));
        intercept(&mut world, SlowOrThrottledListings(slow.clone(), AtomicUsize::new(0)));
        let store = world.store("a").await;
        slow.store(true, Ordering::Relaxed);
        let mut a = world.start_on(store, world.hub.source(), world.recorder("a"));
        a.wait_until_it_holds(1).await;
        a.crash().await;
    }

    /// Takes `time` for each request to blobs with `name` in their names.
    struct SlowContainer {
        name: &'static str,
        time: Duration,
    }

    impl SlowContainer {
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

    /// Starts an instance on a blob service that takes `time` for each request to blobs with `name` in their names.
    async fn start_on_slow_storage(world: &mut World, name: &'static str, time: Duration) -> Instance {
        intercept(world, SlowContainer { name, time });
        let store = limited_store(world, "a", CONCURRENT_REQUESTS).await;
        let mut a = world.start_on(store, world.hub.source(), world.recorder("a"));
        a.wait_until_it_holds(MANY as usize).await;
        a.wait_until_all_idle(MANY as usize).await;
        a
    }

    /// A round of all checkpoints takes 16 s, or 32 s.
    #[tokio::test(start_paused = true)]
    async fn a_slow_storage_starves_no_checkpoint() {
        for millis in [500, 1000] {
            let mut world = rarely_checkpointing(MANY);
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

    /// The phase `drain` takes at most three drain timeouts and four request timeouts, 65 s. Here it needs 13 s.
    #[tokio::test(start_paused = true)]
    async fn the_shutdown_starves_no_checkpoint() {
        let mut world = rarely_checkpointing(MANY);
        let a = start_on_slow_storage(&mut world, "", Duration::from_millis(400)).await;
        for partition in 0..MANY {
            world.hub.publish(partition, "x");
        }
        world.log.wait_for("all events", |log| log.times("x") == MANY as usize).await;
        let report = a.shut_down().await.unwrap();
        assert!(report.is_clean(), "{} unwritten, {} unreleased", report.uncheckpointed.len(), report.unreleased);
        assert!(report.drain.took < 30 * SECOND, "{:?}", report.drain);
    }
}
