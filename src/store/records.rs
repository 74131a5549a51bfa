//! The records of a group: listing the records of one kind or all, in either name case, and deleting one.

use std::collections::HashSet;
use std::fmt;

use tokio::time::Instant;

use super::GroupStore;
use super::listing::{
    Checkpoint, HEARTBEATS, Listing, MalformedVersions, Records, checkpoint_from_blob, heartbeat_from_blob,
};
use super::rules::{CaseConflict, LiveOwner};
use crate::blob::{Blob, ETag};
use crate::codec::{BlobNames, MalformedRecord, RecordKind};
use crate::error::{ErrorKind, Result};
use crate::model::{Heartbeat, NameCase, OwnerId, Ownership, PartitionId, Relation};
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
    /// Reads the ownership of every partition that has a record.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_ownerships(&self) -> Result<Listing<Ownership>> {
        self.list_kind(RecordKind::Ownership, |partition, blob| self.decode_ownership(partition, blob)).await
    }

    /// Reads the checkpoint of every partition that has one.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_checkpoints(&self) -> Result<Listing<Checkpoint>> {
        self.list_kind(RecordKind::Checkpoint, checkpoint_from_blob).await
    }

    /// Reads the heartbeats of all owners, including this one.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_heartbeats(&self) -> Result<Listing<Heartbeat>> {
        let names = &self.inner.names;
        let (listing, versions) = self
            .list_below(names.heartbeat_prefix(), |blob| heartbeat_from_blob(names, blob, self.moment_of(blob)))
            .await?;
        self.inner.malformed[HEARTBEATS].log_new(self.telemetry(), &listing.malformed, versions);
        Ok(listing)
    }

    /// Reads all records in one listing, where the three listings of the balancer and the processor take three.
    pub(crate) async fn list_records(&self) -> Result<Records> {
        Ok(self.list_records_under(&self.inner.names).await?.0)
    }

    /// Reads all records in one listing, and reports the malformed ownerships and heartbeats.
    pub(crate) async fn list_records_reported(&self) -> Result<Records> {
        let (records, [ownerships, _, heartbeats]) = self.list_records_under(&self.inner.names).await?;
        let reported = &self.inner.malformed;
        reported[RecordKind::Ownership as usize].log_new(self.telemetry(), &records.ownerships.malformed, ownerships);
        reported[HEARTBEATS].log_new(self.telemetry(), &records.heartbeats.malformed, heartbeats);
        Ok(records)
    }

    /// Reads all records in the other name case. Returns nothing if the names contain no capitals.
    pub(crate) async fn list_other_records(&self) -> Result<Records> {
        match &self.inner.other_names {
            Some(names) => Ok(self.list_records_under(names).await?.0),
            None => Ok(Records::default()),
        }
    }

    /// Returns whether the names of the group differ in the other case.
    pub(crate) fn has_other_name_case(&self) -> bool {
        self.inner.other_names.is_some()
    }

    /// Returns the other case, if the group had records in it when this store connected.
    pub(crate) fn other_case_with_records(&self) -> Option<NameCase> {
        self.inner.other_case_is_used.then(|| self.inner.name_case.other())
    }

    /// Looks for a live owner in the other name case: one listing, unless the names contain no capitals.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer).
    pub(crate) async fn find_case_conflict(&self) -> Result<Option<CaseConflict>> {
        let records = self.list_other_records().await?;
        let live = records.live_ownerships(self.lease_durations(), self.lease_clock_now());
        let others = live.filter(|seen| seen.record.relation_to(self.identity()) != Relation::This);
        // An owner of another SDK does not give way.
        let live = others.filter_map(LiveOwner::from_ownership).min_by_key(|live| live.is_of_this_crate);
        Ok(live.map(|live| CaseConflict::Other { used: self.inner.name_case, live }))
    }

    /// Deletes a record under its version. A record that does not exist anymore counts as deleted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the record has changed, or may have been deleted by this call before a lost response:
    /// list it again. Otherwise the error of the storage.
    pub(crate) async fn delete_record(&self, record: &RecordName, version: &ETag) -> Result<()> {
        let names = &self.inner.names;
        let name = match record {
            RecordName::Checkpoint(partition) => names.record_name(RecordKind::Checkpoint, partition),
            RecordName::Ownership(partition) => names.record_name(RecordKind::Ownership, partition),
            RecordName::Heartbeat(owner) => names.heartbeat_name(owner),
        };
        match self.send(StorageOperation::Delete, self.container.delete(&name, version)).await {
            Ok(response) => self.record_response(response),
            // Azurite reports a conflict if the blob is missing.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
                if self.read_blob(&name).await?.is_some() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn list_kind<T>(
        &self,
        kind: RecordKind,
        decode: impl Fn(PartitionId, &Blob) -> (T, Option<MalformedRecord>),
    ) -> Result<Listing<T>> {
        let names = &self.inner.names;
        let (listing, versions) = self
            .list_below(names.record_prefix(kind), |blob| {
                names.parse_partition(kind, &blob.name).map(|partition| decode(partition, blob))
            })
            .await?;
        self.inner.malformed[kind as usize].log_new(self.telemetry(), &listing.malformed, versions);
        Ok(listing)
    }

    /// Returns the listing and the versions of the malformed blobs in it.
    async fn list_below<T>(
        &self,
        prefix: &str,
        decode: impl Fn(&Blob) -> Result<(T, Option<MalformedRecord>), MalformedRecord>,
    ) -> Result<(Listing<T>, HashSet<(String, ETag)>)> {
        let blobs = self.list_blobs(prefix).await?;
        let mut listing = Listing { records: Vec::with_capacity(blobs.len()), malformed: Vec::new() };
        let mut versions = HashSet::new();
        for blob in &blobs {
            if listing.add_blob(decode(blob)) {
                versions.insert((blob.name.clone(), blob.etag.clone()));
            }
        }
        Ok((listing, versions))
    }

    async fn list_blobs(&self, prefix: &str) -> Result<Vec<Blob>> {
        let limit = self.inner.listing_timeouts.timeout_of(prefix);
        let began = Instant::now();
        let list = self.send_within(limit, StorageOperation::List, self.container.list(prefix)).await;
        self.inner.listing_timeouts.record_end(prefix, began.elapsed(), list.is_ok());
        let list = list?;
        self.record_response(list.response);
        Ok(list.blobs)
    }

    async fn list_records_under(&self, names: &BlobNames) -> Result<(Records, MalformedVersions)> {
        let blobs = self.list_blobs(names.group_prefix()).await?;
        Ok(Records::from_blobs(names, &blobs, |blob| self.moment_of(blob)))
    }
}
