//! Pin: a start is written down before anybody owns the partition.

use super::GroupStore;
use super::adopt::decoded;
use super::rules::{Next, WriteCondition};
use super::settle::ConditionalWrite;
use crate::blob::ETag;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, PartitionId, Position};
use crate::telemetry::StorageOperation;

/// Stands for the version of a checkpoint that the other tree does not have. No ETag reads like this.
pub(super) const NONE_THERE: &str = "none";

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
    /// Writes a first checkpoint where there is none, owned or not, and never touches one that is there. True if it
    /// stands, false if there is another.
    ///
    /// For a group that starts at the latest event: its first instance pins all partitions at once, so that those that
    /// are claimed later do not skip what came meanwhile. The record is [marked](CheckpointRecord::initial) as a start,
    /// and gives way to the first checkpoint of any owner: one that started elsewhere before, without writing that
    /// down, loses nothing, although its checkpoint may be at a smaller position.
    ///
    /// Nothing is written where the other tree of names has a checkpoint, if that counts (see
    /// [`OnCaseMismatch`](crate::store::OnCaseMismatch)). A checkpoint that an owner writes there later replaces the pin at the next
    /// adoption, also one at a smaller position.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if other writers kept getting in between, [`ErrorKind::Indeterminate`] if it was not settled in
    /// time, else the error of the storage. Pin again, as often as it takes.
    pub async fn init_checkpoint(&self, partition: &PartitionId, position: &Position) -> Result<InitOutcome> {
        let _turn = self.acquire(RecordKind::Checkpoint, partition).await;
        let imported = match self.seen_in_other_tree(partition).await? {
            OtherNameCase::Taken => return Ok(InitOutcome::Exists),
            OtherNameCase::Free(version) => Some(version),
            OtherNameCase::Ignored => None,
        };
        let record = self.initial_record(position, &CheckpointRecord { source_etag: imported, ..Default::default() });
        self.settle(&mut InitWrite { store: self, partition, record }).await
    }

    /// A start at this position, which keeps every other key of the last record. The next adoption looks at the other
    /// tree, if that counts: an owner there may have started before.
    pub(super) fn initial_record(&self, start: &Position, last: &CheckpointRecord) -> CheckpointRecord {
        let not_looked_at = || self.inner.other_name_case.is_some().then(|| NONE_THERE.to_owned());
        let imported = last.source_etag.clone().or_else(not_looked_at);
        CheckpointRecord { source_etag: imported, initial: true, ..self.checkpoint_record(start, last) }
    }

    async fn seen_in_other_tree(&self, partition: &PartitionId) -> Result<OtherNameCase> {
        let Some(twin) = &self.inner.other_name_case else { return Ok(OtherNameCase::Ignored) };
        let there =
            self.read(&twin.of(RecordKind::Checkpoint, partition)).await?.map(|blob| decoded(self.telemetry(), blob));
        Ok(match there {
            Some((record, _)) if record.has_position() => OtherNameCase::Taken,
            Some((_, blob)) => OtherNameCase::Free(blob.etag.as_str().to_owned()),
            None => OtherNameCase::Free(NONE_THERE.to_owned()),
        })
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

    /// A pin touches nothing that is there.
    async fn look(&mut self) -> Result<Next<ETag, InitOutcome>> {
        let found = self.store.read(&self.store.inner.names.of(RecordKind::Checkpoint, self.partition)).await?;
        let found = found.map(|blob| decoded(self.store.telemetry(), blob).0);
        Ok(match found {
            None => Next::Write(WriteCondition::Create),
            Some(found) if is_same_start(&found, &self.record) => Next::Done(InitOutcome::Written),
            Some(_) => Next::Done(InitOutcome::Exists),
        })
    }
}

/// What the other tree of names has to say of a partition's start.
enum OtherNameCase {
    /// It does not count, or there is none.
    Ignored,
    /// Nothing yet; in this version, so that a later one is told from it.
    Free(String),
    /// It names a position.
    Taken,
}

/// By an answer that got lost, or by an earlier call.
fn is_same_start(found: &CheckpointRecord, mine: &CheckpointRecord) -> bool {
    (&found.owner, found.sequence_number, &found.offset) == (&mine.owner, mine.sequence_number, &mine.offset)
}
