//! Checkpoints: one write under the version of the last one.
//!
//! The fence is the ETag of the checkpoint blob. The owner that wins a partition rewrites the blob (*adopts* it), so
//! that a checkpoint under an older ETag is rejected.

use std::cmp::Ordering;

use time::OffsetDateTime;

use super::GroupStore;
use super::adopt::{Adoption, decoded};
use super::init_checkpoint::NO_CHECKPOINT;
use super::rules::{Checkpointed, Next, Place, WriteCondition, checkpointing};
use super::settle::ConditionalWrite;
use crate::blob::{Blob, ETag};
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
    /// [`with_max_concurrent_requests`](super::StoreConfig::with_max_concurrent_requests). Then takes at most two
    /// [request timeouts](Self::request_timeout).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if another writer kept changing the checkpoint, [`ErrorKind::Indeterminate`] if the
    /// outcome was still unknown when the time was over, otherwise the error of the storage. The position is not lost:
    /// write it, or a later one, again.
    #[doc(alias = "commit")]
    #[doc(alias = "update_checkpoint")]
    pub async fn checkpoint(&self, adoption: &mut Adoption, position: &Position) -> Result<CheckpointOutcome> {
        if Place::of(&adoption.record).compared_with(position.sequence_number).is_some_and(Ordering::is_ge) {
            return Ok(CheckpointOutcome::Superseded);
        }
        let guard = self.acquire(RecordKind::Checkpoint, &adoption.partition).await;
        if guard.state.may_be_superseded(adoption.epoch) {
            return Ok(CheckpointOutcome::Fenced { by: Some(self.identity().owner.clone()) });
        }
        self.settle(&mut CheckpointWrite { store: self, adoption, position }).await
    }

    /// Returns the record of a checkpoint at this position. It keeps all other keys of the last record, except those of
    /// an initial checkpoint. If nothing was taken over from the other name case before, nothing will be: a checkpoint
    /// there belongs to another application.
    pub(super) fn checkpoint_record(
        &self,
        position: &Position,
        last: &CheckpointRecord,
        hub_created_at: Option<OffsetDateTime>,
    ) -> CheckpointRecord {
        CheckpointRecord {
            source_etag: last.source_etag.clone().filter(|version| version != NO_CHECKPOINT),
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
}

impl CheckpointWrite<'_> {
    /// Decides by the checkpoint that was read, and by the ownership, which is read now.
    async fn by(&mut self, seen: Option<(CheckpointRecord, Blob)>) -> Result<Next<ETag, CheckpointOutcome>> {
        let Adoption { partition, epoch, .. } = &*self.adoption;
        let (owned, by) = self.store.is_owned_in(partition, *epoch).await?;
        let found = seen.as_ref().map(|(record, blob)| (blob.etag.clone(), Place::of(record)));
        let next = checkpointing(found, owned, self.position.sequence_number);
        if owned {
            self.adoption.take_over(seen);
        }
        Ok(next.map(|checkpointed| match checkpointed {
            Checkpointed::Written => CheckpointOutcome::Written,
            Checkpointed::Superseded => CheckpointOutcome::Superseded,
            Checkpointed::Fenced => CheckpointOutcome::Fenced { by },
        }))
    }
}

impl ConditionalWrite for CheckpointWrite<'_> {
    type Outcome = CheckpointOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Checkpoint
    }

    fn subject(&self) -> String {
        format!("the checkpoint of partition {}", self.adoption.partition)
    }

    /// Without a version, nothing fences this owner yet.
    async fn begin(&mut self) -> Result<Next<ETag, CheckpointOutcome>> {
        match self.adoption.etag.clone() {
            Some(last) => Ok(Next::Write(WriteCondition::IfMatch(last))),
            None => self.by(None).await,
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
        let name = self.store.inner.names.of(RecordKind::Checkpoint, &self.adoption.partition);
        let seen = self.store.read(&name).await?.map(|blob| decoded(self.store.telemetry(), blob));
        self.by(seen).await
    }

    fn contended(&self) -> Error {
        let other = self.adoption.record.owner.as_ref().map_or("without an owner id", OwnerId::as_str);
        Error::new(ErrorKind::Contended, format!("another writer ({other}) keeps overwriting {}", self.subject()))
    }
}

impl Adoption {
    /// Makes the blob as it is now the last one that was written, including its position.
    fn take_over(&mut self, seen: Option<(CheckpointRecord, Blob)>) {
        let (record, etag) = seen.map(|(record, blob)| (record, blob.etag)).unzip();
        self.record = record.unwrap_or_default();
        self.etag = etag;
    }
}
