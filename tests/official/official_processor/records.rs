//! Calls of the trait as the official processor makes them, and a clock that can be set wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use azure_core::error::Error as AzureError;
use azure_core::http::Etag;
use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::WallClock;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, FaultyContainer, Target};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, Position};
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::Instant;

pub const NAMESPACE: &str = "ns.servicebus.windows.net";
pub const HUB: &str = "hub";
pub const GROUP: &str = "$Default";

/// No partition.
pub const NONE: [u32; 0] = [];

/// Both defaults: the processor's and this crate's.
pub const EXPIRY: Duration = Duration::from_secs(60);

/// A local clock in addition to that of a [`MemoryContainer`] created at the same moment.
#[derive(Debug)]
pub struct LocalClock {
    started: Instant,
    ahead: time::Duration,
}

impl LocalClock {
    pub fn ahead(seconds: i64) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), ahead: time::Duration::seconds(seconds) })
    }
}

impl WallClock for LocalClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-01-01 00:00:00 UTC) + self.started.elapsed() + self.ahead
    }
}

/// Returns this crate's store, on a machine whose clock is right.
pub fn adapter(container: impl BlobContainer + 'static) -> Arc<BlobCheckpointStore> {
    BlobCheckpointStore::builder(container).with_wall_clock(LocalClock::ahead(0)).build().unwrap()
}

/// Returns a container with faults on demand, and the container without them.
pub fn faulty() -> (FaultyContainer, MemoryContainer) {
    let container = MemoryContainer::new();
    (FaultyContainer::new(Arc::new(container.clone()), 1), container)
}

/// Returns the writes of one kind of record.
pub fn writes(kind: &str) -> Target {
    Target::from(BlobOperation::Write).named(format!("/{kind}/"))
}

/// Returns this crate's store with owner "a" on partition 0, which it has processed up to 5.
pub async fn settled(container: impl BlobContainer + 'static) -> Arc<BlobCheckpointStore> {
    let a = adapter(container);
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
    checkpoint(&*a, 0, 5).await.unwrap();
    a
}

/// Returns the same records without the processor, for administration.
pub async fn group_store(container: impl BlobContainer + 'static, owner: &str) -> GroupStore {
    let group = ConsumerGroup::new(NAMESPACE, HUB, GROUP).unwrap();
    GroupStore::builder(Arc::new(container), group, OwnerId::new(owner).unwrap()).connect().await.unwrap()
}

/// Returns the name of a record of this crate.
pub fn name_of(kind: &str, partition: u32) -> String {
    format!("{NAMESPACE}/{HUB}/$default/{kind}/{partition}")
}

/// Writes a record like another writer.
pub async fn put<const N: usize>(container: &dyn BlobContainer, name: &str, metadata: [(&str, &str); N]) {
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    container.overwrite(name, &Metadata::from(metadata)).await.unwrap();
}

pub async fn owner_in(container: &dyn BlobContainer, partition: u32) -> String {
    container.get(&name_of("ownership", partition)).await.unwrap().metadata["ownerid"].to_owned()
}

/// Returns the listing that begins each of the processor's cycles.
pub async fn listed(store: &dyn CheckpointStore) -> BTreeMap<String, Ownership> {
    let listed = store.list_ownerships(NAMESPACE, HUB, GROUP).await.unwrap();
    listed.into_iter().map(|ownership| (ownership.partition_id.clone(), ownership)).collect()
}

/// Returns the processor's request: its own name, over the listed version.
pub fn wish(owner: &str, partition: u32, etag: Option<Etag>) -> Ownership {
    Ownership {
        fully_qualified_namespace: NAMESPACE.into(),
        event_hub_name: HUB.into(),
        consumer_group: GROUP.into(),
        partition_id: partition.to_string(),
        owner_id: Some(owner.into()),
        etag,
        last_modified_time: None,
    }
}

/// Runs one cycle of the processor: it lists, and then claims these partitions. Returns those that may be processed.
pub async fn cycle(store: &dyn CheckpointStore, owner: &str, partitions: impl IntoIterator<Item = u32>) -> Vec<u32> {
    try_cycle(store, owner, partitions).await.unwrap()
}

pub async fn try_cycle(
    store: &dyn CheckpointStore,
    owner: &str,
    partitions: impl IntoIterator<Item = u32>,
) -> Result<Vec<u32>, AzureError> {
    let listed = listed(store).await;
    let etag = |partition: u32| listed.get(&partition.to_string()).and_then(|ownership| ownership.etag.clone());
    let wishes: Vec<_> = partitions.into_iter().map(|partition| wish(owner, partition, etag(partition))).collect();
    let won = store.claim_ownership(&wishes).await?;
    let mut won: Vec<_> = won.iter().map(|ownership| ownership.partition_id.parse().unwrap()).collect();
    won.sort_unstable();
    Ok(won)
}

pub fn checkpoint_at(partition: u32, number: i64) -> Checkpoint {
    Checkpoint {
        fully_qualified_namespace: NAMESPACE.into(),
        event_hub_name: HUB.into(),
        consumer_group: GROUP.into(),
        partition_id: partition.to_string(),
        offset: Some((number * 100).to_string()),
        sequence_number: Some(number),
    }
}

pub async fn checkpoint(store: &dyn CheckpointStore, partition: u32, number: i64) -> Result<(), AzureError> {
    store.update_checkpoint(checkpoint_at(partition, number)).await
}

/// Returns the kind of this crate's error within the one that the processor gets.
pub fn kind_of(error: &AzureError) -> ErrorKind {
    BlobCheckpointStore::error_of(error).expect("not an error of this crate").kind()
}

/// Asserts that a checkpoint was rejected as fenced, and returns the message.
pub fn refused(outcome: Result<(), AzureError>) -> String {
    let error = outcome.expect_err("accepted");
    assert_eq!(kind_of(&error), ErrorKind::Fenced, "{error}");
    error.to_string()
}

/// Returns where a new client of this partition would start.
pub async fn position(store: &dyn CheckpointStore, partition: u32) -> Option<i64> {
    let checkpoints = store.list_checkpoints(NAMESPACE, HUB, GROUP).await.unwrap();
    checkpoints.into_iter().find(|checkpoint| checkpoint.partition_id == partition.to_string())?.sequence_number
}

pub fn at(number: i64) -> Position {
    Position::new(number, (number * 100).to_string())
}

/// `load_balancer.rs`, `get_available_partitions`: what the official balancer considers abandoned.
pub fn looks_expired(ownership: &Ownership, clock: &dyn WallClock) -> bool {
    ownership.last_modified_time.is_some_and(|written| written + EXPIRY < clock.now())
}

/// The same place: the owners among whom it divides the partitions.
pub fn live_owners(listed: &BTreeMap<String, Ownership>, clock: &dyn WallClock) -> Vec<String> {
    let live = listed.values().filter(|ownership| !looks_expired(ownership, clock));
    let mut owners: Vec<_> = live.filter_map(|ownership| ownership.owner_id.clone()).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}
