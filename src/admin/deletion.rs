//! Deletes records of a group that has no use for them anymore.

use std::collections::BTreeSet;

use super::reader::Reader;
use crate::error::Result;
use crate::model::{ETag, PartitionId};
use crate::store::RecordName;

/// Which records to delete.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "nothing is deleted yet"]
pub struct Deletion {
    /// The checkpoints. Members that start afterwards use their start position.
    pub checkpoints: bool,
    /// The ownerships.
    pub ownerships: bool,
    /// The heartbeats.
    pub heartbeats: bool,
    /// The partitions whose records to delete. `None` for all. Heartbeats do not belong to a partition.
    pub partitions: Option<BTreeSet<PartitionId>>,
}

/// A record that can be deleted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeletableRecord {
    /// The record.
    pub record: RecordName,
    /// Whether a live member uses it.
    pub is_live: bool,
    version: ETag,
}

impl Reader {
    /// Lists the records that a deletion concerns. Writes nothing.
    ///
    /// # Errors
    ///
    /// The error of the storage.
    pub async fn plan_deletion(&self, deletion: &Deletion) -> Result<Vec<DeletableRecord>> {
        let records = self.read().await?;
        let group = records.describe(None);
        let is_selected =
            |partition: &PartitionId| deletion.partitions.as_ref().is_none_or(|selected| selected.contains(partition));
        let is_owned = |partition: &PartitionId| group.partition(partition).is_some_and(|it| it.state.is_live());
        let mut found = Vec::new();
        for seen in
            records.checkpoints.records.iter().filter(|seen| deletion.checkpoints && is_selected(&seen.partition))
        {
            let (partition, version) = (seen.partition.clone(), seen.etag.clone());
            let is_live = is_owned(&partition);
            found.push(DeletableRecord { record: RecordName::Checkpoint(partition), is_live, version });
        }
        let ownerships = &records.survey.ownerships.records;
        for seen in ownerships.iter().filter(|seen| deletion.ownerships && is_selected(&seen.partition)) {
            let (partition, version) = (seen.partition.clone(), seen.etag.clone());
            let is_live = is_owned(&partition);
            found.push(DeletableRecord { record: RecordName::Ownership(partition), is_live, version });
        }
        for seen in records.survey.heartbeats.records.iter().filter(|_| deletion.heartbeats) {
            let (owner, version) = (seen.record.owner.clone(), seen.etag.clone());
            let is_live = group.members.iter().any(|member| member.id == owner);
            found.push(DeletableRecord { record: RecordName::Heartbeat(owner), is_live, version });
        }
        Ok(found)
    }

    /// Deletes a record, if it was not written since it was listed. A live record is deleted, too: its owner writes
    /// it again, or loses the partition.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the record has changed: list the records again. Otherwise
    /// the error of the storage.
    pub async fn delete(&self, record: &DeletableRecord) -> Result<()> {
        self.store.delete_record(&record.record, &record.version).await
    }
}
