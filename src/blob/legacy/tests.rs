//! Tests that need an emulated service: the meaning of responses, timeouts, and secrets.

use std::collections::{HashMap, VecDeque};
use std::error::Error as StdError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core_legacy::auth::{AccessToken, TokenCredential};
use azure_core_legacy::error::ErrorKind as SdkErrorKind;
use azure_core_legacy::headers::Headers;
use azure_core_legacy::{
    BytesStream, ClientOptions, Error as SdkError, HttpClient, Request, Response, RetryOptions, StatusCode,
    TransportOptions,
};
use azure_storage::StorageCredentials;
use azure_storage_blobs::prelude::ClientBuilder;
use time::macros::datetime;

use super::LegacyContainer;
use super::sdk::{check_address, metadata_of, prefix_to_request};
use crate::blob::{BlobContainer, Condition, ETag, Metadata, limit_request};
use crate::error::{Error, ErrorKind, Result};

const SIGNATURE: &str = "hush%2Fhush%3D";

/// How the emulated service responds to a request.
enum Reply {
    Status(u16, Vec<(&'static str, &'static str)>, String),
    /// Fails with a cause of this text.
    Fails(&'static str),
    Never,
}

/// Responds with the given replies, in order, and records the requests.
#[derive(Default)]
struct Service {
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    fn new(replies: impl IntoIterator<Item = Reply>) -> Arc<Self> {
        Arc::new(Self { replies: Mutex::new(replies.into_iter().collect()), ..Self::default() })
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn container(self: &Arc<Self>, retry: RetryOptions) -> LegacyContainer {
        let sas = StorageCredentials::sas_token(format!("sv=1&sig={SIGNATURE}")).unwrap();
        self.container_with(retry, sas)
    }

    fn container_with(self: &Arc<Self>, retry: RetryOptions, credentials: StorageCredentials) -> LegacyContainer {
        let options = ClientOptions::new(TransportOptions::new(self.clone())).retry(retry);
        let client = ClientBuilder::new("a", credentials).client_options(options).container_client("leases");
        LegacyContainer::new(client).unwrap()
    }
}

#[async_trait]
impl HttpClient for Service {
    async fn execute_request(&self, request: &Request) -> azure_core_legacy::Result<Response> {
        let condition = request.headers().iter().find(|(name, _)| name.as_str().starts_with("if-"));
        let condition = condition.map(|(name, value)| format!(" {}: {}", name.as_str(), value.as_str()));
        let method = request.method();
        let url = request.url().as_str().replace(SIGNATURE, "");
        self.requests.lock().unwrap().push(format!("{method} {url}{}", condition.unwrap_or_default()));
        let reply = self.replies.lock().unwrap().pop_front().expect("an unexpected request");
        match reply {
            Reply::Never => std::future::pending().await,
            Reply::Fails(text) => {
                let cause = std::io::Error::other(format!("for url ({}): {text}", request.url()));
                Err(SdkError::full(SdkErrorKind::Io, cause, "failed to execute `reqwest` request"))
            }
            Reply::Status(status, pairs, body) => {
                let mut headers = Headers::new();
                let standard = [("date", "Fri, 20 Nov 2026 12:00:00 GMT"), ("server", "s"), ("x-ms-request-id", ID)];
                for (name, value) in standard.into_iter().chain(pairs) {
                    headers.insert(name, value);
                }
                let status = StatusCode::try_from(status).unwrap();
                Ok(Response::new(status, headers, Box::pin(BytesStream::new(body))))
            }
        }
    }
}

const ID: &str = "00000000-0000-0000-0000-000000000000";

fn refused(status: u16, code: &'static str) -> Reply {
    let headers = vec![("x-ms-error-code", code), ("retry-after", "3")];
    Reply::Status(status, headers, format!("\n\tHeaders: [\n\t\tdate: never\n<Code>{code}</Code>"))
}

fn response(status: u16, headers: &[(&'static str, &'static str)]) -> Reply {
    Reply::Status(status, headers.to_vec(), String::new())
}

fn page(inside: &str) -> Reply {
    let text = format!("<EnumerationResults>{inside}</EnumerationResults>");
    Reply::Status(200, vec![("content-type", "application/xml")], text)
}

fn listed(name: &str, metadata: &str) -> String {
    format!(
        "<Blob><Name>{name}</Name><Properties><Creation-Time>Fri, 20 Nov 2026 11:00:00 GMT</Creation-Time>\
         <Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified><Etag>0x1</Etag><Content-Length>0</Content-Length>\
         <Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties>{metadata}</Blob>"
    )
}

fn matching() -> Condition {
    Condition::IfMatch(ETag::new("0x1"))
}

async fn write(container: &LegacyContainer) -> Result<(), Error> {
    container.write("a", &Metadata::new(), &matching()).await.map(drop)
}

const THROTTLED: ErrorKind = ErrorKind::Throttled { retry_after: Some(Duration::from_secs(3)) };

#[tokio::test]
async fn error_responses_have_a_kind_and_the_server_time() {
    for (status, code, kind) in [
        (409, "BlobAlreadyExists", ErrorKind::Conflict),
        (412, "ConditionNotMet", ErrorKind::Conflict),
        (412, "LeaseIdMissing", ErrorKind::Rejected),
        (404, "BlobNotFound", ErrorKind::NotFound),
        (404, "ContainerNotFound", ErrorKind::ContainerNotFound),
        (403, "AuthenticationFailed", ErrorKind::Unauthorized),
        (403, "AuthorizationPermissionMismatch", ErrorKind::Unauthorized),
        (401, "InvalidAuthenticationInfo", ErrorKind::Unauthorized),
        (429, "", THROTTLED),
        (503, "ServerBusy", THROTTLED),
        (503, "", ErrorKind::Indeterminate),
        (500, "OperationTimedOut", ErrorKind::Indeterminate),
    ] {
        let service = Service::new([refused(status, code)]);
        let error = write(&service.container(RetryOptions::none())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status} {code}");
        assert_eq!(error.server_time(), Some(datetime!(2026-11-20 12:00:00 UTC)), "{status} {code}");
        assert!(error.to_string().contains(code) && error.to_string().contains(&status.to_string()), "{error}");
    }
}

#[tokio::test]
async fn unsent_request_differs_from_lost_response() {
    for (text, kind) in [
        ("client error (Connect)", ErrorKind::Unavailable),
        ("connection closed before message completed", ErrorKind::Indeterminate),
    ] {
        let service = Service::new([Reply::Fails(text)]);
        let error = write(&service.container(RetryOptions::none())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{text}");
    }
}

/// The condition is in the request. The time of the response is used as the time of the write.
#[tokio::test]
async fn write_sends_its_condition() {
    let put = [("etag", "\"0x2\""), ("last-modified", "Fri, 20 Nov 2026 11:59:59 GMT")];
    let put = response(201, &[put[0], put[1], ("x-ms-request-server-encrypted", "true")]);
    let service = Service::new([put, response(200, &[("etag", "\"0x3\"")])]);
    let container = service.container(RetryOptions::none());
    let created = container.write("ns/a", &Metadata::new(), &Condition::Create).await.unwrap();
    assert_eq!(created.etag, ETag::new("0x2"));
    let replaced = container.write("ns/a", &Metadata::new(), &matching()).await.unwrap();
    assert_eq!(replaced.etag, ETag::new("0x3"));
    let url = "https://a.blob.core.windows.net/leases/ns/a?";
    assert_eq!(
        service.requests(),
        [format!("PUT {url}sv=1&sig= if-none-match: *"), format!("PUT {url}comp=metadata&sv=1&sig= if-match: \"0x1\"")]
    );
}

/// The SDK cannot use Azurite's response to a deletion, and does not return its date.
#[tokio::test]
async fn deletion_without_its_header_is_dated_by_a_read() {
    let with_header = response(202, &[("x-ms-delete-type-permanent", "true")]);
    let service = Service::new([with_header, response(202, &[]), refused(404, "BlobNotFound")]);
    let container = service.container(RetryOptions::none());
    for _ in 0..2 {
        let deleted = container.delete("a", &ETag::new("0x1")).await.unwrap();
        assert_eq!(deleted.server_time, datetime!(2026-11-20 12:00:00 UTC));
    }
    let methods: Vec<String> = service.requests().iter().map(|line| line.split(' ').next().unwrap().into()).collect();
    assert_eq!(methods, ["DELETE", "DELETE", "HEAD"]);
}

#[tokio::test]
async fn timeout_ends_the_retries_of_the_client() {
    let repeats = || [refused(503, "ServerBusy"), refused(503, "ServerBusy")];
    for replies in [repeats().into(), vec![Reply::Never]] {
        let service = Service::new(replies);
        let container = service.container(RetryOptions::default());
        let error = limit_request(Duration::from_millis(100), "write", write(&container)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
        assert!(error.to_string().contains("within 100ms"), "{error}");
    }
}

/// The SDK cannot send the space in a prefix. A shorter prefix is requested, and the other blobs are removed.
#[tokio::test]
async fn listing_has_the_prefix_and_lowercase_keys() {
    let blobs = [listed("a b/1", "<Metadata Encrypted=\"true\"><OwnerId>Me</OwnerId></Metadata>"), listed("a+b/1", "")];
    let first = page(&format!("<Blobs>{}</Blobs><NextMarker>2!</NextMarker>", blobs.concat()));
    let service = Service::new([first, page("<Blobs /><NextMarker />")]);
    let list = service.container(RetryOptions::none()).list("a b/").await.unwrap();
    let [blob] = list.blobs.as_slice() else { panic!("{list:?}") };
    assert_eq!((blob.name.as_str(), &blob.etag), ("a b/1", &ETag::new("0x1")));
    assert_eq!(blob.metadata, Metadata::from([("ownerid".to_owned(), "Me".to_owned())]));
    assert_eq!(blob.age(), Duration::from_secs(60));
    assert!(service.requests().iter().all(|request| request.contains("prefix=a&")), "{:?}", service.requests());
    assert!(service.requests()[1].contains("marker=2%21"));
}

#[tokio::test]
async fn unusable_listing_is_indeterminate_and_not_shown() {
    let again = || page("<Blobs /><NextMarker>2!</NextMarker>");
    let other = || page("<Blobs /><NextMarker>3!</NextMarker>");
    for (replies, problem) in [
        (vec![Reply::Status(200, vec![], "<html>\nhush".to_owned())], "failed to deserialize"),
        (vec![again(), again()], "the marker of the next page repeats"),
        (vec![again(), other(), again()], "the marker of the next page repeats"),
    ] {
        let error = Service::new(replies).container(RetryOptions::none()).list("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
        assert!(error.to_string().contains(problem) && !error.to_string().contains("hush"), "{error}");
    }
}

#[derive(Debug)]
struct NoToken(SdkErrorKind);

#[async_trait]
impl TokenCredential for NoToken {
    async fn get_token(&self, _: &[&str]) -> azure_core_legacy::Result<AccessToken> {
        Err(SdkError::message(self.0.clone(), "no token"))
    }

    async fn clear_cache(&self) -> azure_core_legacy::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn credential_failure_without_network_is_temporary() {
    let unavailable = SdkErrorKind::http_response(StatusCode::ServiceUnavailable, None);
    for (cause, kind) in [
        (SdkErrorKind::Io, ErrorKind::Unavailable),
        (unavailable, ErrorKind::Unavailable),
        (SdkErrorKind::Credential, ErrorKind::Unauthorized),
    ] {
        let credentials = StorageCredentials::token_credential(Arc::new(NoToken(cause)));
        let container = Service::new([]).container_with(RetryOptions::none(), credentials);
        assert_eq!(write(&container).await.unwrap_err().kind(), kind);
    }
}

#[tokio::test]
async fn no_output_shows_a_secret() {
    let service = Service::new([Reply::Fails("broken"), refused(403, "AuthenticationFailed")]);
    let container = service.container(RetryOptions::none());
    for _ in 0..2 {
        let error = write(&container).await.unwrap_err();
        let mut shown = format!("{error} {error:?} {container:?}");
        for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
            shown.push_str(&cause.to_string());
        }
        assert!(!shown.contains("hush"), "{shown}");
    }
    let builder = LegacyContainer::builder(container.client);
    assert!(!format!("{builder:?}").contains("hush"));
}

#[test]
fn error_names_the_setting_and_its_value() {
    let builder = || LegacyContainer::builder(ClientBuilder::emulator().container_client("leases"));
    for (builder, expected) in
        [(builder().with_page_size(0), "page size 0"), (builder().with_page_size(5001), "page size 5001")]
    {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

fn check(name: &str) -> Result<()> {
    let container = ClientBuilder::emulator().container_client("leases");
    check_address(&container.url().unwrap(), &container.blob_client(name).url().unwrap(), name)
}

#[test]
fn names_that_arrive_unchanged_are_accepted() {
    for name in ["ns/hub/$Default/ownership/0", "a//b", "percent%41%2F%", "größe/日本語", "a b?c#d", "...", r"a\b"]
    {
        check(name).unwrap();
    }
}

#[test]
fn names_that_would_reach_another_blob_are_rejected() {
    for name in ["a/../b", "a/./b", "ends/", "/begins", "../begins", "ends/..", "tab\tin", "line\nbreak", " a", "a "] {
        let error = check(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
}

#[test]
fn prefix_is_requested_up_to_its_first_space() {
    for (prefix, requested) in [("ns/$Default/", Some("ns/$Default/")), ("a b/c", Some("a")), (" a", None), ("", None)]
    {
        assert_eq!(prefix_to_request(prefix).as_deref(), requested);
    }
}

#[test]
fn keys_are_lowercase_without_attributes() {
    let metadata = HashMap::from([("OwnerId", "Me"), ("@Encrypted", "true")].map(|(k, v)| (k.into(), v.into())));
    assert_eq!(metadata_of(metadata), Metadata::from([("ownerid".to_owned(), "Me".to_owned())]));
}
