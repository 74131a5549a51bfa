//! Reads and writes the ownership and checkpoint records of one consumer group on behalf of one owner.
//!
//! # Guarantees
//!
//! - If several instances claim one partition at the same time, exactly one wins.
//! - A lost response does not cost a partition: after a conflict or a lost response the store reads the record and
//!   decides by its content.
//! - After [`adopt`](GroupStore::adopt) no checkpoint of a previous owner of this crate is accepted, and no checkpoint
//!   written here ever moves backward.
//! - A malformed blob does not hide the others: it is logged with its name.
//! - Ages come from the server's clock only. The local clock decides nothing.
//!
//! Operations on one record of one partition run one after another; operations on different partitions run
//! concurrently.

mod adopt;
pub(crate) mod beacon;
mod builder;
mod checkpoint;
mod config;
mod exclusion;
#[doc(hidden)] // shown in `protocol`
pub mod handoff;
mod lease;
mod listing;
#[doc(hidden)] // shown in `protocol`
pub mod membership;
mod outage;
mod ownership;
mod records;
mod retry_schedule;
#[allow(missing_docs, clippy::must_use_candidate, reason = "private, but for tests")]
pub(crate) mod rules;
mod settle;
mod verify;

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use time::OffsetDateTime;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tracing::Instrument;

use crate::blob::{
    Blob, BlobContainer, Condition, ETag, Metadata, ResponseInfo, WriteResult, limit_request, take_unwritable,
};
use crate::clock::LeaseClock;
pub use crate::codec::MalformedRecord;
use crate::codec::{BlobNames, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, Identity, OwnerId, PartitionId};
use crate::telemetry::Telemetry;
use crate::util::lock;

/// The single steps of the protocol, for authors of load-balancing loops of their own. The
/// [`balancer`](crate::balancer) and the [`processor`](crate::processor) take these steps for you.
///
/// A loop lists the ownerships ([`GroupStore::list_ownerships`]), claims partitions by [`Claim`]s,
/// renews its [`Lease`]s, adopts the checkpoint of each partition that it won
/// ([`Adoption`]), and releases. The example `store_only` does all of it.
pub mod protocol {
    pub use super::adopt::{AdoptOutcome, Adoption};
    pub use super::checkpoint::{CheckpointOutcome, InitOutcome};
    pub use super::lease::{Claim, Lease};
    pub use super::ownership::{ClaimOutcome, ReleaseOutcome};
    #[doc(inline)]
    pub use super::{handoff, membership};
    pub use crate::model::LeaseDurations;
}

pub(crate) use adopt::{AdoptOutcome, Adoption};
pub use builder::GroupStoreBuilder;
pub(crate) use checkpoint::no_checkpoint;
pub(crate) use checkpoint::{CheckpointOutcome, InitOutcome};
pub(crate) use config::LeaseTimes;
pub use config::StoreConfig;
pub(crate) use exclusion::LoopPermit;
use exclusion::{KnownPartition, OperationGuard};
pub(crate) use lease::{Claim, Lease};
use outage::Outages;
pub(crate) use ownership::{ClaimOutcome, ReleaseOutcome};
#[doc(hidden)] // shown in `admin`
pub use records::RecordName;
pub(crate) use records::Records;
#[cfg(feature = "testing")]
pub(crate) use records::ownership_from_blob;
pub use records::{Checkpoint, Listing};
use records::{ListingTimeouts, MalformedLogs};
#[cfg(feature = "eventhubs")]
pub(crate) use retry_schedule::RetrySchedule;
use rules::WriteCondition;
pub(crate) use rules::{CaseConflict, time_to_next_look};
pub use verify::StorageWarning;

pub(crate) use crate::model::LeaseDurations;
pub use crate::model::{BlobNameCase, CheckpointRecord, NameCase, Ownership, OwnershipRecord};
pub use crate::telemetry::{BillingType, RequestCounts, StorageOperation, StorageOutcome};

/// The records of one consumer group, on behalf of one owner.
///
/// Cheap to clone; all clones act for the same owner. At most one [`Balancer`](crate::balancer::Balancer) or
/// [`Processor`](crate::processor::Processor) may use a store and its clones at a time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
/// use eventhubs_checkpoint::store::GroupStore;
/// use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
///
/// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
/// let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::new("worker-1")?).await?;
///
/// let outcome = store.claim(&Claim::unowned(0.into())).await;
/// assert!(matches!(outcome, ClaimOutcome::Won(_)));
/// assert_eq!(store.list_ownerships().await?.records.len(), 1);
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupStore {
    container: Arc<dyn BlobContainer>,
    inner: Arc<StoreInner>,
    outages: Outages,
    /// It acts for an operator, which is not an instance of the group.
    operator: bool,
    /// When the event hub was created whose positions are written.
    hub_created_at: Option<OffsetDateTime>,
}

#[derive(Debug)]
struct StoreInner {
    name_case: NameCase,
    /// Whether the group had records in the other casing when this store connected.
    other_case_is_used: bool,
    names: BlobNames,
    /// The blob names in the other blob-name casing, unless they are the same.
    other_names: Option<BlobNames>,
    group: ConsumerGroup,
    identity: Identity,
    lease_durations: LeaseDurations,
    request_timeout: Duration,
    listing_timeouts: ListingTimeouts,
    /// The version of this owner's heartbeat, if it has one. Operations on it run one after another.
    heartbeat: AsyncMutex<Option<ETag>>,
    /// One semaphore per kind of record: operations that hang on one kind must not delay operations on the other.
    permits: [Semaphore; 2],
    malformed: MalformedLogs,
    last_response: Mutex<ResponseInfo>,
    /// The latest server time of all responses, error responses included.
    latest_server_time: Mutex<OffsetDateTime>,
    partitions: Mutex<HashMap<PartitionId, Arc<KnownPartition>>>,
    lease_clock: Arc<dyn LeaseClock>,
    rng: Arc<Mutex<StdRng>>,
    telemetry: Telemetry,
    warnings: Vec<StorageWarning>,
    /// Held while the beacon is lit for an operator.
    lighting: AsyncMutex<()>,
    /// How many such lights have begun.
    lights: AtomicU64,
    /// Whether a balancing loop uses this store.
    balanced: Arc<AtomicBool>,
}

impl GroupStore {
    /// Connects a store with the default settings for `owner`, an id that no other running instance has.
    ///
    /// # Errors
    ///
    /// The errors of [`GroupStoreBuilder::connect`].
    pub async fn connect(
        container: impl BlobContainer + 'static,
        group: ConsumerGroup,
        owner: OwnerId,
    ) -> Result<Self> {
        Self::builder(container, group, owner).connect().await
    }

    /// Returns a builder for a store with other settings, for `owner`, an id that no other running instance has.
    pub fn builder(container: impl BlobContainer + 'static, group: ConsumerGroup, owner: OwnerId) -> GroupStoreBuilder {
        GroupStoreBuilder::new(Arc::new(container), group, owner)
    }

    /// Returns a store for the same owner that uses connections of its own, so that its requests do not wait for a
    /// runtime that is busy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if the backend cannot create a second client of the container.
    pub fn with_new_connections(&self) -> Result<Self> {
        Ok(Self { container: self.container.with_new_connections()?, ..self.clone() })
    }

    /// Returns a store for the same owner that records with each position that the event hub was created at this time;
    /// see [`CheckpointRecord::hub_created_at`]. Without a time the records have none, the default.
    ///
    /// The time must have been read before the position: a position that is recorded with the time of a former event
    /// hub is read again, but one with the time of a later event hub would be valid there.
    #[must_use]
    pub fn for_hub_created_at(&self, time: Option<OffsetDateTime>) -> Self {
        Self { hub_created_at: time, ..self.clone() }
    }

    /// Returns the consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.inner.group
    }

    /// Returns the owner that this store acts for.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Returns the casing of the blob names, as the store found it when it connected.
    #[must_use]
    pub fn name_case(&self) -> NameCase {
        self.inner.name_case
    }

    /// Returns how long ownerships are valid without renewal.
    #[must_use]
    pub fn lease_durations(&self) -> LeaseDurations {
        self.inner.lease_durations
    }

    pub(crate) fn lease_times(&self) -> LeaseTimes {
        LeaseTimes { lease_duration: self.lease_durations().own, request_timeout: self.request_timeout() }
    }

    /// Returns how long one request may take. A listing that timed out has twice the time when it is repeated, up to
    /// half the lease duration.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.inner.request_timeout
    }

    /// Returns how many requests have ended, by operation and outcome, and by the type that Azure bills.
    #[must_use]
    pub fn request_counts(&self) -> RequestCounts {
        self.inner.telemetry.requests().current_counts()
    }

    /// Returns the time of the clock that measures [lease ages](Lease::valid_from). Only differences are meaningful.
    #[must_use]
    pub fn lease_clock_now(&self) -> Duration {
        self.inner.lease_clock.now()
    }

    /// Returns how long ago a lease was last renewed.
    #[must_use]
    pub fn lease_age(&self, lease: &Lease) -> Duration {
        self.lease_clock_now().saturating_sub(lease.valid_from())
    }

    /// Returns the restrictions of the storage that [`verify_storage`](StoreConfig::with_verify_storage) found when
    /// this store connected.
    #[must_use]
    pub fn storage_warnings(&self) -> &[StorageWarning] {
        &self.inner.warnings
    }

    /// Returns the current server time, estimated from the last response and the local monotonic clock.
    #[must_use]
    pub fn server_time(&self) -> OffsetDateTime {
        lock(&self.inner.last_response).server_time_now()
    }

    fn record_response(&self, response: ResponseInfo) {
        *lock(&self.inner.last_response) = response;
        self.record_server_time(response.server_time);
    }

    fn record_server_time(&self, server_time: OffsetDateTime) {
        let mut latest = lock(&self.inner.latest_server_time);
        *latest = server_time.max(*latest);
    }

    pub(crate) fn next_random(&self) -> u64 {
        lock(&self.inner.rng).next_u64()
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.inner.telemetry
    }

    /// Returns a store for the same owner that detects outages from its own requests only. Checkpoints that another
    /// clone writes then do not hide that the ownerships are unreachable.
    pub(crate) fn with_own_outages(self) -> Self {
        Self { outages: Outages::new(self.lease_durations(), self.request_timeout(), self.lease_clock_now()), ..self }
    }

    pub(crate) fn outages(&self) -> &Outages {
        &self.outages
    }

    pub(crate) fn loop_permit(&self) -> Result<LoopPermit> {
        LoopPermit::take(&self.inner.balanced).ok_or_else(|| {
            Error::config(format!(
                "another load-balancing loop or processor uses this store or a clone of it, as owner {}: the two would \
                 take partitions from each other. Connect a store for each, with its own owner ID, or stop the other \
                 one first",
                self.identity().owner
            ))
        })
    }

    async fn write_blob(
        &self,
        operation: StorageOperation,
        name: &str,
        metadata: &Metadata,
        condition: &WriteCondition<ETag>,
    ) -> Result<WriteResult> {
        let condition = Condition::from(condition);
        let request = self.container.write(name, metadata, &condition);
        let written = self.send(operation, (&condition).into(), request).await?;
        self.record_response(written.response);
        Ok(written)
    }

    /// Reads one blob; returns `None` if it is missing. Removes metadata that a write would reject and logs them,
    /// because the blob is usually written back with all its keys.
    async fn read_blob(&self, name: &str) -> Result<Option<Blob>> {
        let Some(mut blob) = self.look_at_blob(StorageOperation::Read, name).await? else { return Ok(None) };
        for rejected in take_unwritable(&mut blob.metadata) {
            self.telemetry().malformed_record(&MalformedRecord {
                blob: name.to_owned(),
                problem: format!("has a value that cannot be written back and is dropped: {rejected}"),
            });
        }
        Ok(Some(blob))
    }

    /// Reads one blob that is not written back; returns `None` if it is missing.
    async fn look_at_blob(&self, operation: StorageOperation, name: &str) -> Result<Option<Blob>> {
        match self.send(operation, BillingType::Other, self.container.get(name)).await {
            Ok(blob) => {
                self.record_response(blob.response);
                Ok(Some(blob))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a record under its version. A record that does not exist anymore counts as deleted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the record has changed, or may have been deleted by this call before a lost response:
    /// list it again. Otherwise the error of the storage.
    pub(crate) async fn delete_record(&self, record: &RecordName, version: &ETag) -> Result<()> {
        let names = &self.inner.names;
        let name = match record {
            RecordName::Checkpoint(partition) => names.record_name(RecordKind::Checkpoint, partition),
            RecordName::Ownership(partition) => names.record_name(RecordKind::Ownership, partition),
            RecordName::Heartbeat(owner) => names.heartbeat_name(owner),
        };
        match self.send(StorageOperation::Delete, BillingType::Free, self.container.delete(&name, version)).await {
            Ok(response) => self.record_response(response),
            // Azurite reports a conflict if the blob is missing.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
                if self.read_blob(&name).await?.is_some() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn send<T>(
        &self,
        operation: StorageOperation,
        billing: BillingType,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.send_within(self.inner.request_timeout, operation, billing, request).await
    }

    async fn send_within<T>(
        &self,
        limit: Duration,
        operation: StorageOperation,
        billing: BillingType,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let observed = self.outages.start(operation, &*self.inner.lease_clock);
        let counted = self.inner.telemetry.requests().start(operation, billing);
        // The backend may log, and the caller may be outside of the span.
        let request = request.instrument(self.telemetry().span().clone());
        let response = limit_request(limit, operation.as_str(), request).await;
        observed.record_outcome(counted.finish(&response));
        if let Some(time) = response.as_ref().err().and_then(Error::server_time) {
            self.record_server_time(time);
        }
        response
    }

    fn known_partition(&self, partition: &PartitionId) -> Arc<KnownPartition> {
        Arc::clone(lock(&self.inner.partitions).entry(partition.clone()).or_default())
    }

    /// Waits until an operation on one record may start: first for other operations on the same record, then for a
    /// permit. The operation's time limit begins when this returns, because with many partitions and a slow storage a
    /// renewal would otherwise time out before it is sent.
    async fn acquire_record(&self, kind: RecordKind, partition: &PartitionId) -> OperationGuard<'_> {
        let state = self.known_partition(partition);
        let alone = Arc::clone(&state.alone[kind as usize]).lock_owned().await;
        // The semaphore is never closed.
        let permit = self.inner.permits[kind as usize].acquire().await.ok();
        OperationGuard { state, _alone: alone, _permit: permit }
    }
}
