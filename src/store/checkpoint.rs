//! Checkpoint: the requests of [`protocol::Checkpointing`](crate::protocol::Checkpointing).
//!
//! The fence is the ETag of the checkpoint blob: who wins a partition rewrites the blob (*adopts* it), and a checkpoint
//! under an older ETag is refused.

use std::cmp::Ordering;

use tokio::time::timeout;

use super::adopt::{Adoption, decoded};
use super::partitions::Turn;
use super::pin::NONE_THERE;
use super::{GroupStore, MAX_ATTEMPTS, back_off, condition, is_doubtful};
use crate::blob::{Blob, ETag};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, Position};
use crate::protocol::{Checkpointing, Place, Stored};
use crate::telemetry::Operation;

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
        /// The owner now; nobody if it was released. Myself if this same store claimed it again meanwhile.
        by: Option<OwnerId>,
    },
}

impl GroupStore {
    /// Writes a checkpoint. In the steady state this is one request.
    ///
    /// It first waits for its turn, see [`concurrency`](super::GroupStoreBuilder::concurrency). Then it takes at most
    /// two [request deadlines](Self::request_deadline).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if another writer kept getting in between, [`ErrorKind::Unknown`] if it was not settled
    /// in time, else what the storage answered. The position is not lost: write it, or a later one, again.
    pub async fn checkpoint(&self, adoption: &mut Adoption, position: &Position) -> Result<CheckpointOutcome> {
        if Place::of(&adoption.record).compared_with(position.sequence_number).is_some_and(Ordering::is_ge) {
            return Ok(CheckpointOutcome::Superseded);
        }
        let turn = self.turn(RecordKind::Checkpoint, &adoption.partition).await;
        let limit = 2 * self.request_deadline();
        timeout(limit, self.checkpoint_in_time(adoption, position, &turn)).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unknown, format!("the checkpoint was not settled within {limit:?}")))
        })
    }

    async fn checkpoint_in_time(
        &self,
        adoption: &mut Adoption,
        position: &Position,
        turn: &Turn<'_>,
    ) -> Result<CheckpointOutcome> {
        let mine = position.sequence_number;
        if turn.state.has_outlived(adoption.epoch) {
            return Ok(CheckpointOutcome::Fenced { by: Some(self.identity().owner.clone()) });
        }
        let mut attempt = 0;
        let mut seen = None;
        let mut owner = None;
        let mut step = Checkpointing::begin(adoption.etag.clone());
        loop {
            step = match step {
                Checkpointing::Write(_) if attempt == MAX_ATTEMPTS => return Err(contended(adoption)),
                Checkpointing::Write(under) => {
                    back_off(attempt).await;
                    attempt += 1;
                    Checkpointing::written(self.checkpoint_written(adoption, position, under).await?)
                }
                Checkpointing::ReadCheckpoint => {
                    let name = self.inner.names.of(RecordKind::Checkpoint, &adoption.partition);
                    seen = self.read(&name).await?.map(decoded);
                    Checkpointing::ReadOwnership(seen.as_ref().map(stored))
                }
                Checkpointing::ReadOwnership(found) => {
                    let record = self.read_ownership(&adoption.partition).await?.map(|found| found.record);
                    // Mine, perhaps, but by a claim that was made meanwhile: in between another may have owned it.
                    let is_mine = record.as_ref().is_some_and(|it| it.is_mine_in(self.identity(), adoption.epoch));
                    owner = record.and_then(|record| record.owner);
                    let next = Checkpointing::ownership_read(found, is_mine, mine);
                    if next != Checkpointing::Fenced {
                        adoption.take_over(seen.take());
                    }
                    next
                }
                Checkpointing::Written(etag) => {
                    adoption.etag = Some(etag);
                    return Ok(CheckpointOutcome::Written);
                }
                Checkpointing::Superseded(stored) => {
                    adoption.etag = Some(stored.etag);
                    return Ok(CheckpointOutcome::Superseded);
                }
                Checkpointing::Fenced => return Ok(CheckpointOutcome::Fenced { by: owner }),
            }
        }
    }

    async fn checkpoint_written(
        &self,
        adoption: &mut Adoption,
        position: &Position,
        under: Option<ETag>,
    ) -> Result<Option<ETag>> {
        let name = self.inner.names.of(RecordKind::Checkpoint, &adoption.partition);
        let record = self.checkpoint_record(position, &adoption.record);
        let metadata = codec::encode_checkpoint(&record);
        match self.write(Operation::Checkpoint, &name, &metadata, &condition(under)).await {
            Ok(written) => {
                adoption.record = record;
                Ok(Some(written.etag))
            }
            Err(error) if is_doubtful(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A record of a checkpoint at this position that keeps every other key of the last one, but for those of a start.
    /// Where nothing was ever taken over from the other tree, nothing will be: a checkpoint there is of another
    /// application.
    pub(super) fn checkpoint_record(&self, position: &Position, last: &CheckpointRecord) -> CheckpointRecord {
        CheckpointRecord {
            imported: last.imported.clone().filter(|version| version != NONE_THERE),
            sequence_number: Some(position.sequence_number),
            offset: Some(position.offset.clone()),
            owner: Some(self.identity().owner.clone()),
            updated: self.server_time().replace_nanosecond(0).ok(),
            pinned: false,
            ..last.clone()
        }
    }
}

fn stored((record, blob): &(CheckpointRecord, Blob)) -> Stored<ETag> {
    Stored { etag: blob.etag.clone(), place: Place::of(record) }
}

impl Adoption {
    /// The blob as it is now becomes the last written one, position included.
    fn take_over(&mut self, seen: Option<(CheckpointRecord, Blob)>) {
        let (record, etag) = seen.map(|(record, blob)| (record, blob.etag)).unzip();
        self.record = record.unwrap_or_default();
        self.etag = etag;
    }
}

fn contended(adoption: &Adoption) -> Error {
    let other = adoption.record.owner.as_ref().map_or("an unnamed owner", OwnerId::as_str);
    let message = format!("{other} keeps writing the checkpoint of partition {}, which is mine", adoption.partition);
    Error::new(ErrorKind::Contended, message)
}
