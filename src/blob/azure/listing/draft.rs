//! A blob of a listing while it is read.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use percent_encoding::percent_decode_str;
use time::OffsetDateTime;

use crate::blob::azure::date::parse_http_date;
use crate::blob::azure::unusable::Unusable;
use crate::blob::{Blob, BlobContent, ETag, Metadata, ResponseInfo};

/// What was read of a blob.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) name: String,
    /// The name has characters that XML cannot represent, and is percent-encoded.
    pub(super) name_is_encoded: bool,
    pub(super) metadata: Metadata,
    etag: Option<ETag>,
    last_modified: Option<OffsetDateTime>,
    size: u64,
    is_leased: bool,
}

impl Draft {
    /// Sets a property, if it is one of those that are used.
    pub(super) fn set_property(&mut self, property: &str, text: &str) {
        match property {
            "Etag" => self.etag = (!text.is_empty()).then(|| ETag::new(text)),
            "Last-Modified" => self.last_modified = parse_http_date(text),
            // A size that cannot be read is too large for every reader.
            "Content-Length" => self.size = text.trim().parse().unwrap_or(u64::MAX),
            // A lease that is being broken is active until it ends.
            "LeaseState" => self.is_leased = matches!(text.trim(), "leased" | "breaking"),
            _ => {}
        }
    }

    /// Returns whether the properties of the version are read.
    pub(super) fn has_version(&self) -> bool {
        self.etag.is_some() && self.last_modified.is_some()
    }

    /// Returns what is known about the content.
    pub(super) fn content(&self) -> BlobContent {
        BlobContent::new(self.decoded_name(), self.size, self.is_leased)
    }

    fn decoded_name(&self) -> String {
        if self.name_is_encoded {
            percent_decode_str(&self.name).decode_utf8_lossy().into_owned()
        } else {
            self.name.clone()
        }
    }

    /// Returns the blob. A blob without a version is unusable.
    pub(super) fn finish(self, response: ResponseInfo) -> Result<Blob, Unusable> {
        let name = self.decoded_name();
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
