//! Initial checkpoints: start positions that are recorded before any instance owns the partition.

use super::GroupStore;
use super::rules::{Next, WriteCondition};
use super::settle::ConditionalWrite;
use crate::blob::ETag;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, PartitionId, Position};
use crate::telemetry::StorageOperation;

/// The outcome of [`GroupStore::init_checkpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitOutcome {
    /// The start is recorded.
    Written,
    /// The partition has a checkpoint, or another start. Nothing was written.
    Exists,
}

impl GroupStore {
    /// Writes an initial checkpoint if there is none, whether the partition is owned or not. Never changes an existing
    /// checkpoint. Returns true if the initial checkpoint is stored, false if there is another one.
    ///
    /// For a group that starts at the latest event: its first instance writes the initial checkpoints of all partitions
    /// at once, so that instances that claim a partition later do not skip the events in between. The record is
    /// [marked](CheckpointRecord::initial) as initial, and the first checkpoint of any owner replaces it. So an owner
    /// that started elsewhere before, without recording that, loses nothing, although its checkpoint may be at a
    /// smaller position.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if other writers kept changing the checkpoint, [`ErrorKind::Indeterminate`] if the
    /// outcome is unknown, otherwise the error of the storage. Repeat the call until it
    /// succeeds.
    pub async fn init_checkpoint(&self, partition: &PartitionId, position: &Position) -> Result<InitOutcome> {
        let _guard = self.acquire(RecordKind::Checkpoint, partition).await;
        let record = self.initial_record(position, &CheckpointRecord::default());
        self.settle(&mut InitWrite { store: self, partition, record }).await
    }

    /// Returns an initial record at this position, which keeps all other keys of the last record.
    pub(super) fn initial_record(&self, start: &Position, last: &CheckpointRecord) -> CheckpointRecord {
        CheckpointRecord { initial: true, ..self.checkpoint_record(start, last, self.hub_created_at) }
    }
}

struct InitWrite<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    record: CheckpointRecord,
}

impl ConditionalWrite for InitWrite<'_> {
    type Outcome = InitOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Checkpoint
    }

    fn subject(&self) -> String {
        format!("the initial checkpoint of partition {}", self.partition)
    }

    async fn begin(&mut self) -> Result<Next<ETag, InitOutcome>> {
        Ok(Next::Write(WriteCondition::Create))
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<InitOutcome> {
        let name = self.store.inner.names.of(RecordKind::Checkpoint, self.partition);
        self.store.write(StorageOperation::Checkpoint, &name, &codec::encode_checkpoint(&self.record), under).await?;
        Ok(InitOutcome::Written)
    }

    fn contended(&self) -> Error {
        Error::new(ErrorKind::Contended, format!("cannot determine whether {} was written", self.subject()))
    }

    /// An existing checkpoint is never changed.
    async fn look(&mut self) -> Result<Next<ETag, InitOutcome>> {
        let read = self.store.read_checkpoint(self.partition).await?;
        Ok(match read.found() {
            None => Next::Write(WriteCondition::Create),
            Some((found, _)) if is_same_start(found, &self.record) => Next::Done(InitOutcome::Written),
            Some(_) => Next::Done(InitOutcome::Exists),
        })
    }
}

/// Returns whether the record is the same initial checkpoint, written by a request whose response was lost, or by an
/// earlier call.
fn is_same_start(found: &CheckpointRecord, written: &CheckpointRecord) -> bool {
    (&found.owner, found.sequence_number, &found.offset) == (&written.owner, written.sequence_number, &written.offset)
}
