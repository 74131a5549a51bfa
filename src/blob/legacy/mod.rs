//! A container of Azure Blob Storage, through a client of the abandoned crates `azure_storage` and
//! `azure_storage_blobs` 0.21, for applications that still hold one.
//!
//! New code is better served by [`blob::azure`](super::azure): it has none of the limits below. Both write the same
//! blobs, so instances with either can work in one group, and an application can change over one instance at a time.
//!
//! ```
//! use azure_storage::StorageCredentials;
//! use azure_storage_blobs::prelude::{ClientBuilder, ContainerClient};
//! use eventhubs_checkpoint::blob::legacy::{self, LegacyContainer};
//!
//! fn connect() -> ContainerClient {
//!     ClientBuilder::new("account", StorageCredentials::anonymous())
//!         .client_options(legacy::with_client_options())
//!         .container_client("leases")
//! }
//!
//! // The client that the application has:
//! let container = LegacyContainer::new(connect())?;
//!
//! // Better, with a way to make another:
//! let container = LegacyContainer::builder(connect()).with_client_factory(connect).build()?;
//! # Ok::<(), eventhubs_checkpoint::Error>(())
//! ```
//!
//! # The client it is given
//!
//! Credentials, HTTP client and TLS are the application's. Its client works as it is; it works better with
//! [`client_options`], for these reasons:
//!
//! - **Connections.** The SDK's own HTTP client keeps no connection: each request makes a new one, with a TLS handshake
//!   of its own. Those of [`client_options`] keep theirs.
//! - **Isolation.** The balancer renews leases on a thread and a runtime of its own, through
//!   [`isolated`](BlobContainer::with_new_connections), and connections live on the runtime that opened them. Without
//!   [`with_client_factory`](LegacyContainerBuilder::with_client_factory) both share one client, which cannot be taken apart or copied.
//!   That is safe with the SDK's own HTTP client, for it keeps no connections, and **not with one that does**: a
//!   handler that blocks its runtime would hold up renewals.
//! - **Retries.** By default the SDK repeats a request up to eight times, also a write whose response was lost, and waits
//!   where the service says that it is busy. Here the request deadline cuts all that off. Nothing breaks: a repeated
//!   conditional write ends in a conflict with itself, and a conflict is always looked into. But throttling shows as
//!   [`Unknown`](crate::ErrorKind::Indeterminate) at the deadline instead of [`Throttled`](crate::ErrorKind::Throttled),
//!   without the time that the service asks to wait; so does a storage that cannot be reached, instead of
//!   [`Unavailable`](crate::ErrorKind::Unavailable).
//! - **TLS.** This feature chooses none. If it is `rustls` (feature `enable_reqwest_rustls` of the SDK), the program
//!   has two of its cryptographic providers, `ring` and the `aws-lc-rs` of the official Event Hubs client, which then
//!   cannot choose and panics when it connects. Call `rustls::crypto::aws_lc_rs::default_provider().install_default()`
//!   first thing in `main`, or take [`client_options`] and leave out the SDK's HTTP client (`default-features = false`,
//!   `hmac_rust`).
//! - **Logs.** At level `debug` the SDK logs each request with the header `authorization` in clear (and hides the
//!   others), and its HTTP client logs URLs with the signature of a SAS. Keep the target `azure_core` at `info`.
//!
//! # Limits of the SDK
//!
//! - The response to a write under [`Condition::IfMatch`] has no `Last-Modified`: the server's `Date` of the response stands
//!   for it, at most the request's duration later.
//! - [`WriteResult::versioned`] is never true, so [`StorageWarning::Versioning`](crate::store::StorageWarning::Versioning) is not found.
//! - The answer to a deletion must have a header that Azurite does not send (unless the SDK's feature
//!   `azurite_workaround` is on). The server's time then comes from a second request.
//! - Names that begin or end with a slash or a space, or have a segment `.` or `..`, tabs or line breaks are
//!   [`Rejected`](crate::ErrorKind::Rejected). Names made by this crate have none of it, unless an owner is called `.`
//!   or `..`.
//! - A blob in a listing that the SDK cannot read, of a kind unknown to it, fails the listing, where
//!   [`blob::azure`](super::azure) leaves that blob out.
//! - A deletion takes snapshots along.
//! - With an account key, the local clock must be right to a quarter of an hour, for it dates signatures; and metadata
//!   in which one key has a digit where another has `_` is [`Rejected`](crate::ErrorKind::Rejected), for the SDK signs
//!   it wrongly. This crate's keys are letters.
//! - The kind of credentials is not known: advice in errors is general.

mod client;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::IntoFuture;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core_legacy::Url;
use azure_core_legacy::error::Result as SdkResult;
use azure_core_legacy::prelude::{IfMatchCondition, MaxResults, Metadata as SdkMetadata};
use azure_storage_blobs::prelude::{BlobClient, ContainerClient};
use futures::StreamExt;
use tokio::time::Instant;

pub use self::client::client_options;

use super::azure::builder::{DEFAULT_REQUEST_DEADLINE, check_limits};
use super::azure::endpoint::host_of;
use super::azure::errors::{Operation, Verb, timed_out, unusable_response};
use super::validation::{delete_cannot_create, normalize_metadata};
use super::{Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult};
use crate::error::{Error, Result};

/// A container of Azure Blob Storage, through a client of `azure_storage_blobs` 0.21. See the [module](self) for what
/// the client should be like, and for the limits.
///
/// # Guarantees
///
/// - Each request, with whatever the client repeats, ends within the request deadline.
/// - Neither errors nor `Debug` hold keys, signatures or tokens.
#[derive(Clone)]
pub struct LegacyContainer {
    client: ContainerClient,
    settings: Arc<Settings>,
}

impl LegacyContainer {
    /// Takes a client with default settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the address of the client is malformed.
    pub fn new(client: ContainerClient) -> Result<Self> {
        Self::builder(client).build()
    }

    /// Takes a client with default settings for the rest, all of which can be changed.
    #[must_use]
    pub fn builder(client: ContainerClient) -> LegacyContainerBuilder {
        LegacyContainerBuilder::new(client)
    }

    fn operation<'a>(&'a self, verb: Verb, name: &'a str) -> Operation<'a> {
        Operation { verb, name, container: self.client.container_name() }
    }

    fn blob(&self, name: &str) -> Result<BlobClient> {
        let blob = self.client.blob_client(name);
        let url = blob.url().map_err(|error| self.failure(&error, self.operation(Verb::Get, name)))?;
        client::check_address(&self.settings.url, &url, name)?;
        Ok(blob)
    }

    /// Sends a request, and gives with the response when it was here.
    async fn send<T>(
        &self,
        operation: Operation<'_>,
        request: impl IntoFuture<Output = SdkResult<T>> + Send,
    ) -> Result<(T, Instant)>
    where
        T: Send,
    {
        self.outcome(operation, request).await?.map_err(|error| self.failure(&error, operation))
    }

    /// Sends a request, and leaves it to the caller what a failure means.
    async fn outcome<T>(
        &self,
        operation: Operation<'_>,
        request: impl IntoFuture<Output = SdkResult<T>> + Send,
    ) -> Result<SdkResult<(T, Instant)>> {
        let deadline = self.settings.request_timeout;
        let outcome = tokio::time::timeout(deadline, request.into_future()).await;
        let received_at = Instant::now();
        let outcome = outcome.map_err(|_| timed_out(operation, deadline, &self.settings.host))?;
        Ok(outcome.map(|response| (response, received_at)))
    }

    fn failure(&self, error: &azure_core_legacy::Error, operation: Operation<'_>) -> Error {
        client::failure(error, operation, &self.settings.host)
    }

    async fn put(&self, name: &str, metadata: SdkMetadata, condition: Option<IfMatchCondition>) -> Result<WriteResult> {
        let mut request = self.blob(name)?.put_block_blob(Vec::new()).metadata(metadata);
        if let Some(condition) = condition {
            request = request.if_match(condition);
        }
        let (put, received_at) = self.send(self.operation(Verb::Write, name), request).await?;
        let response = ResponseInfo { server_time: put.date, received_at };
        Ok(WriteResult { etag: ETag::new(&put.etag), last_modified: put.last_modified, versioned: false, response })
    }

    async fn replace(&self, name: &str, metadata: SdkMetadata, etag: &ETag) -> Result<WriteResult> {
        let request = self.blob(name)?.set_metadata().metadata(metadata).if_match(matching(etag));
        let (set, received_at) = self.send(self.operation(Verb::Write, name), request).await?;
        let response = ResponseInfo { server_time: set.date, received_at };
        Ok(WriteResult { etag: ETag::new(&set.etag), last_modified: set.date, versioned: false, response })
    }

    /// The server's time after a deletion whose response was good but for the SDK, by whatever response a read gets.
    async fn time_after_deletion(&self, name: &str) -> Result<ResponseInfo> {
        let error = match self.get(name).await {
            Ok(blob) => return Ok(blob.response),
            Err(error) => error,
        };
        let server_time = error.server_time().ok_or_else(|| {
            let operation = self.operation(Verb::Delete, name);
            unusable_response(operation, "it has no date, and neither has that of a read").with_source(error)
        })?;
        Ok(ResponseInfo { server_time, received_at: Instant::now() })
    }
}

#[async_trait]
impl BlobContainer for LegacyContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let operation = self.operation(Verb::List, prefix);
        let mut request = self.client.list_blobs().include_metadata(true);
        if let Some(prefix) = client::prefix_to_ask_for(prefix) {
            request = request.prefix(prefix);
        }
        if let Some(size) = self.settings.page_size {
            request = request.max_results(size);
        }
        let mut pages = request.into_stream();
        let mut blobs = Vec::new();
        let mut marker = None;
        loop {
            let next = async { pages.next().await.transpose() };
            let (page, received_at) = self.send(operation, Box::pin(next)).await?;
            let page = page.ok_or_else(|| unusable_response(operation, "the next page is missing"))?;
            let response = ResponseInfo { server_time: page.date, received_at };
            let shown = page.blobs.blobs().filter(|blob| blob.name.starts_with(prefix));
            blobs.extend(shown.map(|blob| client::blob_of(blob.clone(), response)));
            if page.next_marker.is_none() {
                blobs.sort_by(|left, right| left.name.cmp(&right.name));
                return Ok(ListResult { blobs, response });
            }
            if page.next_marker == marker {
                return Err(unusable_response(operation, "the next page is the same again"));
            }
            marker = page.next_marker;
        }
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        let request = self.blob(name)?.get_properties();
        let (read, received_at) = self.send(self.operation(Verb::Get, name), request).await?;
        Ok(client::blob_of(read.blob, ResponseInfo { server_time: read.date, received_at }))
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let metadata = normalize_metadata(metadata)?;
        let mut sdk_metadata = SdkMetadata::new();
        for (key, value) in &metadata {
            sdk_metadata.insert(key.clone(), value.clone());
        }
        let written = match condition {
            Condition::Create => self.put(name, sdk_metadata, Some(IfMatchCondition::NotMatch("*".to_owned()))).await,
            Condition::Unconditional => self.put(name, sdk_metadata, None).await,
            Condition::IfMatch(etag) => self.replace(name, sdk_metadata, etag).await,
        };
        written.map_err(|error| client::explained(error, &metadata))
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        let mut request = self.blob(name)?.delete();
        match condition {
            Condition::Create => return Err(delete_cannot_create()),
            Condition::IfMatch(etag) => request = request.if_match(matching(etag)),
            Condition::Unconditional => {}
        }
        let operation = self.operation(Verb::Delete, name);
        match self.outcome(operation, request).await? {
            Ok((deleted, received_at)) => Ok(ResponseInfo { server_time: deleted.date, received_at }),
            Err(error) if client::is_deleted_all_the_same(&error) => self.time_after_deletion(name).await,
            Err(error) => Err(self.failure(&error, operation)),
        }
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        let operation = self.operation(Verb::CreateContainer, "");
        match self.outcome(operation, self.client.create()).await? {
            Ok(_) => Ok(ContainerCreation::Created),
            Err(error) if client::code(&error) == Some("ContainerAlreadyExists") => Ok(ContainerCreation::Existed),
            Err(error) => Err(self.failure(&error, operation)),
        }
    }

    /// Without [`with_client_factory`](LegacyContainerBuilder::with_client_factory) it shares the client: see the [module](self).
    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        let client = self.settings.connect.as_ref().map_or_else(|| self.client.clone(), |connect| connect());
        Ok(Arc::new(Self { client, settings: self.settings.clone() }))
    }
}

fn matching(etag: &ETag) -> IfMatchCondition {
    IfMatchCondition::Match(etag.quoted())
}

impl fmt::Debug for LegacyContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LegacyContainer").field(&self.settings).finish()
    }
}

type Connect = Arc<dyn Fn() -> ContainerClient + Send + Sync>;

/// Collects the settings of a [`LegacyContainer`]. Setters cannot fail; [`build`](Self::build) can.
///
/// `Debug` shows no secret.
#[derive(Clone)]
pub struct LegacyContainerBuilder {
    client: ContainerClient,
    request_timeout: Duration,
    page_size: Option<u32>,
    connect: Option<Connect>,
}

struct Settings {
    /// Of the container. The SDK adds a SAS to each request only.
    url: Url,
    /// Host and, if it is not the usual one, port.
    host: String,
    request_timeout: Duration,
    page_size: Option<MaxResults>,
    connect: Option<Connect>,
}

impl LegacyContainerBuilder {
    fn new(client: ContainerClient) -> Self {
        Self { client, request_timeout: DEFAULT_REQUEST_DEADLINE, page_size: None, connect: None }
    }

    /// How long a request may take, with all that the client does to repeat it, and with the fetching of a token. Each
    /// page of a listing is a request of its own. Default: 5 s, so that a hung request costs a fraction of a lease.
    #[must_use]
    pub fn with_request_timeout(mut self, deadline: Duration) -> Self {
        self.request_timeout = deadline;
        self
    }

    /// How many blobs to ask for in one page of a listing, 1 to 5000. Default: as many as the service gives, which is
    /// 5000.
    #[must_use]
    pub fn with_page_size(mut self, blobs: u32) -> Self {
        self.page_size = Some(blobs);
        self
    }

    /// How to make another client of the same container, with an HTTP client of its own, for
    /// [`isolated`](BlobContainer::with_new_connections) containers. Default: they share the one client, which is safe
    /// only if its HTTP client keeps no connections, as the SDK's own does not.
    #[must_use]
    pub fn with_client_factory(mut self, connect: impl Fn() -> ContainerClient + Send + Sync + 'static) -> Self {
        self.connect = Some(Arc::new(connect));
        self
    }

    /// Makes the container. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if a setting or the address of the client is malformed. The
    /// message names it and the remedy.
    pub fn build(self) -> Result<LegacyContainer> {
        check_limits(self.request_timeout, self.page_size)?;
        let url = self.client.url().map_err(|error| Error::config(format!("the client has no URL: {error}")))?;
        let settings = Settings {
            host: host_of(&url),
            url,
            request_timeout: self.request_timeout,
            page_size: self.page_size.and_then(NonZeroU32::new).map(MaxResults::new),
            connect: self.connect,
        };
        Ok(LegacyContainer { client: self.client, settings: Arc::new(settings) })
    }
}

impl fmt::Debug for LegacyContainerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LegacyContainerBuilder")
            .field("container", &self.client.container_name())
            .field("request_timeout", &self.request_timeout)
            .field("page_size", &self.page_size)
            .field("with_client_factory", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url.as_str())
            .field("request_timeout", &self.request_timeout)
            .field("page_size", &self.page_size)
            .field("with_client_factory", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}
