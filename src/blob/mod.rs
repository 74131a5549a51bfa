//! Port to blob storage. All blobs are empty: their metadata is the data. [`BlobContents`] reads blobs of other
//! programs, which are not.
//!
//! The code above this port does not depend on a backend. All backends pass one conformance suite
//! (`testing::conformance`).

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
mod contents;
pub(crate) mod deadline;
#[cfg(feature = "legacy-sdk")]
pub mod legacy;
pub mod memory;
mod validation;

pub use contents::{BlobContent, BlobContents};
pub(crate) use deadline::within;
pub(crate) use validation::take_unwritable;
pub use validation::{validate_blob_name, validate_metadata};

pub use crate::model::{ETag, Metadata};

/// The condition under which a write takes effect. There is no unconditional write, so that no instance overwrites what
/// it has not seen. Exhaustive: a backend must implement every variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Only if the blob does not exist. Otherwise the result is [`ErrorKind::Conflict`](crate::ErrorKind::Conflict).
    Create,
    /// Only if the blob still has this ETag. Otherwise the result is
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict), or [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if
    /// the blob does not exist. Do not rely on the difference: Azurite reports a conflict in both cases
    /// (<https://github.com/Azure/Azurite/issues/2751>). Read the blob to find out.
    IfMatch(ETag),
}

/// When the server sent a response, by its own clock, and when the response arrived, by the local monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResponseInfo {
    /// The `Date` of the response. Each page of a listing has its own.
    pub server_time: OffsetDateTime,
    /// When the response arrived.
    pub received_at: Instant,
}

impl ResponseInfo {
    /// Creates the information about a response with this `Date`, received at this moment.
    #[must_use]
    pub fn new(server_time: OffsetDateTime, received: Instant) -> Self {
        Self { server_time, received_at: received }
    }

    /// Returns the server's time now: its time in the response plus the time that has passed since the response
    /// arrived.
    #[must_use]
    pub fn server_time_now(&self) -> OffsetDateTime {
        later(self.server_time, self.received_at.elapsed())
    }
}

/// A blob, as a response of the server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blob {
    /// The full name within the container.
    pub name: String,
    /// The metadata. A blob has no other content.
    pub metadata: Metadata,
    /// The version, for a later [`Condition::IfMatch`].
    pub etag: ETag,
    /// The time of the last write, by the server's clock, in whole seconds.
    pub last_modified: OffsetDateTime,
    /// The response that showed the blob.
    pub response: ResponseInfo,
}

impl Blob {
    /// Creates a blob, as a response shows it.
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

    /// Returns the age of the last write at the time of the response. Both times are server times; the local clock has
    /// no effect. Never negative.
    #[must_use]
    pub fn age(&self) -> Duration {
        (self.response.server_time - self.last_modified).try_into().unwrap_or(Duration::ZERO)
    }
}

/// The result of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListResult {
    /// All blobs whose names start with the prefix, from all pages, ordered by name.
    pub blobs: Vec<Blob>,
    /// The response that carried the last page. Present even if there are no blobs.
    pub response: ResponseInfo,
}

impl ListResult {
    /// Creates a result from the blobs of all pages, ordered by name, and the response that carried the last page.
    #[must_use]
    pub fn new(blobs: Vec<Blob>, response: ResponseInfo) -> Self {
        Self { blobs, response }
    }
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteResult {
    /// The new version.
    pub etag: ETag,
    /// Whether the container also keeps the previous version: see
    /// [`StorageWarning::Versioning`](crate::store::StorageWarning::Versioning).
    pub versioned: bool,
    /// The response.
    pub response: ResponseInfo,
}

impl WriteResult {
    /// Creates the result of a write in a container that keeps no previous versions.
    #[must_use]
    pub fn new(etag: ETag, response: ResponseInfo) -> Self {
        Self { etag, versioned: false, response }
    }

    /// Sets [`versioned`](Self::versioned).
    #[must_use]
    pub fn with_versioned(mut self, versioned: bool) -> Self {
        self.versioned = versioned;
        self
    }
}

/// Whether a call of [`BlobContainer::create_container`] created the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContainerCreation {
    /// The call created the container.
    Created,
    /// The container existed before the call.
    Existed,
}

/// One container of a blob service with Azure's semantics.
///
/// Azure drops dots at the end of each segment of a blob name, so `a.` is `a`. Emulators keep them. Do not use such
/// names. A backend may do either, or reject them.
///
/// Always used as `Arc<dyn BlobContainer>`. An implementation does not limit the time of a request: its caller, such as a
/// [`GroupStore`](crate::store::GroupStore), drops the future of a request when its time is over, and that must end the
/// request. It may limit parts of it, such as the time to connect. An implementation never repeats a conditional write, because after a lost response only the caller can
/// determine what a conflict means.
///
/// # Errors
///
/// All methods fail with [`ErrorKind::ContainerNotFound`](crate::ErrorKind::ContainerNotFound),
/// [`Unauthorized`](crate::ErrorKind::Unauthorized), [`Throttled`](crate::ErrorKind::Throttled),
/// [`Unavailable`](crate::ErrorKind::Unavailable) (not applied), [`Rejected`](crate::ErrorKind::Rejected) or
/// [`Indeterminate`](crate::ErrorKind::Indeterminate) (possibly applied).
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) means that the name or the metadata is invalid, and that
/// nothing was sent.
#[async_trait]
pub trait BlobContainer: fmt::Debug + Send + Sync + 'static {
    /// Lists all blobs whose names start with `prefix`, with their metadata. An account with a hierarchical namespace
    /// also shows directories, as entries with the metadata `hdi_isfolder=true`.
    ///
    /// A backend limits the memory: those of this crate fail with [`ErrorKind::Config`](crate::ErrorKind::Config) after
    /// 250,000 blobs.
    async fn list(&self, prefix: &str) -> Result<ListResult>;

    /// Reads a blob. A missing blob is [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    async fn get(&self, name: &str) -> Result<Blob>;

    /// Replaces all metadata of a blob. Creates an empty blob if it does not exist and the condition permits it.
    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult>;

    /// Deletes a blob, only if it still has this ETag. Otherwise the result is that of [`Condition::IfMatch`].
    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo>;

    /// Creates the container if it does not exist.
    async fn create_container(&self) -> Result<ContainerCreation>;

    /// Returns the same container with its own client and connection pool, for use on another runtime: a connection
    /// works only on the runtime that opened it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if a second client cannot be created. A processor then logs a
    /// warning and renews its leases on the application's runtime, where a handler that blocks it can cost partitions.
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

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        (**self).delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        (**self).create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        (**self).with_new_connections()
    }
}
