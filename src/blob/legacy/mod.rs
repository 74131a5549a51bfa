//! A container of Azure Blob Storage, through a client of the abandoned crates `azure_storage` and
//! `azure_storage_blobs` 0.21, for applications that still use one.
//!
//! New code should use [`blob::azure`](super::azure), which has none of the limits below. Both write the same blobs, so
//! instances with either can share a group, and an application can migrate one instance at a time.
//!
//! ```
//! use azure_storage::StorageCredentials;
//! use azure_storage_blobs::prelude::{ClientBuilder, ContainerClient};
//! use eventhubs_checkpoint::blob::legacy::{self, LegacyContainer};
//!
//! fn connect() -> ContainerClient {
//!     ClientBuilder::new("account", StorageCredentials::anonymous())
//!         .client_options(legacy::client_options())
//!         .container_client("leases")
//! }
//!
//! // With the existing client:
//! let container = LegacyContainer::new(connect())?;
//!
//! // Better: with a factory for more clients.
//! let container = LegacyContainer::builder(connect()).with_client_factory(connect).build()?;
//! # Ok::<(), eventhubs_checkpoint::Error>(())
//! ```
//!
//! # The client
//!
//! The application provides the credentials, the HTTP client and TLS. Any client works, but [`client_options`] has
//! advantages:
//!
//! - **Connections.** The SDK's own HTTP client keeps no connections: each request opens a new one, with its own TLS
//!   handshake. A client with [`client_options`] keeps its connections.
//! - **Separate connections.** The balancer renews leases on its own thread and runtime, with a container from
//!   [`with_new_connections`](BlobContainer::with_new_connections), because a connection works only on the runtime that
//!   opened it. Without [`with_client_factory`](LegacyContainerBuilder::with_client_factory) both runtimes share one
//!   client, which can be neither split nor copied. That is safe with the SDK's own HTTP client, because it keeps no
//!   connections. It is **not safe with a client that keeps them**: a handler that blocks its runtime would delay
//!   renewals.
//! - **Retries.** By default the SDK retries a request up to eight times, even a write whose response was lost, and it
//!   waits if the service is busy. The request timeout ends all that. Nothing breaks: a retried conditional write
//!   conflicts with itself, and every conflict is resolved by a read. But throttling is reported as
//!   [`Indeterminate`](crate::ErrorKind::Indeterminate) at the timeout instead of
//!   [`Throttled`](crate::ErrorKind::Throttled), without the wait that the service requests, and an unreachable storage
//!   is reported as [`Indeterminate`](crate::ErrorKind::Indeterminate) instead of
//!   [`Unavailable`](crate::ErrorKind::Unavailable).
//! - **TLS.** This feature does not choose a TLS library. If the SDK uses `rustls` (its feature
//!   `enable_reqwest_rustls`), the program contains two cryptographic providers, `ring` and the `aws-lc-rs` of the
//!   official Event Hubs client. That client then cannot choose one, and panics when it connects. Call
//!   `rustls::crypto::aws_lc_rs::default_provider().install_default()` at the start of `main`, or use
//!   [`client_options`] and disable the SDK's HTTP client (`default-features = false`, `hmac_rust`).
//! - **Logs.** At level `debug` the SDK logs the header `authorization` of each request in clear text (and hides the
//!   other headers), and its HTTP client logs URLs with the signature of a SAS. Keep the target `azure_core` at `info`.
//!
//! # Limits of the SDK
//!
//! - [`WriteResult::versioned`] is never true, so
//!   [`StorageWarning::Versioning`](crate::store::StorageWarning::Versioning) is not detected.
//! - The SDK requires a header in the response to a deletion that Azurite does not send (unless the SDK's feature
//!   `azurite_workaround` is enabled). Without it, the server's time comes from a second request.
//! - Names that begin or end with a slash or a space, or contain a segment `.` or `..`, a tab or a line break, are
//!   [`InvalidArgument`](crate::ErrorKind::InvalidArgument). This crate uses no such names, unless an owner ID is `.`
//!   or `..`.
//! - A blob of a kind that the SDK does not know fails the whole listing. [`blob::azure`](super::azure) skips such a
//!   blob.
//! - A deletion also deletes snapshots.
//! - With an account key, the local clock must be correct within a quarter of an hour, because it dates signatures.
//!   Metadata in which one key has a digit where another has `_` is [`Rejected`](crate::ErrorKind::Rejected), because
//!   the SDK signs it incorrectly. The keys of this crate consist of letters.
//! - The kind of credentials is unknown, so the advice in errors is general.

mod sdk;

use std::collections::HashSet;
use std::fmt;
use std::future::IntoFuture;
use std::num::NonZeroU32;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core_legacy::Url;
use azure_core_legacy::error::Result as SdkResult;
use azure_core_legacy::prelude::{IfMatchCondition, MaxResults, Metadata as SdkMetadata};
use azure_storage_blobs::prelude::{BlobClient, ContainerClient};
use futures::StreamExt;
use tokio::time::Instant;

pub use self::sdk::client_options;

use super::azure::builder::check_page_size;
use super::azure::endpoint::host_of;
use super::azure::errors::{check_listed, unusable_response};
use super::azure::refusals::{Operation, Verb};
use super::validation::validate_metadata;
use super::{Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult};
use crate::error::{Error, Result};

/// A container of Azure Blob Storage, through a client of `azure_storage_blobs` 0.21. See the [module](self) for the
/// requirements on the client and for the limits.
///
/// # Guarantees
///
/// - A request whose future is dropped ends, including the retries of the client. It has no other time limit: the
///   caller sets one, as a [`GroupStore`](crate::store::GroupStore) does.
/// - Neither errors nor `Debug` output contain keys, signatures or tokens.
#[derive(Clone)]
pub struct LegacyContainer {
    client: ContainerClient,
    settings: Arc<LegacySettings>,
}

impl LegacyContainer {
    /// Creates a container with default settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the address of the client is malformed. Correct it.
    pub fn new(client: ContainerClient) -> Result<Self> {
        Self::builder(client).build()
    }

    /// Creates a builder with this client and default settings.
    #[must_use]
    pub fn builder(client: ContainerClient) -> LegacyContainerBuilder {
        LegacyContainerBuilder::new(client)
    }

    fn operation<'a>(&'a self, verb: Verb, name: &'a str) -> Operation<'a> {
        Operation { verb, name, container: self.client.container_name() }
    }

    fn blob_client(&self, name: &str) -> Result<BlobClient> {
        let blob = self.client.blob_client(name);
        let url = blob.url().map_err(|error| self.convert_error(&error, self.operation(Verb::Get, name)))?;
        sdk::check_address(&self.settings.url, &url, name)?;
        Ok(blob)
    }

    /// Sends a request. Returns the response and the time of its arrival.
    async fn send_request<T>(
        &self,
        operation: Operation<'_>,
        request: impl IntoFuture<Output = SdkResult<T>> + Send,
    ) -> Result<(T, Instant)>
    where
        T: Send,
    {
        Ok((request.await.map_err(|error| self.convert_error(&error, operation))?, Instant::now()))
    }

    fn convert_error(&self, error: &azure_core_legacy::Error, operation: Operation<'_>) -> Error {
        sdk::convert_error(error, operation, &self.settings.host)
    }

    /// Returns the server's time after a deletion whose response only the SDK could not use. The time comes from the
    /// response to a read, of whatever outcome.
    async fn time_after_deletion(&self, name: &str) -> Result<ResponseInfo> {
        let error = match self.get(name).await {
            Ok(blob) => return Ok(blob.response),
            Err(error) => error,
        };
        let server_time = error.server_time().ok_or_else(|| {
            unusable_response(self.operation(Verb::Delete, name), "neither it nor the response to a read has a date")
                .with_source(error)
        })?;
        Ok(ResponseInfo { server_time, received_at: Instant::now() })
    }
}

#[async_trait]
impl BlobContainer for LegacyContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let operation = self.operation(Verb::List, prefix);
        let mut request = self.client.list_blobs().include_metadata(true);
        if let Some(prefix) = sdk::prefix_to_request(prefix) {
            request = request.prefix(prefix);
        }
        if let Some(size) = self.settings.page_size {
            request = request.max_results(size);
        }
        let mut pages = request.into_stream();
        let mut blobs = Vec::new();
        let mut markers = HashSet::new();
        loop {
            let (page, received_at) =
                self.send_request(operation, Box::pin(async { pages.next().await.transpose() })).await?;
            let page = page.ok_or_else(|| unusable_response(operation, "the next page is missing"))?;
            let response = ResponseInfo { server_time: page.date, received_at };
            for blob in page.blobs.blobs().filter(|blob| blob.name.starts_with(prefix)) {
                blobs.push(sdk::blob_of(blob.clone(), response));
            }
            check_listed(blobs.len(), operation)?;
            let Some(marker) = page.next_marker else {
                blobs.sort_by(|left, right| left.name.cmp(&right.name));
                return Ok(ListResult { blobs, response });
            };
            if !markers.insert(marker.as_str().to_owned()) {
                return Err(unusable_response(operation, "the marker of the next page repeats"));
            }
        }
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        let request = self.blob_client(name)?.get_properties();
        let (read, received_at) = self.send_request(self.operation(Verb::Get, name), request).await?;
        Ok(sdk::blob_of(read.blob, ResponseInfo { server_time: read.date, received_at }))
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        validate_metadata(metadata)?;
        let mut sdk_metadata = SdkMetadata::new();
        for (key, value) in metadata {
            sdk_metadata.insert(key.to_owned(), value.to_owned());
        }
        let blob = self.blob_client(name)?;
        let operation = self.operation(Verb::Write, name);
        let written = match condition {
            Condition::Create => {
                let no_blob = IfMatchCondition::NotMatch("*".to_owned());
                let request = blob.put_block_blob(Vec::new()).metadata(sdk_metadata).if_match(no_blob);
                self.send_request(operation, request).await.map(|(put, at)| (put.etag, put.date, at))
            }
            Condition::IfMatch(etag) => {
                let request = blob.set_metadata().metadata(sdk_metadata).if_match(if_match(etag));
                self.send_request(operation, request).await.map(|(set, at)| (set.etag, set.date, at))
            }
        };
        let (etag, server_time, received_at) =
            written.map_err(|error| sdk::explain_signature_error(error, metadata))?;
        let response = ResponseInfo { server_time, received_at };
        Ok(WriteResult { etag: ETag::new(&etag), versioned: false, response })
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        let request = self.blob_client(name)?.delete().if_match(if_match(etag));
        match request.await {
            Ok(deleted) => Ok(ResponseInfo { server_time: deleted.date, received_at: Instant::now() }),
            Err(error) if sdk::is_deleted_nevertheless(&error) => self.time_after_deletion(name).await,
            Err(error) => Err(self.convert_error(&error, self.operation(Verb::Delete, name))),
        }
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        match self.client.create().await {
            Ok(()) => Ok(ContainerCreation::Created),
            Err(error) if sdk::error_code(&error) == Some("ContainerAlreadyExists") => Ok(ContainerCreation::Existed),
            Err(error) => Err(self.convert_error(&error, self.operation(Verb::CreateContainer, ""))),
        }
    }

    /// Without [`with_client_factory`](LegacyContainerBuilder::with_client_factory) the returned container shares the
    /// client: see the [module](self).
    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self {
            client: self.settings.connect.as_ref().map_or_else(|| self.client.clone(), |connect| connect()),
            settings: self.settings.clone(),
        }))
    }
}

impl fmt::Debug for LegacyContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LegacyContainer").field(&self.settings).finish()
    }
}

fn if_match(etag: &ETag) -> IfMatchCondition {
    IfMatchCondition::Match(etag.quoted())
}

type Connect = Arc<dyn Fn() -> ContainerClient + Send + Sync>;

/// Builds a [`LegacyContainer`]. Setters cannot fail; [`build`](Self::build) can.
///
/// `Debug` shows no secret.
#[derive(Clone)]
pub struct LegacyContainerBuilder {
    client: ContainerClient,
    page_size: Option<u32>,
    connect: Option<Connect>,
}

impl LegacyContainerBuilder {
    fn new(client: ContainerClient) -> Self {
        Self { client, page_size: None, connect: None }
    }

    /// Sets the number of blobs per page of a listing, from 1 to 5000. Default: the service decides, which is 5000.
    #[must_use]
    pub fn with_page_size(mut self, blobs: u32) -> Self {
        self.page_size = Some(blobs);
        self
    }

    /// Sets a function that creates another client of the same container, with its own HTTP client, for
    /// [`with_new_connections`](BlobContainer::with_new_connections). Default: all containers share one client, which
    /// is safe only if its HTTP client keeps no connections. The SDK's own HTTP client keeps none.
    #[must_use]
    pub fn with_client_factory(mut self, connect: impl Fn() -> ContainerClient + Send + Sync + 'static) -> Self {
        self.connect = Some(Arc::new(connect));
        self
    }

    /// Builds the container. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if a setting or the address of the client is malformed. The
    /// message names the problem and the remedy.
    pub fn build(self) -> Result<LegacyContainer> {
        check_page_size(self.page_size)?;
        let url = self.client.url().map_err(|error| Error::config(format!("the client has no URL: {error}")))?;
        Ok(LegacyContainer {
            client: self.client,
            settings: Arc::new(LegacySettings {
                host: host_of(&url),
                url,
                page_size: self.page_size.and_then(NonZeroU32::new).map(MaxResults::new),
                connect: self.connect,
            }),
        })
    }
}

impl fmt::Debug for LegacyContainerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LegacyContainerBuilder")
            .field("container", &self.client.container_name())
            .field("page_size", &self.page_size)
            .field("with_client_factory", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}

struct LegacySettings {
    /// The URL of the container. The SDK adds a SAS only to requests.
    url: Url,
    /// The host, and the port if it is not the default one.
    host: String,
    page_size: Option<MaxResults>,
    connect: Option<Connect>,
}

impl fmt::Debug for LegacySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LegacySettings")
            .field("url", &self.url.as_str())
            .field("page_size", &self.page_size)
            .field("with_client_factory", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
