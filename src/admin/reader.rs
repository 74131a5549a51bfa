//! A program that looks at the groups of a container, and deletes the records that a group has no use for anymore.

use std::collections::BTreeSet;
use std::time::Duration;

use super::records::GroupRecords;
use crate::blob::{BlobContainer, limit_request};
use crate::error::Result;
use crate::model::{ConsumerGroup, ETag, PartitionId};
use crate::store::{GroupStore, RecordName, RequestCounts};

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

/// A program that looks at one consumer group. It claims nothing and writes no position, but it can delete records.
///
/// Unlike an [`Operator`](super::Operator), it can connect to a group that has live owners under both blob-name
/// casings, if [`OperatorBuilder::with_config`](super::OperatorBuilder::with_config) sets an explicit
/// [`BlobNameCase`](crate::store::BlobNameCase). So it can delete what is left in a casing that is no longer used.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) store: GroupStore,
}

impl Reader {
    /// Reads all records of the group. Writes nothing.
    ///
    /// # Errors
    ///
    /// The error of the storage. If [`Error::is_retryable`](crate::Error::is_retryable) is true, read again later;
    /// otherwise correct what the message names.
    pub async fn read(&self) -> Result<GroupRecords> {
        GroupRecords::read(&self.store).await
    }

    /// Reads the number of the last change that an instance of the group reported. It grows with each change: when a
    /// member joins, requests or releases a partition, when members find that an owner has expired, and when an
    /// [`Operator`](super::Operator) has released a partition. `None` if no instance of this crate has reported any.
    ///
    /// Use it to decide when to [read](Self::read) again: it costs a twelfth of a listing. It does not grow for
    /// checkpoints or for instances of other SDKs, and a report may be lost, so also read from time to time even if it
    /// has not grown. Read the number before the records, so that a change in between is not missed.
    ///
    /// # Errors
    ///
    /// The error of the storage. Continue as if nothing had changed.
    pub async fn last_change(&self) -> Result<Option<i64>> {
        Ok(self.store.read_beacon().await?.map(|beacon| beacon.change))
    }

    /// Returns how many requests to the storage were made.
    #[must_use]
    pub fn request_counts(&self) -> RequestCounts {
        self.store.request_counts()
    }

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
        let owned: BTreeSet<_> = group.partitions.iter().filter(|it| it.state.is_live()).map(|it| &it.id).collect();
        let mut found = Vec::new();
        let checkpoints = &records.checkpoints.records;
        for seen in checkpoints.iter().filter(|seen| deletion.checkpoints && is_selected(&seen.partition)) {
            found.push(DeletableRecord {
                record: RecordName::Checkpoint(seen.partition.clone()),
                is_live: owned.contains(&seen.partition),
                version: seen.etag.clone(),
            });
        }
        let ownerships = &records.survey.ownerships.records;
        for seen in ownerships.iter().filter(|seen| deletion.ownerships && is_selected(&seen.partition)) {
            found.push(DeletableRecord {
                record: RecordName::Ownership(seen.partition.clone()),
                is_live: owned.contains(&seen.partition),
                version: seen.etag.clone(),
            });
        }
        for seen in records.survey.heartbeats.records.iter().filter(|_| deletion.heartbeats) {
            let member_id = &seen.record.owner;
            found.push(DeletableRecord {
                record: RecordName::Heartbeat(member_id.clone()),
                is_live: group.members.iter().any(|member| member.id == *member_id),
                version: seen.etag.clone(),
            });
        }
        Ok(found)
    }

    /// Deletes a record, if it was not written since it was listed. A live record is deleted, too: its owner writes it
    /// again, or loses the partition.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the record has changed: list the records again. Otherwise
    /// the error of the storage.
    pub async fn delete(&self, record: &DeletableRecord) -> Result<()> {
        self.store.delete_record(&record.record, &record.version).await
    }
}

/// Lists the groups that have records in a container, below a prefix of their names. Their names are written as in the
/// names of their blobs: use [`BlobNameCase::Verbatim`](crate::store::BlobNameCase::Verbatim) to connect to them. Blobs
/// that are no records are ignored. The listing may take as long as the timeout; one of a container with many blobs has
/// many pages.
///
/// # Errors
///
/// The error of the storage.
pub async fn list_groups(container: &dyn BlobContainer, prefix: &str, timeout: Duration) -> Result<Vec<ConsumerGroup>> {
    let listing = limit_request(timeout, "list", container.list(prefix)).await?;
    let groups: BTreeSet<_> = listing.blobs.iter().filter_map(|blob| group_of(&blob.name)).collect();
    Ok(groups
        .into_iter()
        .filter_map(|(namespace, event_hub, name)| ConsumerGroup::new(namespace, event_hub, name).ok())
        .collect())
}

/// Returns the names of the group that a blob belongs to.
fn group_of(blob: &str) -> Option<(&str, &str, &str)> {
    let [namespace, event_hub, name, kind, id] = blob.split('/').collect::<Vec<_>>()[..] else { return None };
    let is_record = ["ownership", "checkpoint", "heartbeat"].contains(&kind) && !id.is_empty();
    is_record.then_some((namespace, event_hub, name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::OwnerId;

    #[tokio::test(start_paused = true)]
    async fn the_last_change_grows_with_each_report() {
        let container = Arc::new(MemoryContainer::new());
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let builder = |id| GroupStore::builder(container.clone(), group.clone(), OwnerId::new(id).unwrap());
        let reader = Reader::connect(container.clone(), group.clone()).await.unwrap();
        assert_eq!(reader.last_change().await.unwrap(), None);
        let store = builder("a").connect().await.unwrap();
        let mut changes = Vec::new();
        for _ in 0..3 {
            let _ = store.light_beacon(None).await.unwrap();
            changes.push(reader.last_change().await.unwrap());
        }
        assert!(changes[0].is_some() && changes.is_sorted_by(|before, after| before < after), "{changes:?}");
    }

    #[test]
    fn only_records_name_a_group() {
        assert_eq!(group_of("ns/hub/$default/ownership/0"), Some(("ns", "hub", "$default")));
        assert_eq!(group_of("ns/Hub/$Default/heartbeat/a"), Some(("ns", "Hub", "$Default")));
        for other in ["", "ns/hub/$default/0", "ns/hub/g/checkpoint/", "ns/hub/g/checkpoint/0/x", "ns/hub/g/verify/a"] {
            assert_eq!(group_of(other), None, "{other}");
        }
    }
}
