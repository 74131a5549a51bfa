//! All records of a group in one listing, for programs that look at the whole group.

use super::{Checkpoint, GroupStore, Listing, Ownership, checkpoint_listed};
use crate::blob::Blob;
use crate::codec::{self, BlobNames, MalformedRecord, RecordKind};
use crate::error::Result;
use crate::model::Heartbeat;

/// The records of a group under names in one letter case.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) ownerships: Listing<Ownership>,
    pub(crate) checkpoints: Listing<Checkpoint>,
    pub(crate) heartbeats: Listing<Heartbeat>,
}

impl GroupStore {
    /// Reads all records in one listing, where the three listings of the balancer and the processor take three.
    pub(crate) async fn list_records(&self) -> Result<Records> {
        self.records(&self.inner.names).await
    }

    /// Reads all records in the other name case. Returns nothing if they are ignored, or if the names contain no
    /// capitals.
    pub(crate) async fn list_other_records(&self) -> Result<Records> {
        match &self.inner.other_name_case {
            Some(names) => self.records(names).await,
            None => Ok(Records::default()),
        }
    }

    async fn records(&self, names: &BlobNames) -> Result<Records> {
        let prefix = names.group_prefix();
        let mut records = Records::default();
        for blob in &self.list_blobs(prefix).await? {
            if blob.name.starts_with(names.prefix(RecordKind::Ownership)) {
                let partition = names.partition(RecordKind::Ownership, &blob.name);
                records.ownerships.add(partition.map(|partition| self.ownership(partition, blob)));
            } else if blob.name.starts_with(names.prefix(RecordKind::Checkpoint)) {
                let partition = names.partition(RecordKind::Checkpoint, &blob.name);
                records.checkpoints.add(partition.map(|partition| checkpoint_listed(partition, blob)));
            } else if blob.name.starts_with(names.heartbeats()) {
                records.heartbeats.add(self.heartbeat_listed(names, blob));
            }
        }
        Ok(records)
    }

    pub(super) fn heartbeat_listed(
        &self,
        names: &BlobNames,
        blob: &Blob,
    ) -> Result<(Heartbeat, Option<MalformedRecord>), MalformedRecord> {
        let owner = names.heartbeat_owner(&blob.name)?;
        let (record, problem) = codec::decode_heartbeat(&blob.name, owner, &blob.metadata);
        Ok((Heartbeat::new(record, blob.etag.clone(), blob.age(), self.moment_of(blob)), problem))
    }
}
