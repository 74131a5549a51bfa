//! The directories of an account with a hierarchical namespace.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use crate::blob::{Blob, ETag, ListResult, Metadata, ResponseInfo};

/// The metadata of a directory.
const IS_FOLDER: (&str, &str) = ("hdi_isfolder", "true");

/// Returns whether this entry of a listing is a directory.
pub(crate) fn is_directory(blob: &Blob) -> bool {
    let (key, value) = IS_FOLDER;
    blob.metadata.get(key).is_some_and(|found| found == value)
}

/// All directories by name. A write creates them, and only the deletion of the container removes them.
#[derive(Debug, Default)]
pub(super) struct Directories(BTreeMap<String, Directory>);

#[derive(Debug)]
struct Directory {
    etag: ETag,
    last_modified: OffsetDateTime,
}

impl Directories {
    /// Records that a blob with this name exists, and with it all of its directories.
    pub(super) fn note(&mut self, blob: &str, etag: &ETag, last_modified: OffsetDateTime) {
        for (end, _) in blob.rmatch_indices('/') {
            let name = &blob[..end];
            if name.is_empty() || name.ends_with('/') {
                continue;
            }
            if self.0.contains_key(name) {
                // Its parents exist as well.
                return;
            }
            self.0.insert(name.to_owned(), Directory { etag: etag.clone(), last_modified });
        }
    }

    pub(super) fn find(&self, name: &str, response: ResponseInfo) -> Option<Blob> {
        self.0.get(name).map(|directory| directory.show(name, response))
    }

    /// Adds the directories whose names start with `prefix` to a listing.
    pub(super) fn add_to(&mut self, list: &mut ListResult, prefix: &str) {
        for blob in &list.blobs {
            self.note(&blob.name, &blob.etag, blob.last_modified);
        }
        let from_prefix = self.0.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        let is_blob = |name: &str| list.blobs.binary_search_by(|blob| blob.name.as_str().cmp(name)).is_ok();
        let shown = from_prefix.filter(|(name, _)| !is_blob(name));
        let shown: Vec<_> = shown.map(|(name, directory)| directory.show(name, list.response)).collect();
        if shown.is_empty() {
            return;
        }
        list.blobs.extend(shown);
        list.blobs.sort_by(|left, right| left.name.cmp(&right.name));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Directory {
    fn show(&self, name: &str, response: ResponseInfo) -> Blob {
        let (key, value) = IS_FOLDER;
        Blob {
            name: name.to_owned(),
            metadata: Metadata::from([(key.to_owned(), value.to_owned())]),
            etag: self.etag.clone(),
            last_modified: self.last_modified,
            response,
        }
    }
}
