//! Lists the records of a group: one kind or all, in either blob-name casing.

use super::GroupStore;
use super::records::{Checkpoint, Listing, Records};
use super::rules::{CaseConflict, LiveOwner};
use crate::codec::{BlobNames, RecordKind};
use crate::error::Result;
use crate::model::{Heartbeat, NameCase, Ownership, Relation};
use crate::telemetry::{BillingType, StorageOperation};

impl GroupStore {
    /// Reads the ownership of every partition that has a record.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_ownerships(&self) -> Result<Listing<Ownership>> {
        let names = &self.inner.names;
        let listing = self.list_below(names.record_prefix(RecordKind::Ownership), names).await?.ownerships;
        self.inner.malformed.ownerships.log_new(self.telemetry(), &listing);
        Ok(listing)
    }

    /// Reads the checkpoint of every partition that has one.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_checkpoints(&self) -> Result<Listing<Checkpoint>> {
        let names = &self.inner.names;
        let listing = self.list_below(names.record_prefix(RecordKind::Checkpoint), names).await?.checkpoints;
        self.inner.malformed.checkpoints.log_new(self.telemetry(), &listing);
        Ok(listing)
    }

    /// Reads the heartbeats of all owners, including this one.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_heartbeats(&self) -> Result<Listing<Heartbeat>> {
        let names = &self.inner.names;
        let listing = self.list_below(names.heartbeat_prefix(), names).await?.heartbeats;
        self.inner.malformed.heartbeats.log_new(self.telemetry(), &listing);
        Ok(listing)
    }

    /// Reads all records in one listing, where the three listings of the balancer and the processor take three.
    pub(crate) async fn list_records(&self) -> Result<Records> {
        self.list_below(self.inner.names.group_prefix(), &self.inner.names).await
    }

    /// Reads all records in one listing, and reports the malformed ownerships and heartbeats.
    pub(crate) async fn list_records_reported(&self) -> Result<Records> {
        let records = self.list_records().await?;
        self.inner.malformed.ownerships.log_new(self.telemetry(), &records.ownerships);
        self.inner.malformed.heartbeats.log_new(self.telemetry(), &records.heartbeats);
        Ok(records)
    }

    /// Reads all records in the other blob-name casing. Returns nothing if the names contain no capitals.
    pub(crate) async fn list_other_records(&self) -> Result<Records> {
        match &self.inner.other_names {
            Some(names) => self.list_below(names.group_prefix(), names).await,
            None => Ok(Records::default()),
        }
    }

    /// Returns whether the names of the group differ in the other casing.
    pub(crate) fn has_other_name_case(&self) -> bool {
        self.inner.other_names.is_some()
    }

    /// Returns the other casing, if the group had records in it when this store connected.
    pub(crate) fn other_case_with_records(&self) -> Option<NameCase> {
        self.inner.other_case_is_used.then(|| self.inner.name_case.other())
    }

    /// Looks for a live owner in the other blob-name casing: one listing, unless the names contain no capitals.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`](crate::blob::BlobContainer).
    pub(crate) async fn find_case_conflict(&self) -> Result<Option<CaseConflict>> {
        let records = self.list_other_records().await?;
        let live = records
            .live_ownerships(self.lease_durations(), self.lease_clock_now())
            .filter(|seen| seen.record.relation_to(self.identity()) != Relation::This)
            .filter_map(LiveOwner::from_ownership)
            // An owner of another SDK does not give way.
            .min_by_key(|live| live.is_of_this_crate);
        Ok(live.map(|live| CaseConflict::Other { used: self.inner.name_case, live }))
    }

    /// Lists the blobs below a prefix, and reads the records in them.
    async fn list_below(&self, prefix: &str, names: &BlobNames) -> Result<Records> {
        let list = self
            .inner
            .listing_timeouts
            .limit_listing(prefix, |limit| {
                self.send_within(limit, StorageOperation::List, BillingType::List, self.container.list(prefix))
            })
            .await?;
        self.record_response(list.response);
        Ok(Records::from_blobs(names, &list.blobs, &*self.inner.lease_clock))
    }
}
