//! The consumer groups of one store for the official processor, their connections to the storage, and their owners. The
//! `run` of the processor ends if a call fails, so the requests of a call are repeated.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument;

use super::group_memory::Listed;
use super::owned_partitions::OwnedPartitions;
use crate::blob::BlobContainer;
use crate::clock::WallClock;
use crate::error::{Error, Result};
use crate::model::{ConsumerGroup, OwnerId, Relation};
use crate::store::membership::Heartbeat;
use crate::store::{Checkpoint, GroupStore, GroupStoreBuilder, Listing, Ownership, RetrySchedule, StoreConfig};
use crate::telemetry;
use crate::util::lock;

/// The groups that the processor has asked for.
#[derive(Debug)]
pub(super) struct Groups {
    container: Arc<dyn BlobContainer>,
    config: StoreConfig,
    wall_clock: Arc<dyn WallClock>,
    /// Never locked while a request is made: an outage must not delay calls that need no request, or calls for another
    /// group.
    known: Mutex<HashMap<ConsumerGroup, KnownGroup>>,
}

/// The store of one consumer group. The owner is not known before the first claim.
#[derive(Clone, Debug)]
pub(super) enum KnownGroup {
    Viewed(GroupStore),
    Served(Arc<OwnedPartitions>),
}

impl Groups {
    pub(super) fn new(container: Arc<dyn BlobContainer>, config: StoreConfig, wall_clock: Arc<dyn WallClock>) -> Self {
        Self { container, config, wall_clock, known: Mutex::default() }
    }

    fn lock_groups(&self) -> MutexGuard<'_, HashMap<ConsumerGroup, KnownGroup>> {
        lock(&self.known)
    }

    fn store_builder(&self, group: &ConsumerGroup, owner: OwnerId, config: StoreConfig) -> GroupStoreBuilder {
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
    async fn find_or_connect(&self, group: &ConsumerGroup, until: Instant) -> Result<KnownGroup> {
        if let Some(known) = self.lock_groups().get(group) {
            return Ok(known.clone());
        }
        // This store only reads. The store of the first claim verifies the storage.
        let config = self.config.clone().with_verify_storage(false);
        let store = connect_store(self.store_builder(group, OwnerId::new("(read-only)")?, config), until).await?;
        Ok(self.lock_groups().entry(group.clone()).or_insert(KnownGroup::Viewed(store)).clone())
    }

    /// Returns the partitions of this owner, the only one in the group. If several calls connect at the same time, the
    /// first one counts.
    pub(super) async fn serve_owner(&self, group: &ConsumerGroup, owner: &str) -> Result<Arc<OwnedPartitions>> {
        if let Some(owned) = partitions_of_owner(&self.lock_groups(), group, owner)? {
            return Ok(owned);
        }
        let until = self.time_limit();
        let store = connect_store(self.store_builder(group, OwnerId::new(owner)?, self.config.clone()), until).await?;
        // The processor claims by a listing of the read-only store, which does not remember versions.
        let partitions = Arc::new(OwnedPartitions::new(store));
        partitions.set_listed(repeat_listing(&partitions.store, until).await?.listed);
        let mut known = self.lock_groups();
        if let Some(owned) = partitions_of_owner(&known, group, owner)? {
            return Ok(owned);
        }
        known.insert(group.clone(), KnownGroup::Served(Arc::clone(&partitions)));
        Ok(partitions)
    }

    /// Returns the owned partitions of a group, if the processor has claimed any.
    pub(super) fn partitions_of_group(&self, group: &ConsumerGroup) -> Option<Arc<OwnedPartitions>> {
        match self.lock_groups().get(group) {
            Some(KnownGroup::Served(owned)) => Some(Arc::clone(owned)),
            Some(KnownGroup::Viewed(_)) | None => None,
        }
    }

    /// Lists the owners of a group, for as long as the time limit permits.
    pub(super) async fn list_owners(&self, group: &ConsumerGroup) -> Result<(KnownGroup, Owners)> {
        let until = self.time_limit();
        let known = self.find_or_connect(group, until).await?;
        let owners = repeat_listing(known.store(), until).await?;
        Ok((known, owners))
    }

    /// Lists the checkpoints of a group in the same way.
    pub(super) async fn list_checkpoints(&self, group: &ConsumerGroup) -> Result<Listing<Checkpoint>> {
        let until = self.time_limit();
        let known = self.find_or_connect(group, until).await?;
        let store = known.store();
        repeat_request(store.retry_schedule(Some(until)), || store.list_checkpoints())
            .instrument(store.telemetry().span().clone())
            .await
    }

    /// Removes the groups without an owner, and returns the others.
    pub(super) fn retain_served_groups(&self) -> Vec<(ConsumerGroup, Arc<OwnedPartitions>)> {
        let mut groups = self.lock_groups();
        groups.retain(|_, group| matches!(group, KnownGroup::Served(_)));
        groups
            .iter()
            .filter_map(|(name, group)| match group {
                KnownGroup::Served(owned) => Some((name.clone(), Arc::clone(owned))),
                KnownGroup::Viewed(_) => None,
            })
            .collect()
    }

    pub(super) fn forget_released(&self, group: &ConsumerGroup, owned: &Arc<OwnedPartitions>) {
        let mut groups = self.lock_groups();
        let is_there = matches!(groups.get(group), Some(KnownGroup::Served(known)) if Arc::ptr_eq(known, owned));
        if is_there && owned.is_empty() {
            groups.remove(group);
        }
    }
}

impl KnownGroup {
    pub(super) fn store(&self) -> &GroupStore {
        match self {
            Self::Viewed(store) => store,
            Self::Served(owned) => &owned.store,
        }
    }

    /// Returns the owner ID to report. The processor considers every record with its own owner ID its own, so records
    /// of other incarnations get a different id. Before the first claim the owner ID is not known, and any record may
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
}

async fn connect_store(builder: GroupStoreBuilder, until: Instant) -> Result<GroupStore> {
    repeat_request(builder.retry_schedule(Some(until))?, || builder.clone().connect()).await
}

/// Returns the owned partitions of a group, if the processor has claimed any. Fails if another owner has claimed them.
fn partitions_of_owner(
    groups: &HashMap<ConsumerGroup, KnownGroup>,
    group: &ConsumerGroup,
    owner: &str,
) -> Result<Option<Arc<OwnedPartitions>>> {
    match groups.get(group) {
        Some(KnownGroup::Served(partitions)) if partitions.owner().as_str() == owner => {
            Ok(Some(Arc::clone(partitions)))
        }
        Some(KnownGroup::Served(partitions)) => Err(Error::config(format!(
            "this store already serves owner {} in {group} and cannot serve {owner:?}: give every processor its own \
             store, or call release_all after the first processor has stopped, until every partition is released",
            partitions.owner()
        ))),
        Some(KnownGroup::Viewed(_)) | None => Ok(None),
    }
}

/// Lists the owners of a group. Attempts begin until `until`.
async fn repeat_listing(store: &GroupStore, until: Instant) -> Result<Owners> {
    repeat_request(store.retry_schedule(Some(until)), || Owners::list_once(store))
        .instrument(store.telemetry().span().clone())
        .await
}

/// The owners of a group, all listed in one attempt: if one part were older than the others, live owners would look
/// expired.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) requested_at: Instant,
    pub(super) ownerships: Vec<Ownership>,
    pub(super) heartbeats: Vec<Heartbeat>,
    /// The ownerships as a claim needs them.
    pub(super) listed: Listed,
}

impl Owners {
    async fn list_once(store: &GroupStore) -> Result<Self> {
        let requested_at = Instant::now();
        let ownerships = store.list_ownerships().await?.records;
        // The leases of other owners may depend on their heartbeats.
        let mut heartbeats = Vec::new();
        if ownerships.iter().any(|seen| seen.is_kept_alive_by_heartbeat(store.identity())) {
            heartbeats = store.list_heartbeats().await?.records;
        }
        Ok(Self { listed: Listed::from_records(store, &ownerships, &heartbeats), requested_at, ownerships, heartbeats })
    }
}

/// Repeats a request until it succeeds, fails for good, or the time for attempts is over. At that time it abandons a
/// running attempt, which may wait for a response that never comes, and makes a last one.
async fn repeat_request<T, F>(mut attempts: RetrySchedule, request: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    loop {
        let response = match attempts.until.filter(|until| *until > Instant::now()) {
            Some(until) => match timeout_at(until, request()).await {
                Ok(response) => response,
                Err(_) => continue,
            },
            None => request().await,
        };
        let error = match response {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let Some(next) = attempts.next_attempt_after(&error) else { return Err(error) };
        telemetry::processor_waits(&error, next - Instant::now());
        sleep_until(next).await;
    }
}
