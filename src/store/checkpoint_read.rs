//! Reading a checkpoint before the ownership of its partition.

use super::GroupStore;
use super::rules::Place;
use crate::blob::{Blob, ETag};
use crate::codec::{self, RecordKind};
use crate::error::Result;
use crate::model::{CheckpointRecord, OwnerId, PartitionId};
use crate::telemetry::Telemetry;

/// A checkpoint as it was read. The ownership that decides whether this version may be replaced must be read later, so
/// [`GroupStore::is_owned_after`] demands this value, which only a read of the checkpoint returns.
#[derive(Debug)]
pub(super) struct CheckpointRead(Option<(CheckpointRecord, Blob)>);

impl CheckpointRead {
    pub(super) fn found(&self) -> Option<&(CheckpointRecord, Blob)> {
        self.0.as_ref()
    }

    pub(super) fn into_found(self) -> Option<(CheckpointRecord, Blob)> {
        self.0
    }

    pub(super) fn version(&self) -> Option<ETag> {
        self.0.as_ref().map(|(_, blob)| blob.etag.clone())
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.0.as_ref().map(|(record, _)| Place::of(record))
    }

    /// Sets the time of the last write as the time of the position, if the record has none. An adoption keeps that time
    /// in the record, because its own write changes the time of the blob.
    pub(super) fn dated(mut self) -> Self {
        if let Some((record, blob)) = self.0.as_mut().filter(|(record, _)| record.has_position()) {
            record.updated_at.get_or_insert(blob.last_modified);
        }
        self
    }
}

impl GroupStore {
    pub(super) async fn read_checkpoint(&self, partition: &PartitionId) -> Result<CheckpointRead> {
        let blob = self.read(&self.inner.names.of(RecordKind::Checkpoint, partition)).await?;
        Ok(CheckpointRead(blob.map(|blob| decoded(self.telemetry(), blob))))
    }

    /// Reads whether this owner owns the partition in this epoch, after its checkpoint was read, and otherwise which
    /// owner does.
    pub(super) async fn is_owned_after(
        &self,
        _checkpoint: &CheckpointRead,
        partition: &PartitionId,
        epoch: i64,
    ) -> Result<(bool, Option<OwnerId>)> {
        let record = self.read_ownership(partition).await?.map(|seen| seen.record);
        let owned = record.as_ref().is_some_and(|record| record.is_mine_in(self.identity(), epoch));
        Ok((owned, record.and_then(|record| record.owner)))
    }
}

/// Decodes a checkpoint, and reports what is unusable in it.
pub(super) fn decoded(telemetry: &Telemetry, blob: Blob) -> (CheckpointRecord, Blob) {
    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
    if let Some(problem) = &problem {
        telemetry.malformed_record(problem);
    }
    (record, blob)
}
