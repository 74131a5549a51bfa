//! Claim, renew, release: conditional writes of one ownership blob each, and what their answers mean.

use std::future::Future;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use super::partitions::PartitionState;
use super::{GroupStore, MAX_ATTEMPTS, back_off, condition, is_doubtful};
use crate::blob::{Blob, ETag};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, LeaseScope, OwnerId, OwnershipRecord, PartitionId, Relation};
use crate::protocol::{Found, Goal, Next, after_doubt, begins_tenure};
use crate::telemetry::Operation;

/// A wish to own a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    partition: PartitionId,
    over: Option<ETag>,
    load: Option<u64>,
    handoff_to: Option<OwnerId>,
}

impl Claim {
    /// Claims a partition that has no record yet.
    #[must_use]
    pub fn unowned(partition: PartitionId) -> Self {
        Self { partition, over: None, load: None, handoff_to: None }
    }

    /// The same claim, which says how much work the partition is, as its last owner measured it.
    #[must_use]
    pub fn with_load(mut self, load: Option<u64>) -> Self {
        self.load = load;
        self
    }

    /// The same claim of an operator, which will return the partition to this owner.
    pub(crate) fn with_handoff_to(mut self, owner: Option<OwnerId>) -> Self {
        self.handoff_to = owner;
        self
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// The version of the record that it is over; nothing if it is to be the first.
    #[must_use]
    pub fn over_version(&self) -> Option<&ETag> {
        self.over.as_ref()
    }

    /// Claims a partition whose record was seen with this ETag: released, expired, or to be stolen.
    #[must_use]
    pub fn over(partition: PartitionId, etag: ETag) -> Self {
        Self { partition, over: Some(etag), load: None, handoff_to: None }
    }
}

/// Proof that this owner won a partition. It is spent by time: unless renewed, others may claim the partition once it
/// is older than the expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    partition: PartitionId,
    record: OwnershipRecord,
    etag: ETag,
    valid_from: Duration,
    tenure: u64,
    /// Its next renewal counts only once it is written.
    rewrite: bool,
}

impl Lease {
    /// A lease with this record, as if it had been won, for tests of what decides about leases.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of(partition: PartitionId, record: OwnershipRecord, etag: ETag, valid_from: Duration, tenure: u64) -> Self {
        Self { partition, record, etag, valid_from, tenure, rewrite: false }
    }

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

    /// The same lease, which will say at its next renewal how much work the partition is, if that is known.
    #[must_use]
    pub fn with_load(mut self, load: Option<u64>) -> Self {
        self.record.load = load.or(self.record.load);
        self
    }

    /// Who asked for the partition, as far as the last renewal that met a conflict saw: a mark changes the record, so
    /// that the next renewal meets it at the latest. Nobody once it has been won anew.
    #[must_use]
    pub fn asked_for_by(&self) -> Option<&OwnerId> {
        self.record.handoff_to.as_ref().filter(|asking| self.record.owner.as_ref() != Some(asking))
    }

    /// The same lease, whose renewals tell whoever asked for the partition that it drains. Unlike other renewals they
    /// count only once the record says so: whoever asked waits for nothing else.
    #[must_use]
    pub fn with_draining(mut self) -> Self {
        self.record.draining = true;
        self
    }

    /// The same lease, whose next renewal takes the mark of whoever asked for the partition away: that one has died.
    #[must_use]
    pub fn without_mark(mut self) -> Self {
        self.record.handoff_to = None;
        self
    }

    /// The same lease, whose next renewal writes that its owner has shut down and will process the partition again
    /// after its restart.
    #[must_use]
    pub fn kept(mut self) -> Self {
        (self.record.away, self.rewrite) = (true, true);
        self
    }

    /// The same lease, whose next renewal counts only once the record is written, with this scope. To be asked for each
    /// lease of scope [`Instance`](LeaseScope::Instance) after the first announcement that succeeds since this owner
    /// was [declared dead](super::Announced::DeclaredDead), for somebody may be about to take it over by the record as
    /// it is; and in order to change the scope.
    #[must_use]
    pub fn rewritten(mut self, scope: LeaseScope) -> Self {
        (self.record.scope, self.rewrite) = (scope, true);
        self
    }

    /// The version of the record.
    #[must_use]
    pub fn etag(&self) -> &ETag {
        &self.etag
    }

    /// The moment from which the expiry counts, on the store's [lease clock](GroupStore::lease_time). Before the write
    /// was sent; or, where only a read showed that it was applied, its age before that, which the server tells to the
    /// second.
    #[must_use]
    pub fn valid_from(&self) -> Duration {
        self.valid_from
    }

    /// Tells apart two times of holding the same partition; the later one is greater. Renewals keep it, unless the
    /// record had vanished: then it has to be adopted anew.
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
        /// The owner now; nobody if it was released. Myself if the lease is of an earlier tenure than the one that this
        /// store won last.
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
    /// The partition is not mine any more: the release was written.
    Released,
    /// The partition was not mine any more.
    Lost {
        /// The owner now, if there is one.
        by: Option<OwnerId>,
    },
    /// Nobody can tell. If it is still mine, it expires.
    Undecided(Error),
}

/// What became of a write whose outcome was settled.
enum Settled {
    Holds(Box<Lease>),
    Gone(Option<OwnerId>),
    Replaced(Incarnation),
}

/// What an ownership write is to bring about, and under which version.
struct Wish<'a> {
    goal: Goal,
    partition: &'a PartitionId,
    /// The lease that goes on, or ends.
    lease: Option<&'a Lease>,
    record: OwnershipRecord,
    under: Option<ETag>,
    /// The tenure that begins with it, once it was sent.
    begins: Option<u64>,
}

impl<'a> Wish<'a> {
    fn about(lease: &'a Lease, goal: Goal, record: OwnershipRecord) -> Self {
        let under = Some(lease.etag.clone());
        Self { goal, partition: &lease.partition, lease: Some(lease), record, under, begins: None }
    }

    /// Somebody may have added keys to my record, or asked for my partition: that is theirs to take away.
    fn keep_additions(&mut self, found: &OwnershipRecord) {
        self.record.other.clone_from(&found.other);
        self.record.handoff_to.clone_from(&found.handoff_to);
    }
}

/// An ownership blob as it was read.
pub(super) struct FoundRecord {
    pub(super) relation: Relation,
    pub(super) record: OwnershipRecord,
    pub(super) etag: ETag,
    pub(super) age: Duration,
}

impl FoundRecord {
    fn facts(&self) -> Found<ETag> {
        let (relation, etag, draining) = (self.relation, self.etag.clone(), self.record.draining);
        Found { relation, etag, age: self.age, draining }
    }
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

    /// Renews leases, each with its own outcome. Every key of the record is kept, the mark of one that
    /// [asked for the partition](Lease::asked_for_by) too.
    pub async fn renew(&self, leases: Vec<Lease>) -> Vec<(PartitionId, ClaimOutcome)> {
        concurrently(leases, |lease| async move {
            let outcome = self.renew_one(&lease).await;
            (lease.partition, outcome)
        })
        .await
    }

    /// Gives partitions back, so that others may claim them in their next cycle. One that somebody asked for is
    /// reserved for that one for a while.
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
            load: claim.load,
            cooperative: self.cooperative,
            handoff_to: claim.handoff_to.clone(),
            operator: self.operator.then(|| me.owner.clone()),
            scope: self.scope,
            ..OwnershipRecord::default()
        };
        let (partition, under) = (&claim.partition, claim.over.clone());
        let wish = Wish { goal: Goal::Claim, partition, lease: None, record, under, begins: None };
        claim_outcome(self.settle(wish).await)
    }

    pub(crate) async fn renew_one(&self, lease: &Lease) -> ClaimOutcome {
        let goal = match lease {
            Lease { rewrite: true, .. } => Goal::Rewrite,
            lease if lease.record.draining => Goal::Acknowledge,
            _ => Goal::Renew,
        };
        claim_outcome(self.settle(Wish::about(lease, goal, lease.record.clone())).await)
    }

    pub(crate) async fn release_one(&self, lease: &Lease) -> ReleaseOutcome {
        let settled = self.settle(Wish::about(lease, Goal::Release, lease.record.released())).await;
        settled.map_or_else(ReleaseOutcome::Undecided, |_| ReleaseOutcome::Released)
    }

    /// Writes until it is known who holds the partition, for two request deadlines at the most.
    async fn settle(&self, wish: Wish<'_>) -> Result<Settled> {
        let turn = self.turn(RecordKind::Ownership, wish.partition).await;
        if wish.lease.is_some_and(|lease| lease.tenure < turn.state.tenure()) {
            return Ok(Settled::Gone(Some(self.identity().owner.clone())));
        }
        let limit = 2 * self.request_deadline();
        let (goal, partition) = (wish.goal, wish.partition);
        let settling = self.settle_in_time(wish, &turn.state);
        timeout(limit, settling).await.unwrap_or_else(|_| {
            let message =
                format!("the {} of partition {partition} took longer than {limit:?}", goal.operation().name());
            Err(Error::new(ErrorKind::Unknown, message))
        })
    }

    async fn settle_in_time(&self, mut wish: Wish<'_>, state: &PartitionState) -> Result<Settled> {
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            if wish.goal == Goal::Claim || wish.under.is_none() {
                state.may_begin_tenure(*wish.begins.get_or_insert_with(|| self.next_tenure()));
            }
            let sent = self.lease_time();
            if let Some(etag) = self.ownership_written(&wish).await? {
                return Ok(self.held(wish, etag, sent, state));
            }
            let read = self.lease_time();
            let found = self.read_ownership(wish.partition).await?;
            if let Some(found) = found.as_ref().filter(|found| found.relation == Relation::Mine) {
                wish.keep_additions(&found.record);
            }
            let expiry = self.terms().expiry;
            match after_doubt(wish.goal, wish.under.as_ref(), found.as_ref().map(FoundRecord::facts), expiry) {
                Next::Write(under) => wish.under = under,
                Next::Lost => return Ok(Settled::Gone(found.and_then(|found| found.record.owner))),
                Next::Replaced => {
                    let by = found.and_then(|found| found.record.incarnation);
                    return Ok(by.map_or(Settled::Gone(None), Settled::Replaced));
                }
                Next::Stands => {
                    let Some(found) = found else { return Ok(Settled::Gone(None)) };
                    let valid_from = read.saturating_sub(found.age);
                    return Ok(self.held(wish, found.etag, valid_from, state));
                }
            }
        }
        let message = format!("the ownership of partition {} changes all the time", wish.partition);
        Err(Error::new(ErrorKind::Contended, message))
    }

    /// Its ETag, or nothing if only a read can tell what became of it.
    async fn ownership_written(&self, wish: &Wish<'_>) -> Result<Option<ETag>> {
        let name = self.inner.names.of(RecordKind::Ownership, wish.partition);
        let metadata = codec::encode_ownership(&wish.record);
        match self.write(wish.goal.operation(), &name, &metadata, &condition(wish.under.clone())).await {
            Ok(written) => Ok(Some(written.etag)),
            Err(error) if is_doubtful(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn held(&self, wish: Wish<'_>, etag: ETag, valid_from: Duration, state: &PartitionState) -> Settled {
        let Wish { goal, partition, lease, record, begins, .. } = wish;
        if goal == Goal::Release {
            return Settled::Gone(None);
        }
        // Found gone, now or by an earlier write of which nothing was heard any more.
        let vanished = lease.is_some_and(|lease| lease.tenure != state.begun());
        let continued = lease.map(Lease::tenure).filter(|_| !begins_tenure(goal, vanished));
        let tenure = continued.or(begins).unwrap_or_else(|| self.next_tenure());
        if continued.is_none() {
            state.begin_tenure(tenure);
        }
        let lease = Lease { partition: partition.clone(), record, etag, valid_from, tenure, rewrite: false };
        Settled::Holds(Box::new(lease))
    }

    pub(super) async fn read_ownership(&self, partition: &PartitionId) -> Result<Option<FoundRecord>> {
        let blob = self.read_owned(&self.inner.names.of(RecordKind::Ownership, partition)).await?;
        Ok(blob.map(|blob| self.found(blob)))
    }

    pub(super) fn found(&self, blob: Blob) -> FoundRecord {
        let (record, _) = codec::decode_ownership(&blob.name, &blob.metadata);
        let relation = record.relation_to(self.identity());
        FoundRecord { relation, record, age: blob.age(), etag: blob.etag }
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
            Self::Renew | Self::Acknowledge | Self::Rewrite => Operation::Renew,
            Self::Release => Operation::Release,
        }
    }
}

fn claim_outcome(settled: Result<Settled>) -> ClaimOutcome {
    match settled {
        Ok(Settled::Holds(lease)) => ClaimOutcome::Won(*lease),
        Ok(Settled::Gone(by)) => ClaimOutcome::Lost { by },
        Ok(Settled::Replaced(by)) => ClaimOutcome::Replaced { by },
        Err(error) => ClaimOutcome::Undecided(error),
    }
}
