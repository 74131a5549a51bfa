//! Results of earlier listings.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::blob::{Blob, ListResult};

/// The number of listings kept per prefix. Larger than the number of cycles in a test.
const CAPACITY: usize = 32;

/// The number of blobs kept per prefix, over all its listings, so that large groups fit in memory: renewals change most
/// blobs between two listings.
const MOST_BLOBS: usize = 8192;

/// The latest listings of each prefix, oldest first, at least the last one. They share unchanged blobs.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<String, VecDeque<Recorded>>);

/// The time of a listing, and its blobs.
type Recorded = (Instant, Vec<Arc<Blob>>);

impl History {
    pub(super) fn contains(&self, prefix: &str) -> bool {
        self.0.contains_key(prefix)
    }

    pub(super) fn record(&mut self, prefix: &str, list: &ListResult) {
        let listings = self.0.entry(prefix.to_owned()).or_default();
        let before = listings.back().map_or(&[][..], |(_, blobs)| blobs);
        let blobs = list.blobs.iter().enumerate().map(|(index, blob)| {
            let same = before.get(index).filter(|old| old.name == blob.name && old.etag == blob.etag);
            same.map_or_else(|| Arc::new(blob.clone()), Arc::clone)
        });
        let blobs = blobs.collect();
        listings.push_back((list.response.received_at, blobs));
        while listings.len() > 1 && exceeds_capacity(listings) {
            listings.pop_front();
        }
    }

    /// Returns the state of a listing older than `current` by this duration, as a response received now.
    pub(super) fn stale(&self, prefix: &str, by: Duration, current: &ListResult) -> ListResult {
        let listings = self.0.get(prefix);
        let is_old_enough = |at: Instant| current.response.received_at.saturating_duration_since(at) >= by;
        let found = listings.and_then(|all| all.iter().rfind(|(at, _)| is_old_enough(*at)).or_else(|| all.front()));
        let Some((_, blobs)) = found else { return current.clone() };
        let blobs = blobs.iter().map(|blob| Blob { response: current.response, ..Blob::clone(blob) }).collect();
        ListResult { blobs, response: current.response }
    }
}

fn exceeds_capacity(listings: &VecDeque<Recorded>) -> bool {
    listings.len() > CAPACITY || listings.iter().map(|(_, blobs)| blobs.len()).sum::<usize>() > MOST_BLOBS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::blob::{BlobContainer, Condition, Metadata};

    async fn kept(blobs: usize) -> usize {
        let (container, mut history) = (MemoryContainer::new(), History::default());
        for number in 0..blobs {
            container.write(&number.to_string(), &Metadata::new(), &Condition::Create).await.unwrap();
        }
        let list = container.list("").await.unwrap();
        (0..2 * CAPACITY).for_each(|_| history.record("", &list));
        history.0[""].len()
    }

    #[tokio::test]
    async fn listings_and_their_blobs_are_limited() {
        assert_eq!(kept(2).await, CAPACITY);
        assert_eq!(kept(MOST_BLOBS / 3).await, 3);
        assert_eq!(kept(MOST_BLOBS + 1).await, 1);
    }
}
