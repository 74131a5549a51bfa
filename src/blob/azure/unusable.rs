//! Blobs that a listing shows without what every blob has. They are left out, and reported once per version.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::blob::ETag;
use crate::lock::lock;
use crate::telemetry;

/// A blob without a usable date, or without an ETag; then all its versions count as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unusable {
    pub(super) name: String,
    pub(super) etag: Option<ETag>,
}

/// What was reported, by the prefix of the listing. Bounded, because each listing replaces what the last one with the
/// same prefix found, and one without unusable blobs leaves nothing.
#[derive(Debug, Default)]
pub(super) struct Reported(Mutex<HashMap<String, HashSet<Unusable>>>);

impl Reported {
    /// Reports what the last listing with this prefix did not have.
    pub(super) fn report(&self, prefix: &str, found: HashSet<Unusable>) {
        let mut reported = lock(&self.0);
        let last = reported.remove(prefix).unwrap_or_default();
        found.difference(&last).for_each(|blob| telemetry::unusable_blob(&blob.name));
        if !found.is_empty() {
            reported.insert(prefix.to_owned(), found);
        }
    }
}
