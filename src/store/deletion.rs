//! Deletion of records, for administration. Members delete no records of partitions.

use std::fmt;

use super::GroupStore;
use crate::blob::ETag;
use crate::codec::RecordKind;
use crate::error::{ErrorKind, Result};
use crate::model::{OwnerId, PartitionId};
use crate::telemetry::StorageOperation;

/// A record of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordName {
    /// The checkpoint of a partition.
    Checkpoint(PartitionId),
    /// The ownership of a partition.
    Ownership(PartitionId),
    /// The heartbeat of an owner.
    Heartbeat(OwnerId),
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint(partition) => write!(f, "checkpoint/{partition}"),
            Self::Ownership(partition) => write!(f, "ownership/{partition}"),
            Self::Heartbeat(owner) => write!(f, "heartbeat/{owner}"),
        }
    }
}

impl GroupStore {
    /// Deletes a record under its version. A record that does not exist anymore counts as deleted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the record has changed, or may have been deleted by this call before a lost response:
    /// list it again. Otherwise the error of the storage.
    pub(crate) async fn delete_record(&self, record: &RecordName, version: &ETag) -> Result<()> {
        let names = &self.inner.names;
        let name = match record {
            RecordName::Checkpoint(partition) => names.of(RecordKind::Checkpoint, partition),
            RecordName::Ownership(partition) => names.of(RecordKind::Ownership, partition),
            RecordName::Heartbeat(owner) => names.heartbeat(owner),
        };
        let deleted = self.send(StorageOperation::Delete, self.container.delete(&name, version)).await;
        match deleted {
            Ok(response) => self.note(response),
            // Azurite reports a conflict if the blob is missing.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
                if self.read(&name).await?.is_some() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
