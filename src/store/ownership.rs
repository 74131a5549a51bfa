//! Claim, renew, release: conditional writes of one ownership blob each, and what their answers mean.

use std::future::Future;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout};

use super::decide::{Found, Goal, Next, after_doubt};
use super::{GroupStore, MAX_ATTEMPTS, back_off, is_doubtful};
use crate::blob::{Blob, Condition, ETag};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId, Relation};
use crate::telemetry::Operation;

/// A wish to own a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    partition: PartitionId,
    over: Option<ETag>,
}

impl Claim {
    /// Claims a partition that has no record yet.
    #[must_use]
    pub fn unowned(partition: PartitionId) -> Self {
        Self { partition, over: None }
    }

    /// Claims a partition whose record was seen with this ETag: released, expired, or to be stolen.
    #[must_use]
    pub fn over(partition: PartitionId, etag: ETag) -> Self {
        Self { partition, over: Some(etag) }
    }
}

/// Proof that this owner won a partition. It is spent by time: unless renewed, others may claim the partition once it is
/// older than the expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    partition: PartitionId,
    record: OwnershipRecord,
    etag: ETag,
    valid_from: Instant,
    tenure: u64,
}

impl Lease {
    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// What the record says.
    #[must_use]
    pub fn record(&self) -> &OwnershipRecord {
        &self.record
    }

    /// The version of the record.
    #[must_use]
    pub fn etag(&self) -> &ETag {
        &self.etag
    }

    /// The moment from which the expiry counts. Before the write was sent; or, where only a read showed that it was
    /// applied, its age before that, which the server tells to the second.
    #[must_use]
    pub fn valid_from(&self) -> Instant {
        self.valid_from
    }

    /// Tells apart two times of holding the same partition. Renewals keep it, unless the record had vanished.
    #[must_use]
    pub fn tenure(&self) -> u64 {
        self.tenure
    }
}

/// What became of a claim or a renewal.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClaimOutcome {
    /// The partition is mine.
    Won(Lease),
    /// It is not mine. An outcome, not an error: somebody else was faster, or had good reason to take it.
    Lost {
        /// The owner now; nobody if it was released.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner has it: two instances run under one owner id. Stop.
    Replaced {
        /// The later incarnation.
        by: Incarnation,
    },
    /// Nobody can tell yet. What was believed before stands; try again while the lease lasts.
    Undecided(Error),
}

/// What became of a release.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The partition is not mine any more.
    Released,
    /// Nobody can tell. If it is still mine, it expires.
    Undecided(Error),
}

/// What became of a write whose outcome was settled.
enum Settled {
    Holds(Lease),
    Gone(Option<OwnerId>),
    Replaced(Incarnation),
}

impl GroupStore {
    /// Claims partitions, each with its own outcome; a failure of one never discards another's.
    pub async fn claim(&self, claims: Vec<Claim>) -> Vec<(PartitionId, ClaimOutcome)> {
        concurrently(claims, |claim| async move {
            let outcome = self.claim_one(&claim).await;
            (claim.partition, outcome)
        })
        .await
    }

    /// Renews leases, each with its own outcome. Every key of the record is kept.
    pub async fn renew(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ClaimOutcome)> {
        concurrently(leases, |lease| async move {
            let outcome = self.renew_one(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Gives partitions back, so that others may claim them in their next cycle.
    pub async fn release(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ReleaseOutcome)> {
        concurrently(leases, |lease| async move {
            let outcome = self.release_one(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Who owns a partition now, by its record; nobody if it has none or was released.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should.
    pub async fn owner_of(&self, partition: &PartitionId) -> Result<(Relation, Option<OwnerId>)> {
        let found = self.read_ownership(partition).await?;
        Ok(found.map_or((Relation::Nobody, None), |found| (found.relation, found.record.owner)))
    }

    pub(crate) async fn claim_one(&self, claim: &Claim) -> ClaimOutcome {
        let me = self.identity();
        let record = OwnershipRecord {
            owner: Some(me.owner.clone()),
            incarnation: Some(me.incarnation.clone()),
            since: self.server_time().replace_nanosecond(0).ok(),
            ..OwnershipRecord::default()
        };
        claim_outcome(self.settle(Goal::Claim, &claim.partition, record, None, claim.over.as_ref()).await)
    }

    pub(crate) async fn renew_one(&self, lease: &Lease) -> ClaimOutcome {
        let record = lease.record.clone();
        claim_outcome(self.settle(Goal::Renew, &lease.partition, record, Some(lease), Some(&lease.etag)).await)
    }

    pub(crate) async fn release_one(&self, lease: &Lease) -> ReleaseOutcome {
        let record = OwnershipRecord { other: lease.record.other.clone(), ..OwnershipRecord::default() };
        let settled = self.settle(Goal::Release, &lease.partition, record, None, Some(&lease.etag)).await;
        settled.map_or_else(ReleaseOutcome::Undecided, |_| ReleaseOutcome::Released)
    }

    /// Writes until it is known who holds the partition, for two request deadlines at the most.
    async fn settle(
        &self,
        goal: Goal,
        partition: &PartitionId,
        record: OwnershipRecord,
        renewed: Option<&Lease>,
        etag: Option<&ETag>,
    ) -> Result<Settled> {
        let _turn = self.turn(RecordKind::Ownership).await;
        let limit = 2 * self.request_deadline();
        let settling = self.settle_in_time(goal, partition, record, renewed, etag);
        timeout(limit, settling).await.unwrap_or_else(|_| {
            let message =
                format!("the {} of partition {partition} took longer than {limit:?}", goal.operation().name());
            Err(Error::new(ErrorKind::Unknown, message))
        })
    }

    /// `renewed` is the lease that goes on if the write succeeds.
    async fn settle_in_time(
        &self,
        goal: Goal,
        partition: &PartitionId,
        mut record: OwnershipRecord,
        renewed: Option<&Lease>,
        etag: Option<&ETag>,
    ) -> Result<Settled> {
        let name = self.inner.names.of(RecordKind::Ownership, partition);
        let mut condition = etag.cloned().map_or(Condition::Create, Condition::Match);
        let holds = |record, etag, valid_from, created: bool| {
            let tenure = renewed.filter(|_| !created).map_or_else(|| self.next_tenure(), Lease::tenure);
            Ok(Settled::Holds(Lease { partition: partition.clone(), record, etag, valid_from, tenure }))
        };
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let metadata = codec::encode_ownership(&record);
            let sent = Instant::now();
            match self.write(goal.operation(), &name, &metadata, &condition).await {
                Ok(written) => return holds(record, written.etag, sent, condition == Condition::Create),
                Err(error) if is_doubtful(&error) => {}
                Err(error) => return Err(error),
            }
            let read = Instant::now();
            let found = self.read_ownership(partition).await?;
            if let Some(found) = found.as_ref().filter(|found| found.relation == Relation::Mine) {
                // Somebody may have added keys to my record: they are theirs to take away.
                record.other.clone_from(&found.record.other);
            }
            match after_doubt(goal, &condition, found.as_ref(), self.terms().expiry) {
                Next::Write(next) => condition = next,
                Next::Lost(by) => return Ok(Settled::Gone(by)),
                Next::Replaced(by) => return Ok(Settled::Replaced(by)),
                Next::Stands => {
                    let Some(found) = found else { return Ok(Settled::Gone(None)) };
                    let valid_from = read.checked_sub(found.age).unwrap_or(read);
                    return holds(record, found.etag, valid_from, false);
                }
            }
        }
        Err(Error::new(ErrorKind::Contended, format!("the ownership of partition {partition} changes all the time")))
    }

    pub(super) async fn read_ownership(&self, partition: &PartitionId) -> Result<Option<Found>> {
        let blob = self.read(&self.inner.names.of(RecordKind::Ownership, partition)).await?;
        Ok(blob.map(|blob| self.found(blob)))
    }

    fn found(&self, blob: Blob) -> Found {
        let (record, _) = codec::decode_ownership(&blob.name, &blob.metadata);
        let relation = record.relation_to(self.identity());
        Found { relation, record, age: blob.age(), etag: blob.etag }
    }
}

/// All at once: the store bounds how many requests are under way.
async fn concurrently<T, R, F>(items: Vec<T>, each: impl Fn(T) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    items.into_iter().map(each).collect::<FuturesUnordered<_>>().collect().await
}

impl Goal {
    fn operation(self) -> Operation {
        match self {
            Self::Claim => Operation::Claim,
            Self::Renew => Operation::Renew,
            Self::Release => Operation::Release,
        }
    }
}

fn claim_outcome(settled: Result<Settled>) -> ClaimOutcome {
    match settled {
        Ok(Settled::Holds(lease)) => ClaimOutcome::Won(lease),
        Ok(Settled::Gone(by)) => ClaimOutcome::Lost { by },
        Ok(Settled::Replaced(by)) => ClaimOutcome::Replaced { by },
        Err(error) => ClaimOutcome::Undecided(error),
    }
}
