//! Pin: a start is written down before anybody owns the partition.

use super::adopt::decoded;
use super::{GroupStore, MAX_ATTEMPTS, back_off, is_doubtful};
use crate::blob::Condition;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, PartitionId, Position};
use crate::telemetry::Operation;

/// Stands for the version of a checkpoint that the other tree does not have. No ETag reads like this.
pub(super) const NONE_THERE: &str = "none";

impl GroupStore {
    /// Writes a first checkpoint where there is none, owned or not, and never touches one that is there. True if it
    /// stands, false if there is another.
    ///
    /// For a group that starts at the latest event: its first instance pins all partitions at once, so that those that
    /// are claimed later do not skip what came meanwhile. The record is [marked](CheckpointRecord::pinned) as a start,
    /// and gives way to the first checkpoint of any owner: one that started elsewhere before, without writing that
    /// down, loses nothing, although its checkpoint may be at a smaller position.
    ///
    /// Nothing is written where the other tree of names has a checkpoint, if that counts (see
    /// [`Split`](crate::store::Split)). A checkpoint that an owner writes there later replaces the pin at the next
    /// adoption, also one at a smaller position.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if nothing could be told for long, else what the storage answered. Pin again, as often
    /// as it takes.
    pub async fn pin(&self, partition: &PartitionId, position: &Position) -> Result<bool> {
        let _turn = self.turn(RecordKind::Checkpoint, partition).await;
        let imported = match self.seen_in_other_tree(partition).await? {
            OtherTree::Taken => return Ok(false),
            OtherTree::Free(version) => Some(version),
            OtherTree::Ignored => None,
        };
        let record = self.pinned_record(position, &CheckpointRecord { imported, ..Default::default() });
        let metadata = codec::encode_checkpoint(&record);
        let name = self.inner.names.of(RecordKind::Checkpoint, partition);
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            match self.write(Operation::Checkpoint, &name, &metadata, &Condition::Create).await {
                Ok(_) => return Ok(true),
                Err(error) if is_doubtful(&error) => {}
                Err(error) => return Err(error),
            }
            if let Some((found, _)) = self.read(&name).await?.map(decoded) {
                return Ok(is_same_pin(&found, &record));
            }
        }
        let message = format!("it could not be told whether the start of partition {partition} is written down");
        Err(Error::new(ErrorKind::Contended, message))
    }

    /// A start at this position, which keeps every other key of the last record. The next adoption looks at the other
    /// tree, if that counts: an owner there may have started before.
    pub(super) fn pinned_record(&self, start: &Position, last: &CheckpointRecord) -> CheckpointRecord {
        let not_looked_at = || self.inner.twin.is_some().then(|| NONE_THERE.to_owned());
        let imported = last.imported.clone().or_else(not_looked_at);
        CheckpointRecord { imported, pinned: true, ..self.checkpoint_record(start, last) }
    }

    async fn seen_in_other_tree(&self, partition: &PartitionId) -> Result<OtherTree> {
        let Some(twin) = &self.inner.twin else { return Ok(OtherTree::Ignored) };
        let there = self.read(&twin.of(RecordKind::Checkpoint, partition)).await?.map(decoded);
        Ok(match there {
            Some((record, _)) if record.has_position() => OtherTree::Taken,
            Some((_, blob)) => OtherTree::Free(blob.etag.as_str().to_owned()),
            None => OtherTree::Free(NONE_THERE.to_owned()),
        })
    }
}

/// What the other tree of names has to say of a partition's start.
enum OtherTree {
    /// It does not count, or there is none.
    Ignored,
    /// Nothing yet; in this version, so that a later one is told from it.
    Free(String),
    /// It names a position.
    Taken,
}

/// By an answer that got lost, or by an earlier call.
fn is_same_pin(found: &CheckpointRecord, mine: &CheckpointRecord) -> bool {
    (&found.owner, found.sequence_number, &found.offset) == (&mine.owner, mine.sequence_number, &mine.offset)
}
