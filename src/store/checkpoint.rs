//! Checkpoints: one write under the version of the last one.
//!
//! The fence is the ETag of the checkpoint blob. The owner that wins a partition rewrites the blob (*adopts* it), so
//! that a checkpoint under an older ETag is rejected.

use std::cmp::Ordering;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::GroupStore;
use super::adopt::Adoption;
use super::checkpoint_read::CheckpointRead;
use super::rules::{Checkpointed, Next, Place, WriteCondition, checkpointing};
use super::settle::ConditionalWrite;
use crate::blob::ETag;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, Position};
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

impl GroupStore {
    /// Writes a checkpoint. In the steady state this is one request.
    ///
    /// First waits for earlier operations on this checkpoint and for a free request, see
    /// [`with_max_concurrent_requests`](super::StoreConfig::with_max_concurrent_requests). Then sends one request, or after
    /// a conflict or a lost response several in a row. Each may take a [request timeout](Self::request_timeout); a read or a
    /// second write without a response ends the attempt.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if another writer kept changing the checkpoint, [`ErrorKind::Indeterminate`] if the
    /// outcome is unknown, otherwise the error of the storage. The position is not lost:
    /// write it, or a later one, again.
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
        if Place::of(&adoption.record).compared_with(position.sequence_number).is_some_and(Ordering::is_ge) {
            return Ok(CheckpointOutcome::Superseded);
        }
        let guard = self.acquire(RecordKind::Checkpoint, &adoption.partition).await;
        if guard.state.may_be_superseded(adoption.epoch) {
            return Ok(CheckpointOutcome::Fenced { by: Some(self.identity().owner.clone()) });
        }
        self.settle(&mut CheckpointWrite { store: self, adoption, position, deadline }).await
    }

    /// Returns the record of a checkpoint at this position. It keeps all other keys of the last record, except those of
    /// an initial checkpoint.
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

struct CheckpointWrite<'a> {
    store: &'a GroupStore,
    adoption: &'a mut Adoption,
    position: &'a Position,
    deadline: Option<Instant>,
}

impl ConditionalWrite for CheckpointWrite<'_> {
    type Outcome = CheckpointOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Checkpoint
    }

    fn subject(&self) -> String {
        format!("the checkpoint of partition {}", self.adoption.partition)
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Without a version, nothing fences this owner yet.
    async fn begin(&mut self) -> Result<Next<ETag, CheckpointOutcome>> {
        match self.adoption.etag.clone() {
            Some(last) => Ok(Next::Write(WriteCondition::IfMatch(last))),
            None => self.look().await,
        }
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<CheckpointOutcome> {
        let Adoption { partition, record, hub_created_at, .. } = &*self.adoption;
        let name = self.store.inner.names.of(RecordKind::Checkpoint, partition);
        let record = self.store.checkpoint_record(self.position, record, *hub_created_at);
        let written =
            self.store.write(StorageOperation::Checkpoint, &name, &codec::encode_checkpoint(&record), under).await?;
        (self.adoption.etag, self.adoption.record) = (Some(written.etag), record);
        Ok(CheckpointOutcome::Written)
    }

    async fn look(&mut self) -> Result<Next<ETag, CheckpointOutcome>> {
        let Adoption { partition, epoch, .. } = &*self.adoption;
        let read = self.store.read_checkpoint(partition).await?;
        let (owned, by) = self.store.is_owned_after(&read, partition, *epoch).await?;
        let next = checkpointing(read.version().zip(read.place()), owned, self.position.sequence_number);
        if owned {
            self.adoption.take_over(read);
        }
        Ok(next.map(|checkpointed| match checkpointed {
            Checkpointed::Written => CheckpointOutcome::Written,
            Checkpointed::Superseded => CheckpointOutcome::Superseded,
            Checkpointed::Fenced => CheckpointOutcome::Fenced { by },
        }))
    }

    fn contended(&self) -> Error {
        let other = self.adoption.record.owner.as_ref().map_or("without an owner id", OwnerId::as_str);
        Error::new(ErrorKind::Contended, format!("another writer ({other}) keeps overwriting {}", self.subject()))
    }
}

impl Adoption {
    /// Makes the blob as it is now the last one that was written, including its position.
    fn take_over(&mut self, read: CheckpointRead) {
        let (record, etag) = read.into_found().map(|(record, blob)| (record, blob.etag)).unzip();
        self.record = record.unwrap_or_default();
        self.etag = etag;
    }
}
