//! A blob service behind the HTTP clients of both SDKs, in virtual time: its blobs are in memory, and everything else
//! is as in the REST API, with what an account, a gateway or a bad day adds.
//!
//! | behavior | source |
//! |---|---|
//! | each page of a listing is a request that takes its time | "Listing Blob storage resources"; "Latency in Blob storage" |
//! | a listing passes deleted blobs, snapshots and former versions, and shows those that `include` asks for | "List Blobs"; Azure/azure-storage-blob-go#276, Azure/azure-sdk-for-java#19335 |
//! | so a page may be empty and have a marker | Azure/azure-storage-net#612, gaul/s3proxy#329 |
//! | markers that never end | arafato/azurite#142, Azure/azure-sdk-for-java#9465 |
//! | keys of metadata in another case | fsspec/adlfs#418, Azure/azure-sdk-for-js#8117 |
//! | 403 for deletions, and for the creation of the container | "Create a service SAS", "Azure built-in roles for Storage" |
//! | 404 and 409 without an error code | Azure/azure-sdk-for-cpp#5369, Azure/Azurite#88 |

#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::http::headers::Headers;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, ClientOptions, Context, Request, Transport, Url};
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{Blob, BlobContainer, Condition, ContainerCreation, ETag, Metadata};
use eventhubs_checkpoint::{Error, ErrorKind};
use percent_encoding::percent_decode_str;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use tokio::time::sleep;

const HTTP_DATE: &[BorrowedFormatItem<'_>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");

/// What the service does beyond the REST API.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub struct Manners {
    /// How long each request takes. A page of a listing is a request.
    pub latency: Duration,
    /// How long each page takes beyond that.
    pub page_latency: Duration,
    /// How many entries a page has at most, shown or not; 0: 5000.
    pub page_size: usize,
    /// How many deleted blobs, snapshots and former versions a listing passes before the first blob.
    pub kept: usize,
    /// The last page leads to the first one.
    pub markers_repeat: bool,
    /// Keys of metadata come back as `OwnerId` or `Ownerid` might, with a capital letter.
    pub capital_keys: bool,
    /// Errors have no error code.
    pub without_codes: bool,
    pub refuses_deletions: bool,
    pub refuses_creation: bool,
}

/// The service. Clones are the same one.
#[derive(Clone)]
pub struct Service {
    pub container: MemoryContainer,
    manners: Arc<Mutex<Manners>>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A request, whichever client sent it.
struct Received<'a> {
    method: String,
    url: &'a Url,
    headers: Vec<(String, String)>,
}

/// The response to it.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// An entry of a listing that is no current blob.
#[derive(Clone, Copy)]
enum Kept {
    Deleted,
    Snapshot,
    Version,
}

impl Service {
    /// Returns a service with an empty container.
    pub fn new(manners: Manners) -> Self {
        Self::on(MemoryContainer::new(), manners)
    }

    /// Returns a service with this container.
    pub fn on(container: MemoryContainer, manners: Manners) -> Self {
        Self { container, manners: Arc::new(Mutex::new(manners)), requests: Arc::default() }
    }

    /// Changes how it answers from the next request on.
    pub fn change(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.manners.lock().unwrap());
    }

    /// Returns the requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// Returns the container, through the client of this crate.
    pub fn azure(&self) -> AzureContainer {
        let transport = Some(Transport::with_policy(Arc::new(self.clone())));
        let options = ClientOptions { transport, ..ClientOptions::default() };
        let access = Access::account_key("https://a.blob.core.windows.net", "a", "aHVzaA==", "leases");
        AzureContainer::builder(access).with_client_options(options).build().unwrap()
    }

    async fn answer(&self, request: Received<'_>) -> Answer {
        let manners = self.manners.lock().unwrap().clone();
        self.requests.lock().unwrap().push(request.to_string());
        let latency = if request.is_listing() { manners.latency + manners.page_latency } else { manners.latency };
        if !latency.is_zero() {
            sleep(latency).await;
        }
        let answered = if manners.refuses(&request) {
            Err((403, "AuthorizationPermissionMismatch", self.now().await))
        } else {
            self.apply(&request, &manners).await.map_err(|error| request.refusal(&error))
        };
        answered.unwrap_or_else(|(status, code, date)| {
            let code = (!manners.without_codes).then(|| ("x-ms-error-code".to_owned(), code.to_owned()));
            Answer::dated(status, date).with(code)
        })
    }

    async fn now(&self) -> OffsetDateTime {
        self.container.list("none").await.map_or(OffsetDateTime::UNIX_EPOCH, |list| list.response.server_time)
    }

    async fn apply(&self, request: &Received<'_>, manners: &Manners) -> Result<Answer, Error> {
        let name = request.blob();
        match request.method.as_str() {
            "GET" => {
                let list = self.container.list(&request.query("prefix").unwrap_or_default()).await?;
                Ok(Answer {
                    body: page(request, manners, &list.blobs),
                    ..Answer::dated(200, list.response.server_time)
                })
            }
            "HEAD" => {
                let blob = self.container.get(&name).await?;
                let metadata = blob
                    .metadata
                    .iter()
                    .map(|(key, value)| (format!("x-ms-meta-{}", manners.shown(key)), value.to_owned()));
                let answer = Answer::dated(200, blob.response.server_time);
                Ok(answer.with(version(&blob.etag, blob.last_modified)).with(metadata))
            }
            "PUT" if name.is_empty() => match self.container.create_container().await? {
                ContainerCreation::Existed => Ok(Answer::dated(409, self.now().await)
                    .with([("x-ms-error-code".to_owned(), "ContainerAlreadyExists".to_owned())])),
                _ => Ok(Answer::dated(201, self.now().await)),
            },
            "PUT" => {
                let written = self.container.write(&name, &request.metadata(), &request.condition()).await?;
                let answer = Answer::dated(201, written.response.server_time);
                Ok(answer.with(version(&written.etag, written.response.server_time)))
            }
            _ => {
                let etag = ETag::new(request.header("if-match").unwrap());
                let deleted = self.container.delete(&name, &etag).await?;
                Ok(Answer::dated(202, deleted.server_time))
            }
        }
    }
}

impl Manners {
    fn refuses(&self, request: &Received<'_>) -> bool {
        (self.refuses_deletions && request.method == "DELETE")
            || (self.refuses_creation && request.method == "PUT" && request.blob().is_empty())
    }

    fn shown<'a>(&self, key: &'a str) -> Cow<'a, str> {
        match key.split_at_checked(1) {
            Some((first, rest)) if self.capital_keys => Cow::Owned(first.to_uppercase() + rest),
            _ => Cow::Borrowed(key),
        }
    }
}

impl Received<'_> {
    fn blob(&self) -> String {
        let path = self.url.path().trim_start_matches("/leases").trim_start_matches('/');
        percent_decode_str(path).decode_utf8().unwrap().into_owned()
    }

    fn is_listing(&self) -> bool {
        self.query("comp").as_deref() == Some("list")
    }

    fn query(&self, key: &str) -> Option<String> {
        self.url.query_pairs().find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns the condition of a write. This crate sends no write without one.
    fn condition(&self) -> Condition {
        if let Some(etag) = self.header("if-match") {
            return Condition::IfMatch(ETag::new(etag));
        }
        assert_eq!(self.header("if-none-match"), Some("*"), "{self}");
        Condition::Create
    }

    fn metadata(&self) -> Metadata {
        let pairs = self.headers.iter();
        pairs.filter_map(|(name, value)| Some((name.strip_prefix("x-ms-meta-")?.to_owned(), value.clone()))).collect()
    }

    /// Returns the status, the error code and the date.
    fn refusal(&self, error: &Error) -> (u16, &'static str, OffsetDateTime) {
        let (status, code) = match error.kind() {
            ErrorKind::ContainerNotFound => (404, "ContainerNotFound"),
            ErrorKind::NotFound => (404, "BlobNotFound"),
            ErrorKind::Conflict if self.header("if-match").is_some() => (412, "ConditionNotMet"),
            ErrorKind::Conflict => (409, "BlobAlreadyExists"),
            other => panic!("{other:?}: {error}"),
        };
        (status, code, error.server_time().unwrap())
    }
}

/// The method, and the blob or the beginning of the listing.
impl fmt::Display for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marker = self.query("marker").map(|marker| format!(" from {marker}"));
        let prefix = self.query("prefix").unwrap_or_default();
        write!(f, "{} {}{prefix}{}", self.method, self.blob(), marker.unwrap_or_default())
    }
}

impl Answer {
    /// Returns a response with all headers that one of the clients needs.
    fn dated(status: u16, date: OffsetDateTime) -> Self {
        let date = http_date(date);
        let headers = [
            ("date", date.as_str()),
            ("server", "blob"),
            ("x-ms-request-id", "00000000-0000-0000-0000-000000000000"),
            ("x-ms-request-server-encrypted", "true"),
            ("x-ms-server-encrypted", "true"),
            ("x-ms-delete-type-permanent", "true"),
            ("x-ms-creation-time", date.as_str()),
            ("x-ms-blob-type", "BlockBlob"),
            ("content-length", "0"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { status, headers, body: String::new() }
    }

    fn with(mut self, headers: impl IntoIterator<Item = (String, String)>) -> Self {
        self.headers.extend(headers);
        self
    }
}

fn http_date(date: OffsetDateTime) -> String {
    date.format(HTTP_DATE).unwrap()
}

fn version(etag: &ETag, last_modified: OffsetDateTime) -> [(String, String); 2] {
    [("etag".to_owned(), etag.quoted()), ("last-modified".to_owned(), http_date(last_modified))]
}

/// Returns the page of a listing that begins at the marker.
fn page(request: &Received<'_>, manners: &Manners, blobs: &[Blob]) -> String {
    let from: usize = request.query("marker").map_or(0, |marker| marker.parse().unwrap());
    let limits = [request.query("maxresults").map(|size| size.parse().unwrap()), Some(manners.page_size)];
    let size: usize = limits.into_iter().flatten().filter(|size| *size > 0).min().unwrap_or(5000);
    let (include, until) = (request.query("include").unwrap_or_default(), from + size);
    let mut shown = String::new();
    for index in from..until.min(manners.kept) {
        let kept = [Kept::Deleted, Kept::Snapshot, Kept::Version][index % 3];
        if include.split(',').any(|asked| asked == kept.include()) {
            shown += &kept.entry();
        }
    }
    for blob in blobs.iter().skip(from.saturating_sub(manners.kept)).take(until.saturating_sub(manners.kept.max(from)))
    {
        shown += &entry(&blob.name, &blob.etag, blob.last_modified, "", &metadata_of(blob, manners));
    }
    let marker = match until < manners.kept + blobs.len() {
        true => until.to_string(),
        false if manners.markers_repeat => "0".to_owned(),
        false => String::new(),
    };
    format!("<EnumerationResults><Blobs>{shown}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>")
}

impl Kept {
    fn include(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Snapshot => "snapshots",
            Self::Version => "versions",
        }
    }

    fn entry(self) -> String {
        let element = match self {
            Self::Deleted => "<Deleted>true</Deleted>",
            Self::Snapshot => "<Snapshot>2026-01-01T00:00:00.0000000Z</Snapshot>",
            Self::Version => "<VersionId>2026-01-01T00:00:00.0000000Z</VersionId>",
        };
        entry("kept", &ETag::new("0x0"), OffsetDateTime::UNIX_EPOCH, element, "")
    }
}

fn metadata_of(blob: &Blob, manners: &Manners) -> String {
    blob.metadata.iter().fold(String::new(), |mut text, (key, value)| {
        let key = manners.shown(key);
        let _ = write!(text, "<{key}>{}</{key}>", escaped(value));
        text
    })
}

fn entry(name: &str, etag: &ETag, last_modified: OffsetDateTime, element: &str, metadata: &str) -> String {
    let (name, date, etag) = (escaped(name), http_date(last_modified), etag.quoted().replace('"', ""));
    format!(
        "<Blob><Name>{name}</Name>{element}<Properties><Creation-Time>{date}</Creation-Time><Last-Modified>{date}\
         </Last-Modified><Etag>{etag}</Etag><Content-Length>0</Content-Length><Content-Type>application/octet-stream\
         </Content-Type><BlobType>BlockBlob</BlobType></Properties><Metadata>{metadata}</Metadata></Blob>"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Service").field(&self.manners.lock().unwrap()).finish()
    }
}

#[async_trait::async_trait]
#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
impl Policy for Service {
    async fn send(&self, _: &Context, request: &mut Request, _: &[Arc<dyn Policy>]) -> PolicyResult {
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| (name.as_str().to_owned(), value.as_str().to_owned())).collect();
        let received = Received { method: request.method().to_string(), url: request.url(), headers };
        let answer = self.answer(received).await;
        let mut headers = Headers::new();
        for (name, value) in answer.headers {
            headers.insert(name, value);
        }
        Ok(AsyncRawResponse::from_bytes(answer.status.into(), headers, answer.body))
    }
}

#[cfg(feature = "legacy-sdk")]
mod legacy {
    use azure_core_legacy::{BytesStream, HttpClient, Request, Response, RetryOptions, StatusCode, TransportOptions};
    use azure_storage::StorageCredentials;
    use azure_storage_blobs::prelude::ClientBuilder;
    use eventhubs_checkpoint::blob::legacy::LegacyContainer;

    use super::*;

    impl Service {
        /// Returns the container, through a client of the abandoned SDK.
        pub fn legacy(&self) -> LegacyContainer {
            let transport = TransportOptions::new(Arc::new(self.clone()));
            let options = azure_core_legacy::ClientOptions::new(transport).retry(RetryOptions::none());
            let client = ClientBuilder::new("a", StorageCredentials::anonymous()).client_options(options);
            LegacyContainer::new(client.container_client("leases")).unwrap()
        }
    }

    #[async_trait::async_trait]
    impl HttpClient for Service {
        async fn execute_request(&self, request: &Request) -> azure_core_legacy::Result<Response> {
            let headers = request.headers().iter();
            let headers = headers.map(|(name, value)| (name.as_str().to_owned(), value.as_str().to_owned())).collect();
            let received = Received { method: request.method().to_string(), url: request.url(), headers };
            let answer = self.answer(received).await;
            let mut headers = azure_core_legacy::headers::Headers::new();
            for (name, value) in answer.headers {
                headers.insert(name, value);
            }
            let status = StatusCode::try_from(answer.status).unwrap();
            Ok(Response::new(status, headers, Box::pin(BytesStream::new(answer.body))))
        }
    }
}
