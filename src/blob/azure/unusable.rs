//! Blobs that a listing shows without an ETag or a date. They are skipped, and logged once per version.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::blob::ETag;
use crate::lock::lock;
use crate::telemetry;

/// The most blobs that are logged per listing.
const MOST_LOGGED: usize = 10;

/// A blob without a usable date, or without an ETag. All versions without an ETag count as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unusable {
    pub(super) name: String,
    pub(super) etag: Option<ETag>,
}

/// The blobs that were logged, by the prefix of the listing. The size is bounded: each listing replaces the findings of
/// the previous one with the same prefix, and a listing without unusable blobs removes them.
#[derive(Debug, Default)]
pub(super) struct Reported(Mutex<HashMap<String, HashSet<Unusable>>>);

impl Reported {
    /// Logs the blobs that the last listing with this prefix did not contain.
    pub(super) fn report(&self, prefix: &str, found: HashSet<Unusable>) {
        let mut reported = lock(&self.0);
        let last = reported.remove(prefix).unwrap_or_default();
        let new: Vec<_> = found.difference(&last).collect();
        new.iter().take(MOST_LOGGED).for_each(|blob| telemetry::unusable_blob(&blob.name));
        if new.len() > MOST_LOGGED {
            telemetry::unusable_blobs_not_logged(new.len() - MOST_LOGGED);
        }
        if !found.is_empty() {
            reported.insert(prefix.to_owned(), found);
        }
    }
}
