//! Account keys and shared access signatures, on a fake storage.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::headers::{AUTHORIZATION, HeaderName, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, ClientOptions, Context, Request, StatusCode, Transport};
use azure_core::time::{parse_rfc7231, to_rfc7231};
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_checkpoint::{ErrorKind, Result};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

use crate::credentials::WrongClock;

const KEY: &str = "aHVzaC1odXNoLWh1c2g=";
const DATE: HeaderName = HeaderName::from_static("x-ms-date");

/// A storage that rejects signatures more than 15 minutes from its own time, like Azure. An attacker on the way replies
/// to the first requests instead.
#[derive(Debug, Default)]
struct Storage {
    forged: Mutex<VecDeque<OffsetDateTime>>,
    refuses_all: bool,
    /// How many requests fail first.
    fails: AtomicU32,
    dates: Mutex<Vec<OffsetDateTime>>,
    /// The URL and the authorization of each request.
    requests: Mutex<Vec<(String, String)>>,
}

impl Storage {
    fn container(self: &Arc<Self>, access: Access, clock_ahead: Duration) -> AzureContainer {
        let transport = Some(Transport::with_policy(self.clone()));
        let options = ClientOptions { transport, ..ClientOptions::default() };
        let clock = Arc::new(WrongClock(clock_ahead));
        AzureContainer::builder(access)
            .with_wall_clock(clock)
            .with_client_options(options)
            .with_allow_http(true)
            .build()
            .unwrap()
    }

    /// Returns how many requests came, and whether all of them were dated correctly.
    fn dates(&self) -> (usize, bool) {
        let now = SystemWallClock.now();
        let dates = self.dates.lock().unwrap();
        (dates.len(), dates.iter().all(|date| (*date - now).abs() < Duration::minutes(1)))
    }
}

#[async_trait::async_trait]
#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
impl Policy for Storage {
    async fn send(&self, _: &Context, request: &mut Request, _: &[Arc<dyn Policy>]) -> PolicyResult {
        let authorization = request.headers().get_optional_str(&AUTHORIZATION).unwrap_or_default();
        self.requests.lock().unwrap().push((request.url().to_string(), authorization.to_owned()));
        let date = request.headers().get_optional_str(&DATE).map(|date| parse_rfc7231(date).unwrap());
        self.dates.lock().unwrap().extend(date);
        let forged = self.forged.lock().unwrap().pop_front();
        if self.fails.load(Ordering::Relaxed) > 0 {
            self.fails.fetch_sub(1, Ordering::Relaxed);
            return Ok(AsyncRawResponse::from_bytes(StatusCode::InternalServerError, Headers::new(), ""));
        }
        let now = SystemWallClock.now();
        let is_refused = self.refuses_all || date.is_some_and(|date| (date - now).abs() > Duration::minutes(15));
        let mut headers = Headers::new();
        headers.insert("date", to_rfc7231(&forged.unwrap_or(now)));
        headers.insert("x-ms-request-id", "1");
        if forged.is_some() || is_refused {
            headers.insert("x-ms-error-code", "AuthenticationFailed");
            return Ok(AsyncRawResponse::from_bytes(StatusCode::Forbidden, headers, ""));
        }
        headers.insert("etag", "\"0x1\"");
        headers.insert("last-modified", to_rfc7231(&now));
        Ok(AsyncRawResponse::from_bytes(StatusCode::Created, headers, ""))
    }
}

async fn write(container: &AzureContainer) -> Result<()> {
    container.write("a", &Metadata::new(), &Condition::Create).await.map(drop)
}

fn by_key(account_url: &str) -> Access {
    Access::account_key(account_url, "account", KEY, "leases")
}

/// One response with another date must not cause signatures for it, or not for more than one request.
#[tokio::test]
async fn a_forged_date_does_not_stay() {
    for forged in [datetime!(2099-11-20 12:00:00 UTC), datetime!(1999-11-20 12:00:00 UTC)] {
        for url in ["http://storage.internal", "https://account.example", "http://127.0.0.1:10000/account"] {
            let storage = Arc::new(Storage { forged: Mutex::new([forged].into()), ..Storage::default() });
            let container = storage.container(by_key(url), Duration::ZERO);
            assert_eq!(write(&container).await.unwrap_err().kind(), ErrorKind::Unauthorized);
            storage.dates.lock().unwrap().clear();
            write(&container).await.unwrap();
            assert_eq!(storage.dates(), (1, true), "{url}");
        }
    }
}

#[tokio::test]
async fn over_plain_http_no_other_date_is_signed() {
    let forged = Mutex::new([datetime!(2099-11-20 12:00:00 UTC)].into());
    let storage = Arc::new(Storage { forged, ..Storage::default() });
    let container = storage.container(by_key("http://storage.internal"), Duration::ZERO);
    assert_eq!(write(&container).await.unwrap_err().kind(), ErrorKind::Unauthorized);
    assert_eq!(storage.dates(), (1, true));
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_over_https() {
    for url in ["https://account.example", "http://127.0.0.1:1/account", "http://[::1]:1/account", "http://localhost/a"]
    {
        for ahead in [Duration::hours(-2), Duration::hours(2)] {
            let storage = Arc::new(Storage::default());
            let container = storage.container(by_key(url), ahead);
            write(&container).await.unwrap();
            assert_eq!(storage.dates().0, 2, "{url}");
            storage.dates.lock().unwrap().clear();
            write(&container).await.unwrap();
            assert_eq!(storage.dates(), (1, true), "{url}");
        }
    }
}

/// If the clock is not corrected, or if that does not help, it is named as a cause.
#[tokio::test]
async fn a_rejection_names_a_wrong_clock() {
    for (url, refuses_all, requests) in [("http://storage.internal", false, 1), ("https://account.example", true, 2)] {
        for (ahead, expected) in [(-7200, "7200 s behind"), (7200, "7200 s ahead")] {
            let storage = Arc::new(Storage { refuses_all, ..Storage::default() });
            let container = storage.container(by_key(url), Duration::seconds(ahead));
            let message = write(&container).await.unwrap_err().to_string();
            // A second may pass between the two clocks.
            let is_named = [expected.to_owned(), expected.replace("7200", "7199"), expected.replace("7200", "7201")];
            assert!(
                is_named.iter().any(|text| message.contains(text)) && message.contains("set the local clock"),
                "{message}"
            );
            assert_eq!(storage.dates().0, requests);
        }
    }
    let storage = Arc::new(Storage { refuses_all: true, ..Storage::default() });
    let message = write(&storage.container(by_key("https://account.example"), Duration::ZERO)).await.unwrap_err();
    assert!(!message.to_string().contains("clock"), "{message}");
}

/// Traffic that can be read on the way is accepted only for an emulator.
#[test]
fn plain_http_needs_an_emulator() {
    let by_string = |text: &str| Access::connection_string(format!("{text};AccountKey={KEY}"), "leases");
    for access in [
        by_key("http://account.blob.core.windows.net"),
        by_key("http://10.0.0.5:10000"),
        by_string("DefaultEndpointsProtocol=http;AccountName=account"),
        by_string("AccountName=account;BlobEndpoint=http://account.blob.core.windows.net"),
        Access::sas_url("http://account.blob.core.windows.net/leases?sv=1&sig=hush"),
        Access::account_sas_url("http://account.blob.core.windows.net/?sv=1&sig=hush", "leases"),
    ] {
        let error = AzureContainer::builder(access).build().unwrap_err();
        let message = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Config, "{message}");
        assert!(message.contains("account.blob.core.windows.net") || message.contains("10.0.0.5:10000"), "{message}");
        assert!(message.contains("https://") && message.contains("allow_http(true)"), "{message}");
        assert!(!message.contains("hush"), "{message}");
    }
    let access = by_key("http://account.blob.core.windows.net");
    AzureContainer::builder(access).with_allow_http(true).build().unwrap();
    for endpoint in [
        "http://127.0.0.1:10000/devstoreaccount1",
        "http://localhost:10000/devstoreaccount1",
        "http://[::1]:10000/devstoreaccount1",
        "http://account.blob.localhost:10000",
        "http://127.0.0.1:10000",
        "http://azurite:10000/devstoreaccount1",
        "http://host.docker.internal:10000/devstoreaccount1",
        "http://10.0.0.5:10000/devstoreaccount1",
        "https://account.blob.core.windows.net",
    ] {
        for access in [
            Access::account_key(endpoint, "devstoreaccount1", KEY, "leases"),
            by_string(&format!("AccountName=devstoreaccount1;BlobEndpoint={endpoint}")),
            Access::account_sas_url(format!("{endpoint}?sv=1&sig=x"), "leases"),
        ] {
            AzureContainer::builder(access).build().unwrap();
        }
    }
    AzureContainer::from_connection_string("UseDevelopmentStorage=true", "leases").unwrap();
}

#[test]
fn the_account_of_an_emulator_is_no_container() {
    for host in ["azurite:10000", "host.docker.internal:10000", "azurite.example"] {
        let url = format!("http://{host}/devstoreaccount1?sv=1&sig=hush");
        let message = AzureContainer::from_sas_url(url).unwrap_err().to_string();
        assert!(message.contains("does not name a container") && !message.contains("hush"), "{message}");
        let url = format!("http://{host}/devstoreaccount1/leases?sv=1&sig=hush");
        assert!(format!("{:?}", AzureContainer::from_sas_url(url).unwrap()).contains("devstoreaccount1/leases"));
    }
}

/// A credential of Entra ID that always returns this token.
#[derive(Debug)]
struct Issuer(&'static str);

#[async_trait::async_trait]
impl TokenCredential for Issuer {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        Ok(AccessToken::new(self.0, SystemWallClock.now() + Duration::hours(1)))
    }
}

const URL: &str = "https://account.example/leases";

fn by_token(token: &'static str) -> Access {
    Access::token(URL, Arc::new(Issuer(token)))
}

fn by_string(credentials: &str) -> Access {
    Access::connection_string(format!("BlobEndpoint=https://account.example;{credentials}"), "leases")
}

/// All kinds of access to one container, with the beginning of the header and the query that show each.
fn all_kinds() -> [(Access, &'static str, &'static str); 8] {
    [
        (Access::sas_url(format!("{URL}?sv=1&sig=a%2F")), "", "?sv=1&sig=a%2F"),
        (Access::account_sas_url("https://account.example/?sv=2&sig=b", "leases"), "", "?sv=2&sig=b"),
        (by_string("SharedAccessSignature=sv=3&sig=c"), "", "?sv=3&sig=c"),
        (by_key("https://account.example"), "SharedKey account:", ""),
        (by_string(&format!("AccountName=other;AccountKey={KEY}")), "SharedKey other:", ""),
        (by_token("first"), "Bearer first", ""),
        (by_token("second"), "Bearer second", ""),
        (Access::sas_url(format!("{URL}?sv=4&sig=d")), "", "?sv=4&sig=d"),
    ]
}

/// On all clones and on other runtimes.
#[test]
fn replaced_credentials_of_any_kind_apply_everywhere() {
    let storage = Arc::new(Storage::default());
    let container = storage.container(by_key("https://account.example"), Duration::ZERO);
    let (isolated, kept) = (container.with_new_connections().unwrap(), container.clone());
    let (here, elsewhere) = (runtime(), runtime());
    here.block_on(write(&container)).unwrap();
    elsewhere.block_on(isolated.get("a")).unwrap();
    for (access, authorization, query) in all_kinds() {
        storage.requests.lock().unwrap().clear();
        kept.replace_credentials(access).unwrap();
        here.block_on(container.get("a")).unwrap();
        elsewhere.block_on(isolated.get("a")).unwrap();
        let requests = storage.requests.lock().unwrap().clone();
        assert_eq!(requests.len(), 2);
        for (url, header) in requests {
            assert_eq!(url, format!("{URL}/a{query}"));
            assert!(header.starts_with(authorization) && header.is_empty() == authorization.is_empty(), "{header}");
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Its retries included: only later requests have the new credentials.
#[tokio::test(start_paused = true)]
async fn a_request_in_flight_keeps_its_credentials() {
    for (old, authorization, query) in all_kinds() {
        let storage = Arc::new(Storage { fails: AtomicU32::new(1), ..Storage::default() });
        let container = storage.container(old, Duration::ZERO);
        let kept = container.clone();
        let replace = async {
            while storage.requests.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            kept.replace_credentials(Access::sas_url(format!("{URL}?sv=9&sig=new"))).unwrap();
        };
        let (read, ()) = tokio::join!(container.get("a"), replace);
        read.unwrap();
        container.get("a").await.unwrap();
        let requests = storage.requests.lock().unwrap().clone();
        let [first, again, later] = &requests[..] else { panic!("{requests:?}") };
        for (url, header) in [first, again] {
            assert_eq!(*url, format!("{URL}/a{query}"));
            assert!(header.starts_with(authorization) && header.is_empty() == authorization.is_empty(), "{header}");
        }
        assert_eq!(*later, (format!("{URL}/a?sv=9&sig=new"), String::new()));
    }
}

#[tokio::test]
async fn unusable_credentials_replace_nothing() {
    let storage = Arc::new(Storage::default());
    let container = storage.container(Access::sas_url(format!("{URL}?sig=old")), Duration::ZERO);
    let sas = Access::sas_url;
    for (access, expected) in [
        (sas("https://account.example/other?sig=hush"), "https://account.example/other"),
        (sas("https://other.example/leases?sig=hush"), "https://other.example/leases"),
        (sas("http://account.example/leases?sig=hush"), "http://account.example/leases"),
        (sas("https://account.example/leases?sv=hush"), "has no signature"),
        (sas("hush"), "is not a URL"),
        (sas("https://[hush"), "is not a URL"),
        (Access::account_key("https://account.example", "account", "hush!", "leases"), "is not base64"),
        (Access::account_key("https://account.example", "account", KEY, "others"), "https://account.example/others"),
        (Access::token("https://other.example/leases", Arc::new(Issuer("hush"))), "build another container"),
        (by_string("AccountName=account"), "AccountKey"),
    ] {
        let error = container.replace_credentials(access).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let shown = format!("{error:?}");
        assert!(error.to_string().contains(expected), "{error:?}");
        assert!(!shown.contains("hush") && !shown.contains(KEY), "{shown}");
    }
    container.get("a").await.unwrap();
    assert_eq!(*storage.requests.lock().unwrap(), [(format!("{URL}/a?sig=old"), String::new())]);
}

#[tokio::test]
async fn replaced_credentials_are_not_shown() {
    let storage = Arc::new(Storage { refuses_all: true, ..Storage::default() });
    let container = storage.container(by_key("https://account.example"), Duration::ZERO);
    for (access, ..) in all_kinds() {
        container.replace_credentials(access).unwrap();
        let error = write(&container).await.unwrap_err();
        let shown = format!("{container:?} {container:#?} {error} {error:?}");
        for secret in [KEY, "sig=", "first", "second"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }
}

/// The advice is that for the credentials which the request had.
#[tokio::test]
async fn a_refusal_advises_for_the_replaced_credentials() {
    let storage = Arc::new(Storage { refuses_all: true, ..Storage::default() });
    let container = storage.container(by_token("first"), Duration::ZERO);
    for (access, advice) in [
        (by_key("https://account.example"), "the account key is wrong"),
        (Access::sas_url(format!("{URL}?sig=x")), "the SAS has expired"),
        (by_token("second"), "the token was not accepted"),
    ] {
        container.replace_credentials(access).unwrap();
        let message = write(&container).await.unwrap_err().to_string();
        assert!(message.contains(advice), "{message}");
    }
}
