//! Tokens, from the credentials of `azure_identity` over a test transport.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::error::ErrorKind as AzureErrorKind;
use azure_core::http::headers::{AUTHORIZATION, Headers};
use azure_core::http::{
    AsyncRawResponse, ClientOptions, Context, HttpClient, Request, StatusCode, Transport,
    policies::{Policy, PolicyResult},
};
use azure_identity::{
    ClientSecretCredential, ClientSecretCredentialOptions, ManagedIdentityCredential, ManagedIdentityCredentialOptions,
};
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::blob::{BlobContainer, Condition, ETag, Metadata};
use eventhubs_checkpoint::internal::blob::limit_request;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, Result};
use futures::future::join_all;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::credentials::WrongClock;

const DEADLINE: Duration = Duration::from_secs(5);
/// Less than azure_core's and azure_identity's five minutes, so that neither reuses a token instead of requesting
/// another.
const LIFETIME: u64 = 240;

/// How an issuer of tokens behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behavior {
    Grants,
    /// It grants, after this time.
    Slow(Duration),
    Hangs,
    Unreachable,
    Status(u16, &'static str),
    /// 429, with a wait that is longer than any timeout.
    AsksToWait,
}

const REFUSAL: Behavior =
    Behavior::Status(401, r#"{"error_codes":[7000215],"error_description":"AADSTS7000215: wrong client secret"}"#);

/// Entra ID and the metadata service of virtual machines in one: each client reads its own fields of the response. Each
/// token has another text.
#[derive(Debug)]
struct Issuer {
    behavior: Mutex<Behavior>,
    requests: AtomicU32,
    under_way: AtomicU32,
    most_at_once: AtomicU32,
}

/// A request in progress, until it ends in any way.
struct UnderWay<'a>(&'a AtomicU32);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Issuer {
    fn new(behavior: Behavior) -> Arc<Self> {
        let count = || AtomicU32::new(0);
        Arc::new(Self { behavior: Mutex::new(behavior), requests: count(), under_way: count(), most_at_once: count() })
    }

    fn set(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    fn granted(number: u32) -> AsyncRawResponse {
        let expires_on = SystemWallClock.now().unix_timestamp() + i64::try_from(LIFETIME).unwrap();
        let body = json!({
            "token_type": "Bearer", "access_token": format!("good-{number}"), "resource": "https://storage.azure.com",
            "expires_in": LIFETIME, "ext_expires_in": LIFETIME, "expires_on": expires_on.to_string(),
        });
        AsyncRawResponse::from_bytes(StatusCode::Ok, Headers::new(), body.to_string())
    }

    fn client_secret(self: &Arc<Self>) -> Arc<dyn TokenCredential> {
        let client_options = self.options();
        let options = ClientSecretCredentialOptions { client_options };
        ClientSecretCredential::new("tenant", "client".to_owned(), Secret::new("hush"), Some(options)).unwrap()
    }

    fn managed_identity(self: &Arc<Self>) -> Arc<dyn TokenCredential> {
        let options = ManagedIdentityCredentialOptions { client_options: self.options(), ..Default::default() };
        ManagedIdentityCredential::new(Some(options)).unwrap()
    }

    fn options(self: &Arc<Self>) -> ClientOptions {
        ClientOptions { transport: Some(Transport::new(self.clone())), ..ClientOptions::default() }
    }
}

#[async_trait::async_trait]
impl HttpClient for Issuer {
    async fn execute_request(&self, _: &Request) -> azure_core::Result<AsyncRawResponse> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(self.under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _under_way = UnderWay(&self.under_way);
        let behavior = *self.behavior.lock().unwrap();
        let mut headers = Headers::new();
        match behavior {
            Behavior::Grants => Ok(Self::granted(number)),
            Behavior::Slow(time) => {
                sleep(time).await;
                Ok(Self::granted(number))
            }
            Behavior::Hangs => std::future::pending().await,
            Behavior::Unreachable => {
                Err(azure_core::Error::with_message(AzureErrorKind::Connection, "no route to host"))
            }
            Behavior::Status(status, body) => Ok(AsyncRawResponse::from_bytes(status.into(), headers, body)),
            Behavior::AsksToWait => {
                headers.insert("retry-after", "86400");
                Ok(AsyncRawResponse::from_bytes(StatusCode::TooManyRequests, headers, "{}"))
            }
        }
    }
}

/// A storage that accepts every token of the issuer except those that it was configured to reject.
#[derive(Debug, Default)]
struct Storage {
    hangs: bool,
    refused: Mutex<Vec<String>>,
    tokens: Mutex<Vec<String>>,
}

impl Storage {
    /// Returns a container on it, with these credentials.
    fn container(self: &Arc<Self>, credential: Arc<dyn TokenCredential>) -> AzureContainer {
        self.container_with_clock(credential, Arc::new(SystemWallClock))
    }

    fn container_with_clock(
        self: &Arc<Self>,
        credential: Arc<dyn TokenCredential>,
        clock: Arc<dyn WallClock>,
    ) -> AzureContainer {
        let transport = Some(Transport::with_policy(self.clone()));
        let options = ClientOptions { transport, ..ClientOptions::default() };
        let access = Access::token("https://account.example/leases", credential);
        AzureContainer::builder(access).with_wall_clock(clock).with_client_options(options).build().unwrap()
    }

    fn tokens(&self) -> Vec<String> {
        self.tokens.lock().unwrap().clone()
    }
}

#[async_trait::async_trait]
#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
impl Policy for Storage {
    async fn send(&self, _: &Context, request: &mut Request, _: &[Arc<dyn Policy>]) -> PolicyResult {
        let authorization = request.headers().get_optional_str(&AUTHORIZATION).unwrap_or_default();
        let token = authorization.strip_prefix("Bearer ").expect("a token").to_owned();
        self.tokens.lock().unwrap().push(token.clone());
        let mut headers = Headers::new();
        headers.insert("date", "Fri, 20 Nov 2026 12:00:00 GMT");
        headers.insert("x-ms-request-id", "1");
        if self.hangs {
            std::future::pending::<()>().await;
        }
        // All requests of one moment get the same response.
        tokio::task::yield_now().await;
        if self.refused.lock().unwrap().contains(&token) {
            headers.insert("x-ms-error-code", "InvalidAuthenticationInfo");
            return Ok(AsyncRawResponse::from_bytes(StatusCode::Unauthorized, headers, ""));
        }
        headers.insert("etag", "\"0x1\"");
        headers.insert("last-modified", "Fri, 20 Nov 2026 12:00:00 GMT");
        Ok(AsyncRawResponse::from_bytes(StatusCode::Created, headers, ""))
    }
}

async fn write(container: &AzureContainer) -> Result<()> {
    let metadata = Metadata::new();
    limit_request(DEADLINE, "write", container.write("a", &metadata, &Condition::Create)).await.map(drop)
}

/// Returns the error, with its causes.
fn all_of(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Writes until it succeeds. Returns for how long it did not.
async fn until_written(container: &AzureContainer) -> Duration {
    let began = Instant::now();
    while write(container).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(300), "no recovery");
        sleep(Duration::from_secs(1)).await;
    }
    began.elapsed()
}

type Credential = fn(&Arc<Issuer>) -> Arc<dyn TokenCredential>;

const CREDENTIALS: [Credential; 2] = [Issuer::client_secret, Issuer::managed_identity];

const TROUBLES: [Behavior; 6] = [
    Behavior::Hangs,
    Behavior::Unreachable,
    Behavior::AsksToWait,
    Behavior::Status(429, "{}"),
    Behavior::Status(503, "<html>try later</html>"),
    Behavior::Slow(Duration::from_secs(600)),
];

#[tokio::test(start_paused = true)]
async fn a_valid_token_is_used_while_none_is_issued() {
    for credential in CREDENTIALS {
        for random_faults in TROUBLES {
            let (issuer, storage) = (Issuer::new(Behavior::Grants), Arc::new(Storage::default()));
            let container = storage.container(credential(&issuer));
            write(&container).await.unwrap();
            let granted = Instant::now();
            issuer.set(random_faults);

            // No failure is visible while the token is valid.
            let lifetime = Duration::from_secs(LIFETIME - 2);
            while granted.elapsed() < lifetime {
                let began = Instant::now();
                let written = join_all((0..8).map(|_| write(&container))).await;
                assert!(
                    written.iter().all(Result::is_ok),
                    "{random_faults:?} after {:?}: {written:?}",
                    granted.elapsed()
                );
                assert!(began.elapsed() < Duration::from_millis(10), "{random_faults:?}: {:?}", began.elapsed());
                sleep(Duration::from_millis(500)).await;
            }
            assert_eq!(issuer.most_at_once.load(Ordering::SeqCst), 1, "{random_faults:?}");
            assert!((2..=60).contains(&issuer.requests()), "{random_faults:?}: {} requests", issuer.requests());

            sleep(Duration::from_secs(4)).await;
            assert_issuer_is_blamed(&container, random_faults).await;
            issuer.set(Behavior::Grants);
            let recovered = until_written(&container).await;
            assert!(recovered < Duration::from_secs(65), "{random_faults:?}: {recovered:?}");
            assert_eq!(issuer.most_at_once.load(Ordering::SeqCst), 1, "{random_faults:?}");
        }
    }
}

/// Without a valid token, requests end within their timeout and name the issuer.
async fn assert_issuer_is_blamed(container: &AzureContainer, random_faults: Behavior) {
    for _ in 0..3 {
        let began = Instant::now();
        let errors = join_all((0..4).map(|_| write(container))).await;
        assert!(began.elapsed() <= DEADLINE, "{random_faults:?}: {:?}", began.elapsed());
        for error in errors.into_iter().map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{random_faults:?}: {error}");
            assert!(error.to_string().contains("token issuer"), "{random_faults:?}: {error}");
            assert!(!error.to_string().contains("account.example"), "{random_faults:?}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_token_the_issuer_is_named() {
    for credential in CREDENTIALS {
        for random_faults in TROUBLES {
            let (issuer, storage) = (Issuer::new(random_faults), Arc::new(Storage::default()));
            let container = storage.container(credential(&issuer));
            assert_issuer_is_blamed(&container, random_faults).await;
            assert_eq!(storage.tokens(), Vec::<String>::new());
            issuer.set(Behavior::Grants);
            until_written(&container).await;
            assert_eq!(issuer.most_at_once.load(Ordering::SeqCst), 1, "{random_faults:?}");
        }
    }
}

/// Nothing was sent, so the start is attempted again, and says what it waits for.
#[tokio::test(start_paused = true)]
async fn a_store_that_starts_names_a_slow_issuer() {
    for (config, waits) in [(StoreConfig::default(), 4 * 4), (StoreConfig::fast_failover(), 4 * 8 / 5)] {
        let (issuer, storage) = (Issuer::new(Behavior::Hangs), Arc::new(Storage::default()));
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let container = storage.container(issuer.client_secret());
        let builder = GroupStore::builder(container, group, OwnerId::new("a").unwrap()).with_config(config);
        let began = Instant::now();
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("the token issuer returned none within"), "{error}");
        assert!(began.elapsed() >= Duration::from_secs(waits), "{:?}", began.elapsed());
        assert_eq!(storage.tokens(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_issuer_is_asked_once() {
    for credential in CREDENTIALS {
        let slow = Behavior::Slow(Duration::from_secs(12));
        let (issuer, storage) = (Issuer::new(slow), Arc::new(Storage::default()));
        let container = storage.container(credential(&issuer));
        assert_issuer_is_blamed(&container, slow).await;
        until_written(&container).await;
        assert_eq!((issuer.requests(), storage.tokens()), (1, vec!["good-1".to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_token_counts_into_the_timeout() {
    for credential in CREDENTIALS {
        let issuer = Issuer::new(Behavior::Slow(Duration::from_secs(3)));
        let storage = Arc::new(Storage { hangs: true, ..Storage::default() });
        let container = storage.container(credential(&issuer));
        let began = Instant::now();
        write(&container).await.unwrap_err();
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(3) && took <= Duration::from_millis(5001), "{took:?}");
        assert_eq!(storage.tokens().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn fifty_requests_without_a_token_request_one() {
    for credential in CREDENTIALS {
        let (issuer, storage) = (Issuer::new(Behavior::Slow(Duration::from_secs(1))), Arc::new(Storage::default()));
        let container = storage.container(credential(&issuer));
        let isolated = container.with_new_connections().unwrap();
        let etag = ETag::new("1");
        let by_isolated = (0..25).map(|_| isolated.delete("a", &etag));
        let (written, deleted) = tokio::join!(join_all((0..25).map(|_| write(&container))), join_all(by_isolated));
        assert!(written.iter().all(Result::is_ok) && deleted.iter().all(Result::is_ok), "{written:?} {deleted:?}");
        assert_eq!((issuer.requests(), storage.tokens().len()), (1, 50));
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_of_the_issuer_is_reported_at_once() {
    let (issuer, storage) = (Issuer::new(REFUSAL), Arc::new(Storage::default()));
    let container = storage.container(issuer.client_secret());
    for _ in 0..20 {
        let began = Instant::now();
        let error = write(&container).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
        assert!(all_of(&error).contains("AADSTS7000215"), "{}", all_of(&error));
        sleep(Duration::from_millis(100)).await;
    }
    assert!(issuer.requests() < 5, "{} requests in two seconds", issuer.requests());
    issuer.set(Behavior::Grants);
    assert!(until_written(&container).await < Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_token_is_replaced_once() {
    let (issuer, storage) = (Issuer::new(Behavior::Grants), Arc::new(Storage::default()));
    let container = storage.container(issuer.client_secret());
    write(&container).await.unwrap();
    storage.refused.lock().unwrap().push("good-1".to_owned());
    let refused = join_all((0..50).map(|_| write(&container))).await;
    assert!(refused.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unauthorized)));
    write(&container).await.unwrap();
    assert_eq!((issuer.requests(), storage.tokens().last().unwrap().as_str()), (2, "good-2"));
}

/// Tokens of a managed identity have the time at which they expire; those of a client secret, how long they are valid.
#[tokio::test(start_paused = true)]
async fn a_wrong_local_clock_makes_no_token_useless() {
    for credential in CREDENTIALS {
        for hours in [-2, 2] {
            let (issuer, storage) = (Issuer::new(Behavior::Grants), Arc::new(Storage::default()));
            let clock = Arc::new(WrongClock(time::Duration::hours(hours)));
            let container = storage.container_with_clock(credential(&issuer), clock);
            write(&container).await.unwrap();
            issuer.set(Behavior::Hangs);
            for _ in 0..LIFETIME - 2 {
                sleep(Duration::from_secs(1)).await;
                write(&container).await.unwrap();
            }
            assert!(issuer.requests() < 60, "{hours}: {} requests", issuer.requests());
        }
    }
}

/// A token request must outlive the runtime on which it began.
#[tokio::test]
async fn a_runtime_that_ends_does_not_affect_others() {
    let (issuer, storage) = (Issuer::new(Behavior::Hangs), Arc::new(Storage::default()));
    let container = storage.container(issuer.client_secret());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let isolated = container.with_new_connections().unwrap();
    let hung = runtime.spawn(async move { isolated.remove("a").await });
    while issuer.requests() == 0 {
        tokio::task::yield_now().await;
    }
    issuer.set(Behavior::Grants);
    runtime.shutdown_background();
    assert!(hung.await.unwrap_err().is_cancelled());
    assert!(until_written(&container).await < Duration::from_secs(60));
}

/// A task on a runtime that is not driven never runs, as on one whose threads are blocked.
#[tokio::test(start_paused = true)]
async fn a_blocked_runtime_delays_no_other() {
    let (issuer, storage) = (Issuer::new(Behavior::Grants), Arc::new(Storage::default()));
    let container = storage.container(issuer.client_secret());
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    {
        let _inside = blocked.enter();
        let mut request = Box::pin(write(&container));
        assert!(futures::poll!(&mut request).is_pending());
    }
    assert_eq!(issuer.requests(), 0);
    let began = Instant::now();
    write(&container).await.unwrap();
    assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
    blocked.shutdown_background();
}

/// Panics the first time.
#[derive(Debug, Default)]
struct Panicking(AtomicU32);

#[async_trait::async_trait]
impl TokenCredential for Panicking {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<azure_core::credentials::TokenRequestOptions<'_>>,
    ) -> azure_core::Result<azure_core::credentials::AccessToken> {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "this panic is part of the test");
        Ok(azure_core::credentials::AccessToken::new("good", SystemWallClock.now() + Duration::from_secs(3600)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_panics_is_used_again() {
    let container = Arc::new(Storage::default()).container(Arc::new(Panicking::default()));
    assert!(until_written(&container).await < Duration::from_secs(10));
}
