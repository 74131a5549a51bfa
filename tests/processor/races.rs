//! Two things that happen to a partition at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::blob::{BlobContainer, ListResult};
use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext, PartitionState};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition,
};
use eventhubs_checkpoint::store::StorageOperation as Purpose;
use eventhubs_checkpoint::store::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, PartitionId, Result};
use tokio::time::{Instant, sleep, timeout};

use crate::intercepted::{Intercept, Intercepted};
use crate::ownership_log::{OwnershipLog, owner_of_all, publish, requesting_instance};
use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Instance, Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

const CHECKPOINT: &str = "/checkpoint/";

/// Waits until `count` partitions are stopping.
async fn wait_until_stopping(instance: &Instance, count: usize) {
    let stopping = || instance.handle.partitions().iter().filter(|of| of.state == PartitionState::Stopping).count();
    let waiting = async {
        while stopping() < count {
            sleep(SECOND / 100).await;
        }
    };
    timeout(600 * SECOND, waiting).await.expect("the partitions never stop");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_was_lost_and_reclaimed_is_active() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, 14 * SECOND).await;
    a.wait_until_all_idle(1).await;
    assert!(a.handle.pause(&0.into()));
    world.give_to("python").await;
    sleep(200 * SECOND).await;
    assert_eq!(world.owners().await["0"], "a");
    assert_eq!(a.status().state, PartitionState::Idle);
    publish(&world, 1, "x");
    world.log.wait_for("the event", |log| log.times("x 0") == 1).await;
    a.shut_down().await.unwrap();
}

/// The partition did not stop because of the handoff, but it has stopped.
#[tokio::test(start_paused = true)]
async fn a_handoff_requested_while_an_old_epoch_stops() {
    let mut world = World::new(2);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_interval(5 * SECOND));
    let mut a = owner_of_all(&world, 2, 14 * SECOND).await;
    let store = world.store("b").await;
    let recorder = Recorder { owner: "b".into(), log: world.log.clone(), checkpoint: true };
    let mut b = world.start_on(store.clone(), world.hub.source(), recorder);
    a.wait_until_it_holds(1).await;
    b.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    let partition = a.status().partition;
    let mut log_a = OwnershipLog::of(&a);
    // The next renewal writes the record again and starts a new epoch.
    let name = format!("ns.servicebus.windows.net/hub/$default/ownership/{partition}");
    world.container.remove(&name).await.unwrap();
    wait_until_stopping(&a, 1).await;
    let began = Instant::now();
    let seen = store.list_ownerships().await.unwrap().records;
    let seen = seen.into_iter().find(|seen| seen.partition == partition).unwrap();
    assert!(matches!(store.request_handoff(&seen).await, Ok(HandoffRequestOutcome::Requested(_))));
    log_a.wait_for("releasing: HandedOver").await;
    assert!(began.elapsed() < 14 * SECOND, "{:?}", began.elapsed());
    log_a.wait_for("released").await;
    assert!(began.elapsed() <= 15 * SECOND, "{:?}", began.elapsed());
    assert!(!log_a.take().iter().any(|reported| reported.contains("duplicates")));
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_throttled_adoption_honors_retry_after() {
    for requested in [2, 20] {
        let requested = requested * SECOND;
        let world = World::new(1);
        let writes = Target::from(BlobOperation::Write).named(CHECKPOINT);
        let fault = Fault::Throttled { retry_after: Some(requested) };
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, fault));
        let store = world.store("a").await;
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let a = world.start_on(store.clone(), world.hub.source(), recorder);
        let mut attempts = Vec::new();
        while attempts.len() < 3 {
            if store.request_counts().total(Purpose::Adopt) > attempts.len() as u64 {
                attempts.push(Instant::now());
            }
            sleep(SECOND / 100).await;
        }
        for pair in attempts.windows(2) {
            assert!(pair[1] - pair[0] >= requested, "{:?} instead of {requested:?}", pair[1] - pair[0]);
        }
        a.crash().await;
    }
}

/// Reports on partitions take 20 s once the flag is set.
struct SlowProperties(MemorySource, Arc<AtomicBool>);

impl EventSource for SlowProperties {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.0.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        if self.1.load(Ordering::Relaxed) {
            sleep(20 * SECOND).await;
        }
        self.0.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        id: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        self.0.open_receiver(id, from, prefetch, epoch).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_during_a_gap_check_delivers_nothing() {
    let world = World::new(1);
    let slow = Arc::new(AtomicBool::new(false));
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let a = world.start_with("a", SlowProperties(world.hub.source(), slow.clone()), recorder).await;
    world.hub.publish_many(0, 2, "before");
    world.log.wait_for("the events", |log| log.times("before") == 2).await;
    slow.store(true, Ordering::Relaxed);
    world.hub.break_link(0);
    world.hub.publish_many(0, 2, "expired");
    world.hub.publish(0, "after");
    world.hub.expire_before(0, 4);
    sleep(5 * SECOND).await;
    assert!(a.handle.pause(&0.into()));
    sleep(60 * SECOND).await;
    assert_eq!(world.log.times("after"), 0);
    assert!(a.handle.resume(&0.into()));
    world.log.wait_for("the event", |log| log.times("after") == 1).await;
    a.shut_down().await.unwrap();
}

/// Fails at "work" when the partition stops, and at "poison" immediately.
struct FailingHandler(Recorder);

impl Handler<MemoryEvent> for FailingHandler {
    async fn started(&self, context: PartitionContext) {
        self.0.started(context).await;
    }

    async fn handle(
        &self,
        events: Vec<MemoryEvent>,
        context: PartitionContext,
    ) -> std::result::Result<(), HandlerError> {
        let (work, poison) = (&*events[0].body == "work", &*events[0].body == "poison");
        self.0.handle(events, context.clone()).await?;
        if work {
            context.stopping().await;
        }
        if work || poison { Err("failed on request".into()) } else { Ok(()) }
    }
}

/// A part of the batch may have been processed, although the handler was not cancelled.
#[tokio::test(start_paused = true)]
async fn a_batch_that_failed_before_a_handoff_may_repeat() {
    for body in ["work", "poison", "good"] {
        let mut world = World::new(2);
        world.checkpoint = body == "good";
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: world.checkpoint };
        let mut a = world.start_with("a", world.hub.source(), FailingHandler(recorder)).await;
        a.wait_until_it_holds(2).await;
        a.wait_until_all_idle(2).await;
        for partition in 0..2 {
            world.hub.publish(partition, body);
        }
        // By then, the delays between restarts are long.
        sleep(120 * SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        let (b, _) = requesting_instance(&world).await;
        log_a.wait_for("released").await;
        let reported = log_a.take().iter().any(|reported| reported == "duplicates: CheckpointNotWritten");
        assert_eq!(reported, body != "good", "{body}");
        a.crash().await;
        b.crash().await;
    }
}

/// All partitions wait for one request that hangs.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_hangs_delays_no_release() {
    let mut world = World::new(4);
    world.config = world
        .config
        .clone()
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let builder = GroupStore::builder(Arc::new(world.faulty.clone()), group, OwnerId::new("a").unwrap());
    let config = StoreConfig::default().with_lease_duration(world.expiry).with_max_concurrent_requests(1);
    let store = builder.with_config(config).with_seed(3).connect().await.unwrap();
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_on(store, world.hub.source(), recorder);
    a.wait_until_it_holds(4).await;
    a.wait_until_all_idle(4).await;
    let mut log_a = OwnershipLog::of(&a);
    let writes = Target::from(BlobOperation::Write).named(CHECKPOINT);
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Hang));
    publish(&world, 4, "x");
    let (b, _) = requesting_instance(&world).await;
    log_a.wait_for("releasing: HandedOver").await;
    let began = Instant::now();
    log_a.wait_for("duplicates: CheckpointNotWritten").await;
    log_a.wait_for("released").await;
    // Twice the drain timeout of 15 s, the closing of the link, and four requests.
    assert!(began.elapsed() < 52 * SECOND, "{:?}", began.elapsed());
    a.crash().await;
    b.crash().await;
}

/// A link may be slow. The next one shows that it was.
#[tokio::test(start_paused = true)]
async fn a_slow_link_is_not_the_end_of_the_partition() {
    for (ago, expected) in [(3600, 0), (3, 2), (0, 5)] {
        let mut world = World::new(1);
        for number in 0..5 {
            world.hub.publish(0, number.to_string());
            sleep(SECOND).await;
        }
        let start = StartPosition::EnqueuedAfter(world.hub.now() - (ago * SECOND).mul_f64(1.1));
        world.config = world.config.clone().with_start_position(start);
        let mute_links = Arc::new(AtomicUsize::new(1));
        let source_faults = SourceFaults { times_unknown: true, mute_links, ..SourceFaults::default() };
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), recorder).await;
        a.wait_until_all_idle(1).await;
        world.hub.publish(0, "5");
        world.log.wait_for("the last event", |log| log.times("5") == 1).await;
        let expected: Vec<_> = (expected..=5).map(|number| number.to_string()).collect();
        assert_eq!(world.log.bodies(), expected, "{ago} s ago");
        a.shut_down().await.unwrap();
    }
}

/// The start of a group honors `retry_after` like every other phase.
#[tokio::test(start_paused = true)]
async fn the_start_of_a_group_honors_retry_after() {
    let mut world = World::new(1);
    world.config = world.config.with_start_position(StartPosition::Latest);
    let writes = Target::from(BlobOperation::Write).named(CHECKPOINT);
    let fault = Fault::Throttled { retry_after: Some(20 * SECOND) };
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, fault));
    let store = world.store("a").await;
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let a = world.start_on(store.clone(), world.hub.source(), recorder);
    sleep(19 * SECOND).await;
    assert_eq!(store.request_counts().total(Purpose::Checkpoint), 1);
    a.crash().await;
}

/// Fails the token of each "poison", immediately or shortly after.
struct FailingTokens {
    poisoned: Arc<AtomicUsize>,
    later: bool,
}

impl Handler<MemoryEvent> for FailingTokens {
    async fn handle(
        &self,
        events: Vec<MemoryEvent>,
        context: PartitionContext,
    ) -> std::result::Result<(), HandlerError> {
        for event in &events {
            let token = context.track(event);
            if &*event.body != "poison" {
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
    let world = World::new(1);
    let slow = Arc::new(AtomicBool::new(false));
    let interceptor = SlowOrThrottledListings(slow.clone(), AtomicUsize::new(0));
    let container = Intercepted { inner: world.container.clone(), interceptor };
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let builder = GroupStore::builder(Arc::new(container), group, OwnerId::new("a").unwrap());
    let config = StoreConfig::default().with_lease_duration(world.expiry);
    let store = builder.with_config(config).with_seed(3).connect().await.unwrap();
    slow.store(true, Ordering::Relaxed);
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_on(store, world.hub.source(), recorder);
    a.wait_until_it_holds(1).await;
    a.crash().await;
}

/// Takes the token after the checkpoint has passed its event, and drops it.
struct LateTracker(Arc<AtomicUsize>);

impl Handler<MemoryEvent> for LateTracker {
    async fn handle(
        &self,
        events: Vec<MemoryEvent>,
        context: PartitionContext,
    ) -> std::result::Result<(), HandlerError> {
        for event in &events {
            context.checkpoint(event);
            drop(context.track(event));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The token keeps no event open, so nothing has to wait for it.
#[tokio::test(start_paused = true)]
async fn a_late_token_is_not_in_flight_after_its_drop() {
    let mut world = World::new(1);
    world.config = world.config.with_max_in_flight(3);
    let handled = Arc::new(AtomicUsize::new(0));
    let a = world.start_with("a", world.hub.source(), LateTracker(handled.clone())).await;
    for _ in 0..10 {
        world.hub.publish(0, "x");
        sleep(SECOND).await;
    }
    sleep(60 * SECOND).await;
    assert_eq!((handled.load(Ordering::Relaxed), a.status().in_flight), (10, 0));
    assert!(a.shut_down().await.unwrap().is_clean());
}
