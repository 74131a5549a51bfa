//! The version of a blob.

use std::fmt;

use compact_str::CompactString;

/// The version of a blob. Headers quote it and listings do not; this type stores it without quotes. The ETags of Azure
/// are so short that they need no allocation.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(CompactString);

impl ETag {
    /// Creates an ETag from the text of a response, with or without quotes.
    ///
    /// ```
    /// use eventhubs_checkpoint::blob::ETag;
    /// assert_eq!(ETag::new("\"0x8D1\""), ETag::new("0x8D1"));
    /// ```
    #[must_use]
    pub fn new(raw: &str) -> Self {
        let unquoted = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        Self(unquoted.unwrap_or(raw).into())
    }

    /// Returns the value without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value with quotes, as `If-Match` requires.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// Writes the value without quotes.
impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ETag({self})")
    }
}
