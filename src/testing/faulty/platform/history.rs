//! The blobs and versions that the account keeps and no listing shows.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

/// How many versions each blob has had. The account keeps all of them, also the versions of deleted blobs.
#[derive(Debug)]
pub(super) struct History {
    page_size: NonZeroUsize,
    /// How long each page takes, except the first.
    page: Duration,
    versions: BTreeMap<String, usize>,
}

impl History {
    pub(super) fn new(page_size: NonZeroUsize, page: Duration) -> Self {
        Self { page_size, page, versions: BTreeMap::new() }
    }

    /// Records one more version of a blob.
    pub(super) fn note(&mut self, blob: &str) {
        match self.versions.get_mut(blob) {
            Some(versions) => *versions += 1,
            None => drop(self.versions.insert(blob.to_owned(), 1)),
        }
    }

    /// Returns how much longer a listing of the blobs with this prefix takes.
    pub(super) fn time_of(&self, prefix: &str) -> Duration {
        let from_prefix = self.versions.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        let versions: usize = from_prefix.map(|(_, versions)| versions).sum();
        let further = versions.div_ceil(self.page_size.get()).saturating_sub(1);
        self.page.saturating_mul(u32::try_from(further).unwrap_or(u32::MAX))
    }

    pub(super) fn clear(&mut self) {
        self.versions.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_passes_all_versions_of_its_prefix() {
        let second = Duration::from_secs(1);
        let mut history = History::new(const { NonZeroUsize::new(2).unwrap() }, second);
        assert_eq!(history.time_of(""), Duration::ZERO);
        for blob in ["a/1", "a/1", "a/2", "b/1", "b/1", "b/1"] {
            history.note(blob);
        }
        let times = ["a/", "a/2", "b/", "c/", ""].map(|prefix| history.time_of(prefix));
        assert_eq!(times, [1, 0, 1, 0, 2].map(|pages| pages * second));
        history.clear();
        assert_eq!(history.time_of(""), Duration::ZERO);
    }
}
