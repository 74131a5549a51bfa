//! How clients authenticate: connection strings that can be replaced while clients use them, and credentials whose
//! tokens the official client renews in time.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::Error as AzureError;
use azure_core::credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind as AzureErrorKind;
use time::OffsetDateTime;
use tokio::time::timeout;

use super::sdk::HubConnectionString;
use crate::clock::{SystemWallClock, WallClock};
use crate::error::{Error, Result};
use crate::telemetry;
use crate::util::lock;

/// How clients authenticate.
#[derive(Clone)]
pub(super) enum HubAccess {
    ConnectionString(ReplaceableConnectionString),
    Token(Arc<RenewableCredential>),
}

impl HubAccess {
    pub(super) fn from_credential(credential: Arc<dyn TokenCredential>) -> Self {
        Self::Token(RenewableCredential::new(credential))
    }

    /// Returns this namespace, or without one the namespace that the connection string names.
    pub(super) fn resolve_namespace(&self, given: Option<&str>) -> Result<String> {
        match (given, self) {
            (None, Self::ConnectionString(connection_string)) => {
                Ok(connection_string.parse_current()?.namespace().to_owned())
            }
            _ => Ok(given.unwrap_or_default().to_owned()),
        }
    }
}

/// A connection string that can be replaced while an [`EventHubSource`](crate::EventHubSource) and an
/// [`EventHubDeadLetterSink`](crate::EventHubDeadLetterSink) use it, for the rotation of a key.
///
/// Keep a clone, and call [`replace`](Self::replace) before the old key ends. All clones share the string.
///
/// ```no_run
/// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
/// use eventhubs_checkpoint::eventhubs::ReplaceableConnectionString;
///
/// # async fn example(first: String, second: String) -> Result<(), Box<dyn std::error::Error>> {
/// let group = ConsumerGroup::from_connection_string(&first, ConsumerGroup::DEFAULT_NAME)?;
/// let connection_string = ReplaceableConnectionString::new(first);
/// let source = EventHubSource::from_connection_string(&group, connection_string.clone()).connect().await?;
/// // Later, in a task of the application:
/// connection_string.replace(second)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReplaceableConnectionString {
    current: Arc<Mutex<Versioned>>,
}

#[derive(Clone)]
struct Versioned {
    secret: Secret,
    version: u64,
}

impl ReplaceableConnectionString {
    /// Takes the first connection string. It is checked when a source or sink connects.
    pub fn new(connection_string: impl Into<String>) -> Self {
        Self { current: Arc::new(Mutex::new(Versioned { secret: Secret::new(connection_string.into()), version: 0 })) }
    }

    /// Replaces the connection string. Later clients use the new one, and the next request for properties, link or dead
    /// letter opens such a client. A link that is busy stays with its client, and is reopened after the last delivered
    /// event when the event hub rejects the old key, so no event is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string is invalid, or names another namespace
    /// or event hub than the current one. The current one stays in use.
    pub fn replace(&self, connection_string: impl Into<String>) -> Result<()> {
        let secret = Secret::new(connection_string.into());
        let mut current = lock(&self.current);
        check_same_hub(&HubConnectionString::parse(&current.secret)?, &HubConnectionString::parse(&secret)?)?;
        *current = Versioned { secret, version: current.version + 1 };
        Ok(())
    }

    pub(super) fn parse_current(&self) -> Result<HubConnectionString> {
        HubConnectionString::parse(&lock(&self.current).secret)
    }

    /// Returns how many times it was replaced.
    pub(super) fn replacement_count(&self) -> u64 {
        lock(&self.current).version
    }
}

impl From<String> for ReplaceableConnectionString {
    fn from(connection_string: String) -> Self {
        Self::new(connection_string)
    }
}

impl From<&String> for ReplaceableConnectionString {
    fn from(connection_string: &String) -> Self {
        Self::new(connection_string)
    }
}

impl From<&str> for ReplaceableConnectionString {
    fn from(connection_string: &str) -> Self {
        Self::new(connection_string)
    }
}

/// Omits the connection string, which holds a key.
impl fmt::Debug for ReplaceableConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplaceableConnectionString")
            .field("version", &self.replacement_count())
            .finish_non_exhaustive()
    }
}

fn check_same_hub(current: &HubConnectionString, new: &HubConnectionString) -> Result<()> {
    for (what, current, new) in [
        ("namespace", Some(current.namespace()), Some(new.namespace())),
        ("event hub", current.event_hub(), new.event_hub()),
    ] {
        let (Some(current), Some(new)) = (current, new) else { continue };
        if !current.eq_ignore_ascii_case(new) {
            return Err(Error::config(format!(
                "the new connection string names {what} {new:?}, but the current one names {current:?}: pass a \
                 connection string of the same {what}"
            )));
        }
    }
    Ok(())
}

/// The official client asks for the next token this long before the reported expiry, give or take 5 s:
/// `TOKEN_REFRESH_BIAS` in `common/authorizer.rs` of `azure_messaging_eventhubs` 0.16.
const CLIENT_ASKS_BEFORE: Duration = Duration::from_secs(6 * 60);

/// When the client shall ask, before the true expiry. The credentials of `azure_identity` return the same token until
/// five minutes before its expiry: `should_refresh` in `cache.rs` of 1.1.0-beta.1.
const ASK_BEFORE: Duration = Duration::from_secs(4 * 60);

/// When the client shall ask again if the credential has no younger token yet. It waits as long after an error.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The timeout of one request for a token. About as long as the credentials of `azure_identity` retry.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A credential whose tokens the official client renews in time. Wraps the credential of a `ConsumerClient` or
/// `ProducerClient` that runs for longer than a token is valid.
///
/// Version 0.16 of the official client asks for the next token six minutes before the current one expires. The
/// credentials of `azure_identity` return the current token until five minutes before. The client then considers the
/// token not renewable and never asks again, so the event hub detaches its links with `amqp:unauthorized-access` when
/// the token expires, after 60 to 90 minutes. This wrapper reports an expiry two minutes later than the true one, so
/// that the client asks four minutes before the true one. If the client then gets the same token, because an identity
/// service has a cache of its own, it asks again every 30 s.
///
/// Only the time of that request changes. The wrapper returns the tokens of the inner credential unchanged, and the
/// event hub reads their expiry from the tokens themselves. If the inner credential fails, so does the request, and the
/// client asks again after 30 s. A request that takes longer than 60 s fails. Of several failures in a row, only the
/// first is logged.
///
/// Tokens must be valid for more than a minute when the inner credential returns them.
///
/// [`EventHubSource`](crate::EventHubSource) and [`EventHubDeadLetterSink`](crate::EventHubDeadLetterSink) wrap their
/// credential themselves. Use this type for the clients that you open, such as the client of the official
/// `EventProcessor`:
///
/// ```no_run
/// # use std::sync::Arc;
/// # use azure_core::credentials::TokenCredential;
/// use azure_messaging_eventhubs::{ConsumerClient, EventProcessor, ProducerClient};
/// use eventhubs_checkpoint::eventhubs::RenewableCredential;
/// # use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
///
/// # async fn example(
/// #     credential: Arc<dyn TokenCredential>,
/// #     store: Arc<BlobCheckpointStore>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let credential = RenewableCredential::new(credential);
/// let namespace = "example.servicebus.windows.net";
/// let consumer = ConsumerClient::builder().open(namespace, "orders".into(), credential.clone()).await?;
/// let processor = EventProcessor::builder().build(consumer, store).await?;
/// let producer = ProducerClient::builder().open(namespace, "invoices", credential).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RenewableCredential {
    inner: Arc<dyn TokenCredential>,
    clock: Arc<dyn WallClock>,
    /// The last request failed.
    failing: AtomicBool,
}

impl RenewableCredential {
    /// Wraps a credential. The result can be shared by any number of clients.
    #[must_use]
    pub fn new(inner: Arc<dyn TokenCredential>) -> Arc<Self> {
        Self::with_clock(inner, Arc::new(SystemWallClock))
    }

    fn with_clock(inner: Arc<dyn TokenCredential>, clock: Arc<dyn WallClock>) -> Arc<Self> {
        Arc::new(Self { inner, clock, failing: AtomicBool::new(false) })
    }

    /// Logs when the inner credential starts to fail, and when it works again. The client asks for each path.
    fn log_change(&self, outcome: &azure_core::Result<AccessToken>) {
        let was_failing = self.failing.swap(outcome.is_err(), Ordering::Relaxed);
        match outcome {
            Err(error) if !was_failing => telemetry::hub_token_not_renewed(error),
            Ok(_) if was_failing => telemetry::hub_token_renewed(),
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl TokenCredential for RenewableCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let got = timeout(TOKEN_TIMEOUT, self.inner.get_token(scopes, options)).await.unwrap_or_else(|elapsed| {
            Err(AzureError::with_error(
                AzureErrorKind::Credential,
                elapsed,
                format!("the credential returned no token within {TOKEN_TIMEOUT:?}"),
            ))
        });
        self.log_change(&got);
        let token = got?;
        Ok(AccessToken { expires_on: expiry_to_report(token.expires_on, self.clock.now()), ..token })
    }
}

/// Returns the expiry to report for a token that expires at `expires_on`.
///
/// It is always later than the expiry of every path that the client renews at this time, which is at most
/// [`CLIENT_ASKS_BEFORE`] and 5 s away. The client would never again renew a path whose expiry does not advance.
fn expiry_to_report(expires_on: OffsetDateTime, now: OffsetDateTime) -> OffsetDateTime {
    (expires_on - ASK_BEFORE).max(now + ASK_AGAIN) + CLIENT_ASKS_BEFORE
}

#[cfg(test)]
mod tests {
    use super::*;

    mod connection_strings {
        use super::*;
        use crate::error::ErrorKind;

        const FIRST: &str =
            "Endpoint=sb://ns.example.net/;SharedAccessKeyName=n;SharedAccessKey=first;EntityPath=orders";

        #[test]
        fn only_a_key_of_the_same_event_hub_is_accepted() {
            for (new, rejection) in [
                (FIRST.replace("first", "second"), None),
                (FIRST.replace("ns.example", "NS.example").replace("=orders", "=Orders"), None),
                (FIRST.replace(";EntityPath=orders", ""), None),
                (FIRST.replace("ns.example", "other.example"), Some("namespace \"other.example.net\"")),
                (FIRST.replace("=orders", "=payments"), Some("event hub \"payments\"")),
                ("second".to_owned(), Some("invalid connection string")),
            ] {
                let connection_string = ReplaceableConnectionString::from(FIRST);
                let shared = connection_string.clone();
                let replaced = connection_string.replace(new.as_str());
                let expected = if rejection.is_some() { FIRST } else { &new };
                let current = lock(&shared.current).clone();
                assert_eq!(
                    (current.secret.secret(), current.version),
                    (expected, u64::from(rejection.is_none())),
                    "{new}"
                );
                let Some(rejection) = rejection else { continue };
                let error = replaced.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Config);
                assert!(error.to_string().contains(rejection), "{error}");
            }
        }

        #[test]
        fn the_key_is_not_shown() {
            let connection_string = ReplaceableConnectionString::from(FIRST);
            let error = connection_string.replace("SharedAccessKey=second").unwrap_err();
            for shown in [format!("{connection_string:?}"), format!("{error} {error:?}")] {
                assert!(!shown.contains("first") && !shown.contains("second"), "{shown}");
            }
        }
    }

    mod tokens {
        use std::collections::BTreeMap;

        use tokio::time::{Instant, sleep};

        use super::*;

        const START: OffsetDateTime = time::macros::datetime!(2026-01-01 0:00 UTC);

        fn seconds(count: u64) -> Duration {
            Duration::from_secs(count)
        }

        #[test]
        fn the_client_asks_in_the_last_five_minutes() {
            for (valid_for, asks_in) in [
                (24 * 3600, 24 * 3600 - 240),
                (65 * 60, 61 * 60),
                (600, 360),
                (301, 61),
                (270, 30),
                (200, 30),
                (1, 30),
                (0, 30),
            ] {
                let reported = expiry_to_report(START + seconds(valid_for), START);
                assert_eq!(reported - CLIENT_ASKS_BEFORE, START + seconds(asks_in), "valid for {valid_for} s");
            }
        }

        /// Tokio's clock, which tests can pause.
        #[derive(Debug)]
        struct PausedClock(Instant);

        impl PausedClock {
            fn start() -> Arc<Self> {
                Arc::new(Self(Instant::now()))
            }
        }

        impl WallClock for PausedClock {
            fn now(&self) -> OffsetDateTime {
                START + self.0.elapsed()
            }
        }

        /// Caches tokens until `renews_before` their expiry, as the credentials of `azure_identity` do with 300 s.
        #[derive(Debug)]
        struct Caching {
            clock: Arc<PausedClock>,
            lifetime: Duration,
            renews_before: Duration,
            /// The issuer fails in this time after the start.
            outage: (Duration, Duration),
            current: Mutex<Option<OffsetDateTime>>,
        }

        impl Caching {
            fn new(clock: &Arc<PausedClock>, lifetime: Duration, renews_before: Duration) -> Self {
                let clock = Arc::clone(clock);
                let outage = (Duration::ZERO, Duration::ZERO);
                Self { clock, lifetime, renews_before, outage, current: Mutex::default() }
            }
        }

        #[async_trait::async_trait]
        impl TokenCredential for Caching {
            async fn get_token(
                &self,
                _: &[&str],
                _: Option<TokenRequestOptions<'_>>,
            ) -> azure_core::Result<AccessToken> {
                let now = self.clock.now();
                let mut current = lock(&self.current);
                let cached = current.filter(|expires_on| *expires_on > now + self.renews_before);
                if cached.is_none() && (self.outage.0..self.outage.1).contains(&self.clock.0.elapsed()) {
                    return Err(AzureError::with_message(AzureErrorKind::Credential, "the issuer is down"));
                }
                let expires_on = cached.unwrap_or(now + self.lifetime);
                *current = Some(expires_on);
                Ok(AccessToken::new(Secret::new(expires_on.unix_timestamp().to_string()), expires_on))
            }
        }

        /// The paths of a client with their tokens: a model of `Authorizer` of the official client 0.16.
        struct Authorizer {
            credential: Arc<RenewableCredential>,
            clock: Arc<PausedClock>,
            tokens: BTreeMap<usize, AccessToken>,
            puts: usize,
        }

        impl Authorizer {
            fn new(clock: &Arc<PausedClock>, inner: Caching) -> Self {
                let credential = RenewableCredential::with_clock(Arc::new(inner), clock.clone());
                Self { credential, clock: Arc::clone(clock), tokens: BTreeMap::new(), puts: 0 }
            }

            async fn authorize(&mut self, path: usize) {
                let token = self.credential.get_token(&[], None).await.unwrap();
                self.tokens.insert(path, token);
                self.puts += 1;
            }

            /// Sleeps until the next renewal, as `refresh_tokens`, but no longer than until `end`. Returns whether it
            /// slept until the renewal.
            async fn sleep_until_due(&self, bias: Duration, end: OffsetDateTime) -> bool {
                let first = self.tokens.values().map(|token| token.expires_on).min().unwrap();
                // A token is due after this time, not at it.
                let due = (first - bias + Duration::from_millis(1)).min(end);
                sleep((due - self.clock.now()).try_into().unwrap_or_default()).await;
                due < end
            }

            /// Renews the tokens that are due, as `refresh_due_tokens`.
            async fn renew(&mut self, bias: Duration) {
                let now = self.clock.now();
                let due = self.tokens.iter().filter(|(_, token)| token.expires_on < now + bias);
                let due: Vec<_> = due.map(|(path, token)| (*path, token.expires_on)).collect();
                let mut failed = false;
                for (path, before) in due {
                    match self.credential.get_token(&[], None).await {
                        Ok(token) => {
                            assert!(token.expires_on > before, "path {path} would never be renewed again");
                            self.tokens.insert(path, token);
                            self.puts += 1;
                        }
                        Err(_) => failed = true,
                    }
                }
                if failed {
                    sleep(seconds(30)).await;
                }
            }

            fn assert_that_no_token_is_expired(&self) {
                let now = self.clock.now().unix_timestamp();
                for (path, token) in &self.tokens {
                    let expires_on: i64 = token.token.secret().parse().unwrap();
                    assert!(expires_on >= now, "the token of path {path} expired {} s ago", now - expires_on);
                }
            }

            /// Runs for this long, with another path every five minutes. The jitter of the client takes all its values.
            async fn run(&mut self, duration: Duration) {
                let end = self.clock.now() + duration;
                for path in 0.. {
                    self.authorize(path % 12).await;
                    let next_path = (self.clock.now() + seconds(300)).min(end);
                    let jitter = path as u64 % 11;
                    while self.sleep_until_due(seconds(355 + jitter), next_path).await {
                        self.assert_that_no_token_is_expired();
                        self.renew(seconds(355 + jitter)).await;
                    }
                    self.assert_that_no_token_is_expired();
                    if self.clock.now() >= end {
                        break;
                    }
                }
            }
        }

        #[tokio::test(start_paused = true)]
        async fn the_client_renews_every_token_before_it_expires() {
            for (lifetime, hours, most_puts) in
                [(65 * 60, 24, 600), (90 * 60, 24, 560), (24 * 3600, 72, 1000), (600, 12, 1800)]
            {
                let clock = PausedClock::start();
                let mut client = Authorizer::new(&clock, Caching::new(&clock, seconds(lifetime), seconds(300)));
                client.run(seconds(hours * 3600)).await;
                assert!(client.puts < most_puts, "tokens of {lifetime} s were put {} times in {hours} h", client.puts);
            }
        }

        /// A managed identity may return the same token for longer than the cache of `azure_identity`.
        #[tokio::test(start_paused = true)]
        async fn a_token_that_is_returned_again_is_renewed_later() {
            for renews_before in [60, 120, 239, 246] {
                let clock = PausedClock::start();
                let caching = Caching::new(&clock, seconds(65 * 60), seconds(renews_before));
                Authorizer::new(&clock, caching).run(seconds(12 * 3600)).await;
            }
        }

        #[tokio::test(start_paused = true)]
        async fn a_short_outage_of_the_issuer_expires_no_token() {
            let clock = PausedClock::start();
            let outage = (seconds(60 * 60), seconds(64 * 60));
            let caching = Caching { outage, ..Caching::new(&clock, seconds(65 * 60), seconds(300)) };
            let mut client = Authorizer::new(&clock, caching);
            client.authorize(0).await;
            while client.sleep_until_due(seconds(360), START + seconds(130 * 60)).await {
                client.assert_that_no_token_is_expired();
                client.renew(seconds(360)).await;
            }
            client.assert_that_no_token_is_expired();
        }

        #[derive(Debug)]
        struct Hanging;

        #[async_trait::async_trait]
        impl TokenCredential for Hanging {
            async fn get_token(
                &self,
                _: &[&str],
                _: Option<TokenRequestOptions<'_>>,
            ) -> azure_core::Result<AccessToken> {
                std::future::pending().await
            }
        }

        #[tokio::test(start_paused = true)]
        async fn a_credential_that_hangs_fails() {
            let error = RenewableCredential::new(Arc::new(Hanging)).get_token(&[], None).await.unwrap_err();
            assert_eq!(error.kind(), &AzureErrorKind::Credential);
        }
    }
}
