//! Adoption: taking over the checkpoint of a partition that was just won.

use time::OffsetDateTime;

use super::GroupStore;
use super::rules::{Next, Place, PositionFrom, Unwritten, WriteCondition, adopting, position_from};
use super::settle::ConditionalWrite;
use crate::blob::{Blob, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::Result;
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Position};
use crate::telemetry::{StorageOperation, Telemetry};

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

/// The checkpoints that an adoption depends on, as they were read.
#[derive(Default)]
struct Read {
    found: Option<(CheckpointRecord, Blob)>,
    /// The checkpoint in the other name case and its version, if it counts.
    other: Option<(CheckpointRecord, ETag)>,
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
    /// Whether a checkpoint in the other name case counts depends on [`OnCaseMismatch`](crate::store::OnCaseMismatch).
    ///
    /// First waits for earlier operations on this checkpoint and for a free request, see
    /// [`with_max_concurrent_requests`](super::StoreConfig::with_max_concurrent_requests). Then takes at most two
    /// [request timeouts](Self::request_timeout).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`](crate::ErrorKind::Contended) if other writers kept changing the checkpoint: release the
    /// partition and wait before you claim it again. [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if
    /// the outcome was still unknown when the time was over, otherwise the error of the storage: adopt again while the
    /// lease is valid.
    pub async fn adopt(&self, partition: &PartitionId, epoch: i64, start: Option<&Position>) -> Result<AdoptOutcome> {
        let _guard = self.acquire(RecordKind::Checkpoint, partition).await;
        let mut adoption = AdoptionWrite { store: self, partition, epoch, start, read: Read::default(), from: None };
        self.settle(&mut adoption).await
    }

    /// Reads the checkpoint, and that of the other name case if it can count: as long as there is no checkpoint here,
    /// or if the one here was taken from there and no other SDK has written it since.
    async fn read_for_adoption(&self, partition: &PartitionId) -> Result<Read> {
        let found = self.read(&self.inner.names.of(RecordKind::Checkpoint, partition)).await?;
        let found = found.map(|blob| dated(self.telemetry(), blob));
        let source_etag = found.as_ref().map(|(record, _)| record.source_etag.clone());
        let Some(names) = self.inner.other_name_case.as_ref().filter(|_| source_etag != Some(None)) else {
            return Ok(Read { found, other: None });
        };
        let other =
            self.read(&names.of(RecordKind::Checkpoint, partition)).await?.map(|blob| dated(self.telemetry(), blob));
        let changed = other.filter(|(_, blob)| source_etag.flatten().as_deref() != Some(blob.etag.as_str()));
        Ok(Read { found, other: changed.map(|(record, blob)| (record, blob.etag)) })
    }
}

struct AdoptionWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    epoch: i64,
    start: Option<&'a Position>,
    read: Read,
    from: Option<PositionFrom>,
}

impl AdoptionWrite<'_> {
    /// Returns what to write: the blob as it was read, with this owner's id, or another position.
    fn content(&self) -> (CheckpointRecord, Metadata) {
        let Read { found, other } = &self.read;
        let mut record = found.as_ref().map(|(record, _)| record.clone()).unwrap_or_default();
        match (self.from, other, self.start) {
            (Some(PositionFrom::OtherNameCase), Some((other, _)), _) => {
                record.sequence_number = other.sequence_number;
                record.offset.clone_from(&other.offset);
                record.initial = other.initial;
                (record.updated_at, record.hub_created_at) = (other.updated_at, other.hub_created_at);
            }
            (Some(PositionFrom::Start), _, Some(start)) => record = self.store.initial_record(start, &record),
            _ => {}
        }
        record.owner = Some(self.store.identity().owner.clone());
        if let Some((_, etag)) = other {
            record.source_etag = Some(etag.as_str().to_owned());
        }
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
        self.read = self.store.read_for_adoption(self.partition).await?;
        self.from = position_from(self.read.place(), self.read.other_place(), self.start.is_some());
        let (owned, by) = self.store.is_owned_in(self.partition, self.epoch).await?;
        let version = self.read.found.as_ref().map(|(_, blob)| blob.etag.clone());
        Ok(adopting(version, self.from, owned).map(|unwritten| match unwritten {
            Unwritten::Lost => AdoptOutcome::Lost { by },
            Unwritten::Nothing => self.adopted(None, CheckpointRecord::default()),
        }))
    }
}

impl Read {
    fn place(&self) -> Option<Place> {
        self.found.as_ref().map(|(record, _)| Place::of(record))
    }

    fn other_place(&self) -> Place {
        self.other.as_ref().map_or(Place::Nowhere, |(record, _)| Place::of(record))
    }
}

/// Decodes a checkpoint, with the time of the last write if the record has none. The adoption keeps that time in the
/// record, because its own write changes the time of the blob.
fn dated(telemetry: &Telemetry, blob: Blob) -> (CheckpointRecord, Blob) {
    let (mut record, blob) = decoded(telemetry, blob);
    if record.has_position() {
        record.updated_at.get_or_insert(blob.last_modified);
    }
    (record, blob)
}

/// Decodes a checkpoint, and reports what is unusable in it.
pub(super) fn decoded(telemetry: &Telemetry, blob: Blob) -> (CheckpointRecord, Blob) {
    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
    if let Some(problem) = &problem {
        telemetry.malformed_record(problem);
    }
    (record, blob)
}
