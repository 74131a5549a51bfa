//! The container: the calls of the port as requests.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::headers::{HeaderName, IF_MATCH};
use azure_core::http::{Method, Request};

use super::access::Access;
use super::client::{Client, ContainerSettings, ResponseOutcome};
use super::errors::{check_listed, unusable_response};
use super::headers::{self, METADATA_PREFIX};
use super::listing::{self, Detail, Page};
use super::refusals::{Operation, Verb};
use crate::blob::validation::{validate_blob_name, validate_metadata};
use crate::blob::{
    Blob, BlobContainer, BlobContent, BlobContents, Condition, ContainerCreation, ETag, ListResult, Metadata,
    ResponseInfo, WriteResult,
};
use crate::error::{Error, Result};

const BLOB_TYPE: HeaderName = HeaderName::from_static("x-ms-blob-type");
const IF_NONE_MATCH: HeaderName = HeaderName::from_static("if-none-match");
const RANGE: HeaderName = HeaderName::from_static("x-ms-range");
const VERSION_ID: HeaderName = HeaderName::from_static("x-ms-version-id");

/// A container of Azure Blob Storage. Clones share one HTTP client.
///
/// ```
/// use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
///
/// // With default settings:
/// let container = AzureContainer::from_connection_string("UseDevelopmentStorage=true", "leases")?;
///
/// // With other settings:
/// let access = Access::connection_string("UseDevelopmentStorage=true", "leases");
/// let container = AzureContainer::builder(access).with_page_size(1000).build()?;
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// ```
///
/// # Guarantees
///
/// - A write or a deletion is sent once. The one exception does no harm: if the service rejects a signature because the
///   local clock is wrong, the request is signed again with the time of the service, over https or on this machine.
/// - A request whose future is dropped ends. It has no other time limit: the caller sets one, as a
///   [`GroupStore`](crate::store::GroupStore) does.
/// - Neither errors nor `Debug` output contain keys, signatures or tokens.
///
/// # Caveats
///
/// The service decides how requests to soft-deleted, archived and leased blobs end. This crate creates no such blobs.
#[derive(Clone)]
pub struct AzureContainer {
    client: Arc<Client>,
}

impl AzureContainer {
    /// Replaces the credentials of this container, of its clones, and of the containers that
    /// [`with_new_connections`](BlobContainer::with_new_connections) returned, on whatever runtime they are used. Keep
    /// a clone for this purpose before you pass the container to a store, and call this before the old credentials
    /// expire. The new ones may be of another kind: a token credential may replace an account key.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use eventhubs_checkpoint::blob::{BlobContainer, azure::{Access, AzureContainer}};
    ///
    /// let url = "https://account.blob.core.windows.net/leases";
    /// let container = AzureContainer::from_sas_url(format!("{url}?sv=2023-11-03&sig=old"))?;
    /// let for_the_store: Arc<dyn BlobContainer> = Arc::new(container.clone());
    /// // Later, in a task of the application:
    /// container.replace_credentials(Access::sas_url(format!("{url}?sv=2023-11-03&sig=new")))?;
    /// # Ok::<(), eventhubs_checkpoint::Error>(())
    /// ```
    ///
    /// The new credentials apply to all requests that begin later, and to the later pages of a listing. A request in
    /// flight keeps the old ones, even when it is retried. The new credentials are not checked, and if they fail, the
    /// old ones are not restored. To test credentials first, build a separate container with them and list its blobs.
    /// With a token credential, the next request waits for the first token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if `access` is malformed or for another container. The old
    /// credentials stay in use.
    #[expect(clippy::needless_pass_by_value, reason = "like `builder`; a caller has no further use for the secrets")]
    pub fn replace_credentials(&self, access: Access) -> Result<()> {
        let settings = self.settings();
        let (url, credentials) = access.resolve(&settings.wall_clock)?;
        if url.url() != settings.container_url.url() {
            return Err(Error::config(format!(
                "the new credentials are for {}, but this container is {}: build another container for that one",
                url.url(),
                settings.container_url.url()
            )));
        }
        settings.credentials.replace(credentials);
        Ok(())
    }

    pub(super) fn connect(settings: Arc<ContainerSettings>) -> Result<Self> {
        Ok(Self { client: Arc::new(Client::new(settings)?) })
    }

    pub(super) fn settings(&self) -> &ContainerSettings {
        self.client.settings()
    }

    pub(super) fn operation<'a>(&'a self, verb: Verb, name: &'a str) -> Operation<'a> {
        Operation { verb, name, container: self.settings().container_url.container_name() }
    }

    pub(super) fn blob_request(&self, method: Method, name: &str) -> Request {
        self.client.new_request(method, self.settings().container_url.blob_url(name))
    }

    /// Lists the blobs with this prefix, page by page. With [`Detail::Content`], only those at the level of the prefix.
    async fn list_all(&self, prefix: &str, detail: Detail) -> Result<(Page, ResponseInfo)> {
        let operation = self.operation(Verb::List, prefix);
        let (mut all, mut response) = self.list_page(prefix, None, detail).await?;
        let mut markers = HashSet::new();
        loop {
            check_listed(all.blobs.len().max(all.contents.len()) + all.unusable.len(), operation)?;
            let Some(marker) = all.next_marker.take() else { return Ok((all, response)) };
            if !markers.insert(marker.clone()) {
                return Err(unusable_response(operation, "the marker of the next page repeats"));
            }
            let (page, last) = self.list_page(prefix, Some(&marker), detail).await?;
            all.blobs.extend(page.blobs);
            all.contents.extend(page.contents);
            all.unusable.extend(page.unusable);
            all.next_marker = page.next_marker;
            response = last;
        }
    }

    async fn list_page(&self, prefix: &str, marker: Option<&str>, detail: Detail) -> Result<(Page, ResponseInfo)> {
        let operation = self.operation(Verb::List, prefix);
        let size = self.settings().page_size.map(|size| size.to_string());
        let scope = match detail {
            Detail::Version => ("include", "metadata"),
            Detail::Content => ("delimiter", "/"),
        };
        let mut query = vec![("restype", "container"), ("comp", "list"), scope, ("prefix", prefix)];
        query.extend(marker.map(|marker| ("marker", marker)));
        query.extend(size.as_deref().map(|size| ("maxresults", size)));
        let url = self.settings().container_url.with_query(&query);
        let reply = self.client.read_with_retries(operation, self.client.new_request(Method::Get, url)).await?;
        listing::parse_page(&reply.body, detail, reply.response)
            .map(|page| (page, reply.response))
            .map_err(|error| unusable_response(operation, &error.to_string()).with_source(error))
    }
}

#[async_trait]
impl BlobContainer for AzureContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let (page, response) = self.list_all(prefix, Detail::Version).await?;
        self.settings().unusable.log_new(prefix, page.unusable.into_iter().collect());
        let mut blobs = page.blobs;
        blobs.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(ListResult { blobs, response })
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        validate_blob_name(name)?;
        let operation = self.operation(Verb::Get, name);
        let reply = self.client.read_with_retries(operation, self.blob_request(Method::Head, name)).await?;
        Ok(Blob {
            name: name.to_owned(),
            etag: headers::etag_header(&reply.headers).ok_or_else(|| unusable_response(operation, "it has no etag"))?,
            last_modified: headers::last_modified_header(&reply.headers)
                .ok_or_else(|| unusable_response(operation, "it has no time of the last write"))?,
            metadata: headers::metadata_headers(&reply.headers),
            response: reply.response,
        })
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        validate_blob_name(name)?;
        validate_metadata(metadata)?;
        let operation = self.operation(Verb::Write, name);
        let mut request = self.blob_request(Method::Put, name);
        match condition {
            Condition::IfMatch(etag) => {
                request.url_mut().set_query(Some("comp=metadata"));
                request.insert_header(IF_MATCH, etag.quoted());
            }
            Condition::Create => {
                request.insert_header(BLOB_TYPE, "BlockBlob");
                request.insert_header(IF_NONE_MATCH, "*");
            }
        }
        for (key, value) in metadata {
            request.insert_header(format!("{METADATA_PREFIX}{key}"), value.to_owned());
        }
        let reply = self.client.write_once(operation, request).await?;
        Ok(WriteResult {
            etag: headers::etag_header(&reply.headers).ok_or_else(|| unusable_response(operation, "it has no etag"))?,
            versioned: headers::find_header(&reply.headers, &VERSION_ID).is_some(),
            response: reply.response,
        })
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        validate_blob_name(name)?;
        let mut request = self.blob_request(Method::Delete, name);
        request.insert_header(IF_MATCH, etag.quoted());
        Ok(self.client.write_once(self.operation(Verb::Delete, name), request).await?.response)
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        let operation = self.operation(Verb::CreateContainer, "");
        let url = self.settings().container_url.with_query(&[("restype", "container")]);
        match self.client.send_once(operation, self.client.new_request(Method::Put, url)).await? {
            ResponseOutcome::Success(_) => Ok(ContainerCreation::Created),
            ResponseOutcome::Refused { code: Some(code), .. } if code == "ContainerAlreadyExists" => {
                Ok(ContainerCreation::Existed)
            }
            ResponseOutcome::Refused { error, .. } => Err(error),
        }
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self::connect(self.client.settings().clone())?))
    }
}

/// Blobs of other programs.
#[async_trait]
impl BlobContents for AzureContainer {
    async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>> {
        Ok(self.list_all(prefix, Detail::Content).await?.0.contents)
    }

    async fn read_content(&self, name: &str, limit: u32) -> Result<Vec<u8>> {
        validate_blob_name(name)?;
        let mut request = self.blob_request(Method::Get, name);
        request.insert_header(RANGE, format!("bytes=0-{}", limit.saturating_sub(1)));
        Ok(self.client.read_with_retries(self.operation(Verb::Get, name), request).await?.body.to_vec())
    }
}

impl fmt::Debug for AzureContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AzureContainer").field(self.settings()).finish()
    }
}
