//! Adoption: taking over the checkpoint of a partition that was just won.

use time::OffsetDateTime;

use super::GroupStore;
use super::checkpoint_read::CheckpointRead;
use super::rules::{Next, PositionFrom, Unwritten, WriteCondition, adopting, position_from};
use super::settle::ConditionalWrite;
use crate::blob::{ETag, Metadata};
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
    /// [`with_max_concurrent_requests`](super::StoreConfig::with_max_concurrent_requests). Then sends three requests in a
    /// row, more if other writers interfere. Each may take a [request timeout](Self::request_timeout); a read or a second
    /// write without a response ends the adoption.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`](crate::ErrorKind::Contended) if other writers kept changing the checkpoint: release the
    /// partition and wait before you claim it again. [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if
    /// a request had no response, otherwise the error of the storage: adopt again while the
    /// lease is valid.
    pub async fn adopt(&self, partition: &PartitionId, epoch: i64, start: Option<&Position>) -> Result<AdoptOutcome> {
        let _guard = self.acquire(RecordKind::Checkpoint, partition).await;
        let mut adoption = AdoptionWrite { store: self, partition, epoch, start, read: None, from: None };
        self.settle(&mut adoption).await
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
    fn content(&self) -> (CheckpointRecord, Metadata) {
        let found = self.read.as_ref().and_then(CheckpointRead::found);
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

    fn adopted(&self, etag: Option<ETag>, record: CheckpointRecord) -> AdoptOutcome {
        let (partition, hub_created_at) = (self.partition.clone(), self.store.hub_created_at);
        AdoptOutcome::Adopted(Adoption { partition, etag, record, epoch: self.epoch, hub_created_at })
    }
}

impl ConditionalWrite for AdoptionWrite<'_> {
    type Outcome = AdoptOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Adopt
    }

    fn subject(&self) -> String {
        format!("the checkpoint of partition {}", self.partition)
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<AdoptOutcome> {
        let (record, metadata) = self.content();
        let name = self.store.inner.names.of(RecordKind::Checkpoint, self.partition);
        let written = self.store.write(StorageOperation::Adopt, &name, &metadata, under).await?;
        Ok(self.adopted(Some(written.etag), record))
    }

    async fn look(&mut self) -> Result<Next<ETag, AdoptOutcome>> {
        let read = self.store.read_checkpoint(self.partition).await?.dated();
        let read = self.read.insert(read);
        self.from = position_from(read.place(), self.start.is_some());
        let (owned, by) = self.store.is_owned_after(read, self.partition, self.epoch).await?;
        Ok(adopting(read.version(), self.from, owned).map(|unwritten| match unwritten {
            Unwritten::Lost => AdoptOutcome::Lost { by },
            Unwritten::Nothing => self.adopted(None, CheckpointRecord::default()),
        }))
    }
}
