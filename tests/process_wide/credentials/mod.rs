//! All kinds of credentials against Azurite over https, with all possible logging: they open a container, and no secret
//! leaks.

mod keys;
mod tokens;

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use azure_core::base64::{encode, encode_url_safe};
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::headers::AUTHORIZATION;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{ClientOptions, Context, Request, Transport};
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
use eventhubs_checkpoint::internal::blob::limit_request;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use serde_json::json;
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::net::TcpListener;

use crate::sas::{FUTURE, SAS_VERSION, account_sas, fresh_name, signed};
use crate::support::azurite::{self, ACCOUNT, ACCOUNT_KEY, Azurite};

/// Everything that is logged in this process.
static LOGS: LazyLock<Logs> = LazyLock::new(|| {
    let logs = Logs::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_ansi(false)
        .with_writer({
            let logs = logs.clone();
            move || logs.clone()
        })
        .init();
    logs
});

#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logs {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// An Azurite that accepts tokens, and a client that trusts its certificate.
struct Service {
    azurite: Azurite,
    client: reqwest::Client,
    _certificate: TempDir,
}

/// Not shared among the tests: each has its own runtime, and connections belong to the runtime that opened them.
async fn start() -> Service {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let azurite = Azurite::start_with(&["--oauth", "basic", "--cert", certificate, "--key", key]).await.unwrap();
    let trusted = reqwest::Certificate::from_pem(certified.cert.pem().as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([trusted]).build().unwrap();
    Service { azurite, client, _certificate: folder }
}

impl Service {
    fn endpoint(&self) -> &str {
        self.azurite.endpoint()
    }

    /// Returns a container whose outgoing requests `spy` records.
    fn container(&self, access: Access, spy: &Arc<Spy>) -> AzureContainer {
        let options = ClientOptions {
            transport: Some(Transport::new(Arc::new(self.client.clone()))),
            per_try_policies: vec![spy.clone()],
            ..ClientOptions::default()
        };
        AzureContainer::builder(access).with_client_options(options).build().unwrap()
    }

    fn by_token(&self, container: &str, token: &str) -> Access {
        Access::token(format!("{}/{container}", self.endpoint()), Arc::new(Issuer(token.to_owned())))
    }
}

/// Records the authorization headers.
#[derive(Debug, Default)]
struct Spy(Mutex<Vec<String>>);

impl Spy {
    /// Returns what follows the kind and the account.
    fn secrets(&self) -> Vec<String> {
        let headers = self.0.lock().unwrap();
        headers.iter().filter_map(|header| header.rsplit([' ', ':']).next()).map(str::to_owned).collect()
    }
}

#[async_trait::async_trait]
#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
impl Policy for Spy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        if let Some(header) = request.headers().get_optional_str(&AUTHORIZATION) {
            self.0.lock().unwrap().push(header.to_owned());
        }
        next[0].send(ctx, request, &next[1..]).await
    }
}

#[derive(Debug)]
struct Issuer(String);

#[async_trait::async_trait]
impl TokenCredential for Issuer {
    async fn get_token(&self, scopes: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://storage.azure.com/.default"]);
        Ok(AccessToken::new(self.0.clone(), SystemWallClock.now() + Duration::from_secs(3600)))
    }
}

/// A token like one of Entra ID, except for the signature, which Azurite does not check.
fn token(audience: &str, lifetime: i64) -> String {
    let now = SystemWallClock.now().unix_timestamp();
    let claims = json!({
        "aud": audience, "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "iat": now - 60, "nbf": now - 60, "exp": now + lifetime,
    });
    let parts = [json!({"typ": "JWT", "alg": "RS256"}).to_string(), claims.to_string(), "hush-hush".to_owned()];
    parts.map(encode_url_safe).join(".")
}

const STORAGE: &str = "https://storage.azure.com";

async fn assert_usable(container: &AzureContainer) {
    let metadata = Metadata::from([("ownerid".to_owned(), "me".to_owned())]);
    let name = "ns/hub/$Default/ownership/0";
    container.create_container().await.unwrap();
    let created = container.write(name, &metadata, &Condition::Create).await.unwrap();
    let updated = container.write(name, &metadata, &Condition::IfMatch(created.etag)).await.unwrap();
    assert_eq!(container.get(name).await.unwrap().etag, updated.etag);
    assert_eq!(container.list("ns/").await.unwrap().blobs[0].metadata, metadata);
    container.delete(name, &updated.etag).await.unwrap();
}

#[tokio::test]
async fn only_a_valid_token_opens_a_container() {
    let service = start().await;
    let name = fresh_name();
    let spy = Arc::new(Spy::default());
    let good = token(STORAGE, 3600);
    assert_usable(&service.container(service.by_token(&name, &good), &spy)).await;
    assert!(spy.0.lock().unwrap().iter().all(|header| *header == format!("Bearer {good}")));
    for bad in [token("https://vault.azure.net", 3600), token(STORAGE, -30), "hush".to_owned()] {
        let error = service.container(service.by_token(&name, &bad), &spy).get("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
        assert!(error.to_string().contains("the token was not accepted"), "{error}");
    }
}

/// Returns everything that an error shows.
fn all_of(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(format!("{error} {error:?} {error:#?}"), |text, cause| format!("{text} {cause} {cause:?}"))
}

/// Returns the addresses of a service that closes every connection in the middle of the response, of one that does not
/// exist, and of one that never responds.
async fn failing_endpoints() -> [String; 3] {
    let broken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = |listener: &TcpListener| format!("http://{}/{ACCOUNT}", listener.local_addr().unwrap());
    let addresses = [address(&broken), format!("http://127.0.0.1:1/{ACCOUNT}"), address(&silent)];
    tokio::spawn(async move {
        loop {
            let (stream, _) = broken.accept().await.unwrap();
            stream.readable().await.unwrap();
            stream.try_write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").unwrap();
        }
    });
    tokio::spawn(async move {
        let _kept = silent;
        std::future::pending::<()>().await;
    });
    addresses
}

fn assert_free_of(secrets: &[String], what: &str, text: &str) {
    for secret in secrets {
        assert!(!secret.is_empty());
        let found = text.find(secret.as_str());
        let around = found.map(|at| &text[at.saturating_sub(300)..(at + 100).min(text.len())]);
        assert!(found.is_none(), "{secret} in {what}: ...{around:?}...");
    }
}

/// Returns the signature of a SAS as the query encodes it and decoded.
fn signatures(query: &str) -> [String; 2] {
    let encoded = query.split_once("sig=").unwrap().1;
    [encoded.to_owned(), encoded.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=")]
}

/// Returns what used containers show of themselves.
async fn shown_in_use(service: &Service, accesses: Vec<Access>, spy: &Arc<Spy>) -> Vec<String> {
    let mut shown = Vec::new();
    for access in accesses {
        let container = service.container(access.clone(), spy);
        assert_usable(&container).await;
        shown.push(format!("{access:?} {container:#?} {:?}", AzureContainer::builder(access.clone())));
    }
    shown
}

/// Returns the error of a request, which is dropped after this time if the service does not respond.
async fn soon<T: std::fmt::Debug>(request: impl Future<Output = Result<T>>) -> Error {
    limit_request(Duration::from_millis(300), "test", request).await.unwrap_err()
}

async fn shown_in_errors(container: &AzureContainer) -> Vec<String> {
    let errors = [
        soon(container.overwrite("a", &Metadata::new())).await,
        soon(container.create_container()).await,
        soon(container.remove("a")).await,
    ];
    errors.iter().map(all_of).collect()
}

async fn shown_without_answer(accesses: Vec<Access>, spy: &Arc<Spy>) -> Vec<String> {
    let mut shown = Vec::new();
    for access in accesses {
        let options = ClientOptions { per_try_policies: vec![spy.clone()], ..ClientOptions::default() };
        let container = AzureContainer::builder(access).with_client_options(options).build().unwrap();
        shown.extend(shown_in_errors(&container).await);
        shown.push(all_of(&soon(container.list("p")).await));
    }
    shown
}

#[tokio::test]
async fn no_secret_is_in_logs_errors_and_debug() {
    let logs = &*LOGS;
    let service = start().await;
    let (name, spy, endpoint) = (fresh_name(), Arc::new(Spy::default()), service.endpoint());
    let (sas, narrow, token) = (account_sas("rcwdl", FUTURE), container_sas(&name), token(STORAGE, 3600));

    let used = vec![
        Access::account_key(endpoint, ACCOUNT, ACCOUNT_KEY, &name),
        Access::connection_string(service.azurite.connection_string(), &name),
        Access::account_sas_url(format!("{endpoint}?{sas}"), &name),
        service.by_token(&name, &token),
    ];
    let mut shown = shown_in_use(&service, used, &spy).await;
    for refused in [
        Access::account_key(endpoint, ACCOUNT, encode("hush-hush"), &name),
        Access::sas_url(format!("{endpoint}/{name}?{narrow}")),
        service.by_token(&name, &self::token(STORAGE, -30)),
    ] {
        shown.extend(shown_in_errors(&service.container(refused, &spy)).await);
    }
    for endpoint in failing_endpoints().await {
        let by_key = Access::account_key(&endpoint, ACCOUNT, ACCOUNT_KEY, &name);
        let by_sas = Access::account_sas_url(format!("{endpoint}?{sas}"), &name);
        shown.extend(shown_without_answer(vec![by_key, by_sas], &spy).await);
    }

    let logs = logs.text();
    for expected in ["==> Request", "<== Failed response", "which will be retried", "hyper", &name] {
        assert!(logs.contains(expected), "not everything was logged: {expected} is missing");
    }
    let authorizations = spy.secrets();
    assert!(authorizations.len() > 20);
    let mut secrets = vec![ACCOUNT_KEY.to_owned(), token, "hush-hush".to_owned(), encode("hush-hush")];
    secrets.extend([signatures(&sas), signatures(&narrow)].into_iter().flatten().chain(authorizations));
    assert_free_of(&secrets, "errors and Debug", &shown.join("\n"));
    assert_free_of(&secrets, "the logs", &logs);
}

/// Permits only reading.
fn container_sas(container: &str) -> String {
    let text = format!("r\n\n{FUTURE}\n/blob/{ACCOUNT}/{container}\n\n\n\n{SAS_VERSION}\nc\n\n\n\n\n\n\n");
    signed(&text, &format!("sv={SAS_VERSION}&sr=c&sp=r&se={FUTURE}"))
}

#[derive(Debug)]
struct WrongClock(time::Duration);

impl WallClock for WrongClock {
    fn now(&self) -> OffsetDateTime {
        SystemWallClock.now() + self.0
    }
}

/// Azurite accepts any date, so this shows that a wrong clock does no harm; the unit tests of the signature show that a
/// rejection is retried with the right time.
#[tokio::test]
async fn a_clock_an_hour_off_does_no_harm() {
    let azurite = azurite::shared().await.unwrap();
    for hours in [-1, 1] {
        let access = Access::connection_string(azurite.connection_string(), fresh_name());
        let clock = Arc::new(WrongClock(time::Duration::hours(hours)));
        assert_usable(&AzureContainer::builder(access).with_wall_clock(clock).build().unwrap()).await;
    }
}
