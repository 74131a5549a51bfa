//! What is refused before a processor runs: settings, a second processor, permanent errors. What it waits for.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, OnLeaseExpiry};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{CheckpointPolicy, PartitionContext, Processor, ProcessorConfig, handler_fn};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ErrorKind, OwnerId, PartitionId, Result};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::captured::Captured;
use crate::support::sources::{SourceFaults, start_scripted};
use crate::support::{SECOND, group};
use crate::world::World;

fn build(store: GroupStore, config: ProcessorConfig) -> Result<()> {
    let handler = handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
    Processor::builder(MemoryHub::new("hub", 1).source(), store, handler).with_config(config).build().map(|_| ())
}

async fn store(lease_duration: Duration, request_timeout: Option<Duration>) -> GroupStore {
    let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group(), OwnerId::new("a").unwrap());
    let mut config =
        StoreConfig::default().with_lease_duration(lease_duration).with_foreign_lease_duration(lease_duration);
    config.request_timeout = request_timeout;
    builder.with_config(config).connect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn invalid_settings_are_rejected_with_value_and_rule() {
    let world = World::new(1);
    let balancing =
        |interval| ProcessorConfig::default().with_balancer(|balancer| balancer.with_load_balancing_interval(interval));
    let checkpoints = CheckpointPolicy::default().with_interval(Duration::ZERO);
    let endless = CheckpointPolicy::default().with_interval(Duration::MAX);
    for (config, named) in [
        (
            balancing(21 * SECOND),
            "`with_lease_duration` is 60s (the default), but must be at least three times `with_load_balancing_interval`, 21s: \
             otherwise",
        ),
        (balancing(Duration::ZERO), "`with_load_balancing_interval` is 0s"),
        (ProcessorConfig::default().with_max_batch_size(0), "`with_max_batch_size` is 0"),
        (ProcessorConfig::default().with_prefetch(0), "`with_prefetch` is 0"),
        (ProcessorConfig::default().with_checkpoint_policy(checkpoints), "`CheckpointPolicy::with_interval` is 0s"),
        (balancing(Duration::MAX), "at least three times"),
        (ProcessorConfig::default().with_drain_timeout(Duration::MAX), "must be at most a day"),
        (ProcessorConfig::default().with_checkpoint_policy(endless), "must be at most a day"),
    ] {
        let unconnected = config.check_settings(&StoreConfig::default()).unwrap_err();
        let error = build(world.store("a").await, config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!(error.to_string(), unconnected.to_string(), "nothing needs to be connected");
    }
    let store = StoreConfig::default().with_lease_duration(SECOND);
    let error = ProcessorConfig::default().check_settings(&store).unwrap_err();
    assert!(error.to_string().contains("`with_lease_duration` is 1s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_start_before_1970_is_rejected() {
    let world = World::new(1);
    let start = StartPosition::EnqueuedAfter(OffsetDateTime::UNIX_EPOCH - Duration::from_secs(1));
    let configs = [
        world.config.clone().with_start_position(start.clone()),
        world.config.clone().with_start_position_of(0.into(), start),
    ];
    for config in configs {
        let error = build(world.store("a").await, config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("1969-12-31") && error.to_string().contains("Earliest"), "{error}");
    }
}

#[tokio::test]
async fn strict_leases_need_time_to_renew_and_to_stop() {
    let balancer = |store| {
        let config =
            BalancerConfig::default().with_load_balancing_interval(SECOND).with_on_lease_expiry(OnLeaseExpiry::Stop);
        let (_, partitions) = watch::channel(Arc::<[PartitionId]>::from([]));
        Balancer::new(store, config, partitions).map(|_| ())
    };
    let refused = balancer(store(4 * SECOND, None).await).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("2s + 1s + 0ns + 2s is more than 4s"), "{refused}");
    balancer(store(8 * SECOND, None).await).unwrap();

    let strict = ProcessorConfig::default().with_balancer(|balancer| {
        balancer.with_load_balancing_interval(SECOND).with_on_lease_expiry(OnLeaseExpiry::Stop)
    });
    build(store(20 * SECOND, None).await, strict.clone()).unwrap();
    // The batch, the call of `stopped`, and the closing of the link.
    let refused = build(store(20 * SECOND, None).await, strict.with_drain_timeout(SECOND)).unwrap_err();
    assert!(refused.to_string().contains("10s + 5s + 4s + 2s is more than 20s"), "{refused}");
}

/// The defaults are valid with every lease duration that is valid at all. Strict leases always need the time to close a
/// link.
#[tokio::test(start_paused = true)]
async fn all_defaults_can_be_built() {
    let mut built = 0;
    let seconds = (4..60).chain([90, 120, 300, 3600, 24 * 3600]).map(|seconds| seconds * SECOND);
    for expiry in seconds {
        for deadline in [None, Some(SECOND / 100), Some(expiry / 8), Some(expiry / 4)] {
            for policy in [OnLeaseExpiry::Continue, OnLeaseExpiry::Stop] {
                let config = ProcessorConfig::default().with_balancer(|balancer| {
                    balancer
                        .with_load_balancing_interval(expiry / 6)
                        .with_on_lease_expiry(policy)
                        .with_stall_timeout(expiry)
                });
                if build(store(expiry, deadline).await, config.clone().with_drain_timeout(Duration::ZERO)).is_ok() {
                    let outcome = build(store(expiry, deadline).await, config);
                    outcome.unwrap_or_else(|error| panic!("{expiry:?} {deadline:?} {policy:?}: {error}"));
                    built += 1;
                }
            }
        }
    }
    assert!(built > 400, "{built}");
}

#[tokio::test(start_paused = true)]
async fn two_processors_on_one_store() {
    let world = World::new(2);
    let shared = world.store("a").await;
    let config = || world.config.clone();
    let handler = || handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
    let builder = || Processor::builder(world.hub.source(), shared.clone(), handler()).with_config(config());
    let never_run = builder().build().unwrap();
    let error = builder().build().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("as owner a"), "{error}");
    drop(never_run);

    // One after the other, regardless of how the first one ended.
    builder().build().unwrap().run(sleep(20 * SECOND)).await.unwrap();
    let abandoned = builder().build().unwrap();
    assert!(timeout(20 * SECOND, abandoned.run(pending())).await.is_err());
    let forced = builder().build().unwrap();
    let handle = forced.handle();
    let ending = async {
        sleep(20 * SECOND).await;
        handle.shutdown();
        handle.shutdown();
    };
    let (report, ()) = tokio::join!(forced.run(pending()), ending);
    report.unwrap();
    builder().build().unwrap().run(sleep(20 * SECOND)).await.unwrap();
}

/// The loop of the first processor runs on its own thread, which ends shortly after its processor.
#[tokio::test]
async fn the_next_processor_need_not_wait_for_a_thread() {
    let shared = store(60 * SECOND, None).await;
    for _ in 0..20 {
        let handler = handler_fn(async |_: Vec<MemoryEvent>, _: PartitionContext| Ok(()));
        let source = MemoryHub::new("hub", 1).source();
        let processor = Processor::builder(source, shared.clone(), handler).build().unwrap();
        processor.run(sleep(SECOND / 100)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_reported_before_the_start() {
    let empty = World::new(0);
    let error = empty.start("a").await.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("has no partitions"), "{error}");

    let world = World { hub: MemoryHub::new("another", 1), ..World::new(1) };
    let error = world.start("a").await.ended().await.unwrap_err();
    assert!(error.to_string().contains(r#"the client reads event hub "another""#), "{error}");
    assert!(world.owners().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_reported_at_the_start() {
    let mut world = World::new(1);
    world.config = world.config.with_start_position(StartPosition::Latest);
    let forbidden = SourceFaults { partition_error: Some(ErrorKind::Unauthorized), ..SourceFaults::default() };
    let a = start_scripted(&world, "a", forbidden).await;
    assert_eq!(a.ended().await.unwrap_err().kind(), ErrorKind::Unauthorized);
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_hub_is_reported() {
    for hub_responds in [false, true] {
        let world = World::new(1);
        let silent =
            SourceFaults { hub_unresponsive: !hub_responds, check_unresponsive: true, ..SourceFaults::default() };
        let (captured, _guard) = Captured::begin();
        let waiting = start_scripted(&world, "a", silent.clone()).await;
        sleep(Duration::from_secs(31)).await;
        assert!(captured.text().contains("the event hub did not respond within 30s"), "{}", captured.text());
        sleep(Duration::from_secs(300)).await;
        assert!(!waiting.handle.health().ready);
        waiting.shut_down().await.unwrap();
        let stopped = start_scripted(&world, "a", silent.clone()).await;
        let requested = Instant::now();
        stopped.shut_down().await.unwrap();
        assert!(requested.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_storage_is_reported_in_time() {
    for create in [false, true] {
        let world = World::new(1);
        world.faulty.set_plan(FaultPlan::always(Fault::Hang));
        let builder = GroupStore::builder(Arc::new(world.faulty.clone()), group(), OwnerId::new("a").unwrap());
        let builder = builder.with_config(StoreConfig::default().with_create_container(create));
        // Four listings with 5, 10, 20 and 30 s, and the waits between them.
        let connected = timeout(Duration::from_secs(67), builder.connect()).await.expect("no timeout");
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
        assert!(error.to_string().contains("within 30s"), "{error}");
    }
}
