//! An instance without partitions sends a heartbeat while it is running.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerHandle, LoadBalancingStrategy, OwnershipEvent};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{HealthIssue, ProcessorConfig};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::SystemWallClock;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::{ConsumerGroup, LeaseScope, OwnerId, PartitionId};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::ownership_log::{owner_of_all, record};
use crate::world::{Instance, World};

const SECOND: Duration = Duration::from_secs(1);

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
    let world = World::new(partitions);
    let greedy = LoadBalancingStrategy::Greedy;
    let config = world.config.clone().with_balancer(|balancer| {
        balancer.with_lease_scope(LeaseScope::Instance).with_load_balancing_strategy(greedy).with_seed(7)
    });
    World { config, ..world }
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
            let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
            let builder = GroupStore::builder(Arc::new(faulty.clone()), group, OwnerId::new(owner).unwrap());
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

/// For an hour, whichever way the requests fail, and for at most this many tenths of the requests of a calm hour.
#[tokio::test(start_paused = true)]
async fn failing_requests_cost_live_owners_no_partition() {
    let throttled = Fault::Throttled { retry_after: None };
    for (percent, fault, most) in
        [(20, Fault::Hang, 15), (30, Fault::Hang, 15), (50, throttled, 35), (50, Fault::ResponseLost, 25)]
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
        let group = "ns.servicebus.windows.net/hub/$default/";
        let listed = world.container.list(group).await.unwrap().blobs;
        assert!(listed.iter().all(|blob| !blob.name.contains("verify")), "{listed:?}");
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
    }
    assert!(taken_after[1] <= taken_after[0] + SECOND, "{taken_after:?}");
}
