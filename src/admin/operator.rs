//! An operator of a consumer group.

use std::collections::BTreeSet;

use futures::future::join_all;
use time::OffsetDateTime;

use super::reader::Reader;
use super::records::{GroupRecords, OwnerRecords};
use super::reset::{ResetError, ResetOptions, ResetOutcome};
use super::reset_steps::ResetReport;
use super::session::{CheckpointChange, OperatorSession, ResetOrder, decide_takeover};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, NameCase, OwnerId, PartitionId, Pause, Position};
use crate::store::{GroupStore, RequestCounts, no_checkpoint};

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
/// let operator = Operator::connect(container, group).await?;
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
    pub(super) store: GroupStore,
}

impl Operator {
    /// Returns the id that this operator writes into the records that it works on.
    #[must_use]
    pub fn id(&self) -> &OwnerId {
        &self.store.identity().owner
    }

    /// Returns the casing of the blob names that this operator does not use, if the group had records in it when the
    /// operator connected.
    #[must_use]
    pub fn other_case_with_records(&self) -> Option<NameCase> {
        self.store.other_case_with_records()
    }

    /// Resets the checkpoints of these partitions to these positions, forward or backward. Processing continues with
    /// the event *after* the position.
    ///
    /// Works for partitions with and without an owner. While an owner of another SDK is alive in the group, no
    /// partition is reset unless [`ResetOptions::allow_foreign`] is set. The operator takes the partition over, so that
    /// checkpoints of the displaced owner are rejected from then on. If owners of other SDKs may still write, it holds
    /// the partition for [`ResetOptions::settle`], by default 60 s. It then writes the position and releases the
    /// partition, reserved for the displaced owner, which claims it at its next listing, within half a lease duration.
    /// The handler of the displaced owner stops when that owner detects the loss: at its next checkpoint, renewal or
    /// listing. Events that it processes until then are processed again or not, depending on the new position. A
    /// [pause](Self::pause) of an operator stays. A partition that was parked, or paused by
    /// [`ProcessorHandle::pause`](crate::processor::ProcessorHandle::pause), continues.
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
        let changes = resets.into_iter().map(|(partition, position)| (partition, CheckpointChange::Position(position)));
        self.change_checkpoints(changes.collect(), options, |_, _| None).await
    }

    /// Pauses these partitions: their events are not delivered until the partitions are [resumed](Self::resume), or
    /// until a given time. The owners keep the leases and wait, also after a restart or a move to another instance.
    ///
    /// The mark is stored in the checkpoint, in the same way and under the same conditions as the position of a
    /// [reset](Self::reset): the operator takes the partition over, writes the mark, and returns the partition. Events
    /// that the owner processes until it detects the loss are processed again after the pause. The position stays.
    ///
    /// Only the [`Processor`](crate::processor::Processor) honors the mark. The processors of other SDKs keep reading,
    /// and their next checkpoint removes the mark; so does the official `EventProcessor` of Rust, also with the
    /// checkpoint store of this crate.
    ///
    /// # Errors
    ///
    /// As for [`reset`](Self::reset), and [`ErrorKind::InvalidArgument`] if `until` is in the past. A partition without
    /// a checkpoint cannot be paused, because there is no record for the mark: [`ResetError::Failed`] with
    /// [`ErrorKind::NotFound`].
    pub async fn pause(
        &self,
        partitions: Vec<PartitionId>,
        until: Option<OffsetDateTime>,
        reason: Option<&str>,
        options: &ResetOptions,
    ) -> Result<Vec<(PartitionId, ResetOutcome)>> {
        let now = self.store.server_time();
        if let Some(until) = until.filter(|until| *until <= now) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the pause ends at {until}, but must end after {now}, the time of the storage"),
            ));
        }
        let pause = Pause::new(now.replace_nanosecond(0).unwrap_or(now), until, reason);
        let pauses = partitions.into_iter().map(|partition| (partition, CheckpointChange::Pause(Some(pause.clone()))));
        self.change_checkpoints(pauses.collect(), options, |partition, record| {
            let has_position = record.is_some_and(CheckpointRecord::has_position);
            (!has_position).then(|| ResetOutcome::NotDone(ResetError::Failed(no_checkpoint(partition))))
        })
        .await
    }

    /// Ends the [pause](Self::pause) of these partitions, also one that
    /// [`OnFailure::Park`](crate::processor::OnFailure::Park) has stored. A partition that is not paused stays with its
    /// owner: its outcome is [`ResetOutcome::Done`].
    ///
    /// # Errors
    ///
    /// As for [`reset`](Self::reset).
    pub async fn resume(
        &self,
        partitions: Vec<PartitionId>,
        options: &ResetOptions,
    ) -> Result<Vec<(PartitionId, ResetOutcome)>> {
        let now = self.store.server_time();
        let ends = partitions.into_iter().map(|partition| (partition, CheckpointChange::Pause(None)));
        self.change_checkpoints(ends.collect(), options, |_, record| {
            let pause = record.and_then(|record| record.paused.as_ref());
            pause.is_none_or(|pause| pause.has_ended(now)).then_some(ResetOutcome::Done)
        })
        .await
    }

    /// Changes the checkpoint of each partition, unless the checkpoint already decides the outcome, by `decide` or
    /// because the change is refused. Then its owner is left alone.
    async fn change_checkpoints(
        &self,
        changes: Vec<(PartitionId, CheckpointChange)>,
        options: &ResetOptions,
        decide: impl Fn(&PartitionId, Option<&CheckpointRecord>) -> Option<ResetOutcome>,
    ) -> Result<Vec<(PartitionId, ResetOutcome)>> {
        let checkpoints = self.store.list_checkpoints().await?.records;
        let listing = &OwnerRecords::read(&self.store).await?;
        Ok(join_all(changes.into_iter().map(|(partition, change)| {
            let found = checkpoints.iter().find(|checkpoint| checkpoint.partition == partition);
            let record = found.map(|checkpoint| &checkpoint.record);
            let refused = record.and_then(|record| change.refusal_over(record, options));
            let decided = refused.map(ResetOutcome::NotDone).or_else(|| decide(&partition, record));
            let order = ResetOrder::unconditional(change);
            async move {
                match decided {
                    Some(outcome) => (partition, outcome),
                    None => (partition.clone(), self.reset_one(listing, &partition, &order, options).await),
                }
            }
        }))
        .await)
    }

    /// Changes the checkpoint of one partition, by a listing of the group.
    pub(super) async fn reset_one(
        &self,
        listing: &OwnerRecords,
        partition: &PartitionId,
        order: &ResetOrder,
        options: &ResetOptions,
    ) -> ResetOutcome {
        let session = OperatorSession::new(&self.store, partition, options, Some(order), listing);
        match session.run_to_report().await {
            (ResetReport::Done, _) => ResetOutcome::Done,
            (ResetReport::NotDone, reason) => ResetOutcome::NotDone(reason),
            (ResetReport::Indeterminate { written }, ResetError::Failed(error)) => {
                ResetOutcome::Indeterminate { written, error: Some(error) }
            }
            (ResetReport::Indeterminate { written }, _) => ResetOutcome::Indeterminate { written, error: None },
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
    ) -> Result<Vec<(PartitionId, Result<(), ResetError>)>> {
        let listing = &OwnerRecords::read(&self.store).await?;
        let releases = partitions.into_iter().map(|partition| async move {
            let released = self.release_one(listing, &partition, options).await;
            (partition, released)
        });
        Ok(join_all(releases).await)
    }

    async fn release_one(
        &self,
        listing: &OwnerRecords,
        partition: &PartitionId,
        options: &ResetOptions,
    ) -> Result<(), ResetError> {
        if listing.ownerships.records.iter().all(|seen| seen.partition != *partition) {
            // A claim would create a record, also of a partition that does not exist.
            return decide_takeover(&self.store, listing, partition, options).map(drop);
        }
        match OperatorSession::new(&self.store, partition, options, None, listing).run_to_report().await {
            (ResetReport::Done, _) => Ok(()),
            (_, reason) => Err(reason),
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
}
