//! Claim, renew, release: conditional writes of one ownership blob each.

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

/// What became of a claim or a renewal.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClaimOutcome {
    /// The partition is mine.
    Won(Lease),
    /// It is not mine. An outcome, not an error: somebody else was faster, or had good reason to take it.
    Lost {
        /// The owner now; nobody if it was released. Myself if the record is of another tenure than the lease.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner has it: two instances run under one owner id. Stop.
    Replaced {
        /// The later incarnation.
        by: Incarnation,
    },
    /// Nobody can tell yet. What was believed before stands; try again while the lease lasts.
    Indeterminate(Error),
}

/// What became of a release.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The partition is not mine any more: the release was written.
    Released,
    /// The partition was not mine any more.
    Lost {
        /// The owner now, if there is one.
        by: Option<OwnerId>,
    },
    /// Nobody can tell. If it is still mine, it expires.
    Indeterminate(Error),
}

impl GroupStore {
    /// Claims partitions concurrently. Returns one outcome per partition, in the order in which they complete.
    pub async fn claim_all(&self, claims: Vec<Claim>) -> Vec<(PartitionId, ClaimOutcome)> {
        concurrently(claims, |claim| async move {
            let outcome = self.claim(&claim).await;
            (claim.partition, outcome)
        })
        .await
    }

    /// Renews leases concurrently. Returns one outcome per partition, in the order in which they complete. A renewal keeps
    /// every key of the record, a [handoff request](Lease::handoff_requested_by) included.
    pub async fn renew_all(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ClaimOutcome)> {
        concurrently(leases, |lease| async move {
            let outcome = self.renew(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Releases partitions concurrently, so that other instances can claim them in their next cycle. A partition with a
    /// handoff request is reserved for the requesting instance for a while. Returns one outcome per partition, in the
    /// order in which they complete.
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
    /// If the storage does not answer as it should.
    pub async fn read_ownership(&self, partition: &PartitionId) -> Result<Option<Ownership>> {
        let blob = self.read_owned(&self.inner.names.of(RecordKind::Ownership, partition)).await?;
        Ok(blob.map(|blob| self.ownership(partition.clone(), &blob).0))
    }

    /// Whether a partition is mine in the tenure with this epoch, and who owns it.
    pub(super) async fn is_owned_in(&self, partition: &PartitionId, epoch: i64) -> Result<(bool, Option<OwnerId>)> {
        let record = self.read_ownership(partition).await?.map(|seen| seen.record);
        let owned = record.as_ref().is_some_and(|record| record.is_mine_in(self.identity(), epoch));
        Ok((owned, record.and_then(|record| record.owner)))
    }

    /// Claims one partition. See [`claim_all`](Self::claim_all).
    pub async fn claim(&self, claim: &Claim) -> ClaimOutcome {
        let me = self.identity();
        let record = OwnershipRecord {
            owner: Some(me.owner.clone()),
            incarnation: Some(me.incarnation.clone()),
            claimed_at: self.server_time().replace_nanosecond(0).ok(),
            load: claim.load,
            cooperative: self.cooperative,
            handoff_to: claim.handoff_to.clone(),
            operator: self.operator.then(|| me.owner.clone()),
            scope: self.scope,
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

    /// A claim over a record without an epoch that is too young is made in two steps: the record is written without an
    /// epoch, and once it is old enough, again with one. A wait before the first step would not do: an owner of another
    /// SDK may renew its record more often than that.
    async fn settle_with_epoch(&self, mut write: OwnershipWrite<'_>) -> Result<ClaimOutcome> {
        /// A step fails only where another write came in between.
        const MAX_STEPS: u32 = 5;
        for _ in 0..MAX_STEPS {
            let taken = match self.settle_ownership(&mut write).await? {
                Ended::WithoutEpoch(version) => version,
                Ended::Held(lease) => return Ok(ClaimOutcome::Won(*lease)),
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

    /// Waits until the record of this version is old enough; or returns its owner, if it has another version by then.
    async fn once_old_enough(
        &self,
        partition: &PartitionId,
        version: &ETag,
    ) -> Result<Result<Ownership, Option<OwnerId>>> {
        /// `Date` and `Last-Modified` may come from two machines, and each may show the second before.
        const LOOKS: u32 = 3;
        let mut wait = too_young_by(None, Duration::ZERO);
        for _ in 0..LOOKS {
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

    /// A lease of an earlier tenure does not touch what this store has won again since.
    async fn settle_ownership(&self, write: &mut OwnershipWrite<'_>) -> Result<Ended> {
        let turn = self.acquire(RecordKind::Ownership, write.partition).await;
        if write.tenure.is_some_and(|epoch| turn.state.has_won_after(epoch)) {
            return Ok(Ended::Lost { by: Some(self.identity().owner.clone()) });
        }
        write.state = Some(turn.state.clone());
        self.settle(write).await
    }
}

/// How a claim, a renewal or a release ended.
enum Ended {
    Held(Box<Lease>),
    /// The record is mine, in this version, but has no epoch yet.
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
    /// The epoch of the lease that goes on, or ends.
    tenure: Option<i64>,
    record: OwnershipRecord,
    under: WriteCondition<ETag>,
    /// The record under that version, as it was seen; unless that is the lease's own.
    seen: Option<Ownership>,
    operation: StorageOperation,
    state: Option<Arc<PartitionState>>,
}

impl<'a> OwnershipWrite<'a> {
    fn new(store: &'a GroupStore, partition: &'a PartitionId, goal: Goal, record: OwnershipRecord) -> Self {
        let (under, operation) = (WriteCondition::Create, goal.operation());
        Self { store, partition, goal, tenure: None, record, under, seen: None, operation, state: None }
    }

    fn of(store: &'a GroupStore, lease: &'a Lease, goal: Goal, record: OwnershipRecord) -> Self {
        let (tenure, under) = (Some(lease.epoch), WriteCondition::IfMatch(lease.etag.clone()));
        Self { tenure, under, ..Self::new(store, &lease.partition, goal, record) }
    }

    /// Goes on as a claim over this record.
    fn over(&mut self, seen: Option<Ownership>) {
        (self.goal, self.operation) = (Goal::Claim, StorageOperation::Claim);
        self.under = seen.as_ref().map(|seen| seen.etag.clone()).into();
        self.seen = seen;
    }

    /// The epoch of a claim; none over a record that is too young.
    ///
    /// Where there is no record, the time is the latest that the server has told, which is no earlier than that of the
    /// answer that showed none. Tenures before it are those of a record that was deleted: the claim that began the last
    /// of them is two seconds old or older. (After an earlier deletion nothing is promised.)
    fn epoch(&self) -> Option<i64> {
        let (before, server_time) = match &self.seen {
            Some(seen) if too_young_by(seen.record.epoch, seen.age).is_some() => return None,
            Some(seen) => (seen.record.epoch, seen.server_time),
            None => (self.record.epoch, *lock(&self.store.inner.latest_server_time)),
        };
        let elsewhere = self.state.as_ref().and_then(|state| state.epoch_elsewhere());
        Some(next_epoch(before.max(elsewhere), milliseconds(server_time)))
    }

    /// Others may have added keys to my record, or asked for my partition. Only they take that away. An orphan's epoch is
    /// kept by a release, too.
    fn keep_additions(&mut self, found: &OwnershipRecord) {
        self.record.epoch = found.epoch.max(self.record.epoch);
        self.record.other.clone_from(&found.other);
        self.record.handoff_to.clone_from(&found.handoff_to);
        self.record.operator.clone_from(&found.operator);
    }

    /// The record says what was wanted, in this version.
    fn stands(&self, etag: ETag, valid_from: Duration) -> Ended {
        if self.goal == Goal::Release {
            return Ended::Released;
        }
        let Some(epoch) = self.record.epoch else { return Ended::WithoutEpoch(etag) };
        if let Some(state) = &self.state {
            state.has_won(epoch);
        }
        let (partition, record) = (self.partition.clone(), self.record.clone());
        Ended::Held(Box::new(Lease { partition, record, etag, valid_from, epoch, rewrite: false }))
    }

    /// By the record that was read at this moment.
    fn ended(&self, settled: Settled, found: Option<&Ownership>, read: Duration) -> Ended {
        let Some(found) = found else { return Ended::Lost { by: None } };
        match (settled, &found.record.incarnation) {
            (Settled::Applied, _) => self.stands(found.etag.clone(), read.saturating_sub(found.age)),
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
        Ok(self.stands(written.etag, sent))
    }

    async fn look(&mut self) -> Result<Next<ETag, Self::Outcome>> {
        let read = self.store.lease_clock_now();
        let seen = self.store.read_ownership(self.partition).await?;
        let me = self.store.identity();
        let found = seen.as_ref().map(|seen| facts(seen, seen.record.relation_to(me)));
        if let Some(seen) = seen.as_ref().filter(|seen| seen.record.relation_to(me) == Relation::This) {
            self.keep_additions(&seen.record);
        }
        self.goal = goal_after(self.goal, self.tenure, found.as_ref());
        let attempted = self.under.clone().version();
        let next = resolve_ambiguous_write(
            self.goal,
            attempted.as_ref(),
            self.tenure,
            found,
            self.store.lease_durations().own,
        );
        let next = next.map(|settled| self.ended(settled, seen.as_ref(), read));
        self.seen = seen;
        Ok(next)
    }
}

fn facts(seen: &Ownership, relation: Relation) -> Found<ETag> {
    let OwnershipRecord { epoch, draining, .. } = seen.record;
    Found { relation, etag: seen.etag.clone(), age: seen.age, epoch, draining }
}

/// The unit of epochs. `Date` tells whole seconds.
fn milliseconds(server_time: OffsetDateTime) -> i64 {
    server_time.unix_timestamp().saturating_mul(1000)
}

/// All at once: the store bounds how many requests are under way.
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
