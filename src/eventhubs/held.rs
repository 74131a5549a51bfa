//! What one owner holds in one consumer group through the official processor, which remembers none of it: leases,
//! adoptions, and which of its partitions must start again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::listed::{Aim, Expired, Listed, Wanted};
use crate::blob::ETag;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{OwnerId, PartitionId, Position, Relation};
use crate::store::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, DeclareDeadOutcome, GroupStore, Lease, Ownership,
    ReleaseOutcome,
};
use crate::telemetry::{self, Operation};

/// One partition in one tenure.
#[derive(Debug)]
struct Owned {
    known: Mutex<Known>,
    stage: Mutex<Stage>,
    /// There while the stage is [`Stage::Adopted`]. Locked while a checkpoint is under way, which may take long:
    /// whoever renews looks at the stage instead.
    adoption: AsyncMutex<Option<Adoption>>,
}

/// A lease, and since when it has been known.
#[derive(Clone, Debug)]
struct Known {
    lease: Lease,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// To be adopted. The processor does not read it, or from an earlier start.
    Won,
    /// The processor may read it, and checkpoint.
    Adopted,
}

impl Owned {
    fn new(lease: Lease) -> Arc<Self> {
        let known = Mutex::new(Known { lease, since: Instant::now() });
        Arc::new(Self { known, stage: Mutex::new(Stage::Won), adoption: AsyncMutex::new(None) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    fn lease(&self) -> Lease {
        self.known().lease.clone()
    }

    fn set_lease(&self, lease: Lease) {
        *self.known() = Known { lease, since: Instant::now() };
    }

    fn stage(&self) -> Stage {
        *lock(&self.stage)
    }

    fn set_stage(&self, stage: Stage) {
        *lock(&self.stage) = stage;
    }
}

#[derive(Debug, Default)]
struct Memory {
    held: HashMap<PartitionId, Arc<Owned>>,
    /// Lost since the last answer: the processor may still read them, from an earlier start.
    untold: HashSet<PartitionId>,
    /// Partitions that are owned in the other tree of names, by the last listing.
    elsewhere: HashMap<PartitionId, OwnerId>,
    listed: Listed,
}

impl Memory {
    /// Removes the partition in this tenure.
    fn remove(&mut self, partition: &PartitionId, held: &Arc<Owned>) -> bool {
        let is_there = self.held.get(partition).is_some_and(|known| Arc::ptr_eq(known, held));
        if is_there {
            self.held.remove(partition);
        }
        is_there
    }

    /// Whether it was still there, in this tenure.
    fn forget(&mut self, partition: &PartitionId, held: &Arc<Owned>, to: Option<&OwnerId>) -> bool {
        let was_there = self.remove(partition, held);
        if was_there {
            telemetry::ownership_lost(partition, to);
        }
        was_there
    }
}

/// One owner in one consumer group.
#[derive(Debug)]
pub(super) struct OwnedPartitions {
    pub(super) store: GroupStore,
    memory: Mutex<Memory>,
}

impl OwnedPartitions {
    pub(super) fn new(store: GroupStore) -> Self {
        Self { store, memory: Mutex::default() }
    }

    pub(super) fn owner(&self) -> &OwnerId {
        &self.store.identity().owner
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    /// The official processor calls from outside of it.
    fn span(&self) -> &Span {
        self.store.telemetry().span()
    }

    fn find(&self, partition: &PartitionId) -> Option<Arc<Owned>> {
        self.memory().held.get(partition).cloned()
    }

    fn remember(&self, partition: &PartitionId, held: &Arc<Owned>) {
        self.memory().held.insert(partition.clone(), Arc::clone(held));
    }

    fn forget(&self, partition: &PartitionId, held: &Arc<Owned>, to: Option<&OwnerId>) {
        self.span().in_scope(|| self.memory().forget(partition, held, to));
    }

    /// The same outside of a claim, whose result would show the processor the loss. Under one lock: a claim in between
    /// would win the partition back, and the processor would go on reading where it was.
    fn forget_unreported(&self, partition: &PartitionId, held: &Arc<Owned>, to: Option<&OwnerId>) {
        let mut memory = self.memory();
        if self.span().in_scope(|| memory.forget(partition, held, to)) {
            memory.untold.insert(partition.clone());
        }
    }

    /// Takes notice of a listing that was asked for at this moment: what it shows in other hands is not mine any more,
    /// unless I have won it since.
    pub(super) fn notice(&self, listed: &[Ownership], asked: Instant) {
        for ownership in listed {
            if ownership.record.relation_to(self.store.identity()) == Relation::This {
                continue;
            }
            if let Some(held) = self.find(&ownership.partition).filter(|held| held.known().since <= asked) {
                self.forget_unreported(&ownership.partition, &held, ownership.record.owner.as_ref());
            }
        }
    }

    /// Takes notice of who is live in the other tree of names.
    pub(super) fn set_elsewhere(&self, elsewhere: HashMap<PartitionId, OwnerId>) {
        let mut memory = self.memory();
        for (partition, owner) in elsewhere.iter().filter(|(partition, _)| !memory.elsewhere.contains_key(*partition)) {
            self.span().in_scope(|| telemetry::in_other_name_case(partition, owner));
        }
        memory.elsewhere = elsewhere;
    }

    /// Replaces the last listing.
    pub(super) fn set_listed(&self, listed: Listed) {
        self.memory().listed = listed;
    }

    pub(super) fn holds(&self, partition: &PartitionId) -> bool {
        self.memory().held.contains_key(partition)
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.memory().held.is_empty()
    }

    /// Claims, or renews what is held, all at once. Answers the leases of those that may be processed now.
    ///
    /// What was lost since the last answer is left out of this one even if it could be won back: the processor would go
    /// on reading where it was, and not where the checkpoint is now.
    pub(super) async fn claim(&self, wanted: Vec<Wanted>) -> Vec<Lease> {
        let untold = std::mem::take(&mut self.memory().untold);
        let wanted = wanted.into_iter().filter(|wanted| !untold.contains(&wanted.partition));
        let claims: FuturesUnordered<_> = wanted.map(|wanted| self.claim_one(wanted)).collect();
        claims.filter_map(std::future::ready).collect().instrument(self.span().clone()).await
    }

    async fn claim_one(&self, wanted: Wanted) -> Option<Lease> {
        let partition = &wanted.partition;
        if let Some(held) = self.find(partition) {
            return self.renew(partition, &held).await;
        }
        let claim = match self.aim_at(&wanted)? {
            Aim::Claim(claim, to_declare_dead) => self.is_free(partition, to_declare_dead).await.then_some(claim)?,
            Aim::Read(version) => self.claim_over(partition, &version).await?,
        };
        match self.store.claim(&claim).await {
            ClaimOutcome::Won(lease) => {
                telemetry::claim_won(partition, "official_processor", None);
                let held = Owned::new(lease);
                self.remember(partition, &held);
                return self.adopt(partition, &held).await;
            }
            ClaimOutcome::Lost { by } => telemetry::claim_lost(partition, by.as_ref()),
            // Here another incarnation is another owner: replicas may have the same application id.
            ClaimOutcome::Replaced { .. } => telemetry::claim_lost(partition, Some(self.owner())),
            ClaimOutcome::Indeterminate(error) => {
                self.store.telemetry().ownership_indeterminate(Operation::Claim, partition, &error);
            }
        }
        None
    }

    /// By what was listed last. `None` for a partition that is owned in the other tree.
    fn aim_at(&self, wanted: &Wanted) -> Option<Aim> {
        let memory = self.memory();
        let is_elsewhere = memory.elsewhere.contains_key(&wanted.partition);
        (!is_elsewhere).then(|| memory.listed.aim_at(wanted))
    }

    /// A claim over this version, unless the record has another one by now.
    async fn claim_over(&self, partition: &PartitionId, version: &ETag) -> Option<Claim> {
        match self.store.read_ownership(partition).await {
            Ok(Some(seen)) if seen.etag == *version => return Some(Claim::over(&seen)),
            Ok(seen) => telemetry::claim_lost(partition, seen.and_then(|seen| seen.record.owner).as_ref()),
            Err(error) => self.store.telemetry().ownership_indeterminate(Operation::Claim, partition, &error),
        }
        None
    }

    /// Not if the owner has shown a sign of life since it was taken for dead.
    async fn is_free(&self, partition: &PartitionId, to_declare_dead: Option<Box<Expired>>) -> bool {
        let Some(Expired { seen, presence }) = to_declare_dead.map(|abandoned| *abandoned) else { return true };
        match self.store.declare_dead(&seen, presence.as_ref()).await {
            Ok(verdict) => verdict == DeclareDeadOutcome::Declared,
            Err(error) => {
                self.store.telemetry().ownership_indeterminate(Operation::Presence, partition, &error);
                false
            }
        }
    }

    async fn renew(&self, partition: &PartitionId, held: &Arc<Owned>) -> Option<Lease> {
        let lease = held.lease();
        match self.store.renew(&lease).await {
            ClaimOutcome::Won(renewed) if renewed.epoch() == lease.epoch() => {
                held.set_lease(renewed);
                return self.started(partition, held).await;
            }
            // The record had vanished. This answer leaves the partition out.
            ClaimOutcome::Won(renewed) => self.remember(partition, &Owned::new(renewed)),
            ClaimOutcome::Lost { by } => self.forget(partition, held, by.as_ref()),
            ClaimOutcome::Replaced { .. } => self.forget(partition, held, Some(self.owner())),
            // What was believed before stands.
            ClaimOutcome::Indeterminate(error) => {
                self.store.telemetry().ownership_indeterminate(Operation::Renew, partition, &error);
                return (held.stage() == Stage::Adopted).then_some(lease);
            }
        }
        None
    }

    /// The lease, if the partition may be processed now.
    async fn started(&self, partition: &PartitionId, held: &Arc<Owned>) -> Option<Lease> {
        match held.stage() {
            Stage::Adopted => Some(held.lease()),
            Stage::Won => self.adopt(partition, held).await,
        }
    }

    /// Where processing starts without a checkpoint only the processor knows, so no start is pinned.
    async fn adopt(&self, partition: &PartitionId, held: &Arc<Owned>) -> Option<Lease> {
        match self.store.adopt(partition, held.lease().epoch(), None).await {
            Ok(AdoptOutcome::Adopted(adopted)) => {
                *held.adoption.lock().await = Some(adopted);
                held.set_stage(Stage::Adopted);
                return Some(held.lease());
            }
            Ok(AdoptOutcome::Lost { by }) => self.forget(partition, held, by.as_ref()),
            Err(error) if error.kind() == ErrorKind::Contended => {
                telemetry::adoption_contended(partition, &error);
                self.release_held(partition, held, Instant::now()).await;
            }
            Err(error) => self.store.telemetry().adoption_failed(partition, &error),
        }
        None
    }

    /// Writes a checkpoint of a partition that is held.
    pub(super) async fn checkpoint(&self, partition: &PartitionId, position: &Position) -> Result<()> {
        let held = self.find(partition).ok_or_else(|| not_owner(partition))?;
        let mut adoption = held.adoption.lock().await;
        let Some(adopted) = adoption.as_mut() else {
            return Err(not_started(partition));
        };
        match self.store.checkpoint(adopted, position).await? {
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
            CheckpointOutcome::Fenced { by } => {
                self.forget_unreported(partition, &held, by.as_ref());
                Err(fenced(partition, by.as_ref()))
            }
        }
    }

    /// Releases everything. What fails is repeated within four request deadlines. A call that was dropped or had no
    /// outcome can be repeated.
    pub(super) async fn release_all(&self) -> Vec<(PartitionId, ReleaseOutcome)> {
        let until = Instant::now() + 4 * self.store.request_timeout();
        let all: Vec<_> =
            self.memory().held.iter().map(|(partition, held)| (partition.clone(), held.clone())).collect();
        let releasing = all.iter().map(|(partition, held)| async move {
            let outcome = self.release_held(partition, held, until).await;
            (partition.clone(), outcome)
        });
        releasing.collect::<FuturesUnordered<_>>().collect().instrument(self.span().clone()).await
    }

    /// Attempts begin until this moment. The partition stays in the memory until its release is settled.
    async fn release_held(&self, partition: &PartitionId, held: &Arc<Owned>, until: Instant) -> ReleaseOutcome {
        let mut attempts = self.store.attempts(Some(until));
        let outcome = loop {
            match self.store.release(&held.lease()).await {
                ReleaseOutcome::Indeterminate(error) if attempts.again_after(&error).await => {
                    self.store.telemetry().ownership_indeterminate(Operation::Release, partition, &error);
                }
                outcome => break outcome,
            }
        };
        match &outcome {
            ReleaseOutcome::Released | ReleaseOutcome::Lost { .. } => {
                self.memory().remove(partition, held);
                telemetry::released(partition);
            }
            ReleaseOutcome::Indeterminate(error) => telemetry::release_indeterminate(partition, error),
        }
        outcome
    }
}

fn not_owner(partition: &PartitionId) -> Error {
    let message = format!(
        "partition {partition} is not owned: it was lost, or never claimed through this store; nothing was written"
    );
    Error::new(ErrorKind::Fenced, message)
}

fn not_started(partition: &PartitionId) -> Error {
    let message = format!(
        "partition {partition} was lost and claimed again, and restarts from its checkpoint; nothing was written. Close this \
         partition client, because the processor provides a new one"
    );
    Error::new(ErrorKind::Fenced, message)
}

fn fenced(partition: &PartitionId, by: Option<&OwnerId>) -> Error {
    let by = by.map_or("none", OwnerId::as_str);
    Error::new(
        ErrorKind::Fenced,
        format!("partition {partition} is no longer owned by this instance (current owner: {by}); stop processing it"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::ConsumerGroup;

    mod defects {
        use super::*;

        /// Another thread, which claims, must see the partition either as held or as one to leave out.
        #[tokio::test]
        async fn a14_forgetting_and_leaving_out_are_one_step() {
            let group = ConsumerGroup::new("ns", "hub", "$Default").unwrap();
            let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
            let store = builder.connect().await.unwrap();
            let partition = PartitionId::from(0);
            let ClaimOutcome::Won(lease) = store.claim(&Claim::unowned(partition.clone())).await else { panic!() };
            let (holder, held) = (OwnedPartitions::new(store), Owned::new(lease));
            holder.remember(&partition, &held);
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let looking = scope.spawn(|| {
                    let mut missing = 0;
                    while !ended.load(Ordering::Relaxed) {
                        let memory = holder.memory();
                        missing += usize::from(memory.held.is_empty() && memory.untold.is_empty());
                    }
                    missing
                });
                for _ in 0..20_000 {
                    holder.remember(&partition, &held);
                    holder.memory().untold.clear();
                    holder.forget_unreported(&partition, &held, None);
                }
                ended.store(true, Ordering::Relaxed);
                assert_eq!(looking.join().unwrap(), 0);
            });
        }
    }
}
