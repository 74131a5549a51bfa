//! Checkpoints: one write under the version of the last one. Initial checkpoints, which record a start position before
//! any instance owns the partition. Repairs, which change the position of an adopted checkpoint without any progress,
//! and pauses.
//!
//! The fence is the ETag of the checkpoint blob. The owner that wins a partition rewrites the blob (*adopts* it), so
//! that a checkpoint under an older ETag is rejected.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use tokio::time::Instant;

use super::GroupStore;
use super::adopt::{Adoption, FoundCheckpoint};
use super::rules::{CheckpointPlace, CheckpointStep, Checkpointed, WriteCondition};
use super::settle::{ConditionalWrite, is_ambiguous};
use crate::blob::ETag;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Pause, Position};
use crate::telemetry::StorageOperation;

/// The outcome of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the checkpoint may be rejected"]
pub enum CheckpointOutcome {
    /// The position is stored durably.
    Written,
    /// A later position is already stored.
    Superseded,
    /// The partition belongs to another owner now: stop processing it.
    Fenced {
        /// The current owner; `None` if the partition was released. This owner itself if this store claimed the
        /// partition again in the meantime.
        by: Option<OwnerId>,
    },
}

/// The outcome of [`GroupStore::init_checkpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitOutcome {
    /// The start is recorded.
    Written,
    /// The partition has a checkpoint, or another start. Nothing was written.
    Exists,
}

impl GroupStore {
    /// Writes a checkpoint. In the steady state this is one request.
    ///
    /// First waits for earlier operations on this checkpoint and for a free request, see
    /// [`with_max_concurrent_requests`](super::StoreConfig::with_max_concurrent_requests). Then sends one request, or
    /// after a conflict or a lost response several in a row. Each may take a [request timeout](Self::request_timeout);
    /// a read or a second write without a response ends the attempt.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if another writer kept changing the checkpoint, [`ErrorKind::Indeterminate`] if the
    /// outcome is unknown, otherwise the error of the storage. The position is not lost: write it, or a later one,
    /// again.
    #[doc(alias = "commit")]
    #[doc(alias = "update_checkpoint")]
    pub async fn checkpoint(&self, adoption: &mut Adoption, position: &Position) -> Result<CheckpointOutcome> {
        self.checkpoint_by(adoption, position, None).await
    }

    /// Writes a checkpoint like [`checkpoint`](Self::checkpoint), and ends by the deadline if there is one.
    pub(crate) async fn checkpoint_by(
        &self,
        adoption: &mut Adoption,
        position: &Position,
        deadline: Option<Instant>,
    ) -> Result<CheckpointOutcome> {
        if CheckpointPlace::from_record(&adoption.record)
            .compare_with(position.sequence_number)
            .is_some_and(Ordering::is_ge)
        {
            return Ok(CheckpointOutcome::Superseded);
        }
        let guard = self.acquire_record(RecordKind::Checkpoint, &adoption.partition).await;
        if guard.state.may_be_superseded(adoption.epoch) {
            return Ok(CheckpointOutcome::Fenced { by: Some(self.identity().owner.clone()) });
        }
        let step = CheckpointStep::first_step(adoption.etag.clone());
        let mut write = CheckpointWrite { store: self, adoption, position, deadline, step, found: None };
        self.settle_write(None, &mut write).await
    }

    /// Writes an initial checkpoint if there is none, whether the partition is owned or not. Never changes an existing
    /// checkpoint. Returns [`InitOutcome::Written`] if the initial checkpoint is stored, [`InitOutcome::Exists`] if
    /// there is another one.
    ///
    /// For a group that starts at the latest event: its first instance writes the initial checkpoints of all partitions
    /// at once, so that instances that claim a partition later do not skip the events in between. The record is
    /// [marked](CheckpointRecord::initial) as initial, and the first checkpoint of any owner replaces it. So an owner
    /// that started elsewhere before, without recording that, loses nothing, although its checkpoint may be at a
    /// smaller position.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if other writers kept changing the checkpoint, [`ErrorKind::Indeterminate`] if the
    /// outcome is unknown, otherwise the error of the storage. Repeat the call until it succeeds.
    pub async fn init_checkpoint(&self, partition: &PartitionId, position: &Position) -> Result<InitOutcome> {
        let _guard = self.acquire_record(RecordKind::Checkpoint, partition).await;
        let record = self.initial_record(position, &CheckpointRecord::default());
        self.settle_write(Some(WriteCondition::Create), &mut InitWrite { store: self, partition, record }).await
    }

    /// Replaces the position of an adopted checkpoint with any other, also an earlier one, for a checkpoint from which
    /// processing cannot continue. A [parked](Pause::parked) partition continues. It is fenced like any checkpoint of
    /// the adoption. Together with the adoption before it, this is the only way to move a checkpoint backward.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if anything was written since the adoption, or may have been; otherwise the error of the
    /// storage. Adopt again, and check the record.
    #[doc(alias = "rewind")]
    pub async fn replace_checkpoint(&self, adoption: &mut Adoption, place: &Position) -> Result<()> {
        let mut record = self.checkpoint_record(place, &adoption.record, adoption.hub_created_at);
        record.paused.take_if(|pause| pause.parked);
        self.rewrite_adopted(adoption, record).await
    }

    /// Rewrites the position of an adopted checkpoint, where `place` is the position at which reading continues in any
    /// case, with the creation of the event hub. The rest of the record stays as it is. It is fenced like any
    /// checkpoint of the adoption.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if anything was written since the adoption, or may have been; otherwise the error of the
    /// storage. The adoption remains valid: its next checkpoint finds out what is recorded. So processing can continue.
    pub(crate) async fn repair_checkpoint(&self, adoption: &mut Adoption, place: &Position) -> Result<()> {
        let record = CheckpointRecord {
            sequence_number: Some(place.sequence_number),
            offset: Some(place.offset.clone()),
            hub_created_at: adoption.hub_created_at,
            ..adoption.record.clone()
        };
        self.rewrite_adopted(adoption, record).await
    }

    /// Writes a pause into an adopted checkpoint, or removes it.
    /// The rest of the record stays as it is. It is fenced like any checkpoint of the adoption.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no checkpoint to hold the pause: record a start position first, as
    /// [`adopt`](Self::adopt) does. Otherwise as for [`replace_checkpoint`](Self::replace_checkpoint).
    pub async fn set_pause(&self, adoption: &mut Adoption, pause: Option<Pause>) -> Result<()> {
        if !adoption.record.has_position() {
            return Err(no_checkpoint(&adoption.partition));
        }
        let record = CheckpointRecord { paused: pause, ..adoption.record.clone() };
        self.rewrite_adopted(adoption, record).await
    }

    /// Records in an adopted checkpoint whether the application keeps its own position of the partition, so that
    /// operators see it. The rest of the record stays as it is. Writes nothing if the record shows that already, or if
    /// there is no checkpoint. It is fenced like any checkpoint of the adoption.
    ///
    /// # Errors
    ///
    /// As for [`replace_checkpoint`](Self::replace_checkpoint).
    pub async fn set_own_position(&self, adoption: &mut Adoption, own_position: bool) -> Result<()> {
        if !adoption.record.has_position() || adoption.record.own_position == own_position {
            return Ok(());
        }
        let record = CheckpointRecord { own_position, ..adoption.record.clone() };
        self.rewrite_adopted(adoption, record).await
    }

    /// Writes once, under the version of the adoption. The write is never repeated: after a write without a response,
    /// only a new adoption can find out what is recorded.
    async fn rewrite_adopted(&self, adoption: &mut Adoption, record: CheckpointRecord) -> Result<()> {
        let guard = self.acquire_record(RecordKind::Checkpoint, &adoption.partition).await;
        if guard.state.may_be_superseded(adoption.epoch) {
            return Err(conflict_error(adoption));
        }
        let name = self.inner.names.record_name(RecordKind::Checkpoint, &adoption.partition);
        let under = adoption.etag.clone().into();
        match self.write_blob(StorageOperation::Adopt, &name, &codec::encode_checkpoint(&record), &under).await {
            Ok(written) => {
                adoption.etag = Some(written.etag);
                adoption.record = record;
                Ok(())
            }
            Err(error) if is_ambiguous(&error) => Err(conflict_error(adoption).with_source(error)),
            Err(error) => Err(error),
        }
    }
}

struct CheckpointWrite<'a> {
    store: &'a GroupStore,
    adoption: &'a mut Adoption,
    position: &'a Position,
    deadline: Option<Instant>,
    step: CheckpointStep<ETag>,
    /// The checkpoint as it was last read.
    found: Option<FoundCheckpoint>,
}

impl ConditionalWrite for CheckpointWrite<'_> {
    type Outcome = CheckpointOutcome;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Checkpoint
    }

    fn record_label(&self) -> String {
        format!("the checkpoint of partition {}", self.adoption.partition)
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    async fn next_write(&mut self) -> Result<ControlFlow<CheckpointOutcome, WriteCondition<ETag>>> {
        loop {
            match self.step.clone() {
                CheckpointStep::ReadCheckpoint => {
                    self.found = self.store.read_checkpoint(&self.adoption.partition).await?;
                    self.step = CheckpointStep::AFTER_CHECKPOINT;
                }
                CheckpointStep::ReadOwnership => {
                    let Adoption { partition, epoch, .. } = &*self.adoption;
                    let (owned, by) = self.store.check_owner(partition, *epoch).await?;
                    let found = self.found.take();
                    let version_and_place = found
                        .as_ref()
                        .map(|found| (found.blob.etag.clone(), CheckpointPlace::from_record(&found.record)));
                    if owned {
                        self.adoption.take_over(found);
                    }
                    match CheckpointStep::after_ownership(version_and_place, owned, self.position.sequence_number) {
                        ControlFlow::Continue(step) => self.step = step,
                        ControlFlow::Break(checkpointed) => {
                            return Ok(ControlFlow::Break(match checkpointed {
                                Checkpointed::Written => CheckpointOutcome::Written,
                                Checkpointed::Superseded => CheckpointOutcome::Superseded,
                                Checkpointed::Fenced => CheckpointOutcome::Fenced { by },
                            }));
                        }
                    }
                }
                CheckpointStep::Write { under } => return Ok(ControlFlow::Continue(under)),
            }
        }
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<CheckpointOutcome>> {
        let Adoption { partition, record, hub_created_at, .. } = &*self.adoption;
        let name = self.store.inner.names.record_name(RecordKind::Checkpoint, partition);
        let record = self.store.checkpoint_record(self.position, record, *hub_created_at);
        self.step = CheckpointStep::AFTER_AMBIGUOUS_WRITE;
        let written = self
            .store
            .write_blob(StorageOperation::Checkpoint, &name, &codec::encode_checkpoint(&record), &under)
            .await?;
        self.adoption.etag = Some(written.etag);
        self.adoption.record = record;
        Ok(ControlFlow::Break(CheckpointOutcome::Written))
    }

    fn contention_error(&self) -> Error {
        let other = self.adoption.record.owner.as_ref().map_or("without an owner ID", OwnerId::as_str);
        Error::new(ErrorKind::Contended, format!("another writer ({other}) keeps overwriting {}", self.record_label()))
    }
}

struct InitWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    record: CheckpointRecord,
}

impl ConditionalWrite for InitWrite<'_> {
    type Outcome = InitOutcome;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Checkpoint
    }

    fn record_label(&self) -> String {
        format!("the initial checkpoint of partition {}", self.partition)
    }

    /// An existing checkpoint is never changed.
    async fn next_write(&mut self) -> Result<ControlFlow<InitOutcome, WriteCondition<ETag>>> {
        let Some(FoundCheckpoint { record: found, .. }) = self.store.read_checkpoint(self.partition).await? else {
            return Ok(ControlFlow::Continue(WriteCondition::Create));
        };
        // A request whose response was lost may have written it, or an earlier call.
        let is_same_start = found.owner == self.record.owner
            && found.sequence_number == self.record.sequence_number
            && found.offset == self.record.offset;
        Ok(ControlFlow::Break(if is_same_start { InitOutcome::Written } else { InitOutcome::Exists }))
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<InitOutcome>> {
        let name = self.store.inner.names.record_name(RecordKind::Checkpoint, self.partition);
        self.store
            .write_blob(StorageOperation::Checkpoint, &name, &codec::encode_checkpoint(&self.record), &under)
            .await?;
        Ok(ControlFlow::Break(InitOutcome::Written))
    }

    fn contention_error(&self) -> Error {
        Error::new(ErrorKind::Contended, format!("cannot determine whether {} was written", self.record_label()))
    }
}

/// Returns the error for a partition that has no record to hold a pause.
pub(crate) fn no_checkpoint(partition: &PartitionId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("partition {partition} has no checkpoint, in which a pause could be recorded"),
    )
}

fn conflict_error(adoption: &Adoption) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("the checkpoint of partition {} was written in the meantime", adoption.partition),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::{ConsumerGroup, OwnerId, PartitionId};
    use crate::store::{AdoptOutcome, Claim, ClaimOutcome};

    #[tokio::test]
    async fn a_repair_of_an_earlier_epoch_is_rejected() {
        let group = ConsumerGroup::new("ns", "hub", "$Default").unwrap();
        let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
        let store = builder.connect().await.unwrap();
        let partition = PartitionId::from(0);
        let place = |sequence_number| Position { sequence_number, offset: "-1".into() };
        let won = store.claim(&Claim::unowned(partition.clone())).await;
        let ClaimOutcome::Won(lease) = won else { panic!("{won:?}") };
        let adopted = store.adopt(&partition, lease.epoch(), Some(&place(-1))).await.unwrap();
        let AdoptOutcome::Adopted(mut adoption) = adopted else { panic!("{adopted:?}") };
        store.repair_checkpoint(&mut adoption, &place(4)).await.unwrap();
        assert_eq!((adoption.record().sequence_number, adoption.record().initial), (Some(4), true));
        let seen = store.list_ownerships().await.unwrap().records.remove(0);
        let _ = store.claim(&Claim::over(&seen)).await;
        let rejected = store.repair_checkpoint(&mut adoption, &place(5)).await.unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::Conflict);
        assert_eq!(store.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(4));
    }
}
