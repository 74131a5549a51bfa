//! A blob of a listing while it is read.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use percent_encoding::percent_decode_str;
use time::OffsetDateTime;

use crate::blob::azure::date::parse_http_date;
use crate::blob::azure::unusable::Unusable;
use crate::blob::{Blob, ETag, Metadata, ResponseInfo};

pub(super) const ETAG: &str = "Etag";
pub(super) const LAST_MODIFIED: &str = "Last-Modified";

/// What was read of a blob.
#[derive(Debug, Default)]
pub(super) struct Draft<'a> {
    pub(super) name: Cow<'a, str>,
    /// The name has characters that XML cannot represent, and is percent-encoded.
    pub(super) name_is_encoded: bool,
    pub(super) metadata: Metadata,
    etag: Option<ETag>,
    last_modified: Option<OffsetDateTime>,
}

impl Draft<'_> {
    /// Sets a property, if it is one of the two that are used.
    pub(super) fn set_property(&mut self, property: &str, text: &str) {
        match property {
            ETAG => self.etag = (!text.is_empty()).then(|| ETag::new(text)),
            LAST_MODIFIED => self.last_modified = parse_http_date(text),
            _ => {}
        }
    }

    /// Adds a pair of metadata. Listings have the keys in their original case.
    pub(super) fn add_metadata(&mut self, key: &str, value: &str) {
        if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
            self.metadata.insert(key.to_ascii_lowercase(), value);
        } else {
            self.metadata.insert(key, value);
        }
    }

    /// Returns whether all used properties are read.
    pub(super) fn has_version(&self) -> bool {
        self.etag.is_some() && self.last_modified.is_some()
    }

    /// Returns the blob. A blob without a version is unusable.
    pub(super) fn finish(self, response: ResponseInfo) -> Result<Blob, Unusable> {
        let name = match self.name_is_encoded {
            true => percent_decode_str(&self.name).decode_utf8_lossy().into_owned(),
            false => self.name.into_owned(),
        };
        match (self.etag, self.last_modified) {
            (Some(etag), Some(last_modified)) => {
                Ok(Blob { name, metadata: self.metadata, etag, last_modified, response })
            }
            (etag, _) => Err(Unusable { name, etag }),
        }
    }
}

/// Returns where the end tag of the properties starts. Most of a page is properties that are not used.
pub(super) fn end_of_properties(text: &[u8]) -> Option<usize> {
    static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("</Properties>"));
    END.find(text)
}
