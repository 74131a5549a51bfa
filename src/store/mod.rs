//! The ownership and checkpoint records of one consumer group, as one owner reads and writes them.
//!
//! # Guarantees
//!
//! - Of any number of instances that claim one partition at once, exactly one wins.
//! - An answer that got lost does not cost a partition: after a conflict or a missing answer the record is read, and
//!   what it says counts.
//! - After [`adopt`](GroupStore::adopt) no checkpoint of a previous owner of this crate is accepted, and no checkpoint
//!   written here ever moves backwards.
//! - One bad blob never hides the others: it is reported by name.
//! - Ages come from the server alone. The local clock decides nothing.
//!
//! Operations on one record of one partition come one after another, those on several run concurrently.

mod adopt;
mod attempts;
mod breaking;
mod builder;
mod checkpoint;
mod handoff;
mod lease;
mod listing;
mod only_loop;
mod outage;
mod ownership;
mod partitions;
mod pin;
mod presence;
mod probe;
mod repair;
#[allow(missing_docs, clippy::must_use_candidate, reason = "private, but for tests")]
pub(crate) mod rules;
mod settle;
mod twin;

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use time::OffsetDateTime;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use crate::blob::{Answer, Blob, BlobContainer, ETag, Metadata, Written, take_unwritable};
use crate::clock::LeaseClock;
use crate::codec::{self, BlobNames, RecordKind};
pub use crate::codec::{KeyCase, Malformed};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{CheckpointRecord, ConsumerGroup, Identity, LeaseScope, LeaseTerms, Moment, OwnerId, PartitionId};
use crate::telemetry::{Operation, RequestCounts, Telemetry};

pub use adopt::{AdoptOutcome, Adoption};
pub(crate) use attempts::BackOff;
pub use builder::GroupStoreBuilder;
pub use checkpoint::CheckpointOutcome;
pub use lease::{Claim, Lease};
use listing::ListingDeadlines;
pub(crate) use only_loop::LoopPermit;
use outage::Outages;
pub use ownership::{ClaimOutcome, ReleaseOutcome};
use partitions::{Partitions, Turn};
pub use presence::Announced;
pub use probe::Finding;
use rules::Under;
pub use rules::{Handoff, MarkOutcome, Patience, Pursuit, Verdict};
pub use twin::Split;

pub use crate::model::{Ownership, Presence};

/// The records of one kind, and the blobs among them that could not be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listing<T> {
    /// What could be read, ordered by blob name.
    pub records: Vec<T>,
    /// What could not, or only in part.
    pub malformed: Vec<Malformed>,
}

/// One partition's checkpoint, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The partition.
    pub partition: PartitionId,
    /// What the blob says.
    pub record: CheckpointRecord,
    /// Its version.
    pub etag: ETag,
    /// When it was last written, by the server's clock.
    pub last_modified: OffsetDateTime,
}

/// The records of one consumer group, on behalf of one owner. Cheap to clone; all clones are one owner. At most one
/// [`Balancer`](crate::balancer::Balancer) or [`Processor`](crate::processor::Processor) works with it and its clones
/// at a time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use std::sync::Arc;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::store::{Claim, ClaimOutcome, GroupStore};
/// use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
///
/// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
/// let container = Arc::new(MemoryContainer::new());
/// let store = GroupStore::builder(container, group, OwnerId::new("worker-1")?).connect().await?;
///
/// let won = store.claim(vec![Claim::unowned(0.into())]).await;
/// assert!(matches!(won[0].1, ClaimOutcome::Won(_)));
/// assert_eq!(store.list_ownerships().await?.records.len(), 1);
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupStore {
    container: Arc<dyn BlobContainer>,
    inner: Arc<Inner>,
    outages: Outages,
    /// What it claims, it hands over when asked.
    cooperative: bool,
    /// What keeps alive what it claims.
    scope: LeaseScope,
    /// It acts for an operator, which is no member of the group.
    operator: bool,
}

#[derive(Debug)]
struct Inner {
    names: BlobNames,
    /// The other tree of names, where it differs and counts.
    twin: Option<BlobNames>,
    group: ConsumerGroup,
    me: Identity,
    terms: LeaseTerms,
    request_deadline: Duration,
    listing_deadlines: ListingDeadlines,
    /// The version of this owner's presence, if it has one. Operations on it come one after another.
    presence: AsyncMutex<Option<ETag>>,
    /// Operations on one kind of record that hang must not hold up those on the other.
    permits: [Semaphore; 2],
    /// Per kind of listing, the malformed blobs already told, by name and version.
    told: [Mutex<HashSet<(String, ETag)>>; 3],
    last_answer: Mutex<Answer>,
    /// The latest server time of all answers, refusals included.
    latest_server_time: Mutex<OffsetDateTime>,
    partitions: Partitions,
    lease_clock: Arc<dyn LeaseClock>,
    rng: Mutex<StdRng>,
    telemetry: Telemetry,
    findings: Vec<Finding>,
    /// A balancing loop works with it.
    balanced: AtomicBool,
}

impl GroupStore {
    /// Starts to describe a store for `owner`, an id that no other running instance has.
    pub fn builder(container: Arc<dyn BlobContainer>, group: ConsumerGroup, owner: OwnerId) -> GroupStoreBuilder {
        GroupStoreBuilder::new(container, group, owner)
    }

    /// The same store, and the same owner, through connections of its own: for requests that must not wait for a
    /// runtime that is busy with other things.
    ///
    /// # Errors
    ///
    /// If the backend cannot make another client of the same container.
    pub fn isolated(&self) -> Result<Self> {
        Ok(Self { container: self.container.isolated()?, ..self.clone() })
    }

    /// The same store, and the same owner, which says in every record that it claims that it hands the partition over
    /// when it is [asked for](Self::mark). Whoever says so must look at [`Lease::asked_for_by`] and answer: it is asked
    /// before it is stolen from, and every request that it ignores costs its peers the time to [wait for it](Patience).
    /// A store says nothing of the kind by itself.
    #[must_use]
    pub fn cooperative(self, cooperative: bool) -> Self {
        Self { cooperative, ..self }
    }

    /// The same store, and the same owner, which says in every record that it claims what keeps it alive. Under
    /// [`LeaseScope::Instance`] whoever says so must [announce](Self::announce) itself before its first claim and every
    /// half expiry, and [rewrite](Lease::rewritten) all its leases when it was [declared
    /// dead](Announced::DeclaredDead). A store says [`LeaseScope::Partition`] by itself.
    #[must_use]
    pub fn lease_scope(self, scope: LeaseScope) -> Self {
        Self { scope, ..self }
    }

    /// The consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.inner.group
    }

    /// Who this store acts for.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.me
    }

    /// How long ownerships live without renewal.
    #[must_use]
    pub fn terms(&self) -> LeaseTerms {
        self.inner.terms
    }

    /// How long one request may take. A listing that takes longer has twice the time when it is repeated, up to half
    /// the expiry.
    #[must_use]
    pub fn request_deadline(&self) -> Duration {
        self.inner.request_deadline
    }

    /// How many requests were answered so far, or given up.
    #[must_use]
    pub fn requests(&self) -> RequestCounts {
        self.inner.telemetry.requests().read()
    }

    /// Now, on the clock by which [leases](Lease::valid_from) count. Only differences mean anything.
    #[must_use]
    pub fn lease_time(&self) -> Duration {
        self.inner.lease_clock.now()
    }

    /// How much of a lease's time has passed.
    #[must_use]
    pub fn age_of(&self, lease: &Lease) -> Duration {
        self.lease_time().saturating_sub(lease.valid_from())
    }

    /// What the probe found at the start, if it was [asked for](GroupStoreBuilder::probe).
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.inner.findings
    }

    /// Reads the ownership of every partition that has a record.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should; see [`BlobContainer`]. A blob that cannot be read is no error.
    pub async fn list_ownerships(&self) -> Result<Listing<Ownership>> {
        self.list(&self.inner.names, RecordKind::Ownership, |partition, blob| self.ownership(partition, blob)).await
    }

    /// Reads the checkpoint of every partition that has one.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should; see [`BlobContainer`]. A blob that cannot be read is no error.
    pub async fn list_checkpoints(&self) -> Result<Listing<Checkpoint>> {
        self.list(&self.inner.names, RecordKind::Checkpoint, |partition, blob| {
            let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
            let checkpoint =
                Checkpoint { partition, record, etag: blob.etag.clone(), last_modified: blob.last_modified };
            (checkpoint, problem)
        })
        .await
    }

    async fn list<T>(
        &self,
        names: &BlobNames,
        kind: RecordKind,
        decode: impl Fn(PartitionId, &Blob) -> (T, Option<Malformed>),
    ) -> Result<Listing<T>> {
        let (listing, versions) = self
            .list_below(names.prefix(kind), |blob| {
                names.partition(kind, &blob.name).map(|partition| decode(partition, blob))
            })
            .await?;
        // What is odd in the other tree is the business of those who work there.
        if *names == self.inner.names {
            self.tell_malformed(kind as usize, &listing.malformed, versions);
        }
        Ok(listing)
    }

    /// The listing, and the versions of the malformed blobs in it.
    async fn list_below<T>(
        &self,
        prefix: &str,
        decode: impl Fn(&Blob) -> Result<(T, Option<Malformed>), Malformed>,
    ) -> Result<(Listing<T>, HashSet<(String, ETag)>)> {
        let (deadline, began) = (self.inner.listing_deadlines.of(prefix), Instant::now());
        let list = self.send_within(deadline, Operation::List, self.container.list(prefix)).await;
        self.inner.listing_deadlines.ended(prefix, began.elapsed(), list.is_ok());
        let list = list?;
        self.note(list.answer);
        let mut listing = Listing { records: Vec::with_capacity(list.blobs.len()), malformed: Vec::new() };
        let mut versions = HashSet::new();
        for blob in &list.blobs {
            let problem = match decode(blob) {
                Ok((record, problem)) => {
                    listing.records.push(record);
                    problem
                }
                Err(foreign) => Some(foreign),
            };
            if problem.is_some() {
                versions.insert((blob.name.clone(), blob.etag.clone()));
            }
            listing.malformed.extend(problem);
        }
        Ok((listing, versions))
    }

    fn ownership(&self, partition: PartitionId, blob: &Blob) -> (Ownership, Option<Malformed>) {
        ownership_listed(partition, blob, self.moment_of(blob))
    }

    /// When the answer that showed a blob arrived, on the lease clock.
    fn moment_of(&self, blob: &Blob) -> Moment {
        self.lease_time().saturating_sub(blob.answer.received.elapsed())
    }

    /// Each version of a blob once, not with every listing.
    fn tell_malformed(&self, listing: usize, malformed: &[Malformed], versions: HashSet<(String, ETag)>) {
        let mut told = lock(&self.inner.told[listing]);
        let new: HashSet<_> = versions.difference(&told).map(|(blob, _)| blob).collect();
        let unreported = malformed.iter().filter(|problem| new.contains(&problem.blob));
        unreported.for_each(|problem| self.telemetry().malformed_record(problem));
        *told = versions;
    }

    /// The server's time now, as far as its last answer and our own monotonic clock tell.
    #[must_use]
    pub fn server_time(&self) -> OffsetDateTime {
        let last = *lock(&self.inner.last_answer);
        last.server_time_now()
    }

    fn note(&self, answer: Answer) {
        *lock(&self.inner.last_answer) = answer;
        self.note_time(answer.server_time);
    }

    fn note_time(&self, server_time: OffsetDateTime) {
        let mut latest = lock(&self.inner.latest_server_time);
        *latest = server_time.max(*latest);
    }

    pub(crate) fn random(&self) -> u64 {
        lock(&self.inner.rng).next_u64()
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.inner.telemetry
    }

    /// The same store, and the same owner, with a record of outages that begins now and counts only the requests of
    /// this store and its clones. So checkpoints that are written through another store do not hide that the ownerships
    /// cannot be reached.
    pub(crate) fn with_own_outages(self) -> Self {
        let outages = Outages::new(self.terms(), self.request_deadline(), self.lease_time());
        Self { outages, ..self }
    }

    pub(crate) fn outages(&self) -> &Outages {
        &self.outages
    }

    async fn write(
        &self,
        operation: Operation,
        name: &str,
        metadata: &Metadata,
        under: &Under<ETag>,
    ) -> Result<Written> {
        let condition = under.into();
        let written = self.send(operation, self.container.write(name, metadata, &condition)).await?;
        self.note(written.answer);
        Ok(written)
    }

    /// Reads one blob; a missing one is no error here. What a write would refuse is left out of its metadata and
    /// reported, for a blob is mostly read in order to be written back with all its keys.
    async fn read(&self, name: &str) -> Result<Option<Blob>> {
        match self.send(Operation::Read, self.container.get(name)).await {
            Ok(mut blob) => {
                self.note(blob.answer);
                for refused in take_unwritable(&mut blob.metadata) {
                    let problem = format!("has a value that cannot be written back and is dropped: {refused}");
                    self.telemetry().malformed_record(&Malformed { blob: name.to_owned(), problem });
                }
                Ok(Some(blob))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same for an ownership. An HTTP client may leave out of a read what it cannot take for text, as an owner id
    /// of another SDK that is not ASCII: a record without an owner id is looked up in a listing, which shows all.
    async fn read_owned(&self, name: &str) -> Result<Option<Blob>> {
        let read = self.read(name).await?;
        if read.as_ref().is_none_or(|blob| codec::names_owner(&blob.metadata)) {
            return Ok(read);
        }
        let list = self.send(Operation::List, self.container.list(name)).await?;
        self.note(list.answer);
        Ok(list.blobs.into_iter().find(|blob| blob.name == name))
    }

    async fn send<T>(&self, operation: Operation, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.send_within(self.inner.request_deadline, operation, request).await
    }

    async fn send_within<T>(
        &self,
        deadline: Duration,
        operation: Operation,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let observed = self.outages.start(operation, || self.lease_time());
        let counted = self.inner.telemetry.requests().start(operation);
        // The backend may log, and the caller may be outside of the span.
        let request = request.instrument(self.telemetry().span().clone());
        let answer = within(deadline, operation.name(), request).await;
        observed.answered(counted.answered(&answer));
        answer.as_ref().err().and_then(Error::server_time).into_iter().for_each(|time| self.note_time(time));
        answer
    }

    /// Waits for its turn before an operation on one record: for others on the same one, then for one of the places.
    /// The time of the operation counts from here: with many partitions and slow answers, a renewal that gave up in the
    /// queue would never come to be sent.
    async fn turn(&self, kind: RecordKind, partition: &PartitionId) -> Turn<'_> {
        let state = self.inner.partitions.state(partition);
        let alone = state.alone(kind).await;
        // It fails when the semaphore is closed, which nobody does.
        let permit = self.inner.permits[kind as usize].acquire().await.ok();
        Turn { state, _alone: alone, _permit: permit }
    }
}

/// The ownership in a blob that an answer showed at this moment.
pub(crate) fn ownership_listed(
    partition: PartitionId,
    blob: &Blob,
    received: Moment,
) -> (Ownership, Option<Malformed>) {
    let (record, problem) = codec::decode_ownership(&blob.name, &blob.metadata);
    let answered = (blob.answer.server_time, received);
    (Ownership::new(partition, record, blob.etag.clone(), blob.age(), answered), problem)
}

async fn within<T>(deadline: Duration, what: &str, request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(deadline, request).await.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Unknown,
            format!("no response to the {what} request within the request timeout of {deadline:?}"),
        ))
    })
}
