//! What listings return, how long they may take, and the log of what they contain that is not readable.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use time::OffsetDateTime;

use super::rules::{CaseFacts, LiveOwner};
use crate::blob::{Blob, ETag};
use crate::codec::{self, BlobNames, MalformedRecord, RecordKind};
use crate::model::{CheckpointRecord, Heartbeat, LeaseDurations, Moment, Ownership, PartitionId};
use crate::telemetry::Telemetry;
use crate::util::lock;

/// The index of heartbeats among the kinds of listings, after the indices of the two kinds of record.
pub(super) const HEARTBEATS: usize = 2;

/// The records of one kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listing<T> {
    /// The readable records, ordered by blob name.
    pub records: Vec<T>,
    /// The blobs that are not readable, or only in part.
    pub malformed: Vec<MalformedRecord>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { records: Vec::new(), malformed: Vec::new() }
    }
}

impl<T> Listing<T> {
    /// Adds a blob as it was decoded. Returns whether it is malformed.
    pub(super) fn add_blob(&mut self, decoded: Result<(T, Option<MalformedRecord>), MalformedRecord>) -> bool {
        let problem = match decoded {
            Ok((record, problem)) => {
                self.records.push(record);
                problem
            }
            Err(foreign) => Some(foreign),
        };
        let is_malformed = problem.is_some();
        self.malformed.extend(problem);
        is_malformed
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
    /// Returns the record, with the time of its blob if it does not show when it was written.
    pub(crate) fn record_with_time(&self) -> CheckpointRecord {
        let written_at = self.record.updated_at.unwrap_or(self.last_modified);
        CheckpointRecord { updated_at: Some(written_at), ..self.record.clone() }
    }
}

/// Decodes the checkpoint in a blob.
pub(super) fn checkpoint_from_blob(partition: PartitionId, blob: &Blob) -> (Checkpoint, Option<MalformedRecord>) {
    let (record, problem) = codec::decode_checkpoint(&blob.name, &blob.metadata);
    let checkpoint = Checkpoint {
        partition,
        record,
        etag: blob.etag.clone(),
        last_modified: blob.last_modified,
        written_number: codec::read_sequence_number(&blob.metadata),
    };
    (checkpoint, problem)
}

/// Decodes the ownership in a blob that a response contained at this moment.
pub(crate) fn ownership_from_blob(
    partition: PartitionId,
    blob: &Blob,
    received: Moment,
) -> (Ownership, Option<MalformedRecord>) {
    let (record, problem) = codec::decode_ownership(&blob.name, &blob.metadata);
    let response = (blob.response.server_time, received);
    (Ownership::new(partition, record, blob.etag.clone(), blob.age(), response), problem)
}

/// Decodes the heartbeat in a blob that a response contained at this moment.
pub(super) fn heartbeat_from_blob(
    names: &BlobNames,
    blob: &Blob,
    received: Moment,
) -> Result<(Heartbeat, Option<MalformedRecord>), MalformedRecord> {
    let owner = names.heartbeat_owner(&blob.name)?;
    let (record, problem) = codec::decode_heartbeat(&blob.name, owner, &blob.metadata);
    Ok((Heartbeat::new(record, blob.etag.clone(), blob.age(), received), problem))
}

/// The records of a group under names in one letter case.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) ownerships: Listing<Ownership>,
    pub(crate) checkpoints: Listing<Checkpoint>,
    pub(crate) heartbeats: Listing<Heartbeat>,
}

/// The versions of the malformed blobs, per kind of listing.
pub(super) type MalformedVersions = [HashSet<(String, ETag)>; 3];

impl Records {
    /// Reads the blobs below the prefix of a group. `moment_of` returns when the response arrived that contained a blob.
    pub(super) fn from_blobs(
        names: &BlobNames,
        blobs: &[Blob],
        moment_of: impl Fn(&Blob) -> Moment,
    ) -> (Self, MalformedVersions) {
        let mut records = Self::default();
        let mut malformed = MalformedVersions::default();
        for blob in blobs {
            let (kind, is_malformed) = if blob.name.starts_with(names.record_prefix(RecordKind::Ownership)) {
                let partition = names.parse_partition(RecordKind::Ownership, &blob.name);
                let listed = partition.map(|partition| ownership_from_blob(partition, blob, moment_of(blob)));
                (RecordKind::Ownership as usize, records.ownerships.add_blob(listed))
            } else if blob.name.starts_with(names.record_prefix(RecordKind::Checkpoint)) {
                let partition = names.parse_partition(RecordKind::Checkpoint, &blob.name);
                let listed = partition.map(|partition| checkpoint_from_blob(partition, blob));
                (RecordKind::Checkpoint as usize, records.checkpoints.add_blob(listed))
            } else if blob.name.starts_with(names.heartbeat_prefix()) {
                (HEARTBEATS, records.heartbeats.add_blob(heartbeat_from_blob(names, blob, moment_of(blob))))
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

    /// Returns what the records show about the case of their names.
    pub(crate) fn case_facts(&self, durations: LeaseDurations, now: Moment) -> CaseFacts {
        let positions = self.checkpoints.records.iter().filter(|checkpoint| checkpoint.record.has_position());
        let written = positions.map(|checkpoint| checkpoint.record.updated_at.unwrap_or(checkpoint.last_modified));
        CaseFacts {
            live: self.live_ownerships(durations, now).find_map(LiveOwner::from_ownership),
            newest_checkpoint: written.max(),
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

    pub(super) fn timeout_of(&self, prefix: &str) -> Duration {
        lock(&self.longer).get(prefix).copied().unwrap_or(self.least)
    }

    /// Records that a listing ended after this time. A listing that failed may have been rejected at once, so it does
    /// not shorten the timeout.
    pub(super) fn record_end(&self, prefix: &str, took: Duration, succeeded: bool) {
        let before = if succeeded { self.least } else { self.timeout_of(prefix) };
        let timeout = (2 * took).min(self.most).max(before);
        if timeout > self.least {
            lock(&self.longer).insert(prefix.to_owned(), timeout);
        } else {
            lock(&self.longer).remove(prefix);
        }
    }
}

/// The most records that are logged per listing, so that another program that writes thousands of blobs below the
/// prefix does not fill the log.
const MOST_LOGGED: usize = 10;

/// The names and versions of the malformed blobs in the last listing of one kind.
#[derive(Debug, Default)]
pub(super) struct MalformedLog(Mutex<HashSet<(String, ETag)>>);

impl MalformedLog {
    /// Logs the records that the last listing did not contain. `records` are all malformed ones, with names and versions.
    pub(super) fn log_new(
        &self,
        telemetry: &Telemetry,
        records: &[MalformedRecord],
        versions: HashSet<(String, ETag)>,
    ) {
        let mut last = lock(&self.0);
        let new: HashSet<_> = versions.difference(&last).map(|(blob, _)| blob).collect();
        let new: Vec<_> = records.iter().filter(|record| new.contains(&record.blob)).collect();
        new.iter().take(MOST_LOGGED).for_each(|record| telemetry.malformed_record(record));
        if new.len() > MOST_LOGGED {
            telemetry.malformed_records_not_logged(new.len() - MOST_LOGGED);
        }
        *last = versions;
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
