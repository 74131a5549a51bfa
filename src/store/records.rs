//! The records of a group, as the blobs of a listing contain them, and what a store remembers of its listings: how long
//! they took, and which malformed blobs it has logged.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::rules::{CaseFacts, LiveOwner};
use crate::blob::{Blob, ETag};
use crate::clock::LeaseClock;
use crate::codec::{self, BlobNames, MalformedRecord, RecordKind};
use crate::error::Result;
use crate::model::{CheckpointRecord, Heartbeat, LeaseDurations, Moment, OwnerId, Ownership, PartitionId};
use crate::telemetry::Telemetry;
use crate::util::lock;

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

/// The checkpoint of one partition, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The partition.
    pub partition: PartitionId,
    /// The content of the record.
    pub record: CheckpointRecord,
    /// The version of the blob.
    pub etag: ETag,
    /// The server time of the last write.
    pub last_modified: OffsetDateTime,
    /// The sequence number as written. The smallest number, by which .NET means that there is none, is not in the
    /// `record`, but other readers use it.
    pub(crate) written_number: Option<i64>,
}

impl Checkpoint {
    /// Creates a checkpoint with the record that this blob contains.
    pub(super) fn new(partition: PartitionId, record: CheckpointRecord, blob: &Blob) -> Self {
        Self {
            partition,
            record,
            etag: blob.etag.clone(),
            last_modified: blob.last_modified,
            written_number: codec::read_sequence_number(&blob.metadata),
        }
    }

    /// Returns the record, with the time of its blob if it does not show when it was written.
    pub(crate) fn record_with_time(&self) -> CheckpointRecord {
        CheckpointRecord { updated_at: self.record.updated_at.or(Some(self.last_modified)), ..self.record.clone() }
    }
}

/// The records of one kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listing<T> {
    /// The readable records, ordered by blob name.
    pub records: Vec<T>,
    /// The blobs that are not readable, or only in part.
    pub malformed: Vec<MalformedRecord>,
    /// The versions of these blobs, by name.
    pub(super) malformed_versions: HashMap<String, ETag>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { records: Vec::new(), malformed: Vec::new(), malformed_versions: HashMap::new() }
    }
}

impl<T> Listing<T> {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.malformed.is_empty()
    }

    /// Adds a blob as it was decoded. An error means that its name is not the name of a record.
    fn add_blob(&mut self, blob: &Blob, decoded: Result<(T, Option<MalformedRecord>), MalformedRecord>) {
        let problem = match decoded {
            Ok((record, problem)) => {
                self.records.push(record);
                problem
            }
            Err(foreign) => Some(foreign),
        };
        if let Some(problem) = problem {
            self.malformed.push(problem);
            self.malformed_versions.insert(blob.name.clone(), blob.etag.clone());
        }
    }
}

/// The records of a group under names in one blob-name casing.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) ownerships: Listing<Ownership>,
    pub(crate) checkpoints: Listing<Checkpoint>,
    pub(crate) heartbeats: Listing<Heartbeat>,
}

impl Records {
    /// Reads the records in listed blobs. Ignores blobs that are not below the prefix of any kind of record.
    pub(super) fn from_blobs(names: &BlobNames, blobs: &[Blob], lease_clock: &dyn LeaseClock) -> Self {
        let mut records = Self::default();
        for blob in blobs {
            if blob.name.starts_with(names.record_prefix(RecordKind::Ownership)) {
                let partition = names.parse_partition(RecordKind::Ownership, &blob.name);
                let decoded =
                    partition.map(|partition| ownership_from_blob(partition, blob, arrival_moment(blob, lease_clock)));
                records.ownerships.add_blob(blob, decoded);
            } else if blob.name.starts_with(names.record_prefix(RecordKind::Checkpoint)) {
                let partition = names.parse_partition(RecordKind::Checkpoint, &blob.name);
                let decoded = partition.map(|partition| {
                    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
                    (Checkpoint::new(partition, record, blob), problem)
                });
                records.checkpoints.add_blob(blob, decoded);
            } else if blob.name.starts_with(names.heartbeat_prefix()) {
                let decoded = names.heartbeat_owner(&blob.name).map(|owner| {
                    let (record, problem) = codec::decode_heartbeat(&blob.name, owner, &blob.metadata);
                    (Heartbeat::new(record, blob.etag.clone(), blob.age(), arrival_moment(blob, lease_clock)), problem)
                });
                records.heartbeats.add_blob(blob, decoded);
            }
        }
        records
    }

    /// Returns whether there is any record, or anything that should be one.
    pub(crate) fn is_empty(&self) -> bool {
        self.ownerships.is_empty() && self.checkpoints.is_empty() && self.heartbeats.is_empty()
    }

    /// Returns what the records show about the casing of their names.
    pub(crate) fn case_facts(&self, durations: LeaseDurations, now: Moment) -> CaseFacts {
        CaseFacts {
            live: self.live_ownerships(durations, now).find_map(LiveOwner::from_ownership),
            newest_checkpoint: self
                .checkpoints
                .records
                .iter()
                .filter(|checkpoint| checkpoint.record.has_position())
                .map(|checkpoint| checkpoint.record.updated_at.unwrap_or(checkpoint.last_modified))
                .max(),
            has_records: !self.is_empty(),
        }
    }

    /// Returns the ownerships whose owners are alive. A heartbeat of these records may keep them alive.
    pub(crate) fn live_ownerships(&self, durations: LeaseDurations, now: Moment) -> impl Iterator<Item = &Ownership> {
        self.ownerships.records.iter().filter(move |seen| {
            durations.counts_as_live(&seen.record, seen.time_since_renewal(&self.heartbeats.records, now))
        })
    }
}

/// Returns when the response that contained a blob arrived, on the lease clock. Reads two clocks at one moment: if the
/// thread was interrupted in between, the record would look older than it is.
pub(super) fn arrival_moment(blob: &Blob, lease_clock: &dyn LeaseClock) -> Moment {
    lease_clock.now().saturating_sub(blob.response.received_at.elapsed())
}

/// Decodes the ownership in a blob that a response contained at this moment.
pub(crate) fn ownership_from_blob(
    partition: PartitionId,
    blob: &Blob,
    received: Moment,
) -> (Ownership, Option<MalformedRecord>) {
    let (record, problem) = codec::decode_ownership(&blob.name, &blob.metadata);
    (Ownership::new(partition, record, blob.etag.clone(), blob.age(), (blob.response.server_time, received)), problem)
}

/// The timeouts of listings, by prefix.
///
/// A listing consists of many pages, and is slower than any other request if deleted blobs are kept for a while. No
/// lease waits for it. So a listing that timed out gets more time when it is repeated, up to a limit. It does not get
/// that time at once, because a lost request would then take as long.
#[derive(Debug)]
pub(super) struct ListingTimeouts {
    least: Duration,
    most: Duration,
    /// The timeouts above the least one.
    longer: Mutex<HashMap<String, Duration>>,
}

impl ListingTimeouts {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, longer: Mutex::default() }
    }

    /// Lists blobs within the timeout of their prefix, and records how long that took.
    pub(super) async fn limit_listing<T, F>(&self, prefix: &str, list: impl FnOnce(Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let began = Instant::now();
        let listed = list(self.timeout_of(prefix)).await;
        self.record_end(prefix, began.elapsed(), listed.is_ok());
        listed
    }

    fn timeout_of(&self, prefix: &str) -> Duration {
        lock(&self.longer).get(prefix).copied().unwrap_or(self.least)
    }

    /// Records that a listing ended after this time. A listing that failed may have been rejected at once, so it does
    /// not shorten the timeout.
    fn record_end(&self, prefix: &str, took: Duration, succeeded: bool) {
        let before = if succeeded { self.least } else { self.timeout_of(prefix) };
        let timeout = (2 * took).min(self.most).max(before);
        if timeout > self.least {
            lock(&self.longer).insert(prefix.to_owned(), timeout);
        } else {
            lock(&self.longer).remove(prefix);
        }
    }
}

/// The malformed blobs of the last listings, by kind of record.
#[derive(Debug, Default)]
pub(super) struct MalformedLogs {
    pub(super) ownerships: MalformedLog,
    pub(super) checkpoints: MalformedLog,
    pub(super) heartbeats: MalformedLog,
}

/// The versions of the malformed blobs in the last listing of one kind, by name.
#[derive(Debug, Default)]
pub(super) struct MalformedLog(Mutex<HashMap<String, ETag>>);

impl MalformedLog {
    /// Logs the malformed blobs that the last listing did not contain in this version.
    pub(super) fn log_new<T>(&self, telemetry: &Telemetry, listing: &Listing<T>) {
        /// So that another program that writes thousands of blobs below the prefix does not fill the log.
        const MOST_LOGGED: usize = 10;
        let mut last = lock(&self.0);
        let new: Vec<_> = listing
            .malformed
            .iter()
            .filter(|record| last.get(&record.blob) != listing.malformed_versions.get(&record.blob))
            .collect();
        new.iter().take(MOST_LOGGED).for_each(|record| telemetry.malformed_record(record));
        if new.len() > MOST_LOGGED {
            telemetry.malformed_records_not_logged(new.len() - MOST_LOGGED);
        }
        last.clone_from(&listing.malformed_versions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn slow_listings_get_more_time_until_one_is_fast() {
        let timeouts = ListingTimeouts::new(seconds(5), seconds(30));
        let ended = |took, succeeded| {
            timeouts.record_end("a/", took, succeeded);
            timeouts.timeout_of("a/")
        };
        let next = |took| ended(took, true);
        assert_eq!(timeouts.timeout_of("a/"), seconds(5));
        assert_eq!([5, 10, 20, 30, 30].map(|took| ended(seconds(took), false)), [10, 20, 30, 30, 30].map(seconds));
        assert_eq!(ended(seconds(0), false), seconds(30), "it was rejected at once");
        assert_eq!(next(seconds(6)), seconds(12));
        assert_eq!(timeouts.timeout_of("b/"), seconds(5), "every prefix has its own");
        assert_eq!(next(seconds(1)), seconds(5));
    }
}
