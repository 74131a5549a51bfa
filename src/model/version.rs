//! The version of a blob.

use std::fmt;

/// The version of a blob. Headers quote it and listings do not; here it never has quotes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(String);

impl ETag {
    /// Takes an ETag as it came from the server, quoted or not.
    ///
    /// ```
    /// use eventhubs_checkpoint::blob::ETag;
    /// assert_eq!(ETag::new("\"0x8D1\""), ETag::new("0x8D1"));
    /// ```
    #[must_use]
    pub fn new(raw: &str) -> Self {
        let unquoted = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        Self(unquoted.unwrap_or(raw).to_owned())
    }

    /// The value without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value with quotes, as `If-Match` takes it.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ETag({})", self.0)
    }
}
