//! The consumer groups of one store for the official processor, and their connections to the storage.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;
use tracing::Instrument;

use super::owned_partitions::OwnedPartitions;
use super::owners::{Owners, repeated};
use crate::blob::BlobContainer;
use crate::clock::WallClock;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::model::{ConsumerGroup, OwnerId, PartitionId, Relation};
use crate::store::{Checkpoint, GroupStore, GroupStoreBuilder, Listing, Ownership, StoreConfig};

/// The groups that the processor has asked for.
#[derive(Debug)]
pub(super) struct Groups {
    container: Arc<dyn BlobContainer>,
    config: StoreConfig,
    wall_clock: Arc<dyn WallClock>,
    /// Never locked while a request is made: an outage must not delay calls that need no request, or those for another
    /// group.
    known: Mutex<HashMap<ConsumerGroup, Group>>,
}

/// The store of one consumer group. The owner is not known before the first claim.
#[derive(Clone, Debug)]
pub(super) enum Group {
    Viewed(GroupStore),
    Served(Arc<OwnedPartitions>),
}

impl Groups {
    pub(super) fn new(container: Arc<dyn BlobContainer>, config: StoreConfig, wall_clock: Arc<dyn WallClock>) -> Self {
        Self { container, config, wall_clock, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ConsumerGroup, Group>> {
        lock(&self.known)
    }

    fn describe(&self, group: &ConsumerGroup, owner: OwnerId, config: StoreConfig) -> GroupStoreBuilder {
        let mut builder = GroupStore::builder(Arc::clone(&self.container), group.clone(), owner);
        builder.wall_clock = Some(Arc::clone(&self.wall_clock));
        builder.with_config(config)
    }

    /// Returns until when a call that begins now repeats its requests: one lease duration. Later, other instances may
    /// own all partitions. With the default of 60 s, the official store would give up earlier: `azure_core` repeats a
    /// request eight times within 52 s.
    fn time_limit(&self) -> Instant {
        Instant::now() + self.config.lease_duration
    }

    /// Returns the store of a group. If several calls connect one at the same time, the first one counts.
    async fn find(&self, group: &ConsumerGroup, until: Instant) -> Result<Group> {
        if let Some(known) = self.known().get(group) {
            return Ok(known.clone());
        }
        // This store only reads. The store of the first claim verifies the storage.
        let config = self.config.clone().with_verify_storage(false);
        let reader = self.describe(group, OwnerId::new("(read-only)")?, config);
        let store = connect(reader, until).await?;
        Ok(self.known().entry(group.clone()).or_insert(Group::Viewed(store)).clone())
    }

    /// Returns the partitions of this owner, the only one in the group. If several calls connect at the same time, the
    /// first one counts.
    pub(super) async fn serve(&self, group: &ConsumerGroup, owner: &str) -> Result<Arc<OwnedPartitions>> {
        if let Some(owned) = served_for(&self.known(), group, owner)? {
            return Ok(owned);
        }
        let until = self.time_limit();
        let store = connect(self.describe(group, OwnerId::new(owner)?, self.config.clone()), until).await?;
        // The processor claims by a listing of the read-only store, which does not remember versions.
        let owners = list_owners(&store, until).await?;
        let partitions = Arc::new(OwnedPartitions::new(store));
        partitions.set_listed(owners.listed);
        let mut known = self.known();
        if let Some(owned) = served_for(&known, group, owner)? {
            return Ok(owned);
        }
        known.insert(group.clone(), Group::Served(Arc::clone(&partitions)));
        Ok(partitions)
    }

    /// Returns the owned partitions of a group, if the processor has claimed any.
    pub(super) fn served(&self, group: &ConsumerGroup) -> Option<Arc<OwnedPartitions>> {
        match self.known().get(group) {
            Some(Group::Served(owned)) => Some(Arc::clone(owned)),
            Some(Group::Viewed(_)) | None => None,
        }
    }

    /// Lists the owners of a group, for as long as the time limit permits.
    pub(super) async fn owners(&self, group: &ConsumerGroup) -> Result<(Group, Owners)> {
        let until = self.time_limit();
        let known = self.find(group, until).await?;
        let owners = list_owners(known.store(), until).await?;
        Ok((known, owners))
    }

    /// Lists the checkpoints of a group in the same way.
    pub(super) async fn checkpoints(&self, group: &ConsumerGroup) -> Result<Listing<Checkpoint>> {
        let until = self.time_limit();
        let known = self.find(group, until).await?;
        let store = known.store();
        let listing = repeated(store.attempts(Some(until)), || store.list_checkpoints());
        listing.instrument(store.telemetry().span().clone()).await
    }

    /// Removes the groups without an owner, and returns the others.
    pub(super) fn forget_viewed(&self) -> Vec<(ConsumerGroup, Arc<OwnedPartitions>)> {
        let mut groups = self.known();
        groups.retain(|_, group| matches!(group, Group::Served(_)));
        let served = |(name, group): (&ConsumerGroup, &Group)| match group {
            Group::Served(owned) => Some((name.clone(), Arc::clone(owned))),
            Group::Viewed(_) => None,
        };
        groups.iter().filter_map(served).collect()
    }

    pub(super) fn forget_released(&self, group: &ConsumerGroup, owned: &Arc<OwnedPartitions>) {
        let mut groups = self.known();
        let is_there = matches!(groups.get(group), Some(Group::Served(known)) if Arc::ptr_eq(known, owned));
        if is_there && owned.is_empty() {
            groups.remove(group);
        }
    }
}

impl Group {
    pub(super) fn store(&self) -> &GroupStore {
        match self {
            Self::Viewed(store) => store,
            Self::Served(owned) => &owned.store,
        }
    }

    /// Returns the owner id to report. The processor considers every record with its own owner id its own, so records
    /// of other incarnations get a different id. Before the first claim the owner id is not known, and any record may
    /// be such a record.
    pub(super) fn name_of_owner(&self, seen: &Ownership) -> Option<String> {
        let owner = seen.record.owner.as_ref()?;
        let is_other_incarnation = match seen.record.relation_to(self.store().identity()) {
            Relation::This | Relation::Unowned => false,
            Relation::EarlierIncarnation | Relation::LaterIncarnation => true,
            Relation::Other => matches!(self, Self::Viewed(_)),
        };
        let incarnation = seen.record.incarnation.as_ref().map_or("", |incarnation| incarnation.as_str());
        Some(if is_other_incarnation { format!("{owner}~{incarnation}") } else { owner.to_string() })
    }

    /// Returns whether this store owns the partition, as far as it knows.
    pub(super) fn owns_partition(&self, partition: &PartitionId) -> bool {
        matches!(self, Self::Served(owned) if owned.contains(partition))
    }
}

async fn connect(builder: GroupStoreBuilder, until: Instant) -> Result<GroupStore> {
    let attempts = builder.attempts(Some(until))?;
    repeated(attempts, || builder.clone().connect()).await
}

/// Returns the owned partitions of a group, if the processor has claimed any. Fails if another owner has claimed them.
fn served_for(
    groups: &HashMap<ConsumerGroup, Group>,
    group: &ConsumerGroup,
    owner: &str,
) -> Result<Option<Arc<OwnedPartitions>>> {
    match groups.get(group) {
        Some(Group::Served(partitions)) if partitions.owner().as_str() == owner => Ok(Some(Arc::clone(partitions))),
        Some(Group::Served(partitions)) => Err(Error::config(format!(
            "this store already serves owner {} in {group} and cannot serve {owner:?}: give every processor its own store, \
             or call release_all after the first processor has stopped, until every partition is released",
            partitions.owner()
        ))),
        Some(Group::Viewed(_)) | None => Ok(None),
    }
}

/// Lists the owners of a group. Attempts begin until `until`.
async fn list_owners(store: &GroupStore, until: Instant) -> Result<Owners> {
    let listing = repeated(store.attempts(Some(until)), || Owners::list(store));
    listing.instrument(store.telemetry().span().clone()).await
}
