//! Adopt: the requests of [`protocol::Adopt`](crate::protocol::Adopt), and what is written.

use super::{GroupStore, MAX_ATTEMPTS, back_off, condition, is_doubtful};
use crate::blob::{Blob, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Position};
use crate::protocol::{Adopt, AdoptionWrite, Place, PositionFrom};
use crate::telemetry::{self, Operation};

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
    /// [marked](CheckpointRecord::pinned) as a start. A group that dies before its first checkpoint then starts at the
    /// same place again, and a checkpoint of a displaced owner is refused. Without `start` nothing is written, and
    /// until the first checkpoint a displaced owner's own first checkpoint may still be accepted. So resolve every kind
    /// of start to a position before processing begins, as [`Processor`](crate::processor::Processor) does: adopt
    /// without `start`; if the record names no position, look for that of the start; then adopt again with it.
    ///
    /// A checkpoint in the other tree of names counts as [`Split`](crate::store::Split) says.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if other writers kept getting in between: release the partition and let some time pass.
    /// Else what the storage answered: adopt again while the lease lasts.
    pub async fn adopt(&self, partition: &PartitionId, epoch: i64, start: Option<&Position>) -> Result<AdoptOutcome> {
        let _turn = self.turn(RecordKind::Checkpoint, partition).await;
        let mut attempt = 0;
        let mut read = Read { found: None, other: None };
        let mut owner = None;
        let mut record = CheckpointRecord::default();
        let mut step = Adopt::ReadCheckpoint;
        loop {
            step = match step {
                Adopt::ReadCheckpoint if attempt == MAX_ATTEMPTS => return Err(contended(partition)),
                Adopt::ReadCheckpoint => {
                    back_off(attempt).await;
                    attempt += 1;
                    read = self.read_for_adoption(partition).await?;
                    record = read.found.as_ref().map(|(record, _)| record.clone()).unwrap_or_default();
                    Adopt::checkpoint_read(read.stored(), read.other_place(), start.is_some())
                }
                Adopt::ReadOwnership(write) => {
                    let found = self.read_ownership(partition).await?.map(|found| found.record);
                    let mine = found.as_ref().is_some_and(|record| record.is_mine_in(self.identity(), epoch));
                    owner = found.and_then(|record| record.owner);
                    Adopt::ownership_read(write, mine)
                }
                Adopt::Write(write) => {
                    let (content, metadata) = self.adoption_content(&read, &write, start);
                    record = content;
                    Adopt::written(self.adoption_written(partition, &metadata, write.under).await?)
                }
                Adopt::Adopted(etag) => {
                    return Ok(AdoptOutcome::Adopted(Adoption { partition: partition.clone(), etag, record, epoch }));
                }
                Adopt::Lost => return Ok(AdoptOutcome::Lost { by: owner }),
            }
        }
    }

    /// The other tree is asked only where it can count: as long as there is no checkpoint here, or the one here was
    /// taken from there and nobody of another SDK has written it since.
    async fn read_for_adoption(&self, partition: &PartitionId) -> Result<Read> {
        let found = self.read(&self.inner.names.of(RecordKind::Checkpoint, partition)).await?;
        let found = found.map(decoded);
        let imported = found.as_ref().map(|(record, _)| record.imported.clone());
        let Some(twin) = self.inner.twin.as_ref().filter(|_| imported != Some(None)) else {
            return Ok(Read { found, other: None });
        };
        let other = self.read(&twin.of(RecordKind::Checkpoint, partition)).await?.map(decoded);
        let changed = other.filter(|(_, blob)| imported.flatten().as_deref() != Some(blob.etag.as_str()));
        Ok(Read { found, other: changed.map(|(record, blob)| (record, blob.etag)) })
    }

    /// What to write in order to adopt: the blob as it was read, plus my name; or another position.
    fn adoption_content(
        &self,
        read: &Read,
        write: &AdoptionWrite<ETag>,
        start: Option<&Position>,
    ) -> (CheckpointRecord, Metadata) {
        let mut record = read.found.as_ref().map(|(record, _)| record.clone()).unwrap_or_default();
        match (write.from, &read.other, start) {
            (PositionFrom::OtherTree, Some((other, _)), _) => {
                record.sequence_number = other.sequence_number;
                record.offset.clone_from(&other.offset);
                record.pinned = other.pinned;
            }
            (PositionFrom::Start, _, Some(start)) => record = self.pinned_record(start, &record),
            _ => {}
        }
        record.owner = Some(self.identity().owner.clone());
        if let Some((_, etag)) = &read.other {
            record.imported = Some(etag.as_str().to_owned());
        }
        let metadata = match (&read.found, write.from) {
            (Some((_, blob)), PositionFrom::Found) => codec::with_adopter(blob.metadata.clone(), &record),
            _ => codec::encode_checkpoint(&record),
        };
        (record, metadata)
    }

    async fn adoption_written(
        &self,
        partition: &PartitionId,
        metadata: &Metadata,
        under: Option<ETag>,
    ) -> Result<Option<ETag>> {
        let name = self.inner.names.of(RecordKind::Checkpoint, partition);
        match self.write(Operation::Adopt, &name, metadata, &condition(under)).await {
            Ok(written) => Ok(Some(written.etag)),
            Err(error) if is_doubtful(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Read {
    fn stored(&self) -> Option<(ETag, Place)> {
        self.found.as_ref().map(|(record, blob)| (blob.etag.clone(), Place::of(record)))
    }

    fn other_place(&self) -> Place {
        self.other.as_ref().map_or(Place::Nowhere, |(record, _)| Place::of(record))
    }
}

/// What cannot be used of it is reported.
pub(super) fn decoded(blob: Blob) -> (CheckpointRecord, Blob) {
    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
    problem.iter().for_each(telemetry::malformed_record);
    (record, blob)
}

fn contended(partition: &PartitionId) -> Error {
    Error::new(ErrorKind::Contended, format!("the checkpoint of partition {partition} changes all the time"))
}
