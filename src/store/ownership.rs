//! Claim, renew and release: conditional writes of one ownership blob each.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use time::OffsetDateTime;
use tokio::time::sleep;

use super::lease::{Claim, Lease};
use super::partitions::PartitionState;
use super::rules::{
    Found, Goal, Next, Settled, WriteCondition, goal_after, next_epoch, resolve_ambiguous_write, too_young_by,
};
use super::settle::ConditionalWrite;
use super::{GroupStore, Ownership};
use crate::blob::ETag;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId, Relation};
use crate::telemetry::StorageOperation;

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
        concurrently(claims, |claim| async move {
            let outcome = self.claim(&claim).await;
            (claim.partition, outcome)
        })
        .await
    }

    /// Renews leases concurrently, and returns their outcomes in order of completion. All keys of the records are kept,
    /// including a [handoff request](Lease::handoff_requested_by).
    pub async fn renew_all(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ClaimOutcome)> {
        concurrently(leases, |lease| async move {
            let outcome = self.renew(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Releases partitions concurrently, and returns their outcomes in order of completion. Other instances can claim
    /// the partitions in their next cycles. A partition that another instance requested is reserved for that instance
    /// for a while.
    pub async fn release_all(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ReleaseOutcome)> {
        concurrently(leases, |lease| async move {
            let outcome = self.release(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Reads the ownership of one partition, if it has a record.
    ///
    /// # Errors
    ///
    /// Those of [`BlobContainer`](crate::blob::BlobContainer).
    pub async fn read_ownership(&self, partition: &PartitionId) -> Result<Option<Ownership>> {
        let blob = self.read_owned(&self.inner.names.of(RecordKind::Ownership, partition)).await?;
        Ok(blob.map(|blob| self.ownership(partition.clone(), &blob).0))
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
        write.over(claim.over.as_deref().cloned());
        self.settle_with_epoch(write).await.unwrap_or_else(ClaimOutcome::Indeterminate)
    }

    /// Renews one lease. See [`renew_all`](Self::renew_all).
    pub async fn renew(&self, lease: &Lease) -> ClaimOutcome {
        let goal = match lease {
            Lease { rewrite: true, .. } => Goal::Rewrite,
            lease if lease.record.draining => Goal::Acknowledge,
            _ => Goal::Renew,
        };
        let write = OwnershipWrite::of(self, lease, goal, lease.record.clone());
        self.settle_with_epoch(write).await.unwrap_or_else(ClaimOutcome::Indeterminate)
    }

    /// Releases one lease. See [`release_all`](Self::release_all).
    pub async fn release(&self, lease: &Lease) -> ReleaseOutcome {
        let mut write = OwnershipWrite::of(self, lease, Goal::Release, lease.record.released());
        match self.settle_ownership(&mut write).await {
            Ok(Ended::Lost { by }) => ReleaseOutcome::Lost { by },
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
                Ended::WithoutEpoch(version) => version,
                Ended::Owned(lease) => return Ok(ClaimOutcome::Won(*lease)),
                Ended::Replaced { by } => return Ok(ClaimOutcome::Replaced { by }),
                Ended::Lost { by } => return Ok(ClaimOutcome::Lost { by }),
                Ended::Released => return Ok(ClaimOutcome::Lost { by: None }),
            };
            match self.once_old_enough(write.partition, &taken).await? {
                Ok(seen) => write.over(Some(seen)),
                Err(by) => return Ok(ClaimOutcome::Lost { by }),
            }
        }
        Err(write.contended())
    }

    /// Waits until the record with this version is old enough. Returns its owner if it has another version by then.
    async fn once_old_enough(
        &self,
        partition: &PartitionId,
        version: &ETag,
    ) -> Result<Result<Ownership, Option<OwnerId>>> {
        /// The most reads until the record is old enough: `Date` and `Last-Modified` may come from two machines, each
        /// of which may show the previous second.
        const MAX_READS: u32 = 3;
        let mut wait = too_young_by(None, Duration::ZERO);
        for _ in 0..MAX_READS {
            sleep(wait.unwrap_or_default()).await;
            let seen = match self.read_ownership(partition).await? {
                Some(seen) if seen.etag == *version => seen,
                found => return Ok(Err(found.and_then(|found| found.record.owner))),
            };
            wait = too_young_by(None, seen.age);
            if wait.is_none() {
                return Ok(Ok(seen));
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!("the ownership record of partition {partition} does not age; check the clock of the storage"),
        ))
    }

    fn facts(&self, seen: &Ownership) -> Found<ETag> {
        let record = &seen.record;
        Found {
            relation: record.relation_to(self.identity()),
            etag: seen.etag.clone(),
            age: seen.age,
            lifetime: self.lease_durations().lifetime(record),
            epoch: record.epoch,
            draining: record.draining,
        }
    }

    /// Writes once. A lease of an earlier epoch does not change what this store has won again since.
    async fn settle_ownership(&self, write: &mut OwnershipWrite<'_>) -> Result<Ended> {
        let guard = self.acquire(RecordKind::Ownership, write.partition).await;
        if write.lease_epoch.is_some_and(|epoch| guard.state.has_won_after(epoch)) {
            return Ok(Ended::Lost { by: Some(self.identity().owner.clone()) });
        }
        write.state = Some(guard.state.clone());
        self.settle(write).await
    }
}

/// The outcome of a write: of a claim, a renewal or a release.
enum Ended {
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
    state: Option<Arc<PartitionState>>,
}

impl<'a> OwnershipWrite<'a> {
    fn new(store: &'a GroupStore, partition: &'a PartitionId, goal: Goal, record: OwnershipRecord) -> Self {
        let (under, operation) = (WriteCondition::Create, goal.operation());
        Self { store, partition, goal, lease_epoch: None, record, under, seen: None, operation, state: None }
    }

    fn of(store: &'a GroupStore, lease: &'a Lease, goal: Goal, record: OwnershipRecord) -> Self {
        let (lease_epoch, under) = (Some(lease.epoch), WriteCondition::IfMatch(lease.etag.clone()));
        Self { lease_epoch, under, ..Self::new(store, &lease.partition, goal, record) }
    }

    /// Continues as a claim over this record.
    fn over(&mut self, seen: Option<Ownership>) {
        (self.goal, self.operation) = (Goal::Claim, StorageOperation::Claim);
        self.under = seen.as_ref().map(|seen| seen.etag.clone()).into();
        self.seen = seen;
    }

    /// Returns the epoch of a claim; `None` over a record that is too young. It is greater than every epoch that this store
    /// has sent: a claim that is sent again, with the time of a server whose clock is behind, must not begin an epoch that
    /// this store takes for superseded.
    ///
    /// If there is no record, the time is the latest one in all responses of the server, which is no earlier than that
    /// of the response that showed no record. Earlier epochs then belong to a record that was deleted, and the claim
    /// that began the last of them is at least two seconds old. (If the record was deleted within two seconds after
    /// that claim, nothing is guaranteed.)
    fn epoch(&self) -> Option<i64> {
        let (before, server_time) = match &self.seen {
            Some(seen) if too_young_by(seen.record.epoch, seen.age).is_some() => return None,
            Some(seen) => (seen.record.epoch, seen.server_time),
            None => (self.record.epoch, *lock(&self.store.inner.latest_server_time)),
        };
        let sent = self.state.as_ref().and_then(|state| state.latest_sent());
        Some(next_epoch(before.max(sent), milliseconds(server_time)))
    }

    /// Keeps what other programs have added to this owner's record, and the handoff request. Only the programs that
    /// added them may remove them. A release also keeps the epoch of a reclaimable record.
    fn keep_additions(&mut self, found: &OwnershipRecord) {
        self.record.epoch = found.epoch.max(self.record.epoch);
        self.record.other.clone_from(&found.other);
        self.record.handoff_to.clone_from(&found.handoff_to);
        self.record.operator.clone_from(&found.operator);
    }

    /// Returns the outcome if the record has the wanted content, in this version.
    fn applied(&self, etag: ETag, valid_from: Duration) -> Ended {
        if self.goal == Goal::Release {
            return Ended::Released;
        }
        let Some(epoch) = self.record.epoch else { return Ended::WithoutEpoch(etag) };
        if let Some(state) = &self.state {
            state.has_won(epoch);
        }
        let (partition, record) = (self.partition.clone(), self.record.clone());
        Ended::Owned(Box::new(Lease { partition, record, etag, valid_from, epoch, rewrite: false }))
    }

    /// Returns the outcome by the record that was read at this moment.
    fn ended(&self, settled: Settled, found: Option<&Ownership>, read: Duration) -> Ended {
        let Some(found) = found else { return Ended::Lost { by: None } };
        match (settled, &found.record.incarnation) {
            (Settled::Applied, _) => self.applied(found.etag.clone(), read.saturating_sub(found.age)),
            (Settled::Replaced, Some(by)) => Ended::Replaced { by: by.clone() },
            _ => Ended::Lost { by: found.record.owner.clone() },
        }
    }
}

impl ConditionalWrite for OwnershipWrite<'_> {
    type Outcome = Ended;

    fn operation(&self) -> StorageOperation {
        self.operation
    }

    fn subject(&self) -> String {
        format!("the ownership record of partition {}", self.partition)
    }

    async fn begin(&mut self) -> Result<Next<ETag, Self::Outcome>> {
        Ok(Next::Write(self.under.clone()))
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<Self::Outcome> {
        if self.goal == Goal::Claim {
            self.record.epoch = self.epoch();
            if let Some((state, epoch)) = self.state.as_ref().zip(self.record.epoch) {
                state.may_begin(epoch);
            }
        }
        self.under = under.clone();
        let (store, sent) = (self.store, self.store.lease_clock_now());
        let name = store.inner.names.of(RecordKind::Ownership, self.partition);
        let written = store.write(self.operation, &name, &codec::encode_ownership(&self.record), under).await?;
        Ok(self.applied(written.etag, sent))
    }

    async fn look(&mut self) -> Result<Next<ETag, Self::Outcome>> {
        let read = self.store.lease_clock_now();
        let seen = self.store.read_ownership(self.partition).await?;
        let this = self.store.identity();
        let found = seen.as_ref().map(|seen| self.store.facts(seen));
        if let Some(seen) = seen.as_ref().filter(|seen| seen.record.relation_to(this) == Relation::This) {
            self.keep_additions(&seen.record);
        }
        self.goal = goal_after(self.goal, self.lease_epoch, found.as_ref());
        let attempted = self.under.clone().version();
        let next = resolve_ambiguous_write(
            self.goal,
            attempted.as_ref(),
            self.lease_epoch,
            found,
            self.store.lease_durations().own,
        );
        let next = next.map(|settled| self.ended(settled, seen.as_ref(), read));
        self.seen = seen;
        Ok(next)
    }
}

/// Returns the time in the unit of epochs. `Date` has a resolution of one second.
fn milliseconds(server_time: OffsetDateTime) -> i64 {
    server_time.unix_timestamp().saturating_mul(1000)
}

/// Runs all operations at once. The store limits the number of concurrent requests.
async fn concurrently<T, R, F>(items: Vec<T>, each: impl Fn(T) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    items.into_iter().map(each).collect::<FuturesUnordered<_>>().collect().await
}

impl Goal {
    fn operation(self) -> StorageOperation {
        match self {
            Self::Claim => StorageOperation::Claim,
            Self::Renew | Self::Acknowledge | Self::Rewrite => StorageOperation::Renew,
            Self::Release => StorageOperation::Release,
        }
    }
}
