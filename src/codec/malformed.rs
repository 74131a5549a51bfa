//! Blobs that are no records, or not quite.

/// A blob whose content does not match its name. It is reported, and otherwise ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blob {blob:?}: {problem}")]
#[non_exhaustive]
pub struct MalformedRecord {
    /// The name of the blob.
    pub blob: String,
    /// What is wrong with it.
    pub problem: String,
}

impl MalformedRecord {
    pub(super) fn new(blob: &str, problem: impl Into<String>) -> Self {
        Self { blob: blob.to_owned(), problem: problem.into() }
    }
}
