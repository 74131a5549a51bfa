//! Adoption: taking over the checkpoint of a partition that was just won. The checkpoint is read before the ownership
//! that decides whether it may be replaced.

use time::OffsetDateTime;

use super::GroupStore;
use super::records::Checkpoint;
use super::rules::{
    CheckpointPlace, PositionFrom, SettleStep, Unwritten, WriteCondition, decide_adoption, position_from,
};
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
    pub(super) fn take_over(&mut self, read: CheckpointRead) {
        let (record, etag) = read.0.map(|(record, blob)| (record, blob.etag)).unzip();
        self.record = record.unwrap_or_default();
        self.etag = etag;
    }
}

/// A checkpoint as it was read. The ownership that decides whether this version may be replaced must be read later, so
/// [`GroupStore::check_owner_after`] demands this value, which only a read of the checkpoint returns.
#[derive(Debug)]
pub(super) struct CheckpointRead(Option<(CheckpointRecord, Blob)>);

impl CheckpointRead {
    pub(super) fn record_and_blob(&self) -> Option<&(CheckpointRecord, Blob)> {
        self.0.as_ref()
    }

    pub(super) fn blob_version(&self) -> Option<ETag> {
        self.0.as_ref().map(|(_, blob)| blob.etag.clone())
    }

    pub(super) fn checkpoint_place(&self) -> Option<CheckpointPlace> {
        self.0.as_ref().map(|(record, _)| CheckpointPlace::from_record(record))
    }
}

/// The outcome of an adoption.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the partition may be lost"]
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
        self.settle_write(&mut AdoptionWrite { store: self, partition, epoch, start, read: None, from: None }).await
    }

    /// Reads the checkpoint of one partition; returns `None` if it has none.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed record is not an error: its unreadable
    /// fields are empty, and it is logged.
    pub async fn checkpoint_of(&self, partition: &PartitionId) -> Result<Option<Checkpoint>> {
        let read = self.read_checkpoint(partition).await?.0;
        Ok(read.map(|(record, blob)| Checkpoint::new(partition.clone(), record, &blob)))
    }

    /// Reads the checkpoint of one partition. Logs what is unusable in it.
    pub(super) async fn read_checkpoint(&self, partition: &PartitionId) -> Result<CheckpointRead> {
        let blob = self.read_blob(&self.inner.names.record_name(RecordKind::Checkpoint, partition)).await?;
        Ok(CheckpointRead(blob.map(|blob| {
            let (record, malformed) = codec::decode_checkpoint(&blob.name, &blob.metadata);
            if let Some(malformed) = malformed {
                self.telemetry().malformed_record(&malformed);
            }
            (record, blob)
        })))
    }

    /// Reads whether this owner owns the partition in this epoch, after its checkpoint was read, and otherwise which
    /// owner does.
    pub(super) async fn check_owner_after(
        &self,
        _checkpoint: &CheckpointRead,
        partition: &PartitionId,
        epoch: i64,
    ) -> Result<(bool, Option<OwnerId>)> {
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
            ..last.clone()
        }
    }
}

struct AdoptionWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    epoch: i64,
    start: Option<&'a Position>,
    read: Option<CheckpointRead>,
    from: Option<PositionFrom>,
}

impl AdoptionWrite<'_> {
    /// Returns what to write: the blob as it was read, with this owner's id, or another position.
    fn content_to_write(&self) -> (CheckpointRecord, Metadata) {
        let found = self.read.as_ref().and_then(CheckpointRead::record_and_blob);
        let mut record = found.map(|(record, _)| record.clone()).unwrap_or_default();
        if let (Some(PositionFrom::Start), Some(start)) = (self.from, self.start) {
            record = self.store.initial_record(start, &record);
        }
        record.owner = Some(self.store.identity().owner.clone());
        let metadata = match (found, self.from) {
            (Some((_, blob)), Some(PositionFrom::Found)) => codec::with_adopter(blob.metadata.clone(), &record),
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

    async fn send_write(&mut self, under: &WriteCondition<ETag>) -> Result<AdoptOutcome> {
        let (record, metadata) = self.content_to_write();
        let name = self.store.inner.names.record_name(RecordKind::Checkpoint, self.partition);
        let written = self.store.write_blob(StorageOperation::Adopt, &name, &metadata, under).await?;
        Ok(self.adoption_outcome(Some(written.etag), record))
    }

    async fn read_next_step(&mut self) -> Result<SettleStep<ETag, AdoptOutcome>> {
        let mut read = self.store.read_checkpoint(self.partition).await?;
        // The adoption changes the time of the blob, so the record keeps the time of the last write as the time of its
        // position.
        if let Some((record, blob)) = read.0.as_mut().filter(|(record, _)| record.has_position()) {
            record.updated_at.get_or_insert(blob.last_modified);
        }
        let read = self.read.insert(read);
        self.from = position_from(read.checkpoint_place(), self.start.is_some());
        let (owned, by) = self.store.check_owner_after(read, self.partition, self.epoch).await?;
        Ok(decide_adoption(read.blob_version(), self.from, owned).map(|unwritten| match unwritten {
            Unwritten::Lost => AdoptOutcome::Lost { by },
            Unwritten::Nothing => self.adoption_outcome(None, CheckpointRecord::default()),
        }))
    }
}
