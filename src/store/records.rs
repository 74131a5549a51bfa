//! All records of a group in one listing, for programs that look at the whole group.

use std::collections::HashSet;

use super::heartbeat::HEARTBEATS;
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

    /// Reads the ownerships and the heartbeats in one listing. It also contains the checkpoints, which are ignored.
    pub(crate) async fn list_ownerships_and_heartbeats(&self) -> Result<(Listing<Ownership>, Listing<Heartbeat>)> {
        let names = &self.inner.names;
        let (mut ownerships, mut heartbeats) = (Listing::default(), Listing::default());
        let mut malformed = [HashSet::new(), HashSet::new()];
        for blob in &self.list_blobs(names.group_prefix()).await? {
            let version = || (blob.name.clone(), blob.etag.clone());
            if blob.name.starts_with(names.prefix(RecordKind::Ownership)) {
                let partition = names.partition(RecordKind::Ownership, &blob.name);
                if ownerships.add(partition.map(|partition| self.ownership(partition, blob))) {
                    malformed[0].insert(version());
                }
            } else if blob.name.starts_with(names.heartbeats()) && heartbeats.add(self.heartbeat_listed(names, blob)) {
                malformed[1].insert(version());
            }
        }
        let [of_ownerships, of_heartbeats] = malformed;
        let reported = &self.inner.malformed;
        reported[RecordKind::Ownership as usize].report(self.telemetry(), &ownerships.malformed, of_ownerships);
        reported[HEARTBEATS].report(self.telemetry(), &heartbeats.malformed, of_heartbeats);
        Ok((ownerships, heartbeats))
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
