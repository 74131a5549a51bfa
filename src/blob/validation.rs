//! Azure's rules for names and metadata. Every backend checks them before it sends a request.

use crate::blob::Metadata;
use crate::error::{Error, ErrorKind, Result};

const MAX_NAME_CHARS: usize = 1024;
const MAX_METADATA_BYTES: usize = 8 * 1024;

/// Rejects a blob name that the service would reject, or that a URL cannot carry unchanged. For backends of your own.
///
/// Rules:
/// <https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata>.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`]. The message names the blob name and the rule. Use another name.
pub fn validate_blob_name(name: &str) -> Result<()> {
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
        return Err(invalid_argument(format!("the blob name {name:?} must have 1 to {MAX_NAME_CHARS} characters")));
    }
    if matches!(name, "." | "..") {
        return Err(invalid_argument(format!("the blob name {name:?} is a relative path in a URL; use another name")));
    }
    Ok(())
}

/// Rejects metadata that the service would reject or change. For backends of your own.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`]. The message names the key or the size, and the rule. Change the metadata.
pub fn validate_metadata(metadata: &Metadata) -> Result<()> {
    for (key, value) in metadata {
        check_key(key)?;
        check_value(key, value)?;
    }
    let size: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_METADATA_BYTES {
        return Err(invalid_argument(format!(
            "the metadata has {size} bytes, but at most {MAX_METADATA_BYTES} are allowed"
        )));
    }
    Ok(())
}

/// Removes each pair that a write would reject, and returns the errors.
pub(crate) fn take_unwritable(metadata: &mut Metadata) -> Vec<Error> {
    let mut refusals = Vec::new();
    metadata.retain(|key, value| match check_key(key).and_then(|()| check_value(key, value)) {
        Ok(()) => true,
        Err(refusal) => {
            refusals.push(refusal);
            false
        }
    });
    refusals
}

fn check_key(key: &str) -> Result<()> {
    if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && key.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    {
        return Ok(());
    }
    Err(invalid_argument(format!(
        "the metadata key {key:?} must be letters, digits and underscores, and must not start with a digit"
    )))
}

fn check_value(key: &str, value: &str) -> Result<()> {
    if !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(invalid_argument(format!(
            "the value {value:?} of the metadata key {key:?} must be printable ASCII"
        )));
    }
    if value.trim_matches(' ') != value {
        return Err(invalid_argument(format!(
            "the value {value:?} of the metadata key {key:?} must not start or end with a space, because HTTP drops it"
        )));
    }
    Ok(())
}

fn invalid_argument(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> Metadata {
        Metadata::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn keys_must_be_identifiers() {
        for key in ["", "owner-id", "1st", "owner id", "größe", "a.b"] {
            let error = validate_metadata(&one(key, "x")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
        }
    }

    #[test]
    fn values_that_http_would_change_are_rejected() {
        for value in ["é", "a\nb", "\t", " a", "a ", "\u{7f}"] {
            assert!(validate_metadata(&one("k", value)).is_err(), "{value:?}");
        }
        for value in ["", "a b", "~!@#$%^&*()", "<&>\"'"] {
            assert!(validate_metadata(&one("k", value)).is_ok(), "{value:?}");
        }
    }

    #[test]
    fn metadata_is_limited_to_8_kib() {
        assert!(validate_metadata(&one("k", &"x".repeat(MAX_METADATA_BYTES - 1))).is_ok());
        assert!(validate_metadata(&one("k", &"x".repeat(MAX_METADATA_BYTES))).is_err());
    }

    #[test]
    fn names_with_another_target_are_rejected() {
        for name in ["", ".", "..", &"x".repeat(MAX_NAME_CHARS + 1)] {
            assert!(validate_blob_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "a/..", "a/./b", "...", &"ü".repeat(MAX_NAME_CHARS)] {
            assert!(validate_blob_name(name).is_ok(), "{name:?}");
        }
    }
}
