//! Combinations of two features that `tests/pairs` has found to fail.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{LoadBalancingStrategy, OwnershipEvent};
use eventhubs_checkpoint::processor::{CheckpointPolicy, PartitionContext, handler_fn};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;

use crate::world::World;

const PARTITIONS: u32 = 5;

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
    let mut world = World::new(PARTITIONS);
    world.config = world.config.clone().with_max_batch_size(1000).with_max_batch_wait(batch_wait);
    world.config = world
        .config
        .clone()
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::weighted()));
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
    let minute = Duration::from_secs(60);
    for (batch_wait, work) in [(minute, Duration::ZERO), (Duration::ZERO, minute)] {
        let claims = claims_in_half_an_hour(batch_wait, work).await;
        assert!(claims <= 5, "{claims} claims with batches that wait {batch_wait:?} and take {work:?}");
    }
}

/// Each restart continues after the last handled event, although the handler fails more often than the policy writes.
#[tokio::test(start_paused = true)]
async fn failures_between_two_checkpoints_allow_progress() {
    let mut world = World::new(1);
    let rare = CheckpointPolicy::default().with_interval(Duration::from_secs(240));
    world.config = world.config.clone().with_max_batch_size(1).with_checkpoint_policy(rare);
    let (calls, numbers) = (AtomicU32::new(0), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&numbers);
    let handler = handler_fn(move |events: Vec<MemoryEvent>, context: PartitionContext| {
        let fails = calls.fetch_add(1, Ordering::Relaxed) % 10 == 9;
        if !fails {
            log.lock().unwrap().push(events[0].sequence_number);
            context.checkpoint(&events[0]);
        }
        async move { if fails { Err("failed on request".into()) } else { Ok(()) } }
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    world.hub.publish_many(0, 100, "x");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(*numbers.lock().unwrap(), (0..100).collect::<Vec<_>>());
    a.shut_down().await.unwrap();
}
