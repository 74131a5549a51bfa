//! Storage backends. This crate keeps all its data in blob metadata, and never writes content. [`BlobContents`] reads
//! the content of other programs' blobs.
//!
//! The code above this port does not depend on a backend. All backends pass one conformance suite
//! (`testing::conformance`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind, Result};

#[cfg(feature = "azure")]
pub mod azure;
#[cfg(feature = "legacy-sdk")]
pub mod legacy;
pub mod memory;
mod validation;

pub(crate) use validation::take_unwritable;
pub use validation::{validate_blob_name, validate_metadata};

pub use crate::model::{ETag, Metadata};

/// The condition under which a write takes effect. There is no unconditional write, so that no instance overwrites what
/// it has not seen. Exhaustive: a backend must implement every variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Only if the blob does not exist. Otherwise the result is [`ErrorKind::Conflict`].
    Create,
    /// Only if the blob still has this ETag. Otherwise the result is [`ErrorKind::Conflict`], or
    /// [`ErrorKind::NotFound`] if the blob does not exist. Do not rely on the difference: Azurite reports a conflict in
    /// both cases (<https://github.com/Azure/Azurite/issues/2751>). Read the blob to find out.
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
        // Up to the last moment of the calendar, because a backend may return any date.
        self.server_time.saturating_add(self.received_at.elapsed().try_into().unwrap_or(time::Duration::MAX))
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
/// Always used as `Arc<dyn BlobContainer>`. An implementation does not limit the time of a request: its caller, such as
/// a [`GroupStore`](crate::store::GroupStore), drops the future of a request when its time is over, and that must end
/// the request. It may limit parts of it, such as the time to connect. An implementation never repeats a conditional
/// write, because after a lost response only the caller can determine what a conflict means.
///
/// # Errors
///
/// All methods can fail with [`ErrorKind::ContainerNotFound`], [`Unauthorized`](crate::ErrorKind::Unauthorized),
/// [`Throttled`](crate::ErrorKind::Throttled), [`Unavailable`](crate::ErrorKind::Unavailable) (not applied),
/// [`Rejected`](crate::ErrorKind::Rejected) or [`Indeterminate`](crate::ErrorKind::Indeterminate) (possibly applied).
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) means that the name or the metadata is invalid, and that
/// nothing was sent.
#[async_trait]
pub trait BlobContainer: fmt::Debug + Send + Sync + 'static {
    /// Lists all blobs whose names start with `prefix`, with their metadata. An account with a hierarchical namespace
    /// also shows directories, as entries with the metadata `hdi_isfolder=true`.
    ///
    /// A backend limits the memory: the backends of this crate fail with [`ErrorKind::Config`] after 250,000 blobs.
    async fn list(&self, prefix: &str) -> Result<ListResult>;

    /// Reads a blob. A missing blob is [`ErrorKind::NotFound`].
    async fn get(&self, name: &str) -> Result<Blob>;

    /// Replaces all metadata of a blob. Creates an empty blob if it does not exist and the condition permits it.
    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult>;

    /// Deletes a blob, only if it still has this ETag. Otherwise the result is as for [`Condition::IfMatch`].
    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo>;

    /// Creates the container if it does not exist.
    async fn create_container(&self) -> Result<ContainerCreation>;

    /// Returns the same container with its own client and connection pool, for use on another runtime: a connection
    /// works only on the runtime that opened it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`], if a second client cannot be created. A processor then logs a warning and renews its
    /// leases on the application's runtime, where a handler that blocks it can cost partitions.
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
/// The errors of [`BlobContainer`].
#[async_trait]
pub trait BlobContents: fmt::Debug + Send + Sync {
    /// Lists the blobs whose name is `prefix` and a rest without `/`.
    async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>>;

    /// Reads a blob, at most the first `limit` bytes. An empty blob may be rejected.
    async fn read_content(&self, name: &str, limit: u32) -> Result<Vec<u8>>;
}

tokio::task_local! {
    /// When the request that this task polls is dropped.
    static DEADLINE: Instant;
}

/// Drops a request when its time is over. `what` names it in the error. The backend can ask how much time is left, so
/// that it fails with a reason before that.
///
/// # Errors
///
/// [`ErrorKind::Indeterminate`] when the time is over, otherwise the error of the request.
pub(crate) async fn limit_request<T>(
    limit: Duration,
    what: &str,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    timeout_at(deadline, DEADLINE.scope(deadline, request)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Indeterminate, format!("no response to the {what} request within {limit:?}")))
    })
}

/// Returns how much time the current request has left. `None` if its caller set no limit.
#[cfg(feature = "azure")]
fn time_left() -> Option<Duration> {
    DEADLINE.try_with(|deadline| deadline.saturating_duration_since(Instant::now())).ok()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_dropped_when_its_time_is_over() {
        let began = Instant::now();
        let error = limit_request(Duration::from_secs(2), "list", pending::<Result<()>>()).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (ErrorKind::Indeterminate, Duration::from_secs(2)));
        assert!(error.to_string().contains("list request within 2s"), "{error}");
    }

    #[cfg(feature = "azure")]
    #[tokio::test(start_paused = true)]
    async fn a_request_knows_how_much_time_is_left() {
        let request = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(time_left())
        };
        let left = limit_request(Duration::from_secs(5), "read", request).await.unwrap();
        assert_eq!((left, time_left()), (Some(Duration::from_secs(3)), None));
    }
}
