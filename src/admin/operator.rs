//! An operator of a consumer group.

use std::collections::BTreeSet;

use futures::FutureExt;
use futures::future::{join_all, pending};

use super::plan::Expected;
use super::reader::Reader;
use super::records::{GroupRecords, OwnerRecords};
use super::reset::{NotDone, ResetOptions, ResetOutcome};
use super::session::{OperatorSession, ResetOrder, Retries};
use super::takeover::{Allowed, Takeover, takeover};
use crate::error::{Error, Result};
use crate::model::{NameCase, OwnerId, OwnershipRecord, PartitionId, Position};
use crate::store::membership::DeclareDeadOutcome;
use crate::store::{Claim, ClaimOutcome, GroupStore, GroupStoreBuilder, ReleaseOutcome, RequestCounts};

/// How many times a partition is claimed. A renewal between the listing and the claim costs one attempt.
const MAX_CLAIMS: u32 = 3;

/// An operator of one consumer group, for one run of an administrative program.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use std::sync::Arc;
/// use eventhubs_checkpoint::admin::{Operator, ResetOptions, ResetOutcome};
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::store::GroupStore;
/// use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Position};
///
/// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
/// let container = Arc::new(MemoryContainer::new());
/// let store = GroupStore::connect(container.clone(), group.clone(), OwnerId::new("worker-1")?).await?;
///
/// let operator = Operator::connect(GroupStore::builder(container, group, OwnerId::new("any")?)).await?;
/// let to = Position::new(41, "4100");
/// let outcomes = operator.reset(vec![(0.into(), to)], &ResetOptions::default()).await?;
/// assert!(matches!(outcomes[0].1, ResetOutcome::Done));
/// assert_eq!(store.list_checkpoints().await?.records[0].record.sequence_number, Some(41));
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Operator {
    store: GroupStore,
}

/// Why an operator takes a partition over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To reset its checkpoint. The partition is then reserved for its owner.
    Reset,
    /// To release it, for any member.
    Release,
}

/// What the claims of one takeover replace. An attempt without a response may have replaced a record that the next
/// attempt does not find anymore.
#[derive(Default)]
struct DisplacedOwnership {
    record: Option<OwnershipRecord>,
    settle: bool,
}

impl Operator {
    /// Connects with the settings of a store. The operator ignores the owner id and generates a unique one that begins
    /// with `operator-`.
    ///
    /// # Errors
    ///
    /// Those of [`GroupStoreBuilder::connect`].
    pub async fn connect(settings: GroupStoreBuilder) -> Result<Self> {
        Ok(Self { store: settings.for_operator()?.connect().await? })
    }

    /// Returns the id that this operator writes into the records that it works on.
    #[must_use]
    pub fn id(&self) -> &OwnerId {
        &self.store.identity().owner
    }

    /// Returns the letter case of the blob names that this operator does not use, if the group had records in it when
    /// the operator connected.
    #[must_use]
    pub fn other_case_with_records(&self) -> Option<NameCase> {
        self.store.other_case_with_records()
    }

    /// Resets the checkpoints of these partitions to these positions, forward or backward. Processing continues with
    /// the event *after* the position.
    ///
    /// Works for partitions with and without an owner, and for owners of any SDK. The operator takes the partition
    /// over, so that checkpoints of the displaced owner are rejected from then on. It writes the position and releases
    /// the partition, reserved for the displaced owner, which claims it at its next listing, within half a lease
    /// duration. The handler of the displaced owner stops when that owner detects the loss: at its next checkpoint,
    /// renewal or listing. Events that it processes until then are processed again or not, depending on the new
    /// position. If the partition was paused, it is not paused anymore.
    ///
    /// If the operator crashes in between, the checkpoint is at the old position or at the new one, and its partitions
    /// have no owner until its leases expire.
    ///
    /// # Errors
    ///
    /// The error of the storage, if the group could not be listed, and [`ErrorKind::Config`](crate::ErrorKind::Config)
    /// if a partition is given two positions: nothing was written, correct the cause and reset again. The outcome of
    /// each partition is in its own [`ResetOutcome`].
    #[doc(alias = "offset reset")]
    #[doc(alias = "rewind")]
    #[doc(alias = "seek")]
    pub async fn reset(
        &self,
        resets: Vec<(PartitionId, Position)>,
        options: &ResetOptions,
    ) -> Result<Vec<(PartitionId, ResetOutcome)>> {
        let mut named = BTreeSet::new();
        if let Some((twice, _)) = resets.iter().find(|(partition, _)| !named.insert(partition)) {
            return Err(Error::config(format!(
                "partition {twice} has two new positions: pass one position per partition"
            )));
        }
        let survey = &OwnerRecords::read(&self.store).await?;
        let resets = resets.into_iter().map(|(partition, position)| async move {
            let order = ResetOrder {
                position,
                hub_created_at: None,
                expected: Expected::Any,
                attempts: 1,
                stop: pending().boxed().shared(),
            };
            let outcome = self.reset_one(survey, &partition, &order, options).await;
            (partition, outcome)
        });
        Ok(join_all(resets).await)
    }

    /// Resets one partition, by a listing of the group. Lists the group again if another owner claims the partition in
    /// the meantime, as often as the order permits.
    pub(super) async fn reset_one(
        &self,
        first: &OwnerRecords,
        partition: &PartitionId,
        order: &ResetOrder,
        options: &ResetOptions,
    ) -> ResetOutcome {
        let mut later = None;
        let mut attempts_left = order.attempts;
        loop {
            if order.stop.clone().now_or_never().is_some() {
                return ResetOutcome::NotDone(NotDone::Stopped);
            }
            let survey = later.as_ref().unwrap_or(first);
            let outcome = match self.take_over(survey, partition, Purpose::Reset, options).await {
                Ok(session) => session.reset(order).await,
                Err(reason) => ResetOutcome::NotDone(reason),
            };
            attempts_left -= 1;
            if attempts_left == 0 || !matches!(outcome, ResetOutcome::NotDone(NotDone::Lost { .. })) {
                return outcome;
            }
            later = match OwnerRecords::read(&self.store).await {
                Ok(survey) => Some(survey),
                Err(_) => return outcome,
            };
        }
    }

    /// Releases partitions: takes each one over and releases it, for any member. Its owner, if it is alive, detects the
    /// loss as after a [reset](Self::reset). It may claim the partition again.
    ///
    /// Use it for a partition whose owner is stuck, or has ended without a release and whose lease is long. The
    /// checkpoints stay.
    ///
    /// # Errors
    ///
    /// The error of the storage, if the group could not be listed: nothing was written. The outcome of each partition
    /// is in its own result.
    pub async fn release(
        &self,
        partitions: Vec<PartitionId>,
        options: &ResetOptions,
    ) -> Result<Vec<(PartitionId, Result<(), NotDone>)>> {
        let survey = &OwnerRecords::read(&self.store).await?;
        let releases = partitions.into_iter().map(|partition| async move {
            let released = self.release_one(survey, &partition, options).await;
            (partition, released)
        });
        Ok(join_all(releases).await)
    }

    async fn release_one(
        &self,
        survey: &OwnerRecords,
        partition: &PartitionId,
        options: &ResetOptions,
    ) -> Result<(), NotDone> {
        if survey.ownerships.records.iter().all(|seen| seen.partition != *partition) {
            // A claim would create a record, also of a partition that does not exist.
            return self.decide_takeover(survey, partition, options).map(drop);
        }
        let session = self.take_over(survey, partition, Purpose::Release, options).await?;
        match session.release_partition().await {
            ReleaseOutcome::Released => Ok(()),
            ReleaseOutcome::Lost { by } => Err(NotDone::Lost { by }),
            ReleaseOutcome::Indeterminate(error) => Err(NotDone::Failed(error)),
        }
    }

    /// Reads all records of the group. Writes nothing.
    ///
    /// # Errors
    ///
    /// The error of the storage.
    pub async fn read(&self) -> Result<GroupRecords> {
        GroupRecords::read(&self.store).await
    }

    /// Returns a reader of the same group, which can also delete records.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader { store: self.store.clone() }
    }

    /// Returns how many requests to the storage this operator has made.
    #[must_use]
    pub fn request_counts(&self) -> RequestCounts {
        self.store.request_counts()
    }

    pub(super) fn store(&self) -> &GroupStore {
        &self.store
    }

    /// Takes the partition over. Lists the group again if another owner wrote the record first, or if the claim failed:
    /// the record may be this operator's already.
    async fn take_over(
        &self,
        first: &OwnerRecords,
        partition: &PartitionId,
        purpose: Purpose,
        options: &ResetOptions,
    ) -> Result<OperatorSession, NotDone> {
        let mut retries = Retries::new(&self.store, MAX_CLAIMS);
        let mut earlier = DisplacedOwnership::default();
        let mut taken = self.take_over_once(first, partition, purpose, options, &mut earlier).await;
        loop {
            let goes_on = match &taken {
                Err(NotDone::Lost { .. }) => retries.try_again(),
                Err(NotDone::Failed(error)) => retries.try_again_after(error).await,
                _ => false,
            };
            if !goes_on {
                return taken;
            }
            taken = match OwnerRecords::read(&self.store).await {
                Ok(survey) => self.take_over_once(&survey, partition, purpose, options, &mut earlier).await,
                Err(error) => Err(NotDone::Failed(error)),
            };
        }
    }

    async fn take_over_once(
        &self,
        survey: &OwnerRecords,
        partition: &PartitionId,
        purpose: Purpose,
        options: &ResetOptions,
        displaced: &mut DisplacedOwnership,
    ) -> Result<OperatorSession, NotDone> {
        let mut takeover = self.decide_takeover(survey, partition, options)?;
        if purpose == Purpose::Release {
            takeover.return_to = None;
        }
        displaced.settle |= takeover.settle;
        let found = takeover.over.as_ref().map(|seen| &seen.record);
        if found.is_none_or(|found| found.owner.as_ref() != Some(self.id())) {
            displaced.record = found.cloned();
        }
        match self.claim_partition(survey, partition, takeover).await {
            ClaimOutcome::Won(lease) => {
                let settle = displaced.settle.then_some(options.settle);
                Ok(OperatorSession::new(self.store.clone(), lease, displaced.record.take(), settle))
            }
            ClaimOutcome::Lost { by } => Err(NotDone::Lost { by }),
            ClaimOutcome::Replaced { .. } => Err(NotDone::Lost { by: Some(self.id().clone()) }),
            ClaimOutcome::Indeterminate(error) => Err(NotDone::Failed(error)),
        }
    }

    fn decide_takeover(
        &self,
        survey: &OwnerRecords,
        partition: &PartitionId,
        options: &ResetOptions,
    ) -> Result<Takeover, NotDone> {
        let partitions: BTreeSet<_> =
            survey.ownerships.records.iter().map(|seen| &seen.partition).chain([partition]).cloned().collect();
        let view = survey.operator_view(&self.store, &Vec::from_iter(partitions), self.store.lease_clock_now());
        takeover(&view, partition, Allowed { live: options.allow_live, foreign: options.allow_foreign })
    }

    async fn claim_partition(
        &self,
        survey: &OwnerRecords,
        partition: &PartitionId,
        takeover: Takeover,
    ) -> ClaimOutcome {
        let Some(seen) = takeover.over else {
            return self.store.claim(&Claim::unowned(partition.clone())).await;
        };
        if takeover.declare_dead && seen.is_kept_alive_by_heartbeat(self.store.identity()) {
            let owner = seen.record.owner.as_ref();
            let heartbeat = survey.heartbeats.records.iter().find(|heartbeat| Some(&heartbeat.record.owner) == owner);
            match self.store.declare_dead(&seen, heartbeat).await {
                Ok(DeclareDeadOutcome::Declared) => {}
                Ok(DeclareDeadOutcome::StillAlive) => return ClaimOutcome::Lost { by: seen.record.owner },
                Err(error) => return ClaimOutcome::Indeterminate(error),
            }
        }
        self.store.claim(&Claim::over(&seen).with_handoff_to(takeover.return_to)).await
    }
}
