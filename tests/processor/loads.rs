//! Sharing by load: every owner records the load of its partitions, and all instances decide accordingly.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, BalancerHandle, LoadBalancingStrategy};
use eventhubs_checkpoint::{PartitionId, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::world::World;

const PARTITIONS: u32 = 5;

struct Loop {
    handle: BalancerHandle,
    _running: JoinHandle<Result<()>>,
    _partitions: watch::Sender<Arc<[PartitionId]>>,
}

impl Loop {
    async fn start(world: &World, owner: &str) -> Self {
        let named: Arc<[_]> = (0..PARTITIONS).map(PartitionId::from).collect();
        let (partitions, receiver) = watch::channel(named);
        let config =
            BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::weighted()).with_seed(3);
        let (balancer, handle) = Balancer::new(world.store(owner).await, config, receiver).unwrap();
        Self { handle, _running: tokio::spawn(balancer.run()), _partitions: partitions }
    }

    fn held(&self) -> BTreeSet<u32> {
        let held = self.handle.snapshots().borrow().owned.clone();
        held.keys().map(|partition| partition.as_str().parse().unwrap()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_heavy_partition_outweighs_several_light_ones() {
    let world = World::new(PARTITIONS);
    let a = Loop::start(&world, "a").await;
    for partition in 0..PARTITIONS {
        a.handle.loads().set(&partition.into(), if partition == 0 { 400 } else { 100 });
    }
    sleep(Duration::from_secs(120)).await;
    assert_eq!(a.held().len(), 5);

    let b = Loop::start(&world, "b").await;
    for partition in 0..PARTITIONS {
        b.handle.loads().set(&partition.into(), if partition == 0 { 400 } else { 100 });
    }
    sleep(Duration::from_secs(300)).await;
    let (held_by_a, held_by_b) = (a.held(), b.held());
    let split = [held_by_a.clone(), held_by_b.clone()];
    assert!(split.contains(&[0].into()) && split.contains(&[1, 2, 3, 4].into()), "{split:?}");
    sleep(Duration::from_secs(3600)).await;
    assert_eq!((a.held(), b.held()), (held_by_a, held_by_b));
}

#[tokio::test(start_paused = true)]
async fn the_processor_records_its_load() {
    let mut world = World::new(2);
    world.config =
        world.config.with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::weighted()));
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
