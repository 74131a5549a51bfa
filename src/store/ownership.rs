//! Claim, renew, release: conditional writes of one ownership blob each, and what their answers mean.

use std::future::Future;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use time::OffsetDateTime;
use tokio::time::{sleep, timeout};

use super::partitions::PartitionState;
use super::{GroupStore, MAX_ATTEMPTS, Ownership, back_off, condition, is_doubtful};
use crate::blob::ETag;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{Incarnation, LeaseScope, OwnerId, OwnershipRecord, PartitionId, Relation};
use crate::protocol::{Found, Goal, Next, after_doubt, next_epoch, too_young_by};
use crate::telemetry::Operation;

/// A wish to own a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    partition: PartitionId,
    over: Option<Seen>,
    load: Option<u64>,
    handoff_to: Option<OwnerId>,
}

/// A record, as far as a write over it depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    etag: ETag,
    epoch: Option<i64>,
    /// By the answer that showed it.
    age: Duration,
    server_time: OffsetDateTime,
}

impl Seen {
    fn of(seen: &Ownership) -> Self {
        let (epoch, Ownership { etag, age, server_time, .. }) = (seen.record.epoch, seen);
        Self { etag: etag.clone(), epoch, age: *age, server_time: *server_time }
    }
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

    /// Claims a partition over the record that was seen: released, expired, or to be stolen. It says as much as that
    /// record of the work that the partition is.
    #[must_use]
    pub fn over(seen: &Ownership) -> Self {
        let over = Some(Seen::of(seen));
        Self { partition: seen.partition.clone(), over, load: seen.record.load, handoff_to: None }
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
    epoch: i64,
    /// Its next renewal counts only once it is written.
    rewrite: bool,
}

impl Lease {
    /// A lease with this record, as if it had been won, for tests of what decides about leases.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of(partition: PartitionId, record: OwnershipRecord, etag: ETag, valid_from: Duration, epoch: i64) -> Self {
        Self { partition, record, etag, valid_from, epoch, rewrite: false }
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
        (self.record.handoff_to, self.record.operator) = (None, None);
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

    /// The number of the tenure that the claim began. It is strictly greater than that of every earlier tenure of the
    /// partition in which events were processed, whichever instance had it. Renewals keep it, unless the record had
    /// vanished: then another tenure begins, and the partition has to be adopted again.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
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
        /// The owner now; nobody if it was released. Myself if the record is of another tenure than the lease.
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
    /// The record is mine, in this version, but has no epoch yet.
    WithoutEpoch(ETag),
    Released,
    Gone(Option<OwnerId>),
    Replaced(Incarnation),
}

/// What an ownership write is to bring about, and over which record.
#[derive(Clone)]
struct Wish<'a> {
    goal: Goal,
    partition: &'a PartitionId,
    /// The lease that goes on, or ends.
    lease: Option<&'a Lease>,
    record: OwnershipRecord,
    over: Option<Seen>,
}

impl<'a> Wish<'a> {
    fn about(lease: &'a Lease, goal: Goal, record: OwnershipRecord) -> Self {
        let (etag, epoch, server_time) = (lease.etag.clone(), Some(lease.epoch), OffsetDateTime::UNIX_EPOCH);
        let over = Some(Seen { etag, epoch, age: Duration::ZERO, server_time });
        Self { goal, partition: &lease.partition, lease: Some(lease), record, over }
    }

    /// Others may have added keys to my record, or asked for my partition. Only they take that away. An orphan's epoch is
    /// kept by a release, too.
    fn keep_additions(&mut self, found: &OwnershipRecord) {
        self.record.epoch = found.epoch.max(self.record.epoch);
        self.record.other.clone_from(&found.other);
        self.record.handoff_to.clone_from(&found.handoff_to);
        self.record.operator.clone_from(&found.operator);
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

    /// Reads the ownership of one partition, if it has a record.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should.
    pub async fn read_ownership(&self, partition: &PartitionId) -> Result<Option<Ownership>> {
        let blob = self.read_owned(&self.inner.names.of(RecordKind::Ownership, partition)).await?;
        Ok(blob.map(|blob| self.ownership(partition.clone(), &blob).0))
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
        let Claim { partition, over, .. } = claim;
        let wish = Wish { goal: Goal::Claim, partition, lease: None, record, over: over.clone() };
        claim_outcome(self.settle_with_epoch(wish).await)
    }

    pub(crate) async fn renew_one(&self, lease: &Lease) -> ClaimOutcome {
        let goal = match lease {
            Lease { rewrite: true, .. } => Goal::Rewrite,
            lease if lease.record.draining => Goal::Acknowledge,
            _ => Goal::Renew,
        };
        claim_outcome(self.settle_with_epoch(Wish::about(lease, goal, lease.record.clone())).await)
    }

    pub(crate) async fn release_one(&self, lease: &Lease) -> ReleaseOutcome {
        let settled = self.settle(Wish::about(lease, Goal::Release, lease.record.released())).await;
        match settled {
            Ok(Settled::Gone(by)) => ReleaseOutcome::Lost { by },
            Ok(_) => ReleaseOutcome::Released,
            Err(error) => ReleaseOutcome::Undecided(error),
        }
    }

    /// Where the claim is over a record without an epoch that is too young, it is made in two steps: first the record is
    /// written without an epoch, and once that is old enough, again with one. To wait before the first step would not do:
    /// an owner of another SDK may renew its record more often than that.
    async fn settle_with_epoch(&self, mut wish: Wish<'_>) -> Result<Settled> {
        for _ in 0..MAX_ATTEMPTS {
            let taken = match self.settle(wish.clone()).await? {
                Settled::WithoutEpoch(etag) => etag,
                settled => return Ok(settled),
            };
            match self.once_old_enough(wish.partition, &taken).await? {
                Ok(seen) => (wish.goal, wish.over) = (Goal::Claim, Some(seen)),
                Err(by) => return Ok(Settled::Gone(by)),
            }
        }
        Err(changing(wish.partition))
    }

    /// Waits until the record of this version is old enough; or returns its owner, if it has another version by then.
    async fn once_old_enough(&self, partition: &PartitionId, etag: &ETag) -> Result<Result<Seen, Option<OwnerId>>> {
        let mut wait = too_young_by(None, Duration::ZERO);
        for _ in 0..MAX_ATTEMPTS {
            sleep(wait.unwrap_or_default()).await;
            let seen = match self.read_ownership(partition).await? {
                Some(found) if found.etag == *etag => Seen::of(&found),
                found => return Ok(Err(found.and_then(|found| found.record.owner))),
            };
            wait = too_young_by(seen.epoch, seen.age);
            if wait.is_none() {
                return Ok(Ok(seen));
            }
        }
        Err(Error::new(ErrorKind::Contended, format!("the ownership of partition {partition} does not grow older")))
    }

    /// Writes until it is known who holds the partition, for two request deadlines at the most.
    async fn settle(&self, wish: Wish<'_>) -> Result<Settled> {
        let turn = self.turn(RecordKind::Ownership, wish.partition).await;
        if wish.lease.is_some_and(|lease| turn.state.has_won_after(lease.epoch)) {
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
        let operation = wish.goal.operation();
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            if wish.goal == Goal::Claim {
                self.begin_tenure(&mut wish, state);
            }
            let sent = self.lease_time();
            if let Some(etag) = self.ownership_written(operation, &wish).await? {
                return Ok(Self::held(wish, etag, sent, state));
            }
            let read = self.lease_time();
            let found = self.read_ownership(wish.partition).await?;
            let relation = found.as_ref().map(|found| found.record.relation_to(self.identity()));
            if let Some(found) = found.as_ref().filter(|_| relation == Some(Relation::Mine)) {
                wish.keep_additions(&found.record);
            }
            let (expiry, tenure) = (self.terms().expiry, wish.lease.map(Lease::epoch));
            let attempted = wish.over.as_ref().map(|over| &over.etag);
            let next = after_doubt(wish.goal, attempted, tenure, found.as_ref().zip(relation).map(facts), expiry);
            match next {
                Next::Write(_) => wish.over = found.as_ref().map(Seen::of),
                Next::Claim(_) => (wish.goal, wish.over) = (Goal::Claim, found.as_ref().map(Seen::of)),
                Next::Lost => return Ok(Settled::Gone(found.and_then(|found| found.record.owner))),
                Next::Replaced => {
                    let by = found.and_then(|found| found.record.incarnation);
                    return Ok(by.map_or(Settled::Gone(None), Settled::Replaced));
                }
                Next::Stands => {
                    let Some(found) = found else { return Ok(Settled::Gone(None)) };
                    // A release keeps the epoch, so that it is known from any other.
                    let is_released = found.record.owner.is_none() && found.record.epoch == tenure;
                    if wish.goal == Goal::Release && !is_released {
                        return Ok(Settled::Gone(found.record.owner));
                    }
                    let valid_from = read.saturating_sub(found.age);
                    return Ok(Self::held(wish, found.etag, valid_from, state));
                }
            }
        }
        Err(changing(wish.partition))
    }

    /// The epoch of a claim; none over a record that is too young.
    ///
    /// Where there is no record, the time is the latest that the server has told, which is no earlier than that of the
    /// answer that showed none. Tenures before it are those of a record that was deleted: the claim that began the last
    /// of them is two seconds old or older. (After an earlier deletion nothing is promised.)
    fn begin_tenure(&self, wish: &mut Wish<'_>, state: &PartitionState) {
        let (before, server_time) = match &wish.over {
            Some(seen) if too_young_by(seen.epoch, seen.age).is_some() => {
                wish.record.epoch = None;
                return;
            }
            Some(seen) => (seen.epoch, seen.server_time),
            None => (wish.record.epoch, *lock(&self.inner.latest_server_time)),
        };
        let epoch = next_epoch(before.max(state.epoch_elsewhere()), milliseconds(server_time));
        wish.record.epoch = Some(epoch);
        state.may_begin(epoch);
    }

    /// Its ETag, or nothing if only a read can tell what became of it.
    async fn ownership_written(&self, operation: Operation, wish: &Wish<'_>) -> Result<Option<ETag>> {
        let name = self.inner.names.of(RecordKind::Ownership, wish.partition);
        let metadata = codec::encode_ownership(&wish.record);
        match self
            .write(operation, &name, &metadata, &condition(wish.over.as_ref().map(|over| over.etag.clone())))
            .await
        {
            Ok(written) => Ok(Some(written.etag)),
            Err(error) if is_doubtful(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn held(wish: Wish<'_>, etag: ETag, valid_from: Duration, state: &PartitionState) -> Settled {
        let Wish { goal, partition, record, .. } = wish;
        if goal == Goal::Release {
            return Settled::Released;
        }
        let Some(epoch) = record.epoch else { return Settled::WithoutEpoch(etag) };
        state.has_won(epoch);
        let partition = partition.clone();
        Settled::Holds(Box::new(Lease { partition, record, etag, valid_from, epoch, rewrite: false }))
    }
}

fn changing(partition: &PartitionId) -> Error {
    Error::new(ErrorKind::Contended, format!("the ownership of partition {partition} changes all the time"))
}

fn facts((found, relation): (&Ownership, Relation)) -> Found<ETag> {
    let OwnershipRecord { epoch, draining, .. } = found.record;
    Found { relation, etag: found.etag.clone(), age: found.age, epoch, draining }
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
        Ok(Settled::WithoutEpoch(_) | Settled::Released) => ClaimOutcome::Lost { by: None },
        Err(error) => ClaimOutcome::Undecided(error),
    }
}
