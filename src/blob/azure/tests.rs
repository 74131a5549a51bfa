//! Tests that need an emulated service: retries, timeouts, unusable responses, and secrets.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::headers::{AUTHORIZATION, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, ClientOptions, Context, Request, Transport};
use time::macros::datetime;

use super::headers::find_header;
use super::{Access, AzureContainer};
use crate::blob::{BlobContainer, BlobContents, Condition, ETag, Metadata, limit_request};
use crate::error::{Error, ErrorKind};
use crate::model::{ConsumerGroup, OwnerId};
use crate::store::{Claim, ClaimOutcome, GroupStore, StoreConfig};

const KEY: &str = "aHVzaC1odXNoLWh1c2g=";
const EMPTY_PAGE: &str = "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>";
const SIGNATURE: &str = "hush%2Fhush%3D";

/// How the emulated service responds to a request.
enum Reply {
    Status(u16, Vec<(&'static str, &'static str)>, &'static str),
    Fails(azure_core::error::ErrorKind),
    Never,
    /// From a proxy on the way, whose clock is a year ahead.
    OfProxy(u16),
    /// A page without blobs, after this time.
    SlowPage(Duration),
    Page(String),
}

/// Responds with the given replies, in order, and records the requests.
#[derive(Default)]
struct Service {
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<String>>,
    authorizations: Mutex<Vec<String>>,
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

    fn container(self: &Arc<Self>, access: Access) -> AzureContainer {
        let transport = Some(Transport::with_policy(self.clone()));
        let options = ClientOptions { transport, ..ClientOptions::default() };
        AzureContainer::builder(access).with_client_options(options).build().unwrap()
    }
}

#[async_trait::async_trait]
#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
impl Policy for Service {
    async fn send(&self, _: &Context, request: &mut Request, _: &[Arc<dyn Policy>]) -> PolicyResult {
        self.requests.lock().unwrap().push(format!("{} {}", request.method(), request.url()));
        let authorization = find_header(request.headers(), &AUTHORIZATION).unwrap_or_default().to_owned();
        self.authorizations.lock().unwrap().push(authorization);
        let reply = self.replies.lock().unwrap().pop_front().expect("an unexpected request");
        match reply {
            Reply::Never => std::future::pending().await,
            Reply::OfProxy(status) => {
                let mut headers = Headers::new();
                headers.insert("date", "Sat, 20 Nov 2027 12:00:00 GMT");
                headers.insert("etag", "\"0x1\"");
                Ok(AsyncRawResponse::from_bytes(status.into(), headers, ""))
            }
            Reply::SlowPage(time) => {
                tokio::time::sleep(time).await;
                Ok(AsyncRawResponse::from_bytes(200.into(), dated(), EMPTY_PAGE))
            }
            Reply::Page(page) => Ok(AsyncRawResponse::from_bytes(200.into(), dated(), page)),
            Reply::Fails(kind) => {
                let cause = std::io::Error::other(format!("error sending request for url ({})", request.url()));
                Err(azure_core::Error::with_error(kind, cause, "failed to execute request"))
            }
            Reply::Status(status, pairs, body) => {
                let mut headers = dated();
                for (name, value) in pairs {
                    headers.insert(name, value);
                }
                Ok(AsyncRawResponse::from_bytes(status.into(), headers, body))
            }
        }
    }
}

fn dated() -> Headers {
    let mut headers = Headers::new();
    headers.insert("date", "Fri, 20 Nov 2026 12:00:00 GMT");
    headers.insert("x-ms-request-id", "1");
    headers
}

/// Returns a page with these blobs, and the marker of the next one.
fn page(blobs: &str, marker: &str) -> Reply {
    Reply::Page(format!(
        "<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
    ))
}

fn status(status: u16) -> Reply {
    Reply::Status(status, vec![], "")
}

fn written() -> Reply {
    Reply::Status(201, vec![("etag", "\"0x1\""), ("last-modified", "Fri, 20 Nov 2026 12:00:00 GMT")], "")
}

fn by_key() -> Access {
    Access::account_key("https://a.example", "a", KEY, "leases")
}

fn by_sas() -> Access {
    Access::sas_url(format!("https://a.example/leases?sv=1&sig={SIGNATURE}"))
}

#[tokio::test(start_paused = true)]
async fn write_is_sent_once_for_every_response() {
    use azure_core::error::ErrorKind as AzureKind;
    for (reply, kind) in [
        (status(500), ErrorKind::Indeterminate),
        (status(503), ErrorKind::Indeterminate),
        (Reply::Fails(AzureKind::Io), ErrorKind::Indeterminate),
        (Reply::Fails(AzureKind::Connection), ErrorKind::Unavailable),
        (status(429), ErrorKind::Throttled { retry_after: None }),
    ] {
        let service = Service::new([reply]);
        let condition = Condition::IfMatch(ETag::new("1"));
        let error = service.container(by_key()).write("a", &Metadata::new(), &condition).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(service.requests(), ["PUT https://a.example/leases/a?comp=metadata"]);
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_is_sent_once() {
    let service = Service::new([status(500)]);
    let error = service.container(by_key()).delete("a", &ETag::new("0x1")).await.unwrap_err();
    assert_eq!((error.kind(), service.requests().len()), (ErrorKind::Indeterminate, 1));
}

#[tokio::test(start_paused = true)]
async fn retried_read_has_one_signature() {
    let failed = || Reply::Fails(azure_core::error::ErrorKind::Io);
    let version = vec![("etag", "\"0x1\""), ("last-modified", "Fri, 20 Nov 2026 12:00:00 GMT")];
    let service = Service::new([status(500), failed(), Reply::Status(200, version, "")]);
    let blob = service.container(by_sas()).get("a/b").await.unwrap();
    assert_eq!(blob.etag, ETag::new("0x1"));
    let url = format!("HEAD https://a.example/leases/a%2Fb?sv=1&sig={SIGNATURE}");
    assert_eq!(service.requests(), [url.as_str(); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_read_is_retried_three_times() {
    let service = Service::new((0..4).map(|_| Reply::Fails(azure_core::error::ErrorKind::Io)));
    let error = service.container(by_key()).list("").await.unwrap_err();
    assert_eq!((error.kind(), service.requests().len()), (ErrorKind::Indeterminate, 4));
}

/// Between two attempts.
#[tokio::test(start_paused = true)]
async fn retries_end_when_their_callers_time_is_over() {
    let service = Service::new([Reply::Fails(azure_core::error::ErrorKind::Io)]);
    let container = service.container(by_key());
    let began = tokio::time::Instant::now();
    let limit = Duration::from_millis(100);
    let error = limit_request(limit, "get", container.get("b")).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (ErrorKind::Indeterminate, limit));
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn throttled_read_is_not_retried() {
    let service = Service::new([Reply::Status(503, vec![("x-ms-error-code", "ServerBusy"), ("retry-after", "9")], "")]);
    let error = service.container(by_key()).list("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Throttled { retry_after: Some(Duration::from_secs(9)) });
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_end_when_their_callers_time_is_over() {
    let service = Service::new((0..5).map(|_| Reply::Never));
    let container = service.container(by_key());
    let started = tokio::time::Instant::now();
    let limit = Duration::from_secs(7);
    let metadata = Metadata::new();
    let errors = [
        limit_request(limit, "list", container.list("p")).await.unwrap_err(),
        limit_request(limit, "get", container.get("b")).await.unwrap_err(),
        limit_request(limit, "write", container.write("b", &metadata, &Condition::Create)).await.unwrap_err(),
        limit_request(limit, "delete", container.delete("b", &ETag::new("1"))).await.unwrap_err(),
        limit_request(limit, "create", container.create_container()).await.unwrap_err(),
    ];
    assert_eq!(started.elapsed(), 5 * limit, "no other limit applies");
    assert!(errors.iter().all(|error| error.kind() == ErrorKind::Indeterminate), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_listing_has_more_time_when_repeated() {
    let slow = Duration::from_millis(5500);
    let service = Service::new([Duration::ZERO, Duration::ZERO, slow, slow].map(Reply::SlowPage));
    let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
    let builder = GroupStore::builder(service.container(by_key()), group, OwnerId::new("a").unwrap());
    let store = builder.with_config(StoreConfig::default().with_verify_storage(false)).connect().await.unwrap();
    let error = store.list_ownerships().await.unwrap_err();
    assert!(error.to_string().contains("within 5s"), "{error}");
    assert!(store.list_ownerships().await.unwrap().records.is_empty());
}

/// Epochs contain the time of the service.
#[tokio::test]
async fn the_clock_of_a_proxy_raises_no_epoch() {
    let pages = [page("", ""), page("", "")];
    let service = Service::new(pages.into_iter().chain([Reply::OfProxy(403), written()]));
    let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
    let builder = GroupStore::builder(service.container(by_key()), group, OwnerId::new("a").unwrap());
    let store = builder.with_config(StoreConfig::default().with_verify_storage(false)).connect().await.unwrap();
    let error = store.list_checkpoints().await.unwrap_err();
    assert_eq!((error.kind(), error.server_time()), (ErrorKind::Unauthorized, None));
    let ClaimOutcome::Won(lease) = store.claim(&Claim::unowned(0.into())).await else { panic!("not won") };
    assert_eq!(lease.epoch(), datetime!(2026-11-20 12:00:00 UTC).unix_timestamp() * 1000 + 1);
}

#[tokio::test]
async fn response_without_version_or_date_is_indeterminate() {
    let undated = Reply::Status(201, vec![("date", "today"), ("etag", "\"1\"")], "");
    for reply in [status(201), undated] {
        let container = Service::new([reply]).container(by_key());
        let error = container.write("a", &Metadata::new(), &Condition::Create).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
    }
}

#[tokio::test]
async fn truncated_page_is_indeterminate() {
    let service = Service::new([Reply::Status(200, vec![], "<EnumerationResults><Blobs>")]);
    let error = service.container(by_key()).list("p").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(error.to_string().contains("ends early"), "{error}");
}

/// Blobs of other programs are listed at one level, and read up to a limit.
#[tokio::test]
async fn contents_are_read_in_bounded_requests() {
    let service = Service::new([Reply::Status(200, vec![], EMPTY_PAGE), Reply::Status(206, vec![], "{}")]);
    let container = service.container(by_key());
    assert_eq!(container.list_contents("g/").await.unwrap(), []);
    assert_eq!(container.read_content("g/0", 1024).await.unwrap(), b"{}");
    let list = "GET https://a.example/leases?restype=container&comp=list&delimiter=%2F&prefix=g%2F";
    assert_eq!(service.requests(), [list, "GET https://a.example/leases/g%2F0"]);
}

#[tokio::test]
async fn repeated_marker_fails_the_listing() {
    let service = Service::new([page("", "m/1 &amp;"), page("", "m/1 &amp;")]);
    let error = service.container(by_key()).list("p/").await.unwrap_err();
    assert!(error.to_string().contains("next page repeats"), "{error}");
    let first = "GET https://a.example/leases?restype=container&comp=list&include=metadata&prefix=p%2F";
    assert_eq!(service.requests(), [first.to_owned(), format!("{first}&marker=m%2F1%20%26")]);
}

#[tokio::test]
async fn a_cycle_of_markers_fails_the_listing() {
    let pages = ["a", "b", "c"].into_iter().cycle().map(|marker| page("", marker));
    let service = Service::new(pages.take(10));
    let container = service.container(by_key());
    let error = container.list("p/").await.unwrap_err();
    assert!(error.to_string().contains("next page repeats"), "{error}");
    assert_eq!(service.requests().len(), 4);
    let error = container.list_contents("p/").await.unwrap_err();
    assert!(error.to_string().contains("next page repeats"), "{error}");
}

/// Each page has another marker, so that the listing would never end.
#[tokio::test]
async fn an_endless_listing_is_rejected() {
    let blob = "<Blob><Name>p/1</Name><Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified>\
                <Etag>1</Etag></Properties></Blob>";
    let blobs = blob.repeat(5000);
    let service = Service::new((0..52).map(|number| page(&blobs, &number.to_string())));
    let error = service.container(by_key()).list("p/").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("more than 250000 blobs"), "{error}");
    assert_eq!(service.requests().len(), 51);
}

#[tokio::test]
async fn only_a_container_being_deleted_is_an_error() {
    let refused = |code| Reply::Status(409, vec![("x-ms-error-code", code)], "");
    let service = Service::new([refused("ContainerAlreadyExists"), refused("ContainerBeingDeleted")]);
    let container = service.container(by_key());
    assert_eq!(container.create_container().await.unwrap(), crate::blob::ContainerCreation::Existed);
    assert_eq!(container.create_container().await.unwrap_err().kind(), ErrorKind::ContainerNotFound);
}

/// Returns a token for storage, or fails with the given kind.
#[derive(Debug)]
struct Issuer(Option<azure_core::error::ErrorKind>);

#[async_trait::async_trait]
impl TokenCredential for Issuer {
    async fn get_token(&self, scopes: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://storage.azure.com/.default"]);
        match &self.0 {
            None => Ok(AccessToken::new("hush", datetime!(2999-01-01 00:00:00 UTC))),
            Some(kind) => {
                let cause = kind.clone().into_error();
                Err(azure_core::Error::with_error(azure_core::error::ErrorKind::Credential, cause, "no token"))
            }
        }
    }
}

fn by_token(failure: Option<azure_core::error::ErrorKind>) -> Access {
    Access::token("https://a.example/leases", Arc::new(Issuer(failure)))
}

#[tokio::test]
async fn each_credential_kind_sets_its_authorization() {
    for (access, expected) in [(by_key(), "SharedKey a:"), (by_token(None), "Bearer hush"), (by_sas(), "")] {
        let service = Service::new([written()]);
        service.container(access).write("a", &Metadata::new(), &Condition::Create).await.unwrap();
        let authorization = service.authorizations.lock().unwrap().concat();
        assert!(authorization.starts_with(expected) && authorization.is_empty() == expected.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_is_sent_without_a_token() {
    use azure_core::error::ErrorKind as AzureKind;
    for (failure, kind) in
        [(AzureKind::Other, ErrorKind::Unauthorized), (AzureKind::Connection, ErrorKind::Unavailable)]
    {
        let service = Service::new([]);
        let container = service.container(by_token(Some(failure)));
        let limit = Duration::from_secs(5);
        let metadata = Metadata::new();
        assert_eq!(limit_request(limit, "list", container.list("")).await.unwrap_err().kind(), kind);
        let outcome = limit_request(limit, "write", container.write("a", &metadata, &Condition::Create)).await;
        assert_eq!(outcome.unwrap_err().kind(), kind);
        assert!(service.requests().is_empty());
    }
}

/// Returns all visible text of an error.
fn all_of(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(format!("{error} {error:?} {error:#?}"), |text, cause| format!("{text} {cause} {cause:?}"))
}

#[tokio::test(start_paused = true)]
async fn no_output_shows_a_secret() {
    use azure_core::error::ErrorKind as AzureKind;
    let mut shown = Vec::new();
    for access in [by_key(), by_sas(), by_token(None)] {
        shown.push(format!("{access:?} {:?}", AzureContainer::builder(access.clone())));
        for kind in [AzureKind::Io, AzureKind::Connection, AzureKind::Credential, AzureKind::Other] {
            let container = Service::new([Reply::Fails(kind)]).container(access.clone());
            let error = container.write("a", &Metadata::new(), &Condition::Create).await.unwrap_err();
            shown.push(format!("{container:?} {container:#?} {}", all_of(&error)));
        }
        for reply in [status(403), status(400), Reply::Never, written()] {
            let container = Service::new([reply]).container(access.clone());
            let metadata = Metadata::new();
            let write = container.write("a", &metadata, &Condition::Create);
            let outcome = limit_request(Duration::from_secs(5), "write", write).await;
            shown.push(outcome.map_or_else(|error| all_of(&error), |written| format!("{written:?}")));
        }
    }
    let shown = shown.join("\n");
    assert!(shown.contains("https://a.example/leases/a?"), "the cause is kept: {shown}");
    for secret in [KEY, SIGNATURE, "hush", "aHVzaC1"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}

#[tokio::test]
async fn errors_of_the_http_client_show_no_signature() {
    let url = format!("http://127.0.0.1:1/a/leases?sv=1&sig={SIGNATURE}");
    let error = AzureContainer::from_sas_url(url).unwrap().create_container().await.unwrap_err();
    let shown = all_of(&error);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{shown}");
    assert!(shown.contains("cannot connect to 127.0.0.1:1"), "{shown}");
    assert!(!shown.contains("hush"), "{shown}");
}
