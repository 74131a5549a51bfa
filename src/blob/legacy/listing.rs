//! What the SDK's blobs show of ours.

use std::collections::HashMap;

use azure_storage_blobs::blob::Blob as SdkBlob;

use crate::blob::{Answer, Blob, ETag, Metadata};

/// A blob of a listing, or as reading it showed it.
pub(super) fn blob_of(blob: SdkBlob, answer: Answer) -> Blob {
    let SdkBlob { name, properties, metadata, .. } = blob;
    Blob {
        name,
        metadata: metadata_of(metadata.unwrap_or_default()),
        etag: ETag::new(properties.etag.as_ref()),
        last_modified: properties.last_modified,
        answer,
    }
}

/// Listings give keys as they were written, headers in lower case. `@` begins attributes of the XML, which the SDK
/// takes for keys: those of a foreign blob that was encrypted with a key of its own.
fn metadata_of(metadata: HashMap<String, String>) -> Metadata {
    let own = metadata.into_iter().filter(|(key, _)| !key.starts_with('@'));
    own.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_folded_and_attributes_are_left_out() {
        let metadata = HashMap::from([("OwnerId", "Me"), ("@Encrypted", "true")].map(|(k, v)| (k.into(), v.into())));
        assert_eq!(metadata_of(metadata), Metadata::from([("ownerid".to_owned(), "Me".to_owned())]));
    }
}
