//! Adopt and checkpoint: how far a partition was processed, with one writer at a time.
//!
//! The fence is the ETag of the checkpoint blob. Who wins a partition rewrites the blob as it is (*adopts* it), which
//! changes the ETag under which the previous owner would write. The rule behind all of it: an ETag obtained by reading
//! may be used for a write only if the ownership was seen to be mine *after* that read.

use super::decide::{CheckpointNext, after_checkpoint_doubt};
use super::{GroupStore, MAX_ATTEMPTS, back_off, is_doubtful};
use crate::blob::{Blob, Condition, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, PartitionId, Position, Relation};
use crate::telemetry::{self, Operation};

/// The right to write one partition's checkpoints, and what was last written.
#[derive(Debug)]
pub struct Adoption {
    partition: PartitionId,
    etag: Option<ETag>,
    record: CheckpointRecord,
}

impl Adoption {
    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
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

/// What became of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointOutcome {
    /// It is durable.
    Written,
    /// A later position is stored already.
    Superseded,
    /// The partition belongs to somebody else now: stop processing it.
    Fenced {
        /// The owner now; nobody if it was released.
        by: Option<OwnerId>,
    },
}

impl GroupStore {
    /// Takes over the checkpoint of a partition that was just won.
    ///
    /// `start` is where processing starts if there is no checkpoint yet. It is written down at once, so that a group that
    /// starts at the latest event and dies before its first checkpoint loses nothing. Without it nothing is written, and
    /// until the first checkpoint a displaced owner's own first checkpoint may still be accepted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if other writers kept getting in between, else what the storage answered. In both cases
    /// adopt again while the lease lasts.
    pub async fn adopt(&self, partition: &PartitionId, start: Option<&Position>) -> Result<AdoptOutcome> {
        let _turn = self.turn(RecordKind::Checkpoint).await;
        let name = self.inner.names.of(RecordKind::Checkpoint, partition);
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let found = self.read(&name).await?;
            if let Some(by) = self.displaced(partition).await? {
                return Ok(AdoptOutcome::Lost { by: by.0 });
            }
            let Some((metadata, condition)) = self.adoption_write(found, start) else {
                let record = CheckpointRecord::default();
                return Ok(AdoptOutcome::Adopted(Adoption { partition: partition.clone(), etag: None, record }));
            };
            match self.write(Operation::Adopt, &name, &metadata, &condition).await {
                Ok(written) => {
                    let (record, problem) = codec::decode_checkpoint(&name, &metadata);
                    problem.iter().for_each(telemetry::malformed_record);
                    let etag = Some(written.etag);
                    return Ok(AdoptOutcome::Adopted(Adoption { partition: partition.clone(), etag, record }));
                }
                Err(error) if is_doubtful(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::Contended, format!("the checkpoint of partition {partition} changes all the time")))
    }

    /// What to write in order to adopt: the blob as it was read, plus my name; or the pinned start, also over a blob that
    /// names no position, for such a one pins nothing.
    fn adoption_write(&self, found: Option<Blob>, start: Option<&Position>) -> Option<(Metadata, Condition)> {
        let Some(blob) = found else {
            let record = self.checkpoint_record(start?, &CheckpointRecord::default());
            return Some((codec::encode_checkpoint(&record), Condition::Create));
        };
        let (record, _) = codec::decode_checkpoint(&blob.name, &blob.metadata);
        let metadata = match start.filter(|_| !record.has_position()) {
            Some(start) => codec::encode_checkpoint(&self.checkpoint_record(start, &record)),
            None => codec::with_adopter(blob.metadata, &self.identity().owner),
        };
        Some((metadata, Condition::Match(blob.etag)))
    }

    /// Writes a checkpoint. In the steady state this is one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if another writer kept getting in between, else what the storage answered. The position
    /// is not lost: write it, or a later one, again.
    pub async fn checkpoint(&self, adoption: &mut Adoption, position: &Position) -> Result<CheckpointOutcome> {
        let mine = position.sequence_number;
        if adoption.record.sequence_number.is_some_and(|written| written >= mine) {
            return Ok(CheckpointOutcome::Superseded);
        }
        let _turn = self.turn(RecordKind::Checkpoint).await;
        // Without an ETag nothing fences me yet: there was no start to pin.
        if adoption.etag.is_none()
            && let Some(by) = self.displaced(&adoption.partition).await?
        {
            return Ok(CheckpointOutcome::Fenced { by: by.0 });
        }
        let name = self.inner.names.of(RecordKind::Checkpoint, &adoption.partition);
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let record = self.checkpoint_record(position, &adoption.record);
            let condition = adoption.etag.clone().map_or(Condition::Create, Condition::Match);
            match self.write(Operation::Checkpoint, &name, &codec::encode_checkpoint(&record), &condition).await {
                Ok(written) => {
                    adoption.etag = Some(written.etag);
                    adoption.record = record;
                    return Ok(CheckpointOutcome::Written);
                }
                Err(error) if is_doubtful(&error) => {}
                Err(error) => return Err(error),
            }
            let found = self.read(&name).await?;
            if let Some(by) = self.displaced(&adoption.partition).await? {
                return Ok(CheckpointOutcome::Fenced { by: by.0 });
            }
            adoption.take_over(found);
            match after_checkpoint_doubt(mine, adoption.record.sequence_number) {
                CheckpointNext::Written => return Ok(CheckpointOutcome::Written),
                CheckpointNext::Superseded => return Ok(CheckpointOutcome::Superseded),
                CheckpointNext::Write => {}
            }
        }
        let other = adoption.record.owner.as_ref().map_or("an unnamed owner", OwnerId::as_str);
        let message =
            format!("{other} keeps writing the checkpoint of partition {}, which is mine", adoption.partition);
        Err(Error::new(ErrorKind::Contended, message))
    }

    fn checkpoint_record(&self, position: &Position, last: &CheckpointRecord) -> CheckpointRecord {
        CheckpointRecord {
            sequence_number: Some(position.sequence_number),
            offset: Some(position.offset.clone()),
            owner: Some(self.identity().owner.clone()),
            updated: self.server_time().replace_nanosecond(0).ok(),
            other: last.other.clone(),
        }
    }

    /// Whether the ownership is not mine (any more), and whose it is.
    async fn displaced(&self, partition: &PartitionId) -> Result<Option<Displaced>> {
        let (relation, owner) = self.owner_of(partition).await?;
        Ok((relation != Relation::Mine).then_some(Displaced(owner)))
    }
}

/// Somebody else owns the partition, or nobody.
struct Displaced(Option<OwnerId>);

impl Adoption {
    /// The blob as it is now becomes the last written one, position included.
    fn take_over(&mut self, found: Option<Blob>) {
        let Some(blob) = found else {
            self.etag = None;
            self.record = CheckpointRecord::default();
            return;
        };
        let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
        problem.iter().for_each(telemetry::malformed_record);
        self.etag = Some(blob.etag);
        self.record = record;
    }
}
