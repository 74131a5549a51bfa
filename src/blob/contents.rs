//! The contents and leases of blobs that other programs write. The records of this crate are empty blobs without
//! leases, so [`BlobContainer`](super::BlobContainer) shows neither.

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;

/// A blob of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobContent {
    /// The full name.
    pub name: String,
    /// The length in bytes.
    pub size: u64,
    /// Whether a program holds a lease of the blob.
    pub is_leased: bool,
}

impl BlobContent {
    /// Creates the description of a blob, for implementations of the port.
    #[must_use]
    pub fn new(name: impl Into<String>, size: u64, is_leased: bool) -> Self {
        Self { name: name.into(), size, is_leased }
    }
}

/// A container with blobs of other programs, to read. See [`admin::migrate`](crate::admin::migrate).
///
/// # Errors
///
/// Those of [`BlobContainer`](super::BlobContainer).
#[async_trait]
pub trait BlobContents: fmt::Debug + Send + Sync {
    /// Lists the blobs whose name is `prefix` and a rest without `/`.
    async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>>;

    /// Reads a blob, at most the first `limit` bytes. An empty blob may be rejected.
    async fn read_content(&self, name: &str, limit: u32) -> Result<Vec<u8>>;
}
