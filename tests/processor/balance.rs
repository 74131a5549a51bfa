//! How instances share partitions: claims, moves, loads, and restarts that move nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::{
    Balancer, BalancerConfig, BalancerHandle, ClaimReason, LoadBalancingStrategy, OwnershipEvent,
};
use eventhubs_checkpoint::blob::{BlobContainer, ListResult};
use eventhubs_checkpoint::processor::{
    HealthIssue, OnShutdown, PartitionContext, PartitionState, ProcessorConfig, StopReason, handler_fn,
};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ErrorKind, LeaseScope, OwnerId, PartitionId, Result};
use tokio::sync::broadcast::Receiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::captured::Captured;
use crate::intercepted::Intercept;
use crate::support::handlers::owner_of_all;
use crate::support::{MINUTE, OWNERSHIP, SECOND, blob_name, intercept, publish_to_each, remove_record};
use crate::world::{Instance, TIMEOUT, World};

#[tokio::test(start_paused = true)]
async fn balanced_claims_one_partition_at_a_time() {
    let world = World::new(8);
    let mut a = world.start("a").await;
    for expected in 1..=3 {
        a.wait_until_it_holds(expected).await;
        sleep(Duration::from_millis(800)).await;
        assert_eq!(a.held(), expected);
    }
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn added_partitions_are_claimed() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.grow_to(3);
    world.hub.publish(2, "new");
    world.log.wait_for("new", |log| log.times("new") == 1).await;
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_settled_group_moves_nothing_and_keeps_renewing() {
    let world = World::new(5);
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 5).await;
    }
    sleep(Duration::from_secs(60)).await;
    let held = || instances.iter().map(|instance| instance.snapshots.borrow().owned.clone()).collect::<Vec<_>>();
    let before = held();
    let observer = world.store("observer").await;
    for _ in 0..200 {
        sleep(Duration::from_secs(37)).await;
        assert_eq!(held(), before);
        for ownership in observer.list_ownerships().await.unwrap().records {
            assert!(ownership.age <= Duration::from_secs(31), "{ownership:?}");
        }
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

/// 18 partitions, three instances, and a fourth that joins: moved partitions continue after their last checkpoint.
#[tokio::test(start_paused = true)]
async fn a_joining_instance_resumes_from_the_checkpoint() {
    let world = World::new(18);
    let mut instances = vec![world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 18).await;
    }
    sleep(60 * SECOND).await;
    for partition in 0..18 {
        world.hub.publish(partition, format!("before {partition}"));
    }
    world.log.wait_for("18", |log| log.bodies().len() == 18).await;
    sleep(2 * SECOND).await;
    let mut d = world.start("d").await;
    d.wait_until_it_holds(4).await;
    // Until the previous owner of the last partition has detected the loss: both may read it until then.
    sleep(30 * SECOND).await;
    for partition in 0..18 {
        world.hub.publish(partition, format!("after {partition}"));
    }
    world.log.wait_for("18 more", |log| log.bodies().len() == 36).await;
    sleep(60 * SECOND).await;
    let bodies = world.log.bodies();
    assert_eq!(bodies.len(), 36, "checkpointed events were redelivered");
    assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), 36);
    instances.push(d);
    let mut held: Vec<_> = instances.iter().map(Instance::held).collect();
    held.sort_unstable();
    assert_eq!(held, [4, 4, 5, 5]);
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

/// Two instances that start at once claim the same partitions and conflict.
#[tokio::test(start_paused = true)]
async fn expected_conflicts_are_no_warnings() {
    let (captured, _guard) = Captured::begin();
    let world = World::new(8);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 8).await;
    }
    sleep(600 * SECOND).await;
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    let reported = captured.text();
    assert!(reported.contains("partition claimed"));
    assert!(!reported.contains("WARN") && !reported.contains("ERROR"), "{reported}");
}

/// A renewal would detect it, too, but only after half the lease duration.
#[tokio::test(start_paused = true)]
async fn a_partition_taken_by_another_sdk_names_the_taker() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_millis(100)).await;
    world.give_to("python").await;
    let taken = Instant::now();
    a.wait_until_it_holds(0).await;
    assert!(taken.elapsed() <= Duration::from_secs(11), "{:?}", taken.elapsed());
    assert_eq!(world.lost_to().await, "python");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_displaced_reader_stops_if_it_has_lost_ownership() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_millis(100)).await;
    world.give_to("b").await;
    let taken = Instant::now();
    let _rival = world.hub.source().open_receiver(&0.into(), StartPosition::Earliest, 1, 2).await.unwrap();
    assert_eq!(world.lost_to().await, "b");
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    a.shut_down().await.unwrap();
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
    publish_to_each(&world, 1, "x");
    world.log.wait_for("the event", |log| log.times("x 0") == 1).await;
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_ownership_record_is_written_again() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    remove_record(&world, "ownership/0").await;
    sleep(Duration::from_secs(60)).await;
    a.wait_until_it_holds(2).await;
    assert_eq!(world.owners().await["0"], "a");
    a.shut_down().await.unwrap();
}

/// The record is deleted and claimed again by the same incarnation: no later incarnation is running.
#[tokio::test(start_paused = true)]
async fn reclaiming_a_deleted_record_is_not_a_replacement() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    sleep(2 * SECOND).await;
    remove_record(&world, "ownership/0").await;
    for _ in 0..60 {
        world.hub.publish(0, "y");
        sleep(SECOND).await;
    }
    let stops = world.log.stops.lock().unwrap().clone();
    assert!(stops.iter().all(|(_, _, reason)| !matches!(reason, StopReason::Replaced)), "{stops:?}");
    assert!(!a.running.is_finished());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_adopted_is_released() {
    let world = World::new(1);
    let writes = Target::from(BlobOperation::Write).named("checkpoint/0");
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Conflict));
    let instance = world.start("a").await;
    let released = async {
        while world.owners().await.get("0").is_none_or(|owner| !owner.is_empty()) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, released).await.expect("never released");
    let name = blob_name("ownership/0");
    let etag = world.container.get(&name).await.unwrap().etag;
    sleep(Duration::from_secs(9)).await;
    assert_eq!(world.container.get(&name).await.unwrap().etag, etag, "claimed again immediately");

    world.faulty.set_plan(FaultPlan::default());
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    instance.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_released_partition_stays_away_for_a_while() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    assert!(a.handle.release(&0.into(), 100 * SECOND));
    a.wait_until_it_holds(0).await;
    let released = Instant::now();
    assert_eq!(world.checkpoint().await, Some(0), "the recorded position is written first");
    assert!(matches!(world.first_stop().await, StopReason::Released { .. }));
    a.wait_until_it_holds(1).await;
    let elapsed = released.elapsed();
    assert!(elapsed >= 100 * SECOND && elapsed < 150 * SECOND, "{elapsed:?}");
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

/// A load-balancing loop without a processor.
struct Loop {
    handle: BalancerHandle,
    running: JoinHandle<Result<()>>,
    /// The loop runs while it exists.
    _partitions: watch::Sender<Arc<[PartitionId]>>,
}

impl Loop {
    async fn start(world: &World, owner: &str, partitions: u32, config: BalancerConfig) -> Self {
        let (partitions, named) = watch::channel((0..partitions).map(PartitionId::from).collect());
        let (balancer, handle) = Balancer::new(world.store(owner).await, config, named).unwrap();
        Self { handle, running: tokio::spawn(balancer.run()), _partitions: partitions }
    }

    /// Starts the loop of the first partition, with a cycle each second.
    async fn with_short_cycles(world: &World) -> Self {
        let config = BalancerConfig::default().with_load_balancing_interval(SECOND).with_seed(1);
        Self::start(world, "a", 1, config).await
    }

    async fn owned(&self) -> BTreeMap<PartitionId, i64> {
        self.handle.snapshots().wait_for(|snapshot| !snapshot.owned.is_empty()).await.unwrap().owned.clone()
    }

    async fn shut_down(self) {
        self.handle.shutdown().await;
        self.running.await.unwrap().unwrap();
    }
}

/// The next write of an ownership takes longer than two cycles.
fn delay_next_write(world: &World) {
    let writes = Target::from(BlobOperation::Write).named(OWNERSHIP);
    world.faulty.inject_on(writes, Fault::Latency(Duration::from_millis(2500)));
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
    let mut world = World::new(1);
    intercept(&mut world, LateListings);
    // The claim is applied while the next listing, which does not contain it, is in flight.
    delay_next_write(&world);
    let a = Loop::with_short_cycles(&world).await;
    let won = a.owned().await;
    for _ in 0..100 {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(a.handle.snapshots().borrow().owned, won);
    }
    a.shut_down().await;
}

/// A cycle during a slow release must not claim the partition again before the release is applied.
#[tokio::test(start_paused = true)]
async fn nothing_is_held_while_its_record_is_released() {
    let world = World::new(1);
    let a = Loop::with_short_cycles(&world).await;
    let held = a.owned().await;
    delay_next_write(&world);
    a.handle.release(0.into(), held[&0.into()], Duration::ZERO);
    for _ in 0..100 {
        sleep(Duration::from_millis(100)).await;
        let recorded = world.owners().await.remove("0").unwrap();
        assert!(a.handle.snapshots().borrow().owned.is_empty() || recorded == "a");
    }
    assert!(!a.handle.snapshots().borrow().owned.is_empty(), "it is claimed again eventually");
    a.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_snapshot_blocks_nothing() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    let watching = a.handle.snapshots();
    let kept = watching.borrow();
    sleep(120 * SECOND).await;
    assert!(watching.borrow().cycles > kept.cycles);
    assert!(world.oldest().await < 40 * SECOND);
    a.shut_down().await.unwrap();
}

/// Sharing by load: every owner records the load of its partitions, and all instances decide accordingly.
mod loads {
    use super::*;

    const PARTITIONS: u32 = 5;

    fn weighted(partitions: u32) -> World {
        let mut world = World::new(partitions);
        world.config = world
            .config
            .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::weighted()));
        world
    }

    /// Starts a loop whose first partition is as heavy as the other four.
    async fn start_loop(world: &World, owner: &str) -> Loop {
        let strategy = LoadBalancingStrategy::weighted();
        let config = BalancerConfig::default().with_load_balancing_strategy(strategy).with_seed(3);
        let started = Loop::start(world, owner, PARTITIONS, config).await;
        for partition in 0..PARTITIONS {
            started.handle.loads().set(&partition.into(), if partition == 0 { 400 } else { 100 });
        }
        started
    }

    fn held(running: &Loop) -> BTreeSet<u32> {
        let snapshot = running.handle.snapshots().borrow();
        snapshot.owned.keys().map(|partition| partition.as_str().parse().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_heavy_partition_outweighs_several_light_ones() {
        let world = World::new(PARTITIONS);
        let a = start_loop(&world, "a").await;
        sleep(Duration::from_secs(120)).await;
        assert_eq!(held(&a).len(), 5);

        let b = start_loop(&world, "b").await;
        sleep(Duration::from_secs(300)).await;
        let split = [held(&a), held(&b)];
        assert!(split.contains(&[0].into()) && split.contains(&[1, 2, 3, 4].into()), "{split:?}");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!([held(&a), held(&b)], split);
    }

    #[tokio::test(start_paused = true)]
    async fn the_processor_records_its_load() {
        let world = weighted(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        for _ in 0..60 {
            for _ in 0..10 {
                world.hub.publish(1, "x");
            }
            sleep(Duration::from_secs(2)).await;
        }
        let listing = world.store("observer").await.list_ownerships().await.unwrap();
        let load = |partition: usize| listing.records[partition].record.load;
        assert_eq!(load(0), Some(0));
        assert!(load(1).is_some_and(|load| (150..=350).contains(&load)), "{:?}", load(1));
        a.crash().await;
    }

    async fn publish_steadily(hub: MemoryHub) {
        loop {
            for partition in 0..PARTITIONS {
                hub.publish(partition, "x");
            }
            sleep(Duration::from_secs(5)).await;
        }
    }

    fn claims(events: &mut Receiver<OwnershipEvent>) -> usize {
        let reported = std::iter::from_fn(|| events.try_recv().ok());
        reported.filter(|event| matches!(event, OwnershipEvent::Claimed { .. })).count()
    }

    /// Returns the claims in half an hour, in a group that shares equal partitions by load and has had time to settle.
    async fn claims_in_half_an_hour(batch_wait: Duration, work: Duration) -> usize {
        let mut world = weighted(PARTITIONS);
        world.config = world.config.with_max_batch_size(1000).with_max_batch_wait(batch_wait);
        let handler = || {
            handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| async move {
                sleep(work).await;
                context.checkpoint(events.last().unwrap());
                Ok(())
            })
        };
        let mut instances = Vec::new();
        for owner in ["a", "b", "c"] {
            instances.push(world.start_with(owner, world.hub.source(), handler()).await);
        }
        tokio::spawn(publish_steadily(world.hub.clone()));
        sleep(Duration::from_secs(900)).await;
        let mut reported: Vec<_> = instances.iter().map(|instance| instance.handle.ownership_events()).collect();
        sleep(Duration::from_secs(1800)).await;
        reported.iter_mut().map(claims).sum()
    }

    /// A batch counts as work when it is handled: bursts of a minute are not changing loads.
    #[tokio::test(start_paused = true)]
    async fn batches_of_a_minute_move_no_partitions() {
        for (batch_wait, work) in [(MINUTE, Duration::ZERO), (Duration::ZERO, MINUTE)] {
            let claims = claims_in_half_an_hour(batch_wait, work).await;
            assert!(claims <= 5, "{claims} claims with batches that wait {batch_wait:?} and take {work:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_instance_reclaims_its_partitions() {
    let world = World::new(4);
    let mut first = world.start("a").await;
    first.wait_until_it_holds(4).await;
    first.crash().await;
    sleep(Duration::from_secs(2)).await;
    let mut second = world.start("a").await;
    let began = Instant::now();
    second.wait_until_it_holds(4).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    second.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_with_the_same_owner_id() {
    let (log, _guard) = Captured::begin();
    let world = World::new(2);
    let mut first = world.start("a").await;
    first.wait_until_it_holds(2).await;
    sleep(Duration::from_secs(2)).await;
    let mut second = world.start("a").await;
    second.wait_until_it_holds(2).await;
    let error = first.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced);
    let stops = world.log.stops.lock().unwrap().clone();
    assert!(stops.iter().all(|(_, _, reason)| matches!(reason, StopReason::Replaced)), "{stops:?}");
    assert!(error.to_string().contains("give every instance a unique owner ID"), "{error}");
    let reported = log.text();
    let end = reported.lines().find(|line| line.contains("processor stopped unexpectedly"));
    assert!(end.is_some_and(|end| end.contains("ERROR") && end.contains("a unique owner ID")), "{reported}");
    second.shut_down().await.unwrap();
}

/// [`OnShutdown::Keep`]: two instances that share six partitions, and keep theirs when they shut down.
fn keeping() -> World {
    let mut world = World::new(6);
    world.config = ProcessorConfig::default()
        .with_checkpoint_policy(world.config.checkpoint_policy)
        .with_on_shutdown(OnShutdown::Keep)
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    world
}

mod kept {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_return_without_a_move() {
        let world = keeping();
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
        let (before, mut seen_by_a) = (world.owners().await, a.handle.ownership_events());
        let report = b.shut_down().await.unwrap();
        assert!(report.is_clean() && report.kept == 3 && report.unreleased == 0, "{report:?}");
        assert_eq!(world.owners().await, before);

        sleep(20 * SECOND).await;
        let b = OwnerId::new("b").unwrap();
        let away = HealthIssue::OwnerAway { owner: b.clone(), partitions: 3 };
        assert!(a.handle.health().issues.contains(&away), "{:?}", a.handle.health());
        assert_eq!(a.handle.snapshots().borrow().away(), [(b, 3)].into());

        let began = Instant::now();
        let mut b = world.start("b").await;
        let mut claims = b.handle.ownership_events();
        b.wait_until_it_holds(3).await;
        assert!(began.elapsed() <= SECOND, "in its first cycle, after {:?}", began.elapsed());
        assert_eq!(world.owners().await, before);
        while let Ok(event) = claims.try_recv() {
            assert!(
                !matches!(&event, OwnershipEvent::Claimed { reason, .. } if *reason != ClaimReason::Reclaimed),
                "{event:?}"
            );
        }
        sleep(40 * SECOND).await;
        assert!(a.handle.health().issues.is_empty(), "{:?}", a.handle.health());
        let mut away = Vec::new();
        while let Ok(event) = seen_by_a.try_recv() {
            match event {
                OwnershipEvent::OwnerAway { partitions, .. } => away.push(partitions),
                event => panic!("unexpected event: {event:?}"),
            }
        }
        assert_eq!(away, [3, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_processed_twice() {
        let world = keeping();
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        world.hub.publish(0, "before");
        world.log.wait_for("before", |log| log.times("before") == 1).await;
        a.shut_down().await.unwrap();
        world.hub.publish(0, "meanwhile");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        world.log.wait_for("meanwhile", |log| log.times("meanwhile") == 1).await;
        assert_eq!(world.log.times("before"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_joins_meanwhile_waits() {
        let world = keeping();
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        a.shut_down().await.unwrap();
        let mut b = world.start("b").await;
        sleep(50 * SECOND).await;
        assert!(b.handle.snapshots().borrow().owned.is_empty(), "{:?}", b.handle.snapshots().borrow());
        let mut a = world.start("a").await;
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
    }

    #[tokio::test(start_paused = true)]
    async fn with_instance_leases_too() {
        let mut world = keeping();
        world.config.balancer.lease_scope = LeaseScope::Instance;
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
        // The last heartbeat was half a lease duration before the shutdown.
        sleep(29 * SECOND).await;
        let before = world.owners().await;
        assert_eq!(b.shut_down().await.unwrap().kept, 3);
        sleep(50 * SECOND).await;
        assert_eq!(world.owners().await, before);
        let mut b = world.start("b").await;
        b.wait_until_it_holds(3).await;
        assert_eq!(world.owners().await, before);
        assert_eq!(a.handle.snapshots().borrow().owned.len(), 3);
    }
}

mod not_kept {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unclaimed_partitions_expire() {
        let world = keeping();
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
        b.shut_down().await.unwrap();
        let began = Instant::now();
        a.wait_until_it_holds(6).await;
        let took = began.elapsed();
        assert!((60 * SECOND..=95 * SECOND).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn partitions_that_cannot_be_renewed_are_reported() {
        let world = keeping();
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        world.faulty.set_plan(FaultPlan::always(Fault::Hang));
        let report = a.shut_down().await.unwrap();
        assert_eq!((report.kept, report.unreleased), (0, 6), "{report:?}");
        assert!(!report.is_clean());
    }

    #[tokio::test(start_paused = true)]
    async fn a_processor_that_fails_releases() {
        let world = keeping();
        let mut first = world.start("a").await;
        first.wait_until_it_holds(6).await;
        // A later incarnation ends the first one, which keeps nothing for itself.
        let mut second = world.start("a").await;
        assert!(first.ended().await.is_err());
        second.wait_until_it_holds(6).await;
        let report = second.shut_down().await.unwrap();
        assert_eq!(report.kept, 6);
    }
}
