//! The blobs and versions that the account keeps and no listing shows.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// How many versions each blob has had. The account keeps all of them, also those of deleted blobs.
#[derive(Debug)]
pub(super) struct History {
    page_size: NonZeroUsize,
    versions: BTreeMap<String, usize>,
}

impl History {
    pub(super) fn new(page_size: NonZeroUsize) -> Self {
        Self { page_size, versions: BTreeMap::new() }
    }

    /// Records one more version of a blob.
    pub(super) fn note(&mut self, blob: &str) {
        match self.versions.get_mut(blob) {
            Some(versions) => *versions += 1,
            None => drop(self.versions.insert(blob.to_owned(), 1)),
        }
    }

    /// Returns over how many pages a listing of the blobs with this prefix passes.
    pub(super) fn pages(&self, prefix: &str) -> u32 {
        let from_prefix = self.versions.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        let versions: usize = from_prefix.map(|(_, versions)| versions).sum();
        u32::try_from(versions.div_ceil(self.page_size.get()).max(1)).unwrap_or(u32::MAX)
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
        let mut history = History::new(const { NonZeroUsize::new(2).unwrap() });
        assert_eq!(history.pages(""), 1);
        for blob in ["a/1", "a/1", "a/2", "b/1", "b/1", "b/1"] {
            history.note(blob);
        }
        assert_eq!(["a/", "a/2", "b/", "c/", ""].map(|prefix| history.pages(prefix)), [2, 1, 2, 1, 3]);
        history.clear();
        assert_eq!(history.pages(""), 1);
    }
}
