//! The checkpoint store of the official `EventProcessor`, on the store of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::error::{Error as AzureError, ErrorKind as AzureErrorKind};
use azure_core::http::Etag;
use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint as ClientCheckpoint, Ownership as ClientOwnership};
use futures::stream::{FuturesUnordered, StreamExt};

use super::group_memory::WantedPartition;
use super::groups::{Groups, KnownGroup, Owners};
use crate::blob::{BlobContainer, ETag};
use crate::clock::{SystemWallClock, WallClock};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, PartitionId, Position};
use crate::store::membership::Heartbeat;
use crate::store::{GroupStore, Lease, Ownership, ReleaseOutcome, StoreConfig};

type AzureResult<T> = std::result::Result<T, AzureError>;

/// Lets the official [`EventProcessor`](azure_messaging_eventhubs::EventProcessor) keep its records through this crate,
/// in the format that all SDKs share.
///
/// In contrast to a plain store, and without a change to the processor:
///
/// - *Fenced checkpoints*: every claimed partition is [adopted](GroupStore::adopt) before it is reported to the
///   processor as owned, so that checkpoints of the previous owner are rejected. A checkpoint of a partition that is
///   not owned is rejected, too.
/// - *No clock skew*: the processor compares ages with its local clock. The store reports times of that clock,
///   calculated from ages that the server reported, so that a wrong local clock has no effect.
/// - *Lost responses* cost no partition: after a conflict or a lost response the store reads the record. If the outcome
///   of a renewal is unknown, the partition stays where it is.
/// - *Released* partitions can be claimed at once; the processor would take `ownerid=""` for a live owner.
/// - *Leftover records* of partitions that the event hub does not have are never claimed. The processor assumes that
///   every partition in a listing exists in the event hub, so the store lists only its own partitions and records with
///   a live owner. The processor itself adds the other partitions of the event hub, and a claim of such a partition
///   replaces its record.
/// - *Replicas with the same application id*, which the processor uses as its owner ID, are distinguished.
/// - *Outages of the storage*: the processor's `run` returns when a listing fails, so the store repeats a listing that
///   a retry can cure for one lease duration: after a lost request, while the storage is unreachable, or as long as it
///   asks to wait; one more attempt follows at the end of that time. A listing that is rejected, for instance for a
///   missing permission, fails at once.
/// - A malformed blob is logged, and does not hide the others.
/// - Claims and renewals run concurrently.
/// - *One blob-name casing per group*: the store looks for live owners in the other [blob-name
///   casing](crate::store::BlobNameCase) when it connects, after its first claim, once more soon after that, and then
///   every ten lease durations. It claims nothing more until the look after its first claim has ended. If there is a
///   live owner, the store releases everything, and the claim fails with [`ErrorKind::Config`], which ends the
///   processor's `run`. A store that uses lower case first waits up to a lease duration for the other owner to end.
///
/// A store serves one owner per consumer group, until [`release_all`](Self::release_all): create one store for every
/// processor.
///
/// # Non-guarantees
///
/// The processor decides how partitions are shared, and how to handle errors: its `run` returns if a listing still
/// fails after one lease duration. It never releases a partition: call [`release_all`](Self::release_all) after it has
/// ended. The store does not know where a partition without a checkpoint starts, so it does not record the start. Until
/// the first checkpoint of a partition, the first checkpoint of a previous owner may still be accepted.
///
/// The processor lists, claims and renews in one sequence. While a listing is repeated, it renews nothing and does not
/// notice [`shutdown`](azure_messaging_eventhubs::EventProcessor::shutdown): its clients continue to read and to write
/// checkpoints, but its leases may expire. If another instance takes a partition then, checkpoints of this one are
/// rejected as [`ErrorKind::Fenced`], and the next listing ends its client.
///
/// The store cannot distinguish several clients of one partition. If a client continues after its checkpoint was
/// rejected, its checkpoints are accepted again as soon as the processor has provided the next client of that
/// partition. Nor can the store distinguish two processors with one application id that share it.
///
/// The store cannot replace the client of the processor. Open it with a
/// [`RenewableCredential`](crate::eventhubs::RenewableCredential) if it has a credential, and with
/// `RetryOptions { max_retries: 0, .. }`: after one detached link the client otherwise sets up all links of its
/// connection again, and may not recover.
///
/// The official client keeps one link per partition. Close a `PartitionClient` when its stream has ended or its
/// checkpoint was rejected, unless the processor has already provided another one for the same partition: the close
/// would close the link of the new one. Do not drop a `PartitionClient` that is waiting for events: its partition may
/// become unreadable for this client.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use azure_messaging_eventhubs::CheckpointStore;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
///
/// let store = BlobCheckpointStore::new(MemoryContainer::new());
/// // EventProcessor::builder().build(consumer, store).await?
/// assert!(store.list_checkpoints("example.servicebus.windows.net", "orders", "$Default").await?.is_empty());
/// # Ok::<(), azure_core::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlobCheckpointStore {
    groups: Groups,
    wall_clock: Arc<dyn WallClock>,
}

/// Configures a [`BlobCheckpointStore`].
#[must_use = "nothing happens until `build` is called"]
pub struct BlobCheckpointStoreBuilder {
    container: Arc<dyn BlobContainer>,
    config: StoreConfig,
    wall_clock: Arc<dyn WallClock>,
}

impl BlobCheckpointStoreBuilder {
    /// Sets how the store works. Default: [`StoreConfig::default`]. A second call replaces the settings of the first
    /// one.
    ///
    /// [`lease_duration`](StoreConfig::with_lease_duration) must be equal to the processor's
    /// `partition_expiration_duration`; the default of both is 60 s. An ownership that was not renewed within the lease
    /// duration counts as expired, even if the processor has a longer duration.
    pub fn with_config(mut self, config: StoreConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the local clock, for tests. Default: the clock of the operating system.
    #[cfg(feature = "testing")]
    pub fn with_wall_clock(mut self, clock: Arc<dyn WallClock>) -> Self {
        self.wall_clock = clock;
        self
    }

    /// Checks the settings and creates the store. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if a setting is invalid: the message names the setter and the rule.
    pub fn build(self) -> Result<Arc<BlobCheckpointStore>> {
        self.config.check_settings()?;
        Ok(self.build_unchecked())
    }

    fn build_unchecked(self) -> Arc<BlobCheckpointStore> {
        let Self { container, config, wall_clock } = self;
        Arc::new(BlobCheckpointStore { groups: Groups::new(container, config, Arc::clone(&wall_clock)), wall_clock })
    }
}

impl BlobCheckpointStore {
    /// Creates a store with the default settings in this container, which must exist.
    pub fn new(container: impl BlobContainer + 'static) -> Arc<Self> {
        Self::builder(container).build_unchecked()
    }

    /// Returns a builder for a store in this container with other settings.
    pub fn builder(container: impl BlobContainer + 'static) -> BlobCheckpointStoreBuilder {
        BlobCheckpointStoreBuilder {
            container: Arc::new(container),
            config: StoreConfig::default(),
            wall_clock: Arc::new(SystemWallClock),
        }
    }

    /// Releases all owned partitions, so that other instances can claim them at once. Call it after the processor has
    /// ended, because a running processor claims them again. Afterwards the store may serve another processor. The
    /// store retries failed releases for four request timeouts, 20 s by default. An attempt that begins by then may
    /// take longer if the storage is slow.
    ///
    /// The call may be dropped, for instance by a timeout, and repeated: a partition stays owned until the outcome of
    /// its release is known. The same applies after [`ReleaseOutcome::Indeterminate`]. As long as the store owns a
    /// partition of a consumer group, it serves the same owner there.
    pub async fn release_all(&self) -> Vec<(PartitionId, ReleaseOutcome)> {
        self.groups
            .retain_served_groups()
            .into_iter()
            .map(|(group, owned)| async move {
                let outcomes = owned.release_all().await;
                self.groups.forget_released(&group, &owned);
                outcomes
            })
            .collect::<FuturesUnordered<_>>()
            .concat()
            .await
    }

    /// Returns the error of this crate inside an error that the processor or its clients return. Its kind says what to
    /// do: after [`ErrorKind::Fenced`], close the partition's client.
    #[must_use]
    pub fn error_of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
        std::iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
    }

    async fn list_client_ownerships(&self, group: &ConsumerGroup) -> Result<Vec<ClientOwnership>> {
        let (known, owners) = self.groups.list_owners(group).await?;
        let Owners { requested_at, ownerships, heartbeats, listed } = owners;
        if let KnownGroup::Served(owned) = &known {
            owned.apply_listing(&ownerships, requested_at);
            owned.set_listed(listed.clone());
        }
        let mut shown = Vec::with_capacity(ownerships.len());
        for seen in &ownerships {
            let is_owned_here = matches!(&known, KnownGroup::Served(owned) if owned.contains(&seen.partition));
            if is_owned_here || !listed.is_unowned(&seen.partition) {
                shown.push(self.record_to_client(group, &known, seen, &heartbeats));
            }
        }
        Ok(shown)
    }

    /// Converts a record for the processor. The processor has one lease duration and no grace, so the age of a record
    /// with a longer lease is shown scaled down.
    fn record_to_client(
        &self,
        group: &ConsumerGroup,
        known: &KnownGroup,
        seen: &Ownership,
        heartbeats: &[Heartbeat],
    ) -> ClientOwnership {
        let durations = known.store().lease_durations();
        let scale = durations.own.div_duration_f64(durations.lifetime(&seen.record));
        ClientOwnership {
            owner_id: known.name_of_owner(seen),
            etag: Some(etag_to_client(&seen.etag)),
            last_modified_time: Some(
                self.wall_clock.now()
                    - seen.time_since_renewal(heartbeats, known.store().lease_clock_now()).mul_f64(scale),
            ),
            ..ownership_without_owner(group, &seen.partition)
        }
    }

    /// Converts a lease for the processor.
    fn lease_to_client(&self, group: &ConsumerGroup, store: &GroupStore, lease: &Lease) -> ClientOwnership {
        ClientOwnership {
            owner_id: lease.record().owner.as_ref().map(ToString::to_string),
            etag: Some(etag_to_client(lease.etag())),
            last_modified_time: Some(self.wall_clock.now() - store.lease_age(lease)),
            ..ownership_without_owner(group, lease.partition())
        }
    }

    async fn claim_for_client(&self, ownerships: &[ClientOwnership]) -> Result<Vec<ClientOwnership>> {
        let Some(first) = ownerships.first() else { return Ok(Vec::new()) };
        let group = group_of(first)?;
        let mut wanted = Vec::with_capacity(ownerships.len());
        for ownership in ownerships {
            if group_of(ownership)? != group || ownership.owner_id != first.owner_id {
                return Err(Error::config(
                    "a call claims partitions for several owners or consumer groups: make one call for each",
                ));
            }
            wanted.push(WantedPartition {
                partition: PartitionId::new(&ownership.partition_id)?,
                version: ownership.etag.as_ref().map(|etag| ETag::new(etag.as_ref())),
            });
        }
        let partitions = self.groups.serve_owner(&group, first.owner_id.as_deref().unwrap_or_default()).await?;
        let leases = partitions.claim_partitions(wanted).await?;
        Ok(leases.iter().map(|lease| self.lease_to_client(&group, &partitions.store, lease)).collect())
    }

    async fn list_client_checkpoints(&self, group: &ConsumerGroup) -> Result<Vec<ClientCheckpoint>> {
        let records = self.groups.list_checkpoints(group).await?.records;
        Ok(records
            .into_iter()
            .filter(|seen| seen.record.has_position())
            .map(|seen| ClientCheckpoint {
                fully_qualified_namespace: group.namespace().to_owned(),
                event_hub_name: group.event_hub().to_owned(),
                consumer_group: group.name().to_owned(),
                partition_id: seen.partition.to_string(),
                offset: seen.record.offset,
                sequence_number: seen.record.sequence_number,
            })
            .collect())
    }

    async fn write_client_checkpoint(&self, checkpoint: ClientCheckpoint) -> Result<()> {
        let ClientCheckpoint { fully_qualified_namespace: namespace, event_hub_name, consumer_group, .. } = &checkpoint;
        let group = ConsumerGroup::new(namespace, event_hub_name, consumer_group)?;
        let partition = PartitionId::new(&checkpoint.partition_id)?;
        let (Some(sequence_number), Some(offset)) = (checkpoint.sequence_number, checkpoint.offset) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the checkpoint of partition {partition} has no sequence number or no offset"),
            ));
        };
        let Some(owned) = self.groups.partitions_of_group(&group) else {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("no partition of {group} was claimed through this store; nothing was written"),
            ));
        };
        owned.write_checkpoint(&partition, &Position { sequence_number, offset }).await
    }
}

fn group_of(ownership: &ClientOwnership) -> Result<ConsumerGroup> {
    let ClientOwnership { fully_qualified_namespace: namespace, event_hub_name, consumer_group, .. } = ownership;
    Ok(ConsumerGroup::new(namespace, event_hub_name, consumer_group)?)
}

fn ownership_without_owner(group: &ConsumerGroup, partition: &PartitionId) -> ClientOwnership {
    ClientOwnership {
        fully_qualified_namespace: group.namespace().to_owned(),
        event_hub_name: group.event_hub().to_owned(),
        consumer_group: group.name().to_owned(),
        partition_id: partition.to_string(),
        ..Default::default()
    }
}

fn etag_to_client(etag: &ETag) -> Etag {
    Etag::from(etag.as_str())
}

fn error_to_azure(error: Error) -> AzureError {
    let kind = match error.kind() {
        ErrorKind::Unauthorized => AzureErrorKind::Credential,
        ErrorKind::Unavailable => AzureErrorKind::Connection,
        _ => AzureErrorKind::Other,
    };
    let message = error.to_string();
    AzureError::with_error(kind, error, message)
}

#[async_trait]
impl CheckpointStore for BlobCheckpointStore {
    async fn claim_ownership(&self, ownerships: &[ClientOwnership]) -> AzureResult<Vec<ClientOwnership>> {
        self.claim_for_client(ownerships).await.map_err(error_to_azure)
    }

    async fn list_checkpoints(&self, namespace: &str, hub: &str, group: &str) -> AzureResult<Vec<ClientCheckpoint>> {
        let group = ConsumerGroup::new(namespace, hub, group).map_err(|error| error_to_azure(error.into()))?;
        self.list_client_checkpoints(&group).await.map_err(error_to_azure)
    }

    async fn list_ownerships(&self, namespace: &str, hub: &str, group: &str) -> AzureResult<Vec<ClientOwnership>> {
        let group = ConsumerGroup::new(namespace, hub, group).map_err(|error| error_to_azure(error.into()))?;
        self.list_client_ownerships(&group).await.map_err(error_to_azure)
    }

    async fn update_checkpoint(&self, checkpoint: ClientCheckpoint) -> AzureResult<()> {
        self.write_client_checkpoint(checkpoint).await.map_err(error_to_azure)
    }
}

impl fmt::Debug for BlobCheckpointStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobCheckpointStore").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl fmt::Debug for BlobCheckpointStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobCheckpointStoreBuilder").field("container", &self.container).finish_non_exhaustive()
    }
}
