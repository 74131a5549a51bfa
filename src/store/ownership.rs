//! Claim, renew and release: conditional writes of one ownership blob each.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

use super::exclusion::{KnownPartition, OperationGuard};
use super::lease::{Claim, Lease};
use super::records::{arrival_moment, ownership_from_blob};
use super::rules::{FoundOwnership, Goal, OwnershipOperation, OwnershipStep, Settled, WriteCondition, too_young_by};
use super::settle::ConditionalWrite;
use super::{GroupStore, Ownership};
use crate::blob::{Blob, ETag};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId, Relation};
use crate::telemetry::{BillingType, StorageOperation};
use crate::util::lock;

/// The outcome of a claim or a renewal.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the claim may be lost"]
pub enum ClaimOutcome {
    /// This instance owns the partition.
    Won(Lease),
    /// Another owner has the partition. This is an outcome, not an error: the other owner was faster, or was entitled
    /// to take it.
    Lost {
        /// The current owner; `None` if the partition was released. This owner itself if the record has another epoch
        /// than the lease.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner has the partition: two instances use the same owner ID. Shut down.
    Replaced {
        /// The later incarnation.
        by: Incarnation,
    },
    /// The outcome is unknown. The previous state still holds: try again while the lease is valid.
    Indeterminate(Error),
}

/// The outcome of a release.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the release may have failed"]
pub enum ReleaseOutcome {
    /// The release was written. This instance does not own the partition anymore.
    Released,
    /// This instance did not own the partition anymore.
    Lost {
        /// The current owner, if there is one.
        by: Option<OwnerId>,
    },
    /// The outcome is unknown. If this instance still owns the partition, the lease expires.
    Indeterminate(Error),
}

impl GroupStore {
    /// Claims partitions concurrently, and returns their outcomes in order of completion. A claim does not affect the
    /// others.
    pub async fn claim_all(&self, claims: Vec<Claim>) -> Vec<(PartitionId, ClaimOutcome)> {
        run_concurrently(claims, |claim| async move {
            let outcome = self.claim(&claim).await;
            (claim.partition, outcome)
        })
        .await
    }

    /// Renews leases concurrently, and returns their outcomes in order of completion. All keys of the records are kept,
    /// including a [handoff request](Lease::handoff_requested_by).
    pub async fn renew_all(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ClaimOutcome)> {
        run_concurrently(leases, |lease| async move {
            let outcome = self.renew(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Releases partitions concurrently, and returns their outcomes in order of completion. Other instances can claim
    /// the partitions in their next cycles. A partition that another instance requested is reserved for that instance
    /// for a while.
    pub async fn release_all(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ReleaseOutcome)> {
        run_concurrently(leases, |lease| async move {
            let outcome = self.release(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Reads the ownership of one partition, if it has a record.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer).
    pub async fn read_ownership(&self, partition: &PartitionId) -> Result<Option<Ownership>> {
        let name = self.inner.names.record_name(RecordKind::Ownership, partition);
        let mut read = self.read_blob(&name).await?;
        // An HTTP client may drop header values that are not ASCII, such as an owner ID of another SDK; a listing has
        // them. So a record without an owner ID is read again from a listing.
        if read.as_ref().is_some_and(|blob| !codec::names_owner(&blob.metadata)) {
            let list = self.send(StorageOperation::List, BillingType::List, self.container.list(&name)).await?;
            self.record_response(list.response);
            read = list.blobs.into_iter().find(|blob| blob.name == name);
        }
        Ok(read.map(|blob| self.ownership_in(partition, &blob)))
    }

    /// Decodes the ownership in a blob that was just read.
    pub(super) fn ownership_in(&self, partition: &PartitionId, blob: &Blob) -> Ownership {
        ownership_from_blob(partition.clone(), blob, arrival_moment(blob, &*self.inner.lease_clock)).0
    }

    /// Claims one partition. See [`claim_all`](Self::claim_all).
    pub async fn claim(&self, claim: &Claim) -> ClaimOutcome {
        let this = self.identity();
        let record = OwnershipRecord {
            owner: Some(this.owner.clone()),
            incarnation: Some(this.incarnation.clone()),
            claimed_at: self.server_time().replace_nanosecond(0).ok(),
            load: claim.load,
            cooperative: claim.cooperative,
            handoff_to: claim.handoff_to.clone(),
            operator: self.operator.then(|| this.owner.clone()),
            scope: claim.scope,
            lease_duration: Some(self.lease_durations().recorded()),
            ..OwnershipRecord::default()
        };
        let under = claim.over.as_ref().map(|seen| seen.etag.clone()).into();
        let mut write = OwnershipWrite {
            seen: claim.over.as_deref().cloned(),
            ..OwnershipWrite::new(self, &claim.partition, OwnershipOperation::to_write(Goal::Claim, under), record)
        };
        self.settle_write(None, &mut write).await.map_or_else(ClaimOutcome::Indeterminate, ClaimOutcome::from)
    }

    /// Renews one lease. See [`renew_all`](Self::renew_all).
    pub async fn renew(&self, lease: &Lease) -> ClaimOutcome {
        let goal = match lease {
            Lease { rewrite: true, .. } => Goal::Rewrite,
            lease if lease.record.draining => Goal::Acknowledge,
            _ => Goal::Renew,
        };
        let mut write = OwnershipWrite::for_lease(self, lease, goal, lease.record.clone());
        self.settle_write(None, &mut write).await.map_or_else(ClaimOutcome::Indeterminate, ClaimOutcome::from)
    }

    /// Releases one lease. See [`release_all`](Self::release_all).
    pub async fn release(&self, lease: &Lease) -> ReleaseOutcome {
        let mut write = OwnershipWrite::for_lease(self, lease, Goal::Release, lease.record.released());
        match self.settle_write(None, &mut write).await {
            Ok(OwnershipOutcome::Lost { by }) => ReleaseOutcome::Lost { by },
            Ok(_) => ReleaseOutcome::Released,
            Err(error) => ReleaseOutcome::Indeterminate(error),
        }
    }
}

/// The outcome of a claim, a renewal or a release.
enum OwnershipOutcome {
    Owned(Box<Lease>),
    Released,
    Lost { by: Option<OwnerId> },
    Replaced { by: Incarnation },
}

impl From<OwnershipOutcome> for ClaimOutcome {
    fn from(outcome: OwnershipOutcome) -> Self {
        match outcome {
            OwnershipOutcome::Owned(lease) => Self::Won(*lease),
            OwnershipOutcome::Released => Self::Lost { by: None },
            OwnershipOutcome::Lost { by } => Self::Lost { by },
            OwnershipOutcome::Replaced { by } => Self::Replaced { by },
        }
    }
}

/// A claim, a renewal or a release.
struct OwnershipWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    /// The goal and the next request.
    next: OwnershipOperation<ETag>,
    /// The epoch of the lease that is renewed or released.
    lease_epoch: Option<i64>,
    record: OwnershipRecord,
    /// The record over which the next write is sent, as it was last seen, unless it is the lease's own.
    seen: Option<Ownership>,
    operation: StorageOperation,
    state: Arc<KnownPartition>,
    /// `None` before the first write, and while the operation only waits.
    guard: Option<OperationGuard<'a>>,
}

impl<'a> OwnershipWrite<'a> {
    fn new(
        store: &'a GroupStore,
        partition: &'a PartitionId,
        next: OwnershipOperation<ETag>,
        record: OwnershipRecord,
    ) -> Self {
        Self {
            store,
            partition,
            operation: match next.goal {
                Goal::Claim => StorageOperation::Claim,
                Goal::Renew | Goal::Acknowledge | Goal::Rewrite => StorageOperation::Renew,
                Goal::Release => StorageOperation::Release,
            },
            next,
            lease_epoch: None,
            record,
            seen: None,
            state: store.known_partition(partition),
            guard: None,
        }
    }

    fn for_lease(store: &'a GroupStore, lease: &'a Lease, goal: Goal, record: OwnershipRecord) -> Self {
        let next = OwnershipOperation::to_write(goal, WriteCondition::IfMatch(lease.etag.clone()));
        Self { lease_epoch: Some(lease.epoch), ..Self::new(store, &lease.partition, next, record) }
    }

    /// Begins the epoch of a claim, and returns it; `None` over a record that is too young. It is greater than every
    /// epoch that this store has sent: a claim that is sent again, with the time of a server whose clock is behind,
    /// must not begin an epoch that this store takes for superseded.
    ///
    /// If there is no record, the time is the latest one in all responses of the server, which is no earlier than the
    /// time of the response that showed no record. Earlier epochs then belong to a record that was deleted, and the
    /// claim that began the last of them is at least two seconds old. (If the record was deleted within two seconds
    /// after that claim, nothing is guaranteed.)
    fn begin_claim_epoch(&self) -> Option<i64> {
        let (before, server_time) = match &self.seen {
            Some(seen) if too_young_by(seen.record.epoch, seen.age).is_some() => return None,
            Some(seen) => (seen.record.epoch, seen.server_time),
            None => (self.record.epoch, *lock(&self.store.inner.latest_server_time)),
        };
        // `Date` has a resolution of one second.
        Some(self.state.begin_epoch(before, server_time.unix_timestamp().saturating_mul(1000)))
    }

    /// Reads the record after a write with an ambiguous outcome.
    async fn read_after_write(
        &mut self,
        attempted: &WriteCondition<ETag>,
    ) -> Result<ControlFlow<OwnershipOutcome, OwnershipOperation<ETag>>> {
        let read_at = self.store.lease_clock_now();
        self.seen = self.store.read_ownership(self.partition).await?;
        let this = self.store.identity();
        if let Some(seen) = self.seen.as_ref().filter(|seen| seen.record.relation_to(this) == Relation::This) {
            // Keep what other programs have added, and the handoff request: only the programs that added them may
            // remove them. A release also keeps the epoch of a reclaimable record.
            self.record.epoch = seen.record.epoch.max(self.record.epoch);
            self.record.other.clone_from(&seen.record.other);
            self.record.handoff_to.clone_from(&seen.record.handoff_to);
            self.record.operator.clone_from(&seen.record.operator);
        }
        let lease_durations = self.store.lease_durations();
        let found = self.seen.as_ref().map(|seen| FoundOwnership {
            relation: seen.record.relation_to(this),
            version: seen.etag.clone(),
            age: seen.age,
            lifetime: lease_durations.lifetime(&seen.record),
            epoch: seen.record.epoch,
            draining: seen.record.draining,
        });
        Ok(OwnershipOperation::after_read(self.next.goal, attempted, self.lease_epoch, found, lease_durations.own)
            .map_break(|settled| self.outcome_by_record(settled, read_at)))
    }

    /// Waits until the record that was `written` without an epoch is old enough to be claimed over, or has another
    /// version. Other operations need not wait for this one meanwhile.
    async fn read_once_old(
        &mut self,
        written: &ETag,
    ) -> Result<ControlFlow<OwnershipOutcome, OwnershipOperation<ETag>>> {
        /// The most reads until the record is old enough: `Date` and `Last-Modified` may come from two machines, each
        /// of which may show the previous second.
        const MAX_READS: u32 = 3;
        self.guard = None;
        let mut wait = too_young_by(None, Duration::ZERO);
        for _ in 0..MAX_READS {
            sleep(wait.unwrap_or_default()).await;
            let read_at = self.store.lease_clock_now();
            self.seen = self.store.read_ownership(self.partition).await?;
            let found = self.seen.as_ref().map(|seen| (seen.etag.clone(), seen.age));
            wait = found.as_ref().and_then(|(_, age)| too_young_by(None, *age));
            match OwnershipOperation::after_wait(written.clone(), found) {
                ControlFlow::Continue(OwnershipOperation { step: OwnershipStep::ReadOnceOld { .. }, .. }) => {}
                next => {
                    self.operation = StorageOperation::Claim;
                    return Ok(next.map_break(|settled| self.outcome_by_record(settled, read_at)));
                }
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!("{} does not age; check the clock of the storage", self.record_label()),
        ))
    }

    /// Returns the outcome by the record that was read at this moment.
    fn outcome_by_record(&self, settled: Settled, read_at: Duration) -> OwnershipOutcome {
        let Some(seen) = &self.seen else { return OwnershipOutcome::Lost { by: None } };
        match (settled, &seen.record) {
            (Settled::Applied, _) if self.next.goal == Goal::Release => OwnershipOutcome::Released,
            (Settled::Applied, OwnershipRecord { epoch: Some(epoch), .. }) => {
                self.success_outcome(*epoch, seen.etag.clone(), read_at.saturating_sub(seen.age))
            }
            (Settled::Replaced, OwnershipRecord { incarnation: Some(by), .. }) => {
                OwnershipOutcome::Replaced { by: by.clone() }
            }
            (_, record) => OwnershipOutcome::Lost { by: record.owner.clone() },
        }
    }

    fn success_outcome(&self, epoch: i64, etag: ETag, valid_from: Duration) -> OwnershipOutcome {
        self.state.record_won_epoch(epoch);
        OwnershipOutcome::Owned(Box::new(Lease {
            partition: self.partition.clone(),
            record: self.record.clone(),
            etag,
            valid_from,
            epoch,
            rewrite: false,
        }))
    }
}

impl ConditionalWrite for OwnershipWrite<'_> {
    type Outcome = OwnershipOutcome;

    fn storage_operation(&self) -> StorageOperation {
        self.operation
    }

    fn record_label(&self) -> String {
        format!("the ownership record of partition {}", self.partition)
    }

    async fn next_write(&mut self) -> Result<ControlFlow<OwnershipOutcome, WriteCondition<ETag>>> {
        loop {
            let next = match self.next.step.clone() {
                OwnershipStep::Write { under } => {
                    if self.guard.is_none() {
                        self.guard = Some(self.store.acquire_record(RecordKind::Ownership, self.partition).await);
                    }
                    // A lease of an earlier epoch does not change what this store has won again since.
                    if self.lease_epoch.is_some_and(|epoch| self.state.has_won_after(epoch)) {
                        let by = Some(self.store.identity().owner.clone());
                        return Ok(ControlFlow::Break(OwnershipOutcome::Lost { by }));
                    }
                    return Ok(ControlFlow::Continue(under));
                }
                OwnershipStep::Read { attempted } => self.read_after_write(&attempted).await?,
                OwnershipStep::ReadOnceOld { written } => self.read_once_old(&written).await?,
            };
            match next {
                ControlFlow::Continue(next) => self.next = next,
                ControlFlow::Break(outcome) => return Ok(ControlFlow::Break(outcome)),
            }
        }
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<OwnershipOutcome>> {
        if self.next.goal == Goal::Claim {
            self.record.epoch = self.begin_claim_epoch();
        }
        let sent_at = self.store.lease_clock_now();
        let name = self.store.inner.names.record_name(RecordKind::Ownership, self.partition);
        let metadata = codec::encode_ownership(&self.record);
        let written = self.store.write_blob(self.operation, &name, &metadata, &under).await;
        self.next.step = OwnershipStep::Read { attempted: under };
        let etag = written?.etag;
        let epoch = self.record.epoch.filter(|_| self.next.goal != Goal::Release);
        match OwnershipOperation::after_write(self.next.goal, etag.clone(), epoch.is_some()) {
            ControlFlow::Continue(next) => {
                self.next = next;
                Ok(ControlFlow::Continue(()))
            }
            ControlFlow::Break(_) => Ok(ControlFlow::Break(match epoch {
                Some(epoch) => self.success_outcome(epoch, etag, sent_at),
                None => OwnershipOutcome::Released,
            })),
        }
    }
}

/// Runs all operations at once. The store limits the number of concurrent requests.
async fn run_concurrently<T, R, F>(items: Vec<T>, each: impl Fn(T) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    items.into_iter().map(each).collect::<FuturesUnordered<_>>().collect().await
}
