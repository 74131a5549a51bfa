//! What listings showed earlier.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::blob::{Blob, BlobList};

/// Listings kept of each prefix: as many cycles of a loop as a test is about.
const CAPACITY: usize = 32;

/// The latest listings of each prefix, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<String, VecDeque<(Instant, Vec<Blob>)>>);

impl History {
    pub(super) fn knows(&self, prefix: &str) -> bool {
        self.0.contains_key(prefix)
    }

    pub(super) fn remember(&mut self, prefix: &str, list: &BlobList) {
        let listings = self.0.entry(prefix.to_owned()).or_default();
        if listings.len() == CAPACITY {
            listings.pop_front();
        }
        listings.push_back((list.answer.received, list.blobs.clone()));
    }

    /// What a listing showed this long before `current`, as an answer given now.
    pub(super) fn stale(&self, prefix: &str, by: Duration, current: &BlobList) -> BlobList {
        let listings = self.0.get(prefix);
        let is_old_enough = |at: Instant| current.answer.received.saturating_duration_since(at) >= by;
        let found = listings.and_then(|all| all.iter().rfind(|(at, _)| is_old_enough(*at)).or_else(|| all.front()));
        let blobs = found.map_or(&current.blobs, |(_, blobs)| blobs);
        let blobs = blobs.iter().map(|blob| Blob { answer: current.answer, ..blob.clone() }).collect();
        BlobList { blobs, answer: current.answer }
    }
}
