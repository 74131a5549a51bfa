//! The port through which everything above reaches blob storage: empty blobs, whose metadata is the data.
//!
//! Above this port nothing knows which backend it talks to. All backends pass one conformance suite
//! (`testing::conformance`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::clock::later;
use crate::error::Result;

#[cfg(feature = "azure")]
pub mod azure;
#[cfg(feature = "legacy-sdk")]
pub mod legacy;
pub mod memory;
mod validation;

pub(crate) use validation::take_unwritable;
pub use validation::{normalize_metadata, validate_blob_name};

pub use crate::model::ETag;

/// The metadata of a blob. Keys are lower-case, for Azure treats them without regard to case.
pub type Metadata = BTreeMap<String, String>;

/// Under what condition a write or a deletion takes effect. Exhaustive: a backend must carry out each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Only if the blob does not exist; otherwise [`ErrorKind::Conflict`](crate::ErrorKind::Conflict).
    Create,
    /// Only if the blob still has this ETag; otherwise [`ErrorKind::Conflict`](crate::ErrorKind::Conflict), or
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it does not exist. Do not rely on the latter: Azurite
    /// calls that a conflict too (<https://github.com/Azure/Azurite/issues/2751>). Reading the blob tells.
    IfMatch(ETag),
    /// In any case. A write creates the blob if it does not exist.
    Unconditional,
}

/// When a response was given (by the server's clock) and received (by ours, which only measures spans of time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResponseInfo {
    /// The server's `Date`. A listing of several pages has one for each page.
    pub server_time: OffsetDateTime,
    /// When the response was here.
    pub received_at: Instant,
}

impl ResponseInfo {
    /// An answer with this `Date`, received at this moment.
    #[must_use]
    pub fn new(server_time: OffsetDateTime, received: Instant) -> Self {
        Self { server_time, received_at: received }
    }

    /// The server's time now, as far as this response and the local monotonic clock say.
    #[must_use]
    pub fn server_time_now(&self) -> OffsetDateTime {
        later(self.server_time, self.received_at.elapsed())
    }
}

/// A blob as a response of the server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blob {
    /// The whole name within the container.
    pub name: String,
    /// The metadata, which is all there is: the blobs are empty.
    pub metadata: Metadata,
    /// The version, for a later [`Condition::IfMatch`].
    pub etag: ETag,
    /// When it was last written, by the server's clock, in whole seconds.
    pub last_modified: OffsetDateTime,
    /// The answer that showed it.
    pub response: ResponseInfo,
}

impl Blob {
    /// A blob as a response shows it.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        metadata: Metadata,
        etag: ETag,
        last_modified: OffsetDateTime,
        response: ResponseInfo,
    ) -> Self {
        Self { name: name.into(), metadata, etag, last_modified, response }
    }

    /// How long ago it was last written, when the server gave this response. Server time on both sides: the local clock
    /// plays no part. Never negative.
    #[must_use]
    pub fn age(&self) -> Duration {
        (self.response.server_time - self.last_modified).try_into().unwrap_or(Duration::ZERO)
    }
}

/// The answer to a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListResult {
    /// All blobs whose names start with the prefix, ordered by name, from all pages.
    pub blobs: Vec<Blob>,
    /// The answer that carried the last page, there even if no blob is.
    pub response: ResponseInfo,
}

impl ListResult {
    /// The blobs of all pages, ordered by name, and the response that carried the last page.
    #[must_use]
    pub fn new(blobs: Vec<Blob>, response: ResponseInfo) -> Self {
        Self { blobs, response }
    }
}

/// The answer to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteResult {
    /// The new version.
    pub etag: ETag,
    /// When the server wrote it, in whole seconds.
    pub last_modified: OffsetDateTime,
    /// Whether the container keeps the version before this one, too: see
    /// [`StorageWarning::Versioning`](crate::store::StorageWarning::Versioning).
    pub versioned: bool,
    /// The answer itself.
    pub response: ResponseInfo,
}

impl WriteResult {
    /// The answer to a write in a container that keeps no earlier versions.
    #[must_use]
    pub fn new(etag: ETag, last_modified: OffsetDateTime, response: ResponseInfo) -> Self {
        Self { etag, last_modified, versioned: false, response }
    }

    /// Sets [`versioned`](Self::versioned).
    #[must_use]
    pub fn with_versioned(mut self, versioned: bool) -> Self {
        self.versioned = versioned;
        self
    }
}

/// Whether a call of [`BlobContainer::create_container`] made the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContainerCreation {
    /// It was made now.
    Created,
    /// It was there.
    Existed,
}

/// One container of a blob service with Azure's semantics.
///
/// Azure drops dots at the end of each segment of a blob's name, so `a.` is `a`; emulators keep them. Do not use such
/// names. A backend may do either, or reject them.
///
/// Always used as `Arc<dyn BlobContainer>`. An implementation bounds each of its requests in time and never repeats a
/// conditional write by itself: after a lost answer only the caller can tell what a conflict means.
///
/// # Errors
///
/// All methods fail with [`ErrorKind::ContainerNotFound`](crate::ErrorKind::ContainerNotFound),
/// [`Unauthorized`](crate::ErrorKind::Unauthorized), [`Throttled`](crate::ErrorKind::Throttled),
/// [`Unavailable`](crate::ErrorKind::Unavailable) (certainly not applied), [`Rejected`](crate::ErrorKind::Rejected) or
/// [`Unknown`](crate::ErrorKind::Indeterminate) (possibly applied).
#[async_trait]
pub trait BlobContainer: fmt::Debug + Send + Sync + 'static {
    /// Lists all blobs whose names start with `prefix`, with their metadata. An account with a hierarchical namespace
    /// also shows directories, as entries with the metadata `hdi_isfolder=true`.
    async fn list(&self, prefix: &str) -> Result<ListResult>;

    /// Reads one blob's metadata. A missing blob is [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    async fn get(&self, name: &str) -> Result<Blob>;

    /// Replaces the whole metadata of a blob, creating it as an empty one where the condition allows it.
    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult>;

    /// Deletes a blob. A missing blob is [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), with the exception told
    /// at [`Condition::IfMatch`]; [`Condition::Create`] is refused as
    /// [`ErrorKind::Rejected`](crate::ErrorKind::Rejected).
    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo>;

    /// Makes the container unless it is there.
    async fn create_container(&self) -> Result<ContainerCreation>;

    /// The same container through a client and a connection pool of its own, for use on another runtime: connections
    /// live on the runtime that opened them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if a second client cannot be made.
    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>>;
}

#[async_trait]
impl<T: BlobContainer + ?Sized> BlobContainer for Arc<T> {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        (**self).list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        (**self).get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        (**self).write(name, metadata, condition).await
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        (**self).delete(name, condition).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        (**self).create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        (**self).with_new_connections()
    }
}
