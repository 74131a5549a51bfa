//! What one owner holds in one consumer group through the official processor, which remembers none of it: leases,
//! adoptions, and which of its partitions must start again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Mutex as AsyncMutex;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{OwnerId, PartitionId, Position, Relation};
use crate::store::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, GroupStore, Lease, Ownership, ReleaseOutcome,
};
use crate::telemetry::{self, Operation};

/// One partition that was won.
#[derive(Debug)]
struct Held {
    lease: Mutex<Lease>,
    /// Nothing until the partition is adopted, and again from the moment when it has to start anew.
    adoption: AsyncMutex<Option<Adoption>>,
    /// The partition is to be left out of the next answer, so that the processor closes its receiver.
    start_again: AtomicBool,
}

impl Held {
    fn new(lease: Lease) -> Self {
        Self { lease: Mutex::new(lease), adoption: AsyncMutex::new(None), start_again: AtomicBool::new(false) }
    }

    fn lease(&self) -> Lease {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_lease(&self, lease: Lease) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }
}

/// One owner in one consumer group.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) store: GroupStore,
    held: Mutex<HashMap<PartitionId, Arc<Held>>>,
    /// Partitions that are owned in the other tree of names, by the last listing.
    elsewhere: Mutex<HashMap<PartitionId, OwnerId>>,
}

impl Holder {
    pub(super) fn new(store: GroupStore) -> Self {
        Self { store, held: Mutex::default(), elsewhere: Mutex::default() }
    }

    pub(super) fn owner(&self) -> &OwnerId {
        &self.store.identity().owner
    }

    fn held(&self) -> MutexGuard<'_, HashMap<PartitionId, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elsewhere(&self) -> MutexGuard<'_, HashMap<PartitionId, OwnerId>> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, partition: &PartitionId) -> Option<Arc<Held>> {
        self.held().get(partition).cloned()
    }

    /// Takes notice of a listing: what it shows in other hands is not mine any more.
    pub(super) fn notice(&self, listed: &[Ownership], elsewhere: HashMap<PartitionId, OwnerId>) {
        for ownership in listed {
            if ownership.record.relation_to(self.store.identity()) != Relation::Mine {
                self.forget(&ownership.partition, ownership.record.owner.as_ref());
            }
        }
        let mut known = self.elsewhere();
        for (partition, owner) in elsewhere.iter().filter(|(partition, _)| !known.contains_key(*partition)) {
            telemetry::in_the_other_tree(partition, owner);
        }
        *known = elsewhere;
    }

    fn forget(&self, partition: &PartitionId, to: Option<&OwnerId>) {
        if self.held().remove(partition).is_some() {
            telemetry::ownership_lost(partition, to);
        }
    }

    /// Claims, or renews what is held, all at once. Answers the leases of those that may be processed now.
    pub(super) async fn claim(&self, claims: Vec<Claim>) -> Vec<Lease> {
        let claims: FuturesUnordered<_> = claims.into_iter().map(|claim| self.claim_one(claim)).collect();
        claims.filter_map(std::future::ready).collect().await
    }

    async fn claim_one(&self, claim: Claim) -> Option<Lease> {
        let partition = claim.partition();
        if let Some(held) = self.find(partition) {
            return self.renew(partition, &held).await;
        }
        if self.elsewhere().contains_key(partition) {
            return None;
        }
        match self.store.claim_one(&claim).await {
            ClaimOutcome::Won(lease) => {
                telemetry::claim_won(partition, &"asked for");
                let held = Arc::new(Held::new(lease));
                self.held().insert(partition.clone(), Arc::clone(&held));
                self.adopt(partition, &held).await
            }
            ClaimOutcome::Lost { by } => {
                telemetry::claim_lost(partition, by.as_ref());
                None
            }
            // Here another incarnation is another owner: replicas may have the same application id.
            ClaimOutcome::Replaced { .. } => {
                telemetry::claim_lost(partition, Some(self.owner()));
                None
            }
            ClaimOutcome::Undecided(error) => {
                telemetry::ownership_undecided(Operation::Claim, partition, &error);
                None
            }
        }
    }

    async fn renew(&self, partition: &PartitionId, held: &Held) -> Option<Lease> {
        let lease = held.lease();
        match self.store.renew_one(&lease).await {
            ClaimOutcome::Won(renewed) => {
                let same_tenure = renewed.tenure() == lease.tenure();
                held.set_lease(renewed);
                if held.start_again.swap(false, Ordering::Relaxed) || !same_tenure {
                    *held.adoption.lock().await = None;
                    return None;
                }
                self.adopt(partition, held).await
            }
            ClaimOutcome::Lost { by } => {
                self.forget(partition, by.as_ref());
                None
            }
            ClaimOutcome::Replaced { .. } => {
                self.forget(partition, Some(self.owner()));
                None
            }
            // What was believed before stands.
            ClaimOutcome::Undecided(error) => {
                telemetry::ownership_undecided(Operation::Renew, partition, &error);
                held.adoption.lock().await.is_some().then_some(lease)
            }
        }
    }

    /// Unless it is adopted already. Where processing starts without a checkpoint only the processor knows, so no start is
    /// pinned.
    async fn adopt(&self, partition: &PartitionId, held: &Held) -> Option<Lease> {
        let mut adoption = held.adoption.lock().await;
        if adoption.is_some() {
            return Some(held.lease());
        }
        match self.store.adopt(partition, None).await {
            Ok(AdoptOutcome::Adopted(adopted)) => {
                *adoption = Some(adopted);
                return Some(held.lease());
            }
            Ok(AdoptOutcome::Lost { by }) => self.forget(partition, by.as_ref()),
            Err(error) if error.kind() == ErrorKind::Contended => {
                telemetry::adoption_contended(partition, &error);
                self.held().remove(partition);
                self.release_one(held.lease()).await;
            }
            Err(error) => telemetry::adoption_failed(partition, &error),
        }
        None
    }

    /// Writes a checkpoint of a partition that is held.
    pub(super) async fn checkpoint(&self, partition: &PartitionId, position: &Position) -> Result<()> {
        let held = self.find(partition).ok_or_else(|| not_owner(partition))?;
        let mut adoption = held.adoption.lock().await;
        let adopted = adoption.as_mut().ok_or_else(|| rewound(partition))?;
        match self.store.checkpoint(adopted, position).await? {
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
            CheckpointOutcome::Rewound => {
                *adoption = None;
                held.start_again.store(true, Ordering::Relaxed);
                Err(rewound(partition))
            }
            CheckpointOutcome::Fenced { by } => {
                self.forget(partition, by.as_ref());
                let by = by.as_ref().map_or("nobody", OwnerId::as_str);
                let message = format!("partition {partition} belongs to {by} now: stop processing it");
                Err(Error::new(ErrorKind::Fenced, message))
            }
        }
    }

    /// Gives everything back.
    pub(super) async fn release_all(&self) -> Vec<(PartitionId, ReleaseOutcome)> {
        let leases: Vec<_> = self.held().drain().map(|(_, held)| held.lease()).collect();
        leases.into_iter().map(|lease| self.release_one(lease)).collect::<FuturesUnordered<_>>().collect().await
    }

    async fn release_one(&self, lease: Lease) -> (PartitionId, ReleaseOutcome) {
        let outcome = self.store.release_one(&lease).await;
        let partition = lease.partition().clone();
        match &outcome {
            ReleaseOutcome::Released => telemetry::released(&partition),
            ReleaseOutcome::Undecided(error) => telemetry::release_undecided(&partition, error),
        }
        (partition, outcome)
    }
}

fn not_owner(partition: &PartitionId) -> Error {
    let message = format!(
        "partition {partition} is not held: it was lost, or never claimed through this store; nothing was written"
    );
    Error::new(ErrorKind::Fenced, message)
}

fn rewound(partition: &PartitionId) -> Error {
    let message = format!(
        "partition {partition} has to start again from its checkpoint, which was put back: drop its client, the processor \
         gives a new one"
    );
    Error::new(ErrorKind::Rewound, message)
}
