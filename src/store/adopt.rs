//! Adoption: taking over the checkpoint of a partition that was just won. The checkpoint is read before the ownership
//! that decides whether it may be replaced.

use std::ops::ControlFlow;

use time::OffsetDateTime;

use super::GroupStore;
use super::records::Checkpoint;
use super::rules::{AdoptionStep, CheckpointPlace, PositionFrom, Unwritten, WriteCondition};
use super::settle::ConditionalWrite;
use crate::blob::{Blob, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::Result;
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Position};
use crate::telemetry::StorageOperation;

/// The right to write the checkpoints of one partition, and the last one that was written.
#[derive(Debug)]
pub struct Adoption {
    pub(super) partition: PartitionId,
    pub(super) etag: Option<ETag>,
    pub(super) record: CheckpointRecord,
    pub(super) epoch: i64,
    /// When the event hub was created whose positions are written.
    pub(super) hub_created_at: Option<OffsetDateTime>,
}

impl Adoption {
    /// Returns the partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// Returns the [epoch](super::Lease::epoch) of the adoption.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Returns when the event hub was created whose positions are written.
    pub(crate) fn hub_created_at(&self) -> Option<OffsetDateTime> {
        self.hub_created_at
    }

    /// Sets when the event hub was created whose positions are written from now on, instead of the time of the
    /// [store](GroupStore::for_hub_created_at) that adopted the checkpoint.
    pub(crate) fn set_hub_created_at(&mut self, time: Option<OffsetDateTime>) {
        self.hub_created_at = time;
    }

    /// Returns the last checkpoint. It contains no position if there was none.
    #[must_use]
    pub fn record(&self) -> &CheckpointRecord {
        &self.record
    }

    /// Makes the blob as it is now the last one that was written, including its position.
    pub(super) fn take_over(&mut self, found: Option<FoundCheckpoint>) {
        let (record, etag) = found.map(|found| (found.record, found.blob.etag)).unzip();
        self.record = record.unwrap_or_default();
        self.etag = etag;
    }
}

/// A checkpoint as it was read.
#[derive(Debug)]
pub(super) struct FoundCheckpoint {
    pub(super) record: CheckpointRecord,
    pub(super) blob: Blob,
}

/// The outcome of an adoption.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the partition may be lost"]
#[allow(clippy::large_enum_variant, reason = "the usual outcome, which is moved once")]
pub enum AdoptOutcome {
    /// From now on no checkpoint of a previous owner is accepted.
    Adopted(Adoption),
    /// The partition was lost before it could be adopted.
    Lost {
        /// The current owner; `None` if the partition was released.
        by: Option<OwnerId>,
    },
}

impl GroupStore {
    /// Takes over the checkpoint of a partition that was just won, in this [epoch](super::Lease::epoch).
    ///
    /// `start` is the position where processing starts if there is no checkpoint yet. It is written at once, as an
    /// [initial checkpoint](CheckpointRecord::initial). If the group crashes before its first checkpoint, it then
    /// starts at the same position again, and a checkpoint of a displaced owner is rejected. Without `start` nothing is
    /// written, and until the first checkpoint, the first checkpoint of a displaced owner may still be accepted. So
    /// resolve every kind of start to a position before processing begins, as
    /// [`Processor`](crate::processor::Processor) does: adopt without `start`; if the record contains no position, look
    /// up the start position; then adopt again with it.
    ///
    /// First waits for earlier operations on this checkpoint and for a free request, see
    /// [`with_max_concurrent_requests`](super::StoreConfig::with_max_concurrent_requests). Then sends three requests in
    /// a row, more if other writers interfere. Each may take a [request timeout](Self::request_timeout); a read or a
    /// second write without a response ends the adoption.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`](crate::ErrorKind::Contended) if other writers kept changing the checkpoint: release the
    /// partition and wait before you claim it again. [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if a
    /// request had no response, otherwise the error of the storage: adopt again while the lease is valid.
    pub async fn adopt(&self, partition: &PartitionId, epoch: i64, start: Option<&Position>) -> Result<AdoptOutcome> {
        let _guard = self.acquire_record(RecordKind::Checkpoint, partition).await;
        let mut write =
            AdoptionWrite { store: self, partition, epoch, start, step: AdoptionStep::ReadCheckpoint, found: None };
        self.settle_write(None, &mut write).await
    }

    /// Reads the checkpoint of one partition; returns `None` if it has none.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed record is not an error: its unreadable
    /// fields are empty, and it is logged.
    pub async fn checkpoint_of(&self, partition: &PartitionId) -> Result<Option<Checkpoint>> {
        let found = self.read_checkpoint(partition).await?;
        Ok(found.map(|found| Checkpoint::new(partition.clone(), found.record, &found.blob)))
    }

    /// Reads the checkpoint of one partition. Logs what is unusable in it.
    pub(super) async fn read_checkpoint(&self, partition: &PartitionId) -> Result<Option<FoundCheckpoint>> {
        let blob = self.read_blob(&self.inner.names.record_name(RecordKind::Checkpoint, partition)).await?;
        Ok(blob.map(|blob| {
            let (record, malformed) = codec::decode_checkpoint(&blob.name, &blob.metadata);
            if let Some(malformed) = malformed {
                self.telemetry().malformed_record(&malformed);
            }
            FoundCheckpoint { record, blob }
        }))
    }

    /// Reads whether this owner owns the partition in this epoch, and otherwise which owner does.
    pub(super) async fn check_owner(&self, partition: &PartitionId, epoch: i64) -> Result<(bool, Option<OwnerId>)> {
        let record = self.read_ownership(partition).await?.map(|seen| seen.record);
        let owned = record.as_ref().is_some_and(|record| record.is_mine_in(self.identity(), epoch));
        Ok((owned, record.and_then(|record| record.owner)))
    }

    /// Returns an initial record at this position, which keeps all other keys of the last record.
    pub(super) fn initial_record(&self, start: &Position, last: &CheckpointRecord) -> CheckpointRecord {
        CheckpointRecord { initial: true, ..self.checkpoint_record(start, last, self.hub_created_at) }
    }

    /// Returns the record of a checkpoint at this position. It keeps all other keys of the last record, except the keys
    /// of an initial checkpoint.
    pub(super) fn checkpoint_record(
        &self,
        position: &Position,
        last: &CheckpointRecord,
        hub_created_at: Option<OffsetDateTime>,
    ) -> CheckpointRecord {
        CheckpointRecord {
            sequence_number: Some(position.sequence_number),
            offset: Some(position.offset.clone()),
            owner: Some(self.identity().owner.clone()),
            updated_at: self.server_time().replace_nanosecond(0).ok(),
            initial: false,
            hub_created_at,
            paused: last.paused.clone().filter(|pause| !pause.has_ended(self.server_time())),
            ..last.clone()
        }
    }
}

struct AdoptionWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    epoch: i64,
    start: Option<&'a Position>,
    step: AdoptionStep<ETag>,
    /// The checkpoint as it was last read.
    found: Option<FoundCheckpoint>,
}

impl AdoptionWrite<'_> {
    /// Returns what to write: the blob as it was read, with this owner's id, or another position.
    fn content_to_write(&self) -> (CheckpointRecord, Metadata) {
        let from_start = matches!(self.step, AdoptionStep::Write { from: PositionFrom::Start, .. });
        let mut record = self.found.as_ref().map(|found| found.record.clone()).unwrap_or_default();
        if record.has_position()
            && let Some(found) = &self.found
        {
            // The adoption changes the time of the blob, so the record keeps the time of the last write as the time of
            // its position.
            record.updated_at.get_or_insert(found.blob.last_modified);
        }
        if let Some(start) = self.start.filter(|_| from_start) {
            record = self.store.initial_record(start, &record);
        }
        record.owner = Some(self.store.identity().owner.clone());
        let metadata = match &self.found {
            Some(found) if !from_start => codec::with_adopter(found.blob.metadata.clone(), &record),
            _ => codec::encode_checkpoint(&record),
        };
        (record, metadata)
    }

    fn adoption_outcome(&self, etag: Option<ETag>, record: CheckpointRecord) -> AdoptOutcome {
        AdoptOutcome::Adopted(Adoption {
            partition: self.partition.clone(),
            etag,
            record,
            epoch: self.epoch,
            hub_created_at: self.store.hub_created_at,
        })
    }
}

impl ConditionalWrite for AdoptionWrite<'_> {
    type Outcome = AdoptOutcome;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Adopt
    }

    fn record_label(&self) -> String {
        format!("the checkpoint of partition {}", self.partition)
    }

    async fn next_write(&mut self) -> Result<ControlFlow<AdoptOutcome, WriteCondition<ETag>>> {
        loop {
            match self.step.clone() {
                AdoptionStep::ReadCheckpoint => {
                    self.found = self.store.read_checkpoint(self.partition).await?;
                    self.step = AdoptionStep::after_checkpoint(
                        self.found.as_ref().map(|found| CheckpointPlace::from_record(&found.record)),
                        self.start.is_some(),
                    );
                }
                AdoptionStep::ReadOwnership { from } => {
                    let found = self.found.as_ref().map(|found| found.blob.etag.clone());
                    let (owned, by) = self.store.check_owner(self.partition, self.epoch).await?;
                    match AdoptionStep::after_ownership(found, from, owned) {
                        ControlFlow::Continue(step) => self.step = step,
                        ControlFlow::Break(Unwritten::Lost) => {
                            return Ok(ControlFlow::Break(AdoptOutcome::Lost { by }));
                        }
                        ControlFlow::Break(Unwritten::Nothing) => {
                            return Ok(ControlFlow::Break(self.adoption_outcome(None, CheckpointRecord::default())));
                        }
                    }
                }
                AdoptionStep::Write { under, .. } => return Ok(ControlFlow::Continue(under)),
            }
        }
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<AdoptOutcome>> {
        let (record, metadata) = self.content_to_write();
        let name = self.store.inner.names.record_name(RecordKind::Checkpoint, self.partition);
        self.step = AdoptionStep::AFTER_AMBIGUOUS_WRITE;
        let written = self.store.write_blob(StorageOperation::Adopt, &name, &metadata, &under).await?;
        Ok(ControlFlow::Break(self.adoption_outcome(Some(written.etag), record)))
    }
}
