//! The other name case: if the name of a group contains capitals, some SDKs use blob names in lower case, and others
//! the names as given.
//!
//! `$Default` is such a name, so two applications may work in one consumer group and never see each other's records. A
//! *live* ownership in the other name case counts: the balancer counts its owner, and does not touch its partition. A
//! checkpoint there is taken over by [`adopt`](GroupStore::adopt) if it is ahead, as long as there is no checkpoint
//! here, or the one here was taken over from there and no other SDK has written it since.

use serde::Deserialize;

use super::{GroupStore, Listing, Ownership};
use crate::blob::Blob;
use crate::codec::RecordKind;
use crate::error::{Error, Result};

/// What to do about records in the other name case.
///
/// To migrate from an SDK that uses the other case, start the new instances with `Wait` while you stop the old ones. To
/// run both for long, set the blob-name case of the other SDK:
/// [`with_blob_name_case`](super::StoreConfig::with_blob_name_case).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnCaseMismatch {
    /// Does not touch partitions that are owned in the other name case, until they are released or expire. The default:
    /// no event is processed twice.
    #[default]
    Wait,
    /// Like [`Wait`](Self::Wait), and fails to connect while a partition is owned there, because that is a mistake.
    Fail,
    /// Ignores records in the other name case.
    Ignore,
}

impl GroupStore {
    /// Reads the ownerships in the other name case. Returns nothing if they are ignored, or if the names contain no
    /// capitals.
    ///
    /// # Errors
    ///
    /// Those of [`BlobContainer`](crate::blob::BlobContainer). A malformed blob is not an error; see
    /// [`Listing::malformed`].
    pub async fn list_other_name_case(&self) -> Result<Listing<Ownership>> {
        let Some(names) = &self.inner.other_name_case else {
            return Ok(Listing::default());
        };
        let listed = |partition, blob: &Blob| self.ownership(partition, blob);
        let listing = self.list(names, RecordKind::Ownership, listed).await?;
        for seen in &listing.records {
            if let Some(epoch) = seen.record.epoch {
                self.inner.partitions.state(&seen.partition).seen_in_other_name_case(epoch);
            }
        }
        Ok(listing)
    }

    /// Returns whether there is another name case that counts.
    pub(crate) fn has_other_name_case(&self) -> bool {
        self.inner.other_name_case.is_some()
    }

    /// Fails if a partition is owned in the other name case.
    pub(super) async fn refuse_other_name_case(&self) -> Result<()> {
        let listing = self.list_other_name_case().await?;
        let (lease_durations, now) = (self.lease_durations(), self.lease_clock_now());
        let is_live = |seen: &&Ownership| lease_durations.counts_as_live(&seen.record, seen.age_at(now));
        let Some(seen) = listing.records.iter().find(is_live) else { return Ok(()) };
        let owner = seen.record.owner.as_ref().map(ToString::to_string).unwrap_or_default();
        Err(Error::config(format!(
            "partition {} of {} is owned by {owner} under a different blob-name case: stop that application, or use \
             its blob-name case",
            seen.partition,
            self.group()
        )))
    }
}
