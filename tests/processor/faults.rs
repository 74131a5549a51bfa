//! Whole instances on a failing storage, in paused time: they continue, lose nothing, and end when requested.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig};
use eventhubs_checkpoint::blob::{BlobContainer, ListResult, Metadata};
use eventhubs_checkpoint::processor::{CheckpointPolicy, ProcessorConfig, StopReason};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultKind, FaultPlan, Target};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::intercepted::{Intercept, Intercepted};
use crate::world::{World, random_faults};

/// Fails every request for a while, and checks that both instances continue during the outage and after it. Returns the
/// stops.
async fn run_through_outage(fault: Fault, outage: Duration) -> Vec<(String, String, StopReason)> {
    let world = World::new(4);
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    sleep(Duration::from_secs(60)).await;

    world.faulty.set_plan(FaultPlan::always(fault));
    for number in 0..40u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("events in the outage", |log| log.bodies().len() >= 40).await;
    sleep(outage).await;
    assert!(instances.iter().all(|instance| !instance.running.is_finished()));
    world.faulty.set_plan(FaultPlan::default());

    for instance in &mut instances {
        let cycles = instance.snapshots.borrow().cycles;
        instance.wait_until("another cycle", |snapshot| snapshot.cycles > cycles + 1).await;
    }
    let stops = world.log.stops.lock().unwrap().clone();
    for number in 40..80u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("all 80", |log| (0..80).all(|number| log.times(&number.to_string()) > 0)).await;
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert_eq!(world.checkpoint().await, Some(19));
    stops
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_lease_moves_nothing() {
    for fault in [Fault::Unreachable, Fault::RequestLost, Fault::Throttled { retry_after: None }] {
        let stops = run_through_outage(fault.clone(), Duration::from_secs(50)).await;
        assert!(stops.is_empty(), "{fault:?}: {stops:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_ends_no_instance() {
    for fault in [Fault::Unreachable, Fault::Hang, Fault::RequestLost, Fault::ResponseLost] {
        run_through_outage(fault, Duration::from_secs(300)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_cycle_honors_retry_after() {
    for (retry_after, at_least) in [(Some(Duration::from_secs(35)), 35), (Some(Duration::from_secs(1)), 10), (None, 10)]
    {
        let world = World::new(1);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        sleep(Duration::from_secs(1)).await;
        // Zero latency only records every listing of the ownerships.
        let listings = Target::from(BlobOperation::List).named(OWNERSHIP);
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, listings, Fault::Latency(Duration::ZERO)));
        world.faulty.inject_on(BlobOperation::List, Fault::Throttled { retry_after });
        let cycles = a.snapshots.borrow().cycles;
        a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles).await;
        let trace = world.faulty.trace();
        let [throttled, next] = trace.as_slice() else { panic!("{trace:?}") };
        assert_eq!(throttled.fault.kind(), FaultKind::Throttled);
        let pause = next.at.saturating_sub(throttled.at).as_secs_f64();
        let at_least = f64::from(at_least);
        assert!((at_least..at_least * 1.1 + 0.1).contains(&pause), "{retry_after:?}: {pause}");
        a.shut_down().await.unwrap();
    }
}

/// For half an hour, one of ten requests fails in some way.
#[tokio::test(start_paused = true)]
async fn random_faults_lose_nothing() {
    let world = World::new(4);
    let mut instances = [world.start("a").await, world.start("b").await];
    let plan = random_faults().with(0.02, Fault::TruncatedListing);
    world.faulty.set_plan(plan);
    for number in 0..360u32 {
        world.hub.publish(number % 4, number.to_string());
        sleep(Duration::from_secs(5)).await;
    }
    world.faulty.set_plan(FaultPlan::default());
    world.log.wait_for("all 360", |log| (0..360).all(|number| log.times(&number.to_string()) > 0)).await;
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert_eq!(world.checkpoint().await, Some(89));
}

const OWNERSHIP: &str = "/ownership/";

/// With these settings, a lease is renewed every 2 s and expires after 6 s.
fn short_leases(partitions: u32) -> World {
    let mut world = World { expiry: Duration::from_secs(4), ..World::new(partitions) };
    world.config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_secs(1)).with_seed(7));
    world
}

#[tokio::test(start_paused = true)]
async fn one_blob_that_hangs_delays_no_other_renewal() {
    let world = short_leases(4);
    let hanging = Target::from(BlobOperation::Write).named("/ownership/3");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, hanging, Fault::Hang));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        assert!(world.oldest().await <= Duration::from_secs(3), "{:?}", world.oldest().await);
    }
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_failing_claim_does_not_block_the_others() {
    let world = World::new(4);
    let broken = Target::from(BlobOperation::Write).named("/ownership/3");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, broken, Fault::RequestLost));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    a.crash().await;
    b.wait_until_it_holds(3).await;
    world.faulty.set_plan(FaultPlan::default());
    b.wait_until_it_holds(4).await;
    b.shut_down().await.unwrap();
}

/// The following read returns a recent record, which remains valid. Its renewal must not be due again immediately.
#[tokio::test(start_paused = true)]
async fn renewals_with_lost_responses_are_paced() {
    let world = World::new(2);
    let name = "ns.servicebus.windows.net/hub/$default/ownership/1";
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    let foreign = Metadata::from([("ownerid", "python")]);
    world.container.overwrite(name, &foreign).await.unwrap();
    a.wait_until_it_holds(1).await;
    let renewals = Target::from(BlobOperation::Write).named(OWNERSHIP);
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, renewals, Fault::RequestLost));
    let (cycles, before) = (a.snapshots.borrow().cycles, world.faulty.trace().len());
    sleep(Duration::from_secs(60)).await;
    let writes = world.faulty.trace().len() - before;
    assert!((10..200).contains(&writes), "{writes} writes in a minute");
    assert!(a.snapshots.borrow().cycles - cycles >= 4);
    world.faulty.set_plan(FaultPlan::default());
    a.shut_down().await.unwrap();
}

/// A foreign owner applies its own lease duration, which may be shorter.
#[tokio::test(start_paused = true)]
async fn renewals_are_more_frequent_with_a_foreign_owner() {
    let world = World::new(3);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    sleep(Duration::from_secs(5)).await;
    let foreign = Metadata::from([("ownerid", "python")]);
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    world.container.overwrite(name, &foreign).await.unwrap();
    a.wait_until_it_holds(2).await;
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        let listing = world.store("observer").await.list_ownerships().await.unwrap();
        let own = listing.records.iter().filter(|record| record.record.incarnation.is_some());
        let oldest = own.map(|record| record.age).max().unwrap();
        assert!(oldest <= Duration::from_secs(12), "{oldest:?}");
    }
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_in_time_if_the_storage_hangs() {
    for target in [Target::any(), BlobOperation::Write.into(), Target::from(BlobOperation::Write).named(OWNERSHIP)] {
        let world = World::new(64);
        let strategy = eventhubs_checkpoint::balancer::LoadBalancingStrategy::Greedy;
        let world = World {
            config: world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_strategy(strategy)),
            ..world
        };
        let mut a = world.start("a").await;
        a.wait_until_it_holds(64).await;
        for partition in 0..64 {
            world.hub.publish(partition, "x");
        }
        world.log.wait_for("all events", |log| log.times("x") == 64).await;
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, target.clone(), Fault::Hang));
        let requested = Instant::now();
        a.shut_down().await.unwrap();
        // The documented bound of a clean shutdown.
        assert!(requested.elapsed() <= Duration::from_secs(94), "{target:?}: {:?}", requested.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_storage_is_reported_in_time() {
    for create in [false, true] {
        let world = World::new(1);
        world.faulty.set_plan(FaultPlan::always(Fault::Hang));
        let group = ConsumerGroup::new("ns", "hub", "$Default").unwrap();
        let container = Arc::new(world.faulty.clone());
        let config = StoreConfig::default().with_create_container(create);
        let builder = GroupStore::builder(container, group, OwnerId::new("a").unwrap()).with_config(config);
        // Four listings with 5, 10, 20 and 30 s, and the waits between them.
        let connected = timeout(Duration::from_secs(67), builder.connect()).await.expect("no timeout");
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
        assert!(error.to_string().contains("within 30s"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_checkpoints_are_retried_with_backoff() {
    let mut world = World::new(1);
    let policy = CheckpointPolicy::default().with_max_events(1).with_interval(Duration::from_secs(5));
    world.config = world.config.with_checkpoint_policy(policy);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_secs(1)).await;
    let checkpoints = Target::from(BlobOperation::Write).named("/checkpoint/");
    let throttled = Fault::Throttled { retry_after: Some(Duration::from_secs(30)) };
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, checkpoints, throttled));
    for number in 0..1000u32 {
        world.hub.publish(0, number.to_string());
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.faulty.counts()[&FaultKind::Throttled], 1);
    world.faulty.set_plan(FaultPlan::default());
    sleep(Duration::from_secs(31)).await;
    assert_eq!(world.checkpoint().await, Some(999));
    a.shut_down().await.unwrap();
}

/// A claim that is in flight during the shutdown must not be applied after the release.
#[tokio::test(start_paused = true)]
async fn a_claim_in_flight_is_released_at_shutdown() {
    let world = World::new(1);
    world.faulty.inject_on(Target::from(BlobOperation::Write).named(OWNERSHIP), Fault::Latency(Duration::from_secs(3)));
    let a = world.start("a").await;
    sleep(Duration::from_secs(1)).await;
    a.shut_down().await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.owners().await["0"], "");
}

/// Returns listings late, with old contents.
struct LateListings;

#[async_trait]
impl Intercept for LateListings {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        let list = inner.list(prefix).await;
        sleep(Duration::from_secs(2)).await;
        list
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_older_than_a_claim_does_not_undo_it() {
    let world = World::new(1);
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let container = Arc::new(Intercepted { inner: Arc::new(world.faulty.clone()), interceptor: LateListings });
    let store = GroupStore::builder(container, group, OwnerId::new("a").unwrap()).connect().await.unwrap();
    // The claim is applied while the next listing, which does not contain it, is in flight.
    world
        .faulty
        .inject_on(Target::from(BlobOperation::Write).named(OWNERSHIP), Fault::Latency(Duration::from_millis(2500)));
    let config = BalancerConfig::default().with_load_balancing_interval(Duration::from_secs(1)).with_seed(1);
    let (partitions, named) = watch::channel(Arc::from([0.into()]));
    let (balancer, handle) = Balancer::new(store, config, named).unwrap();
    let running = tokio::spawn(balancer.run());
    let mut snapshots = handle.snapshots();
    let won = snapshots.wait_for(|snapshot| !snapshot.owned.is_empty()).await.unwrap().owned.clone();
    for _ in 0..100 {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(handle.snapshots().borrow().owned, won);
    }
    handle.shutdown().await;
    running.await.unwrap().unwrap();
    drop(partitions);
}

#[tokio::test(start_paused = true)]
async fn one_claim_that_hangs_delays_no_other() {
    let world = short_leases(8);
    let hanging = Target::from(BlobOperation::Write).named("/ownership/3");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, hanging, Fault::Hang));
    let mut a = world.start("a").await;
    let began = Instant::now();
    a.wait_until_it_holds(7).await;
    assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_release_that_hangs_delays_no_other() {
    let world = short_leases(4);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(4).await;
    let hanging = Target::from(BlobOperation::Write).named("/ownership/3");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, hanging, Fault::Hang).with_on(
        1.0,
        BlobOperation::List,
        Fault::Hang,
    ));
    sleep(Duration::from_secs(3)).await;
    let ending = tokio::spawn(a.shut_down());
    sleep(Duration::from_millis(200)).await;
    let released = world.container.list("").await.unwrap().blobs;
    let released = released.iter().filter(|blob| blob.metadata.get("ownerid").is_some_and(str::is_empty));
    assert_eq!(released.count(), 3);
    timeout(Duration::from_secs(5), ending).await.expect("the shutdown takes too long").unwrap().unwrap();
}

/// A proxy may return any value.
#[tokio::test(start_paused = true)]
async fn an_absurd_retry_after_ends_nothing() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    let absurd = Fault::Throttled { retry_after: Some(Duration::MAX) };
    world.faulty.set_plan(FaultPlan::always(absurd));
    world.hub.publish(0, "x");
    sleep(Duration::from_secs(15)).await;
    world.faulty.set_plan(FaultPlan::default());
    let cycles = a.snapshots.borrow().cycles;
    a.wait_until("another cycle", |snapshot| snapshot.cycles > cycles).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.checkpoint().await, Some(0));
    assert!(world.log.stops.lock().unwrap().is_empty());
    a.shut_down().await.unwrap();
}

/// A cycle during a slow release must not claim the partition again before the release is applied.
#[tokio::test(start_paused = true)]
async fn nothing_is_held_while_its_record_is_released() {
    let world = World::new(1);
    let store = world.store("a").await;
    let config = BalancerConfig::default().with_load_balancing_interval(Duration::from_secs(1)).with_seed(1);
    let (partitions, named) = watch::channel(Arc::from([0.into()]));
    let (balancer, handle) = Balancer::new(store, config, named).unwrap();
    let running = tokio::spawn(balancer.run());
    let mut snapshots = handle.snapshots();
    let held = snapshots.wait_for(|snapshot| !snapshot.owned.is_empty()).await.unwrap().owned.clone();
    world
        .faulty
        .inject_on(Target::from(BlobOperation::Write).named(OWNERSHIP), Fault::Latency(Duration::from_millis(2500)));
    handle.release(0.into(), held[&0.into()], Duration::ZERO);
    for _ in 0..100 {
        sleep(Duration::from_millis(100)).await;
        let recorded = world.owners().await.remove("0").unwrap();
        assert!(handle.snapshots().borrow().owned.is_empty() || recorded == "a");
    }
    assert!(!handle.snapshots().borrow().owned.is_empty(), "it is claimed again eventually");
    handle.shutdown().await;
    running.await.unwrap().unwrap();
    drop(partitions);
}
