//! Claim, renew and release: conditional writes of one ownership blob each.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

use super::exclusion::KnownPartition;
use super::lease::{Claim, Lease};
use super::records::{arrival_moment, ownership_from_blob};
use super::rules::{
    FoundOwnership, Goal, SettleStep, Settled, WriteCondition, decide_ownership, goal_after, too_young_by,
};
use super::settle::ConditionalWrite;
use super::{GroupStore, Ownership};
use crate::blob::{Blob, ETag};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId, Relation};
use crate::telemetry::StorageOperation;
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
    /// A later incarnation of this owner has the partition: two instances use the same owner id. Shut down.
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
        // An HTTP client may drop header values that are not ASCII, such as an owner id of another SDK; a listing has
        // them. So a record without an owner id is read again from a listing.
        if read.as_ref().is_some_and(|blob| !codec::names_owner(&blob.metadata)) {
            let list = self.send(StorageOperation::List, self.container.list(&name)).await?;
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
        let mut write = OwnershipWrite::new(self, &claim.partition, Goal::Claim, record);
        write.claim_over(claim.over.as_deref().cloned());
        self.settle_with_epoch(write).await.unwrap_or_else(ClaimOutcome::Indeterminate)
    }

    /// Renews one lease. See [`renew_all`](Self::renew_all).
    pub async fn renew(&self, lease: &Lease) -> ClaimOutcome {
        let goal = match lease {
            Lease { rewrite: true, .. } => Goal::Rewrite,
            lease if lease.record.draining => Goal::Acknowledge,
            _ => Goal::Renew,
        };
        self.settle_with_epoch(OwnershipWrite::for_lease(self, lease, goal, lease.record.clone()))
            .await
            .unwrap_or_else(ClaimOutcome::Indeterminate)
    }

    /// Releases one lease. See [`release_all`](Self::release_all).
    pub async fn release(&self, lease: &Lease) -> ReleaseOutcome {
        let mut write = OwnershipWrite::for_lease(self, lease, Goal::Release, lease.record.released());
        match self.settle_ownership(&mut write).await {
            Ok(OwnershipOutcome::Lost { by }) => ReleaseOutcome::Lost { by },
            Ok(_) => ReleaseOutcome::Released,
            Err(error) => ReleaseOutcome::Indeterminate(error),
        }
    }

    /// Writes until the record has an epoch. A claim over a record without an epoch that is too young takes two steps:
    /// the record is written without an epoch, and once it is old enough, again with one. A wait before the first step
    /// would not help, because an owner of another SDK may renew its record more often than that.
    async fn settle_with_epoch(&self, mut write: OwnershipWrite<'_>) -> Result<ClaimOutcome> {
        /// The most steps. A step is repeated only if another write came in between.
        const MAX_STEPS: u32 = 5;
        for _ in 0..MAX_STEPS {
            let taken = match self.settle_ownership(&mut write).await? {
                OwnershipOutcome::WithoutEpoch(version) => version,
                OwnershipOutcome::Owned(lease) => return Ok(ClaimOutcome::Won(*lease)),
                OwnershipOutcome::Replaced { by } => return Ok(ClaimOutcome::Replaced { by }),
                OwnershipOutcome::Lost { by } => return Ok(ClaimOutcome::Lost { by }),
                OwnershipOutcome::Released => return Ok(ClaimOutcome::Lost { by: None }),
            };
            match self.wait_until_old_enough(write.partition, &taken).await? {
                AgedRecord::OldEnough(seen) => write.claim_over(Some(*seen)),
                AgedRecord::Changed { by } => return Ok(ClaimOutcome::Lost { by }),
            }
        }
        Err(write.contention_error())
    }

    /// Waits until the record with this version is old enough to be claimed over, or has another version.
    async fn wait_until_old_enough(&self, partition: &PartitionId, version: &ETag) -> Result<AgedRecord> {
        /// The most reads until the record is old enough: `Date` and `Last-Modified` may come from two machines, each
        /// of which may show the previous second.
        const MAX_READS: u32 = 3;
        let mut wait = too_young_by(None, Duration::ZERO);
        for _ in 0..MAX_READS {
            sleep(wait.unwrap_or_default()).await;
            let seen = match self.read_ownership(partition).await? {
                Some(seen) if seen.etag == *version => seen,
                found => return Ok(AgedRecord::Changed { by: found.and_then(|found| found.record.owner) }),
            };
            wait = too_young_by(None, seen.age);
            if wait.is_none() {
                return Ok(AgedRecord::OldEnough(Box::new(seen)));
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!("the ownership record of partition {partition} does not age; check the clock of the storage"),
        ))
    }

    /// Writes once. A lease of an earlier epoch does not change what this store has won again since.
    async fn settle_ownership(&self, write: &mut OwnershipWrite<'_>) -> Result<OwnershipOutcome> {
        let guard = self.acquire_record(RecordKind::Ownership, write.partition).await;
        if write.lease_epoch.is_some_and(|epoch| guard.state.has_won_after(epoch)) {
            return Ok(OwnershipOutcome::Lost { by: Some(self.identity().owner.clone()) });
        }
        self.settle_write(write).await
    }
}

/// A record without an epoch, after the wait for its age.
enum AgedRecord {
    OldEnough(Box<Ownership>),
    /// It has another version. `by` is its owner, if it has one.
    Changed {
        by: Option<OwnerId>,
    },
}

/// The outcome of a write: of a claim, a renewal or a release.
enum OwnershipOutcome {
    Owned(Box<Lease>),
    /// The record names this instance, in this version, but has no epoch yet.
    WithoutEpoch(ETag),
    Released,
    Lost {
        by: Option<OwnerId>,
    },
    Replaced {
        by: Incarnation,
    },
}

/// A claim, a renewal or a release.
struct OwnershipWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    goal: Goal,
    /// The epoch of the lease that is renewed or released.
    lease_epoch: Option<i64>,
    record: OwnershipRecord,
    under: WriteCondition<ETag>,
    /// The record with that version, as it was seen, unless it is the lease's own.
    seen: Option<Ownership>,
    operation: StorageOperation,
    state: Arc<KnownPartition>,
}

impl<'a> OwnershipWrite<'a> {
    fn new(store: &'a GroupStore, partition: &'a PartitionId, goal: Goal, record: OwnershipRecord) -> Self {
        Self {
            store,
            partition,
            goal,
            lease_epoch: None,
            record,
            under: WriteCondition::Create,
            seen: None,
            operation: match goal {
                Goal::Claim => StorageOperation::Claim,
                Goal::Renew | Goal::Acknowledge | Goal::Rewrite => StorageOperation::Renew,
                Goal::Release => StorageOperation::Release,
            },
            state: store.known_partition(partition),
        }
    }

    fn for_lease(store: &'a GroupStore, lease: &'a Lease, goal: Goal, record: OwnershipRecord) -> Self {
        Self {
            lease_epoch: Some(lease.epoch),
            under: WriteCondition::IfMatch(lease.etag.clone()),
            ..Self::new(store, &lease.partition, goal, record)
        }
    }

    /// Continues as a claim over this record.
    fn claim_over(&mut self, seen: Option<Ownership>) {
        self.goal = Goal::Claim;
        self.operation = StorageOperation::Claim;
        self.under = seen.as_ref().map(|seen| seen.etag.clone()).into();
        self.seen = seen;
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

    /// Returns the outcome if the record has the wanted content, in this version.
    fn success_outcome(&self, etag: ETag, valid_from: Duration) -> OwnershipOutcome {
        if self.goal == Goal::Release {
            return OwnershipOutcome::Released;
        }
        let Some(epoch) = self.record.epoch else { return OwnershipOutcome::WithoutEpoch(etag) };
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

    /// Returns the outcome by the record that was read at this moment.
    fn outcome_after_read(&self, settled: Settled, found: Option<&Ownership>, read: Duration) -> OwnershipOutcome {
        let Some(found) = found else { return OwnershipOutcome::Lost { by: None } };
        match (settled, &found.record.incarnation) {
            (Settled::Applied, _) => self.success_outcome(found.etag.clone(), read.saturating_sub(found.age)),
            (Settled::Replaced, Some(by)) => OwnershipOutcome::Replaced { by: by.clone() },
            _ => OwnershipOutcome::Lost { by: found.record.owner.clone() },
        }
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

    async fn first_step(&mut self) -> Result<SettleStep<ETag, Self::Outcome>> {
        Ok(SettleStep::Write(self.under.clone()))
    }

    async fn send_write(&mut self, under: &WriteCondition<ETag>) -> Result<Self::Outcome> {
        if self.goal == Goal::Claim {
            self.record.epoch = self.begin_claim_epoch();
        }
        self.under = under.clone();
        let store = self.store;
        let sent = store.lease_clock_now();
        let name = store.inner.names.record_name(RecordKind::Ownership, self.partition);
        let written = store.write_blob(self.operation, &name, &codec::encode_ownership(&self.record), under).await?;
        Ok(self.success_outcome(written.etag, sent))
    }

    async fn read_next_step(&mut self) -> Result<SettleStep<ETag, Self::Outcome>> {
        let read = self.store.lease_clock_now();
        let seen = self.store.read_ownership(self.partition).await?;
        let this = self.store.identity();
        if let Some(seen) = seen.as_ref().filter(|seen| seen.record.relation_to(this) == Relation::This) {
            // Keep what other programs have added, and the handoff request: only the programs that added them may
            // remove them. A release also keeps the epoch of a reclaimable record.
            self.record.epoch = seen.record.epoch.max(self.record.epoch);
            self.record.other.clone_from(&seen.record.other);
            self.record.handoff_to.clone_from(&seen.record.handoff_to);
            self.record.operator.clone_from(&seen.record.operator);
        }
        let lease_durations = self.store.lease_durations();
        let found = seen.as_ref().map(|seen| FoundOwnership {
            relation: seen.record.relation_to(this),
            etag: seen.etag.clone(),
            age: seen.age,
            lifetime: lease_durations.lifetime(&seen.record),
            epoch: seen.record.epoch,
            draining: seen.record.draining,
        });
        self.goal = goal_after(self.goal, self.lease_epoch, found.as_ref());
        let attempted = self.under.clone().version();
        let next = decide_ownership(self.goal, attempted.as_ref(), self.lease_epoch, found, lease_durations.own)
            .map(|settled| self.outcome_after_read(settled, seen.as_ref(), read));
        self.seen = seen;
        Ok(next)
    }
}

/// Runs all operations at once. The store limits the number of concurrent requests.
async fn run_concurrently<T, R, F>(items: Vec<T>, each: impl Fn(T) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    items.into_iter().map(each).collect::<FuturesUnordered<_>>().collect().await
}
