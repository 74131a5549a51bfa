//! Adopt: taking over the checkpoint of a partition that was just won.

use super::GroupStore;
use super::rules::{Next, Place, PositionFrom, Unwritten, WriteCondition, adopting, position_from};
use super::settle::ConditionalWrite;
use crate::blob::{Blob, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::Result;
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Position};
use crate::telemetry::{StorageOperation, Telemetry};

/// The right to write one partition's checkpoints, and what was last written.
#[derive(Debug)]
pub struct Adoption {
    pub(super) partition: PartitionId,
    pub(super) etag: Option<ETag>,
    pub(super) record: CheckpointRecord,
    pub(super) epoch: i64,
}

impl Adoption {
    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// The [epoch](super::Lease::epoch) of the tenure that adopted it.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The last checkpoint. It names no position if there has been none.
    #[must_use]
    pub fn record(&self) -> &CheckpointRecord {
        &self.record
    }
}

/// What became of an adoption.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdoptOutcome {
    /// From now on no previous owner's checkpoint is accepted.
    Adopted(Adoption),
    /// The partition was lost before it could be adopted.
    Lost {
        /// The owner now; nobody if it was released.
        by: Option<OwnerId>,
    },
}

/// The checkpoints that an adoption goes by, as they were read.
#[derive(Default)]
struct Read {
    found: Option<(CheckpointRecord, Blob)>,
    /// What the other tree says, and in which version; if that counts.
    other: Option<(CheckpointRecord, ETag)>,
}

impl GroupStore {
    /// Takes over the checkpoint of a partition that was just won, in the tenure with this
    /// [epoch](super::Lease::epoch).
    ///
    /// `start` is where processing starts if there is no checkpoint yet. It is written at once, as a position that is
    /// [marked](CheckpointRecord::initial) as a start. A group that dies before its first checkpoint then starts at the
    /// same place again, and a checkpoint of a displaced owner is refused. Without `start` nothing is written, and
    /// until the first checkpoint a displaced owner's own first checkpoint may still be accepted. So resolve every kind
    /// of start to a position before processing begins, as [`Processor`](crate::processor::Processor) does: adopt
    /// without `start`; if the record names no position, look for that of the start; then adopt again with it.
    ///
    /// A checkpoint in the other tree of names counts as [`OnCaseMismatch`](crate::store::OnCaseMismatch) says.
    ///
    /// It first waits for its turn, see [`concurrency`](super::GroupStoreBuilder::with_max_concurrent_requests). Then it takes at most
    /// two [request deadlines](Self::request_timeout).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`](crate::ErrorKind::Contended) if other writers kept getting in between: release the
    /// partition and let some time pass. [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if it was not settled in
    /// time. Else what the storage answered: adopt again while the lease lasts.
    pub async fn adopt(&self, partition: &PartitionId, epoch: i64, start: Option<&Position>) -> Result<AdoptOutcome> {
        let _turn = self.acquire(RecordKind::Checkpoint, partition).await;
        let mut adoption = AdoptionWrite { store: self, partition, epoch, start, read: Read::default(), from: None };
        self.settle(&mut adoption).await
    }

    /// The other tree is asked only where it can count: as long as there is no checkpoint here, or the one here was
    /// taken from there and nobody of another SDK has written it since.
    async fn read_for_adoption(&self, partition: &PartitionId) -> Result<Read> {
        let found = self.read(&self.inner.names.of(RecordKind::Checkpoint, partition)).await?;
        let found = found.map(|blob| decoded(self.telemetry(), blob));
        let imported = found.as_ref().map(|(record, _)| record.source_etag.clone());
        let Some(twin) = self.inner.other_name_case.as_ref().filter(|_| imported != Some(None)) else {
            return Ok(Read { found, other: None });
        };
        let other =
            self.read(&twin.of(RecordKind::Checkpoint, partition)).await?.map(|blob| decoded(self.telemetry(), blob));
        let changed = other.filter(|(_, blob)| imported.flatten().as_deref() != Some(blob.etag.as_str()));
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
    /// What to write in order to adopt: the blob as it was read, plus my name; or another position.
    fn content(&self) -> (CheckpointRecord, Metadata) {
        let Read { found, other } = &self.read;
        let mut record = found.as_ref().map(|(record, _)| record.clone()).unwrap_or_default();
        match (self.from, other, self.start) {
            (Some(PositionFrom::OtherTree), Some((other, _)), _) => {
                record.sequence_number = other.sequence_number;
                record.offset.clone_from(&other.offset);
                record.initial = other.initial;
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
        AdoptOutcome::Adopted(Adoption { partition: self.partition.clone(), etag, record, epoch: self.epoch })
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

/// What cannot be used of it is reported.
pub(super) fn decoded(telemetry: &Telemetry, blob: Blob) -> (CheckpointRecord, Blob) {
    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
    if let Some(problem) = &problem {
        telemetry.malformed_record(problem);
    }
    (record, blob)
}
