//! The other tree of names: a group whose name has capitals is kept by some SDKs in lower case, by others as given.
//!
//! `$Default` alone has one, so that two applications may work in one consumer group and never see each other's
//! records. A *fresh* ownership in the other tree is an ownership: whoever balances counts its owner and leaves its
//! partition alone. Of the checkpoints there, [`adopt`](GroupStore::adopt) takes over what is further, as long as
//! nobody has written one here, or since it was last taken over from there.

use serde::Deserialize;

use super::{GroupStore, Listing, Ownership};
use crate::blob::Blob;
use crate::codec::RecordKind;
use crate::error::{Error, Result};

/// What to do about records under names of another case.
///
/// To change from an SDK that keeps its records there, let the instances of the new kind wait while those of the old
/// one are stopped. To run both for long, give this crate the case of the other:
/// [`with_blob_name_case`](super::GroupStoreBuilder::with_blob_name_case).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnCaseMismatch {
    /// Leave partitions alone that are owned there, until released or expired. The default: nothing is processed twice.
    #[default]
    Wait,
    /// The same; and do not even start while one is owned there, for it is a mistake.
    Fail,
    /// As if there were nothing.
    Ignore,
}

impl GroupStore {
    /// Reads the ownerships in the other tree of names; nothing if it is to be ignored, or if the names have no
    /// capitals.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should; see [`BlobContainer`](crate::blob::BlobContainer).
    pub async fn list_other_name_case(&self) -> Result<Listing<Ownership>> {
        let Some(twin) = &self.inner.other_name_case else {
            return Ok(Listing { records: Vec::new(), malformed: Vec::new() });
        };
        let listed = |partition, blob: &Blob| self.ownership(partition, blob);
        let listing = self.list(twin, RecordKind::Ownership, listed).await?;
        for seen in &listing.records {
            if let Some(epoch) = seen.record.epoch {
                self.inner.partitions.state(&seen.partition).seen_elsewhere(epoch);
            }
        }
        Ok(listing)
    }

    /// Whether there is another tree of names that counts.
    pub(crate) fn has_other_name_case(&self) -> bool {
        self.inner.other_name_case.is_some()
    }

    /// Fails if a partition is owned in the other tree.
    pub(super) async fn refuse_other_name_case(&self) -> Result<()> {
        let listing = self.list_other_name_case().await?;
        let (terms, now) = (self.lease_durations(), self.lease_clock_now());
        let fresh = |seen: &&Ownership| terms.counts_as_live(&seen.record, seen.age_at(now));
        let Some(seen) = listing.records.iter().find(fresh) else { return Ok(()) };
        let owner = seen.record.owner.as_ref().map(ToString::to_string).unwrap_or_default();
        Err(Error::config(format!(
            "partition {} of {} is owned by {owner} under a different blob-name case: stop that application, or use \
             its blob-name case",
            seen.partition,
            self.group()
        )))
    }
}
