//! Records as listings contain them.

use time::OffsetDateTime;

use crate::blob::{Blob, ETag};
use crate::codec::{self, BlobNames, MalformedRecord};
use crate::model::{CheckpointRecord, Heartbeat, Moment, Ownership, PartitionId};

/// The records of one kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listing<T> {
    /// The readable records, ordered by blob name.
    pub records: Vec<T>,
    /// The blobs that are not readable, or only in part.
    pub malformed: Vec<MalformedRecord>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { records: Vec::new(), malformed: Vec::new() }
    }
}

impl<T> Listing<T> {
    /// Adds a blob as it was decoded. Returns whether it is malformed.
    pub(super) fn add(&mut self, decoded: Result<(T, Option<MalformedRecord>), MalformedRecord>) -> bool {
        let problem = match decoded {
            Ok((record, problem)) => {
                self.records.push(record);
                problem
            }
            Err(foreign) => Some(foreign),
        };
        let is_malformed = problem.is_some();
        self.malformed.extend(problem);
        is_malformed
    }
}

/// The checkpoint of one partition, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The partition.
    pub partition: PartitionId,
    /// The content of the record.
    pub record: CheckpointRecord,
    /// The version of the blob.
    pub etag: ETag,
    /// The server time of the last write.
    pub last_modified: OffsetDateTime,
    /// The sequence number as written. The smallest number, by which .NET means that there is none, is not in the
    /// `record`, but other readers use it.
    pub(crate) written_number: Option<i64>,
}

impl Checkpoint {
    /// Returns the record, with the time of its blob if it does not show when it was written.
    pub(crate) fn dated_record(&self) -> CheckpointRecord {
        let written_at = self.record.updated_at.unwrap_or(self.last_modified);
        CheckpointRecord { updated_at: Some(written_at), ..self.record.clone() }
    }
}

/// Decodes the checkpoint in a blob.
pub(super) fn checkpoint_listed(partition: PartitionId, blob: &Blob) -> (Checkpoint, Option<MalformedRecord>) {
    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
    let checkpoint = Checkpoint {
        partition,
        record,
        etag: blob.etag.clone(),
        last_modified: blob.last_modified,
        written_number: codec::written_number(&blob.metadata),
    };
    (checkpoint, problem)
}

/// Decodes the ownership in a blob that a response contained at this moment.
pub(crate) fn ownership_listed(
    partition: PartitionId,
    blob: &Blob,
    received: Moment,
) -> (Ownership, Option<MalformedRecord>) {
    let (record, problem) = codec::decode_ownership(&blob.name, &blob.metadata);
    let response = (blob.response.server_time, received);
    (Ownership::new(partition, record, blob.etag.clone(), blob.age(), response), problem)
}

/// Decodes the heartbeat in a blob that a response contained at this moment.
pub(super) fn heartbeat_listed(
    names: &BlobNames,
    blob: &Blob,
    received: Moment,
) -> Result<(Heartbeat, Option<MalformedRecord>), MalformedRecord> {
    let owner = names.heartbeat_owner(&blob.name)?;
    let (record, problem) = codec::decode_heartbeat(&blob.name, owner, &blob.metadata);
    Ok((Heartbeat::new(record, blob.etag.clone(), blob.age(), received), problem))
}
