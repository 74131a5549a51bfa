//! Account keys and shared access signatures, on a fake storage.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use azure_core::http::headers::{HeaderName, Headers};
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
    dates: Mutex<Vec<OffsetDateTime>>,
    urls: Mutex<Vec<String>>,
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
        self.urls.lock().unwrap().push(request.url().to_string());
        let date = request.headers().get_optional_str(&DATE).map(|date| parse_rfc7231(date).unwrap());
        self.dates.lock().unwrap().extend(date);
        let forged = self.forged.lock().unwrap().pop_front();
        let now = SystemWallClock.now();
        let is_refused = self.refuses_all || date.is_some_and(|date| (date - now).abs() > Duration::minutes(15));
        let mut headers = Headers::new();
        headers.insert("date", to_rfc7231(&forged.unwrap_or(now)));
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
    container.write("a", &Metadata::new(), &Condition::Unconditional).await.map(drop)
}

fn by_key(account_url: &str) -> Access {
    Access::account_key(account_url, "account", KEY, "leases")
}

/// One response with another date must not cause signatures for it, or not for more than one request.
#[tokio::test]
async fn a09_a_forged_date_does_not_stay() {
    for forged in [datetime!(2099-11-20 12:00:00 UTC), datetime!(1999-11-20 12:00:00 UTC)] {
        for url in ["http://storage.internal/account", "https://account.example", "http://127.0.0.1:10000/account"] {
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
async fn a09_over_plain_http_no_other_date_is_signed() {
    let forged = Mutex::new([datetime!(2099-11-20 12:00:00 UTC)].into());
    let storage = Arc::new(Storage { forged, ..Storage::default() });
    let container = storage.container(by_key("http://storage.internal/account"), Duration::ZERO);
    assert_eq!(write(&container).await.unwrap_err().kind(), ErrorKind::Unauthorized);
    assert_eq!(storage.dates(), (1, true));
}

#[tokio::test]
async fn a09_a_wrong_clock_is_corrected_over_https() {
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
async fn a09_a_rejection_names_a_wrong_clock() {
    for (url, refuses_all, requests) in
        [("http://storage.internal/account", false, 1), ("https://account.example", true, 2)]
    {
        for (ahead, expected) in [(-7200, "7200 s behind"), (7200, "7200 s ahead")] {
            let storage = Arc::new(Storage { refuses_all, ..Storage::default() });
            let container = storage.container(by_key(url), Duration::seconds(ahead));
            let message = write(&container).await.unwrap_err().to_string();
            // A second may pass between the two clocks.
            let is_named = [expected.to_owned(), expected.replace("7200", "7199"), expected.replace("7200", "7201")];
            assert!(
                is_named.iter().any(|text| message.contains(text)) && message.contains("set the clock"),
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
fn a10_plain_http_needs_an_emulator() {
    let by_string = |text: &str| Access::connection_string(format!("{text};AccountKey={KEY}"), "leases");
    for access in [
        by_key("http://account.blob.core.windows.net"),
        by_key("http://10.0.0.5:10000"),
        by_string("DefaultEndpointsProtocol=http;AccountName=account"),
        by_string("AccountName=account;BlobEndpoint=http://account.blob.core.windows.net"),
        Access::sas_url("http://account.blob.core.windows.net/leases?sv=1&sig=hush"),
        // Of a blob, by mistake.
        Access::sas_url("http://account.blob.core.windows.net/leases/blob?sv=1&sig=hush"),
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
fn a15_the_account_of_an_emulator_is_no_container() {
    for host in ["azurite:10000", "host.docker.internal:10000", "azurite.example"] {
        let url = format!("http://{host}/devstoreaccount1?sv=1&sig=hush");
        let message = AzureContainer::from_sas_url(url).unwrap_err().to_string();
        assert!(message.contains("does not name a container") && !message.contains("hush"), "{message}");
        let url = format!("http://{host}/devstoreaccount1/leases?sv=1&sig=hush");
        assert!(format!("{:?}", AzureContainer::from_sas_url(url).unwrap()).contains("devstoreaccount1/leases"));
    }
}

#[tokio::test]
async fn a15_a_signature_is_replaced_for_all_clones() {
    let url = "https://account.example/leases";
    for access in [
        Access::sas_url(format!("{url}?sv=1&sig=old")),
        Access::account_sas_url("https://account.example/?sv=1&sig=old", "leases"),
        Access::connection_string("BlobEndpoint=https://account.example;SharedAccessSignature=sv=1&sig=old", "leases"),
    ] {
        let storage = Arc::new(Storage::default());
        let container = storage.container(access, Duration::ZERO);
        let (isolated, kept) = (container.with_new_connections().unwrap(), container.clone());
        write(&container).await.unwrap();
        for (text, signature) in [
            (format!("{url}?sv=2&sig=new"), "sv=2&sig=new"),
            ("https://account.example/?sv=3&sig=new%2F".to_owned(), "sv=3&sig=new%2F"),
            ("?sv=4&sig=newer".to_owned(), "sv=4&sig=newer"),
            ("sv=5&sig=newest".to_owned(), "sv=5&sig=newest"),
        ] {
            kept.replace_sas(&text).unwrap();
            write(&container).await.unwrap();
            isolated.delete("a", &Condition::Unconditional).await.unwrap();
            let expected = format!("{url}/a?{signature}");
            assert_eq!(storage.urls.lock().unwrap().split_off(1), [expected.as_str(); 2]);
        }
    }
}

#[tokio::test]
async fn a15_an_invalid_signature_replaces_nothing() {
    let storage = Arc::new(Storage::default());
    let container = storage.container(Access::sas_url("https://account.example/leases?sig=old"), Duration::ZERO);
    for (text, expected) in [
        ("https://account.example/other?sig=hush", "https://account.example/other"),
        ("https://other.example/leases?sig=hush", "https://other.example/leases"),
        ("http://account.example/leases?sig=hush", "http://account.example/leases"),
        ("https://account.example/leases?sv=hush", "has no signature"),
        ("hush", "has no signature"),
        ("https://[hush", "is not a URL"),
    ] {
        let error = container.replace_sas(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(expected) && !format!("{error:?}").contains("hush"), "{error:?}");
    }
    write(&container).await.unwrap();
    assert_eq!(*storage.urls.lock().unwrap(), ["https://account.example/leases/a?sig=old"]);

    let container = storage.container(by_key("https://account.example"), Duration::ZERO);
    assert!(container.replace_sas("sig=x").unwrap_err().to_string().contains("credentials of another kind"));
    assert!(!format!("{container:?}").contains("hush"));
}
