//! All records of a group in one listing, for programs that look at the whole group.

use std::collections::HashSet;

use super::heartbeat::HEARTBEATS;
use super::listed::heartbeat_listed;
use super::{Checkpoint, GroupStore, Listing, Ownership, checkpoint_listed, ownership_listed};
use crate::blob::{Blob, ETag};
use crate::codec::{BlobNames, RecordKind};
use crate::error::Result;
use crate::model::{Heartbeat, Moment};

/// The records of a group under names in one letter case.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) ownerships: Listing<Ownership>,
    pub(crate) checkpoints: Listing<Checkpoint>,
    pub(crate) heartbeats: Listing<Heartbeat>,
}

/// The versions of the malformed blobs, per kind of listing.
type MalformedVersions = [HashSet<(String, ETag)>; 3];

impl Records {
    /// Reads the blobs below the prefix of a group. `moment_of` returns when the response arrived that contained a blob.
    pub(super) fn of(
        names: &BlobNames,
        blobs: &[Blob],
        moment_of: impl Fn(&Blob) -> Moment,
    ) -> (Self, MalformedVersions) {
        let mut records = Self::default();
        let mut malformed = MalformedVersions::default();
        for blob in blobs {
            let (kind, is_malformed) = if blob.name.starts_with(names.prefix(RecordKind::Ownership)) {
                let partition = names.partition(RecordKind::Ownership, &blob.name);
                let listed = partition.map(|partition| ownership_listed(partition, blob, moment_of(blob)));
                (RecordKind::Ownership as usize, records.ownerships.add(listed))
            } else if blob.name.starts_with(names.prefix(RecordKind::Checkpoint)) {
                let partition = names.partition(RecordKind::Checkpoint, &blob.name);
                let listed = partition.map(|partition| checkpoint_listed(partition, blob));
                (RecordKind::Checkpoint as usize, records.checkpoints.add(listed))
            } else if blob.name.starts_with(names.heartbeats()) {
                (HEARTBEATS, records.heartbeats.add(heartbeat_listed(names, blob, moment_of(blob))))
            } else {
                continue;
            };
            if is_malformed {
                malformed[kind].insert((blob.name.clone(), blob.etag.clone()));
            }
        }
        (records, malformed)
    }

    /// Returns whether there is any record, or anything that should be one.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { ownerships, checkpoints, heartbeats } = self;
        let records = ownerships.records.len() + checkpoints.records.len() + heartbeats.records.len();
        let malformed = ownerships.malformed.len() + checkpoints.malformed.len() + heartbeats.malformed.len();
        records + malformed == 0
    }
}

impl GroupStore {
    /// Reads all records in one listing, where the three listings of the balancer and the processor take three.
    pub(crate) async fn list_records(&self) -> Result<Records> {
        Ok(self.records(&self.inner.names).await?.0)
    }

    /// Reads all records in one listing, and reports the malformed ownerships and heartbeats.
    pub(crate) async fn list_records_reported(&self) -> Result<Records> {
        let (records, [ownerships, _, heartbeats]) = self.records(&self.inner.names).await?;
        let reported = &self.inner.malformed;
        reported[RecordKind::Ownership as usize].report(self.telemetry(), &records.ownerships.malformed, ownerships);
        reported[HEARTBEATS].report(self.telemetry(), &records.heartbeats.malformed, heartbeats);
        Ok(records)
    }

    /// Reads all records in the other name case. Returns nothing if the names contain no capitals.
    pub(crate) async fn list_other_records(&self) -> Result<Records> {
        match &self.inner.other_names {
            Some(names) => Ok(self.records(names).await?.0),
            None => Ok(Records::default()),
        }
    }

    async fn records(&self, names: &BlobNames) -> Result<(Records, MalformedVersions)> {
        let blobs = self.list_blobs(names.group_prefix()).await?;
        Ok(Records::of(names, &blobs, |blob| self.moment_of(blob)))
    }
}
