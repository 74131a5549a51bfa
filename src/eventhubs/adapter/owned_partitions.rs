//! The partitions that one owner owns in one consumer group through the official processor.

use std::sync::{Arc, Mutex, MutexGuard};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::group_memory::{Aim, Expired, GroupMemory, Listed, Owned, Stage, TimedLease, WantedPartition};
use crate::blob::ETag;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Moment, OwnerId, PartitionId, Position, Relation};
use crate::store::membership::DeclareDeadOutcome;
use crate::store::{
    AdoptOutcome, CaseConflict, CheckpointOutcome, Claim, ClaimOutcome, GroupStore, Lease, Ownership, ReleaseOutcome,
};
use crate::telemetry::{self, StorageOperation};
use crate::util::lock;

/// The partitions of one owner in one consumer group.
#[derive(Debug)]
pub(super) struct OwnedPartitions {
    pub(super) store: GroupStore,
    state: Mutex<GroupMemory>,
}

impl OwnedPartitions {
    pub(super) fn new(store: GroupStore) -> Self {
        Self { store, state: Mutex::default() }
    }

    pub(super) fn owner(&self) -> &OwnerId {
        &self.store.identity().owner
    }

    fn lock_state(&self) -> MutexGuard<'_, GroupMemory> {
        lock(&self.state)
    }

    /// The official processor calls from outside of this span.
    fn store_span(&self) -> &Span {
        self.store.telemetry().span()
    }

    fn find_owned(&self, partition: &PartitionId) -> Option<Arc<Owned>> {
        self.lock_state().owned.get(partition).cloned()
    }

    fn remember_owned(&self, partition: &PartitionId, owned: &Arc<Owned>) {
        self.lock_state().owned.insert(partition.clone(), Arc::clone(owned));
    }

    fn record_loss(&self, partition: &PartitionId, owned: &Arc<Owned>, to: Option<&OwnerId>) {
        self.store_span().in_scope(|| self.lock_state().record_loss(partition, owned, to));
    }

    /// Removes a partition outside of a claim, whose result would report the loss to the processor. Both changes happen
    /// under one lock: a claim in between would win the partition back, and the processor would continue to read from
    /// its old position.
    fn record_unreported_loss(&self, partition: &PartitionId, owned: &Arc<Owned>, to: Option<&OwnerId>) {
        let mut state = self.lock_state();
        if self.store_span().in_scope(|| state.record_loss(partition, owned, to)) {
            state.unreported.insert(partition.clone());
        }
    }

    /// Applies a listing that was requested at this time: removes the partitions that another owner has, unless this
    /// instance has won them since.
    pub(super) fn apply_listing(&self, listed: &[Ownership], requested_at: Instant) {
        for ownership in listed {
            if ownership.record.relation_to(self.store.identity()) == Relation::This {
                continue;
            }
            if let Some(owned) =
                self.find_owned(&ownership.partition).filter(|owned| owned.lock_lease().since <= requested_at)
            {
                self.record_unreported_loss(&ownership.partition, &owned, ownership.record.owner.as_ref());
            }
        }
    }

    /// Replaces the last listing.
    pub(super) fn set_listed(&self, listed: Listed) {
        self.lock_state().listed = listed;
    }

    pub(super) fn contains(&self, partition: &PartitionId) -> bool {
        self.lock_state().owned.contains_key(partition)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock_state().owned.is_empty()
    }

    /// Claims partitions, or renews the owned ones, concurrently. Returns the leases of the partitions that the
    /// processor may process now.
    ///
    /// Partitions that were lost since the last response are omitted once, even if they could be won back: otherwise
    /// the processor would continue to read from its old position instead of the current checkpoint.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if another application owns partitions in the other blob-name casing. Everything is
    /// released then.
    pub(super) async fn claim_partitions(&self, wanted: Vec<WantedPartition>) -> Result<Vec<Lease>> {
        let was_live = self.has_valid_lease();
        let unreported = std::mem::take(&mut self.lock_state().unreported);
        let wanted = wanted.into_iter().filter(|wanted| !unreported.contains(&wanted.partition));
        let claims: FuturesUnordered<_> = wanted.map(|wanted| self.claim_one(wanted)).collect();
        let leases = claims.filter_map(std::future::ready).collect().instrument(self.store_span().clone()).await;
        if !was_live && self.has_valid_lease() {
            self.may_have_been_missed();
        }
        self.check_other_name_case().instrument(self.store_span().clone()).await?;
        Ok(leases)
    }

    fn has_valid_lease(&self) -> bool {
        let lease_duration = self.store.lease_durations().own;
        self.lock_state().owned.values().any(|owned| self.store.lease_age(&owned.lease()) < lease_duration)
    }

    /// Records that an instance that uses the other blob-name casing may not have seen the ownerships of this one.
    fn may_have_been_missed(&self) {
        if self.store.has_other_name_case() {
            self.lock_state().case_check.record_live_lease();
        }
    }

    /// Looks for live owners in the other blob-name casing, if that is due. Looks again at the next claim if that
    /// fails, because an error would end the processor. Also looks again if this instance uses lower case: the other
    /// one gives way.
    async fn check_other_name_case(&self) -> Result<()> {
        if !self.lock_state().case_check.is_due(self.store.lease_clock_now()) {
            return Ok(());
        }
        let found = self.store.find_case_conflict().await;
        let now = self.store.lease_clock_now();
        match found {
            Ok(None) => {
                self.lock_state().case_check.record_no_conflict(now, self.store.lease_durations().own);
                Ok(())
            }
            Ok(Some(conflict)) if self.waits_for_the_other(&conflict, now) => {
                telemetry::other_name_case_awaited(&conflict);
                Ok(())
            }
            Ok(Some(conflict)) => {
                telemetry::other_name_case_live(&conflict);
                self.release_all().await;
                Err(conflict.into())
            }
            Err(error) => {
                telemetry::other_name_case_unknown(&error);
                Ok(())
            }
        }
    }

    fn waits_for_the_other(&self, conflict: &CaseConflict, now: Moment) -> bool {
        self.lock_state().case_check.waits_for_the_other(conflict, now, self.store.lease_durations().own)
    }

    /// Claims a partition, or renews its lease. While another instance may own the same partitions in the other
    /// blob-name casing, it only renews.
    async fn claim_one(&self, wanted: WantedPartition) -> Option<Lease> {
        let partition = &wanted.partition;
        if let Some(owned) = self.find_owned(partition) {
            return self.renew_lease(partition, &owned).await;
        }
        if self.lock_state().case_check.is_unknown() {
            return None;
        }
        let aim = self.lock_state().listed.aim_at(&wanted);
        let claim = match aim {
            Aim::Claim(claim, to_declare_dead) => self.is_free(partition, to_declare_dead).await.then_some(claim)?,
            Aim::Read(version) => self.claim_over(partition, &version).await?,
        };
        match self.store.claim(&claim).await {
            ClaimOutcome::Won(lease) => {
                telemetry::claim_won(partition, "official_processor", None);
                let owned = Owned::new(lease);
                self.remember_owned(partition, &owned);
                return self.adopt_partition(partition, &owned).await;
            }
            ClaimOutcome::Lost { by } => telemetry::claim_lost(partition, by.as_ref()),
            // Another incarnation counts as another owner here, because replicas may have the same application id.
            ClaimOutcome::Replaced { .. } => telemetry::claim_lost(partition, Some(self.owner())),
            ClaimOutcome::Indeterminate(error) => {
                self.store.telemetry().ownership_indeterminate(StorageOperation::Claim, partition, &error);
            }
        }
        None
    }

    /// Returns a claim that replaces this version, unless the record has changed.
    async fn claim_over(&self, partition: &PartitionId, version: &ETag) -> Option<Claim> {
        match self.store.read_ownership(partition).await {
            Ok(Some(seen)) if seen.etag == *version => return Some(Claim::over(&seen)),
            Ok(seen) => telemetry::claim_lost(partition, seen.and_then(|seen| seen.record.owner).as_ref()),
            Err(error) => self.store.telemetry().ownership_indeterminate(StorageOperation::Claim, partition, &error),
        }
        None
    }

    /// Declares the owner dead if necessary. Returns false if it has sent a heartbeat since the listing.
    async fn is_free(&self, partition: &PartitionId, to_declare_dead: Option<Box<Expired>>) -> bool {
        let Some(Expired { seen, heartbeat }) = to_declare_dead.map(|expired| *expired) else { return true };
        match self.store.declare_dead(&seen, heartbeat.as_ref()).await {
            Ok(outcome) => outcome == DeclareDeadOutcome::Declared,
            Err(error) => {
                self.store.telemetry().ownership_indeterminate(StorageOperation::Heartbeat, partition, &error);
                false
            }
        }
    }

    /// Renews the lease of a partition. Returns it if the processor may process the partition now.
    async fn renew_lease(&self, partition: &PartitionId, owned: &Arc<Owned>) -> Option<Lease> {
        let lease = owned.lease();
        match self.store.renew(&lease).await {
            ClaimOutcome::Won(renewed) if renewed.epoch() == lease.epoch() => {
                *owned.lock_lease() = TimedLease { lease: renewed, since: Instant::now() };
                return match owned.stage() {
                    Stage::Adopted => Some(owned.lease()),
                    Stage::Won => self.adopt_partition(partition, owned).await,
                };
            }
            // The record had been deleted. This response omits the partition.
            ClaimOutcome::Won(renewed) => {
                self.remember_owned(partition, &Owned::new(renewed));
                self.may_have_been_missed();
            }
            ClaimOutcome::Lost { by } => self.record_loss(partition, owned, by.as_ref()),
            ClaimOutcome::Replaced { .. } => self.record_loss(partition, owned, Some(self.owner())),
            // The last known state remains valid.
            ClaimOutcome::Indeterminate(error) => {
                self.store.telemetry().ownership_indeterminate(StorageOperation::Renew, partition, &error);
                return (owned.stage() == Stage::Adopted).then_some(lease);
            }
        }
        None
    }

    /// Adopts the partition. Only the processor knows where a partition without a checkpoint starts, so no start is
    /// recorded.
    async fn adopt_partition(&self, partition: &PartitionId, owned: &Arc<Owned>) -> Option<Lease> {
        match self.store.adopt(partition, owned.lease().epoch(), None).await {
            Ok(AdoptOutcome::Adopted(mut adopted)) => {
                // The official processor knows no positions of the application. The mark only informs operators.
                let _ = self.store.set_own_position(&mut adopted, false).await;
                *owned.adoption.lock().await = Some(adopted);
                *lock(&owned.stage) = Stage::Adopted;
                return Some(owned.lease());
            }
            Ok(AdoptOutcome::Lost { by }) => self.record_loss(partition, owned, by.as_ref()),
            Err(error) if error.kind() == ErrorKind::Contended => {
                telemetry::adoption_contended(partition, &error);
                // If this fails, the lease expires.
                let _ = self.release_one(partition, owned, Instant::now()).await;
            }
            Err(error) => self.store.telemetry().adoption_failed(partition, &error),
        }
        None
    }

    /// Writes a checkpoint of an owned partition.
    pub(super) async fn write_checkpoint(&self, partition: &PartitionId, position: &Position) -> Result<()> {
        let Some(owned) = self.find_owned(partition) else {
            return Err(fenced_error(format!(
                "partition {partition} is not owned: it was lost, or never claimed through this store; nothing was \
                 written"
            )));
        };
        let mut adoption = owned.adoption.lock().await;
        let Some(adopted) = adoption.as_mut() else {
            return Err(fenced_error(format!(
                "partition {partition} was lost and claimed again, and restarts from its checkpoint; nothing was \
                 written. Close this partition client, because the processor provides a new one"
            )));
        };
        match self.store.checkpoint(adopted, position).await? {
            CheckpointOutcome::Written | CheckpointOutcome::Superseded => Ok(()),
            CheckpointOutcome::Fenced { by } => {
                self.record_unreported_loss(partition, &owned, by.as_ref());
                Err(fenced_error(format!(
                    "partition {partition} is no longer owned by this instance (current owner: {}); stop processing it",
                    by.as_ref().map_or("none", OwnerId::as_str)
                )))
            }
        }
    }

    /// Releases all partitions. Retries failed releases for four request timeouts. The caller may repeat a call that
    /// was dropped or had an unknown outcome.
    pub(super) async fn release_all(&self) -> Vec<(PartitionId, ReleaseOutcome)> {
        let until = Instant::now() + 4 * self.store.request_timeout();
        let all: Vec<_> =
            self.lock_state().owned.iter().map(|(partition, owned)| (partition.clone(), owned.clone())).collect();
        all.into_iter()
            .map(|(partition, owned)| async move {
                let outcome = self.release_one(&partition, &owned, until).await;
                (partition, outcome)
            })
            .collect::<FuturesUnordered<_>>()
            .collect()
            .instrument(self.store_span().clone())
            .await
    }

    /// Releases one partition. Attempts begin until `until`. The partition stays owned until the outcome is known.
    async fn release_one(&self, partition: &PartitionId, owned: &Arc<Owned>, until: Instant) -> ReleaseOutcome {
        let mut attempts = self.store.retry_schedule(Some(until));
        let outcome = loop {
            match self.store.release(&owned.lease()).await {
                ReleaseOutcome::Indeterminate(error) if attempts.wait_for_next_attempt(&error).await => {
                    self.store.telemetry().ownership_indeterminate(StorageOperation::Release, partition, &error);
                }
                outcome => break outcome,
            }
        };
        match &outcome {
            ReleaseOutcome::Released | ReleaseOutcome::Lost { .. } => {
                self.lock_state().remove_epoch(partition, owned);
                telemetry::partition_released(partition);
            }
            ReleaseOutcome::Indeterminate(error) => telemetry::release_indeterminate(partition, error),
        }
        outcome
    }
}

fn fenced_error(message: String) -> Error {
    Error::new(ErrorKind::Fenced, message)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::ConsumerGroup;

    mod defects {
        use super::*;

        /// A claim on another thread must always see the partition either as owned or as unreported.
        #[tokio::test]
        async fn a_loss_is_recorded_in_one_step() {
            let group = ConsumerGroup::new("ns", "hub", "$Default").unwrap();
            let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
            let store = builder.connect().await.unwrap();
            let partition = PartitionId::from(0);
            let ClaimOutcome::Won(lease) = store.claim(&Claim::unowned(partition.clone())).await else { panic!() };
            let partitions = OwnedPartitions::new(store);
            let owned = Owned::new(lease);
            partitions.remember_owned(&partition, &owned);
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let observer = scope.spawn(|| {
                    let mut missing = 0;
                    while !ended.load(Ordering::Relaxed) {
                        let state = partitions.lock_state();
                        missing += usize::from(state.owned.is_empty() && state.unreported.is_empty());
                    }
                    missing
                });
                for _ in 0..20_000 {
                    partitions.remember_owned(&partition, &owned);
                    partitions.lock_state().unreported.clear();
                    partitions.record_unreported_loss(&partition, &owned, None);
                }
                ended.store(true, Ordering::Relaxed);
                assert_eq!(observer.join().unwrap(), 0);
            });
        }
    }
}
