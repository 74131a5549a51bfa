//! The log of malformed records: each version once, not with every listing.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::blob::ETag;
use crate::codec::MalformedRecord;
use crate::lock::lock;
use crate::telemetry::Telemetry;

/// The most records that are logged per listing, so that another program that writes thousands of blobs below the
/// prefix does not fill the log.
const MOST_LOGGED: usize = 10;

/// The names and versions of the malformed blobs in the last listing of one kind.
#[derive(Debug, Default)]
pub(super) struct Malformed(Mutex<HashSet<(String, ETag)>>);

impl Malformed {
    /// Logs the records that the last listing did not contain. The names and versions are those of all `records`.
    pub(super) fn report(&self, telemetry: &Telemetry, records: &[MalformedRecord], versions: HashSet<(String, ETag)>) {
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
