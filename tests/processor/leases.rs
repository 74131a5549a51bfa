//! How long leases are valid, and how they are renewed: strict leases, suspended machines, heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, BalancerHandle, OnLeaseExpiry, OwnershipEvent};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{HealthIssue, ProcessorConfig, StopReason};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::testing::{LeaseClock, SystemLeaseClock, SystemWallClock};
use eventhubs_checkpoint::{LeaseScope, OwnerId, PartitionId};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::handlers::owner_of_all;
use crate::support::ownership_log::OwnershipLog;
use crate::support::{OWNERSHIP, SECOND, blob_name, greedy, group, record};
use crate::world::{Instance, World};

fn strict(mut world: World) -> World {
    world.config = world.config.with_balancer(|balancer| balancer.with_on_lease_expiry(OnLeaseExpiry::Stop));
    world
}

/// The storage accepts no writes from the returned time on.
fn block_writes(world: &World) -> Instant {
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::RequestLost));
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn a_strict_owner_stops_before_its_lease_expires() {
    let world = strict(World::new(1));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    // A running batch gets its drain time, and is then cancelled.
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    block_writes(&world);
    assert!(matches!(world.first_stop().await, StopReason::LeaseExpired));
    assert!(world.oldest().await <= Duration::from_secs(58), "stopped at an age of {:?}", world.oldest().await);
    assert_eq!(world.owners().await["0"], "a", "no other instance owns it, and it was not released");

    world.faulty.set_plan(FaultPlan::default());
    world.log.wait_for("hang, again", |log| log.times("hang") == 2).await;
    a.crash().await;
}

#[tokio::test(start_paused = true)]
async fn without_strict_leases_an_owner_continues() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "before");
    world.log.wait_for("before", |log| log.times("before") == 1).await;
    let since = block_writes(&world);
    sleep(Duration::from_secs(300)).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    assert!(since.elapsed() < Duration::from_secs(301));
    assert!(world.log.stops.lock().unwrap().is_empty());
    a.crash().await;
}

/// Strict leases end before they expire, earlier by the drain time. No attempt may start after that.
#[tokio::test(start_paused = true)]
async fn strict_leases_retry_before_the_drain_time() {
    for drain in [None, Some(8 * SECOND)] {
        let mut world = strict(greedy(4));
        world.config = world.config.with_balancer(|balancer| balancer.with_handoff(false));
        world.config.drain_timeout = drain;
        let mut a = world.start("a").await;
        a.wait_until_it_holds(4).await;
        for round in 0..20 {
            world.faulty.set_plan(FaultPlan::always(Fault::Throttled { retry_after: Some(60 * SECOND) }));
            sleep(2 * SECOND).await;
            world.faulty.set_plan(FaultPlan::default());
            sleep(67 * SECOND).await;
            let stops = world.log.stops.lock().unwrap();
            assert!(stops.is_empty(), "drain time {drain:?}, round {round}: {stops:?}");
        }
        a.shut_down().await.unwrap();
    }
}

/// A clock that jumps like that of a suspended machine.
#[derive(Debug, Default)]
struct SuspendableClock {
    awake: SystemLeaseClock,
    suspended_seconds: AtomicU64,
}

impl LeaseClock for SuspendableClock {
    fn now(&self) -> Duration {
        self.awake.now() + Duration::from_secs(self.suspended_seconds.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_directly_after_a_suspension() {
    let clock = Arc::new(SuspendableClock::default());
    let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group(), OwnerId::new("a").unwrap());
    let store = builder.with_lease_clock(clock.clone()).connect().await.unwrap();
    let (_partitions, named) = watch::channel(Arc::from([PartitionId::from(0)]));
    let (balancer, handle) = Balancer::new(store.clone(), BalancerConfig::default(), named).unwrap();
    let running = tokio::spawn(balancer.run());
    let mut snapshots = handle.snapshots();
    snapshots.wait_for(|snapshot| snapshot.owned.len() == 1).await.unwrap();

    let age = async || store.list_ownerships().await.unwrap().records[0].age;
    sleep(Duration::from_secs(10)).await;
    assert!(age().await >= 9 * SECOND);
    clock.suspended_seconds.fetch_add(40, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    assert!(age().await <= 5 * SECOND, "not renewed after the suspension: {:?}", age().await);
    running.abort();
}

/// Each judges the other by what its records say: the default settings beside those for a fast failover.
#[tokio::test(start_paused = true)]
async fn instances_with_other_lease_durations_keep_theirs() {
    let slow = World::new(16);
    let config = ProcessorConfig::fast_failover().with_balancer(|balancer| balancer.with_seed(2));
    let fast = World { expiry: 14 * SECOND, config, ..slow.clone() };
    let mut a = slow.start("a").await;
    let mut b = fast.start("b").await;
    a.wait_until_it_holds(8).await;
    b.wait_until_it_holds(8).await;
    let mut logs = [&a, &b].map(OwnershipLog::of);
    sleep(3600 * SECOND).await;
    assert_eq!(logs.each_mut().map(OwnershipLog::take), [[""; 0]; 2]);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// A foreign owner applies its own lease duration, which may be shorter.
#[tokio::test(start_paused = true)]
async fn renewals_are_more_frequent_with_a_foreign_owner() {
    let world = World::new(3);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    sleep(Duration::from_secs(5)).await;
    world.give_to("python").await;
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

/// The following read returns a recent record, which remains valid. Its renewal must not be due again immediately.
#[tokio::test(start_paused = true)]
async fn renewals_with_lost_responses_are_paced() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.give_to("python").await;
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

/// Returns the age of the owner's heartbeat.
async fn heartbeat_age(observer: &GroupStore, owner: &str) -> Option<Duration> {
    let listing = observer.list_heartbeats().await.unwrap();
    let seen = listing.records.into_iter().find(|seen| seen.record.owner.as_str() == owner)?;
    Some(seen.age)
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_partitions_sends_heartbeats() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, Duration::ZERO).await;
    let observer = world.store("observer").await;
    let b = world.start("b").await;
    sleep(SECOND).await;
    for _ in 0..300 {
        let heartbeat_age = heartbeat_age(&observer, "b").await.expect("no heartbeat");
        assert!(heartbeat_age <= 31 * SECOND, "{heartbeat_age:?}");
        sleep(SECOND).await;
    }
    assert_eq!((a.held(), b.held()), (1, 0));
    b.shut_down().await.unwrap();
    assert_eq!(heartbeat_age(&observer, "b").await, None);
    a.shut_down().await.unwrap();
    assert_eq!(heartbeat_age(&observer, "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn losing_the_last_partition_sends_a_heartbeat() {
    let world = World::new(1);
    let mut a = owner_of_all(&world, 1, Duration::ZERO).await;
    sleep(120 * SECOND).await;
    let observer = world.store("observer").await;
    assert!(
        heartbeat_age(&observer, "a").await.is_some_and(|heartbeat_age| heartbeat_age > 60 * SECOND),
        "its ownership record is sufficient"
    );
    world.give_to("python").await;
    a.wait_until_it_holds(0).await;
    sleep(SECOND).await;
    assert!(heartbeat_age(&observer, "a").await.is_some_and(|heartbeat_age| heartbeat_age <= SECOND));
    a.shut_down().await.unwrap();
}

/// Ten lease durations after the last heartbeat, by the next instance that lists the heartbeats.
#[tokio::test(start_paused = true)]
async fn the_heartbeat_of_a_removed_instance_is_deleted() {
    let world = World::new(1);
    let a = owner_of_all(&world, 1, Duration::ZERO).await;
    let _ = world.store("ghost").await.send_heartbeat().await.unwrap();
    for (wait, owner, kept) in [(590, "b", true), (20, "c", false)] {
        sleep(wait * SECOND).await;
        // A partition is free for the new instance, which lists the heartbeats before it claims.
        world.hub.grow_to(if kept { 2 } else { 3 });
        let mut joining = world.start(owner).await;
        joining.wait_until_it_holds(1).await;
        assert_eq!(record(&world, "heartbeat/ghost").await.is_some(), kept);
        joining.shut_down().await.unwrap();
    }
    a.shut_down().await.unwrap();
}

/// One heartbeat keeps the leases of each instance alive.
fn by_heartbeat(partitions: u32) -> World {
    let mut world = greedy(partitions);
    world.config = world.config.with_balancer(|balancer| balancer.with_lease_scope(LeaseScope::Instance));
    world
}

#[tokio::test(start_paused = true)]
async fn instance_leases_end_if_a_foreign_owner_appears() {
    let mut world = World::new(3);
    world.config = world.config.with_balancer(|balancer| balancer.with_lease_scope(LeaseScope::Instance));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    sleep(10 * world.expiry).await;
    assert!(world.oldest().await > 9 * world.expiry, "no record is renewed individually");
    assert_eq!(a.snapshots.borrow().lease_scope, LeaseScope::Instance);

    // It renews, and no link tells the owner that it lost the partition.
    let began = Instant::now();
    while a.snapshots.borrow().lease_scope == LeaseScope::Instance {
        world.give_to("python").await;
        sleep(SECOND).await;
    }
    assert!(began.elapsed() <= 5 * world.expiry + SECOND, "{:?}", began.elapsed());
    sleep(SECOND).await;
    let listing = world.store("observer").await.list_ownerships().await.unwrap();
    let own = listing.records.iter().filter(|seen| seen.record.incarnation.is_some());
    assert!(own.clone().all(|seen| seen.record.scope == LeaseScope::Partition && seen.age < 5 * SECOND));
    assert_eq!(own.count(), 2);
    sleep(10 * world.expiry).await;
    assert!(world.oldest().await <= world.expiry / 2 + SECOND);
    assert_eq!(a.held(), 3, "the foreign owner has expired, and the scope stays as it is");
    assert_eq!(a.snapshots.borrow().lease_scope, LeaseScope::Partition);
    a.crash().await;
}

/// No such write reaches the storage.
fn refuse_writes(world: &World, blob: &str) {
    let target = Target::from(BlobOperation::Write).named(blob);
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, target, Fault::Unreachable));
}

/// Returns the health issues of an instance, without their details.
fn issues(instance: &Instance) -> Vec<String> {
    let name = |issue: &HealthIssue| format!("{issue:?}").split(' ').next().unwrap().to_owned();
    instance.handle.health().issues.iter().map(name).collect()
}

/// A bad blob, or a rule of a proxy. From the start, and later.
#[tokio::test(start_paused = true)]
async fn an_instance_without_heartbeat_has_its_share() {
    for owned_before in [false, true] {
        let world = by_heartbeat(8);
        if !owned_before {
            refuse_writes(&world, "heartbeat/a");
        }
        let mut a = world.start("a").await;
        a.wait_until_it_holds(8).await;
        refuse_writes(&world, "heartbeat/a");
        sleep(2 * world.expiry).await;
        assert_eq!(a.snapshots.borrow().lease_scope, LeaseScope::Partition);
        assert_eq!(issues(&a), ["HeartbeatFailing"]);
        let mut b = world.start("b").await;
        b.wait_until_it_holds(4).await;
        sleep(10 * world.expiry).await;
        assert_eq!((a.held(), b.held()), (4, 4));

        world.faulty.set_plan(FaultPlan::default());
        a.wait_until("the heartbeat", |snapshot| snapshot.lease_scope == LeaseScope::Instance).await;
        sleep(10 * world.expiry).await;
        assert_eq!((a.held(), b.held(), issues(&a).len()), (4, 4, 0));
        assert!(world.oldest().await > 9 * world.expiry, "no record is renewed individually");
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_claimed_is_an_issue() {
    for world in [World::new(4), by_heartbeat(4)] {
        refuse_writes(&world, "ownership/2");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(3).await;
        sleep(world.expiry).await;
        assert_eq!(issues(&a), ["ClaimFailing"]);
        world.faulty.set_plan(FaultPlan::default());
        a.wait_until_it_holds(4).await;
        assert_eq!(issues(&a), [""; 0]);
        a.shut_down().await.unwrap();
    }
}

/// Four balancing loops with the profile for a fast failover, over 64 partitions.
struct Fleet {
    faulty: FaultyContainer,
    stores: Vec<GroupStore>,
    events: Vec<broadcast::Receiver<OwnershipEvent>>,
    handles: Vec<BalancerHandle>,
    _hub: watch::Sender<Arc<[PartitionId]>>,
    _running: JoinSet<()>,
}

impl Fleet {
    async fn balanced(seed: u64) -> Self {
        let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), seed);
        let (hub, partitions) = watch::channel((0..64).map(PartitionId::from).collect());
        let mut stores = Vec::new();
        let mut handles = Vec::new();
        let mut running = JoinSet::new();
        for owner in ["a", "b", "c", "d"] {
            let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), OwnerId::new(owner).unwrap());
            let store = builder.with_config(StoreConfig::fast_failover()).with_seed(seed).connect().await.unwrap();
            let config = ProcessorConfig::fast_failover().balancer.with_seed(seed);
            let (balancer, handle) = Balancer::new(store.clone(), config, partitions.clone()).unwrap();
            stores.push(store);
            running.spawn(async move { balancer.run().await.unwrap() });
            handles.push(handle);
        }
        for handle in &handles {
            handle.snapshots().wait_for(|snapshot| snapshot.owned.len() == 16).await.unwrap();
        }
        let events = handles.iter().map(BalancerHandle::ownership_events).collect();
        Self { faulty, stores, events, handles, _hub: hub, _running: running }
    }

    /// Returns how many requests are sent in the next hour.
    async fn requests_in_an_hour(&self) -> u64 {
        let sent = || self.stores.iter().map(|store| store.request_counts().sum()).sum::<u64>();
        let before = sent();
        sleep(3600 * SECOND).await;
        sent() - before
    }

    /// Returns how many partitions moved since the last call.
    fn moved(&mut self) -> usize {
        let mut moved = 0;
        for events in &mut self.events {
            while let Ok(event) = events.try_recv() {
                moved += usize::from(matches!(event, OwnershipEvent::Claimed { .. }));
            }
        }
        moved
    }
}

/// For an hour, whichever way the requests fail, and for at most this many tenths of the requests of a calm hour. With
/// half of all requests throttled, all attempts may fail by chance: in one of six such hours, two of 64 partitions
/// moved.
#[tokio::test(start_paused = true)]
async fn failing_requests_cost_live_owners_no_partition() {
    let throttled = Fault::Throttled { retry_after: None };
    for (percent, fault, most) in
        [(20, Fault::Hang, 15), (30, Fault::Hang, 15), (40, throttled, 20), (50, Fault::ResponseLost, 20)]
    {
        let mut fleet = Fleet::balanced(3).await;
        let calm = fleet.requests_in_an_hour().await;
        fleet.faulty.set_plan(FaultPlan::default().with(f64::from(percent) / 100.0, fault.clone()));
        let failing = fleet.requests_in_an_hour().await;
        let moved = fleet.moved();
        assert_eq!(moved, 0, "{percent} % {fault:?}");
        assert!(failing * 10 <= most * calm, "{percent} % {fault:?}: {failing} requests, {calm} in a calm hour");
        assert!(fleet.handles.iter().all(|handle| handle.snapshots().borrow().owned.len() == 16));
    }
}

/// The heartbeat is ended by a write, so the others need not wait until it expires.
#[tokio::test(start_paused = true)]
async fn a_shutdown_needs_no_right_to_delete() {
    let mut taken_after = Vec::new();
    for denied in [false, true] {
        let mut world = by_heartbeat(12);
        world.wall_clock = Some(Arc::new(SystemWallClock));
        if denied {
            world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Delete, Fault::Unauthorized));
        }
        let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
        for instance in &mut instances {
            instance.wait_until_it_holds(4).await;
        }
        sleep(10 * world.expiry).await;
        let [mut a, mut b, c] = instances;
        c.shut_down().await.unwrap();
        let began = Instant::now();
        assert_eq!(record(&world, "heartbeat/c").await.is_some(), denied);
        a.wait_until_it_holds(6).await;
        b.wait_until_it_holds(6).await;
        taken_after.push(began.elapsed());
        let listed = world.container.list(&blob_name("")).await.unwrap().blobs;
        assert!(listed.iter().all(|blob| !blob.name.contains("verify")), "{listed:?}");
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
    }
    assert!(taken_after[1] <= taken_after[0] + SECOND, "{taken_after:?}");
}
