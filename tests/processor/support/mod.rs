//! What the tests of several areas share: groups, stores, records, events, and waits.

pub mod dead_letters;
pub mod handlers;
pub mod operator;
pub mod ownership_log;
pub mod sources;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::processor::CheckpointPolicy;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultyContainer};
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use eventhubs_checkpoint::testing::{EmptiedReport, Overwrite};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use tokio::time::{sleep, timeout};

use crate::intercepted::{Intercept, Intercepted};
use crate::world::{TIMEOUT, World};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

/// A part of the name of every record of this kind.
pub const OWNERSHIP: &str = "/ownership/";
pub const CHECKPOINT: &str = "/checkpoint/";

/// Time until a crashed owner is replaced: the lease duration, the grace period, the longest cycle, and the requests.
pub const TAKEOVER_TIME: Duration = Duration::from_secs(60 + 2 + 30 + 2);

/// The longest clean shutdown with the default settings.
pub const MAX_SHUTDOWN: Duration = Duration::from_secs(94);

/// Both ways in which a hub reports a partition after all its events have expired.
pub const EMPTIED_REPORTS: [EmptiedReport; 2] = [EmptiedReport::BeginIsLast, EmptiedReport::BeginAfterLast];

/// The group of each [`World`].
pub fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap()
}

/// Returns a group whose instances claim all their partitions in one cycle.
pub fn greedy(partitions: u32) -> World {
    let mut world = World::new(partitions);
    world.config =
        world.config.with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    world
}

/// Returns a [`greedy`] group whose instances write no checkpoint before their shutdown and check no lag.
pub fn rarely_checkpointing(partitions: u32) -> World {
    let mut world = greedy(partitions);
    let policy = CheckpointPolicy::default().with_interval(600 * SECOND);
    world.config = world.config.without_lag_checks().with_checkpoint_policy(policy);
    world
}

/// Returns the same group on the same container, for instances with faults of their own.
pub fn isolated(world: &World) -> World {
    World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() }
}

/// Lets the interceptor decide about the requests of the instances that start from now on.
pub fn intercept(world: &mut World, interceptor: impl Intercept) {
    let container = Intercepted { inner: world.container.clone(), interceptor };
    world.faulty = FaultyContainer::new(Arc::new(container), 11);
}

/// Returns a store that sends at most this many requests at once.
pub async fn limited_store(world: &World, owner: &str, max_concurrent_requests: usize) -> GroupStore {
    let builder = GroupStore::builder(Arc::new(world.faulty.clone()), group(), OwnerId::new(owner).unwrap());
    let config =
        StoreConfig::default().with_lease_duration(world.expiry).with_max_concurrent_requests(max_concurrent_requests);
    builder.with_config(config).with_seed(3).connect().await.unwrap()
}

/// Every fault of a write, except a concurrent write of another owner.
pub fn write_faults() -> [Fault; 9] {
    [
        Fault::Latency(2 * SECOND),
        Fault::Unreachable,
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::AppliedLate(30 * SECOND),
        Fault::Hang,
        Fault::Conflict,
        Fault::Throttled { retry_after: None },
        Fault::Throttled { retry_after: Some(SECOND) },
    ]
}

/// Returns the name of the blob of a record, which is named like `ownership/0` here.
pub fn blob_name(record: &str) -> String {
    format!("ns.servicebus.windows.net/hub/$default/{record}")
}

/// Returns the keys of a record.
pub async fn record(world: &World, name: &str) -> Option<Metadata> {
    world.container.get(&blob_name(name)).await.ok().map(|blob| blob.metadata)
}

/// Writes a record like another SDK: without a condition.
pub async fn write_record(world: &World, name: &str, pairs: &[(&str, impl AsRef<str>)]) {
    let metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_ref().to_owned())).collect();
    world.container.overwrite(&blob_name(name), &metadata).await.unwrap();
}

pub async fn remove_record(world: &World, name: &str) {
    world.container.remove(&blob_name(name)).await.unwrap();
}

/// Returns the sequence numbers of all checkpoints.
pub async fn checkpoints(world: &World) -> BTreeMap<String, Option<i64>> {
    let listing = world.store("observer").await.list_checkpoints().await.unwrap();
    listing.records.into_iter().map(|seen| (seen.partition.to_string(), seen.record.sequence_number)).collect()
}

pub async fn checkpoint_of(world: &World, partition: u32) -> Option<i64> {
    checkpoints(world).await.remove(&partition.to_string()).flatten()
}

/// Returns the sequence number and the offset of a checkpoint, and whether they are marked as a start.
pub async fn recorded_position(world: &World, partition: u32) -> Option<(i64, String, bool)> {
    let record = record(world, &format!("checkpoint/{partition}")).await?;
    let number = record["sequencenumber"].parse().unwrap();
    Some((number, record["offset"].to_owned(), record.get("ehcinitial") == record.get("sequencenumber")))
}

pub async fn wait_for_checkpoint(world: &World, number: i64) {
    let waiting = async {
        while world.checkpoint().await != Some(number) {
            sleep(SECOND / 10).await;
        }
    };
    timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("the checkpoint never reaches {number}"));
}

pub async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(SECOND / 10).await;
        }
    };
    timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

/// Publishes an event with each of these numbers to the first partition. Returns their bodies.
pub fn publish_numbers(hub: &MemoryHub, numbers: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    let bodies: Vec<_> = numbers.into_iter().map(|number| number.to_string()).collect();
    for body in &bodies {
        hub.publish(0, body.as_str()).expect("the partition exists");
    }
    bodies
}

/// Publishes one event to each of the first partitions.
pub fn publish_to_each(world: &World, partitions: u32, body: &str) {
    for partition in 0..partitions {
        world.hub.publish(partition, format!("{body} {partition}"));
    }
}

/// Waits until these events of each partition have been processed. Returns those that were processed more than once.
pub async fn repeated(world: &World, partitions: u32, bodies: &[&str]) -> Vec<String> {
    let all = || bodies.iter().flat_map(|body| (0..partitions).map(move |partition| format!("{body} {partition}")));
    world.log.wait_for("all events", |log| all().all(|body| log.times(&body) > 0)).await;
    all().filter(|body| world.log.times(body) > 1).collect()
}
