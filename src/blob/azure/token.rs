//! Tokens of Entra ID: one is kept for all requests and replaced while it is still valid.
//!
//! The policy of `azure_core` asks for a new token inside the request that finds the old one near its end, and all
//! other requests wait for that. The credentials of `azure_identity` repeat their requests for a minute and more, so a
//! deadline cancels each such attempt before it can fail or succeed. Here a task of its own asks, which no request
//! cancels, and requests use the token in hand for as long as it is valid.
//!
//! # Time
//!
//! The expiry of a token is wall time. It is compared with the local clock once, when the token comes; from then on its
//! age is counted as leases count theirs, suspension included. So a clock that is set meanwhile changes nothing. Where
//! the local clock was wrong: a credential that computes the expiry from the local clock is as wrong as the comparison,
//! and nothing is lost. A credential that passes on the issuer's time (managed identities) makes the token look
//! older or younger than it is: one that looks expired is used nevertheless and replaced often; one that is used too
//! long is refused by the storage with 401, and dropped.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use azure_core::Error;
use azure_core::credentials::{AccessToken, TokenCredential};
use azure_core::error::ErrorKind;
use azure_core::http::headers::AUTHORIZATION;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request, StatusCode};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::errors::{is_temporary, no_refresh};
use super::refresh::{Failure, Refreshes, Step, Token};
use crate::clock::{LeaseClock, SystemLeaseClock, WallClock};
use crate::lock::lock;
use crate::telemetry;

/// What a token for Azure Storage has to be issued for, in every Azure cloud.
const STORAGE_SCOPE: &str = "https://storage.azure.com/.default";

/// How long one refresh may take. About as long as the credentials of `azure_identity` repeat their requests (60 s,
/// managed identities 72 s), so that a slow issuer succeeds. A hung one is given up five times in the five minutes that
/// a token in use has left.
const REFRESH_LIMIT: Duration = Duration::from_secs(60);

/// How often a running refresh reports, and how often a request that waits for it looks.
const PULSE: Duration = Duration::from_millis(500);

/// The token of a container, its clones and the [`isolated`](crate::blob::BlobContainer::with_new_connections) ones made from it.
pub(super) struct TokenSource {
    credential: Arc<dyn TokenCredential>,
    wall_clock: Arc<dyn WallClock>,
    clock: SystemLeaseClock,
    refreshes: Mutex<Refreshes>,
    changed: watch::Sender<()>,
}

impl TokenSource {
    pub(super) fn new(credential: Arc<dyn TokenCredential>, wall_clock: Arc<dyn WallClock>) -> Arc<Self> {
        let (clock, refreshes, changed) = (SystemLeaseClock::default(), Mutex::default(), watch::Sender::new(()));
        Arc::new(Self { credential, wall_clock, clock, refreshes, changed })
    }

    /// Returns a valid token. Without one it waits, as long as the caller does; a refusal of the issuer ends the wait.
    pub(super) async fn token(self: &Arc<Self>) -> Result<Arc<Token>, Arc<Error>> {
        let mut changed = self.changed.subscribe();
        loop {
            match self.step() {
                Step::Use(token) => return Ok(token),
                Step::Fail(error) => return Err(error),
                // Also without a change: a pause is over, or a refresh is silent.
                Step::Wait => drop(timeout(PULSE, changed.changed()).await),
            }
        }
    }

    /// Why the last refresh failed, if it did.
    pub(super) fn last_error(&self) -> Option<Arc<Error>> {
        self.lock().last_error().cloned()
    }

    fn step(self: &Arc<Self>) -> Step {
        let now = self.clock.now();
        let (begun, step) = {
            let mut refreshes = self.lock();
            (refreshes.begin(now), refreshes.step(now))
        };
        // Not under the lock: a runtime that ends drops the task at once, which locks again.
        if let Some(number) = begun {
            let refresh = Refresh { source: Arc::clone(self), number, outcome: None };
            tokio::spawn(refresh.run().in_current_span());
        }
        step
    }

    /// Replaces a token that the storage refused.
    fn refused(self: &Arc<Self>, token: &Arc<Token>) {
        self.lock().discard(token);
        self.step();
    }

    fn settle(&self, number: u64, outcome: azure_core::Result<AccessToken>) {
        let now = self.clock.now();
        let outcome = outcome.map(|token| Token::received(token, self.wall_clock.now(), now)).map_err(|error| {
            let is_temporary = is_temporary(&error);
            Failure { error: Arc::new(error), is_temporary }
        });
        let failed = outcome.as_ref().err().cloned();
        let (was_failing, valid_for) = {
            let mut refreshes = self.lock();
            let was_failing = refreshes.last_error().is_some();
            refreshes.settle(number, outcome, now);
            (was_failing, refreshes.valid_for(now))
        };
        self.changed.send_replace(());
        match (failed, valid_for) {
            (Some(failure), Some(valid_for)) => telemetry::token_not_replaced(&no_refresh(&failure.error), valid_for),
            (None, _) if was_failing => telemetry::token_replaced(),
            // Without a token, each request that needs one reports the failure.
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Refreshes> {
        lock(&self.refreshes)
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSource").finish_non_exhaustive()
    }
}

/// A refresh that is running. Dropping it settles it: also when its runtime ends, or the credential panics.
struct Refresh {
    source: Arc<TokenSource>,
    number: u64,
    outcome: Option<azure_core::Result<AccessToken>>,
}

impl Refresh {
    async fn run(mut self) {
        let credential = Arc::clone(&self.source.credential);
        let mut asked = pin!(timeout(REFRESH_LIMIT, credential.get_token(&[STORAGE_SCOPE], None)));
        let outcome = loop {
            tokio::select! {
                outcome = &mut asked => break outcome,
                () = sleep(PULSE) => self.source.lock().seen(self.number, self.source.clock.now()),
            }
        };
        self.outcome = Some(outcome.unwrap_or_else(|_| {
            Err(Error::with_message(
                ErrorKind::Io,
                format!("the token issuer did not respond within {REFRESH_LIMIT:?}"),
            ))
        }));
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        let cut_off = || Err(Error::with_message(ErrorKind::Io, "the request to the token issuer was canceled"));
        let outcome = self.outcome.take().unwrap_or_else(cut_off);
        self.source.settle(self.number, outcome);
    }
}

/// Puts the token that comes with the context on each try of a request, over https only. A token that is answered with
/// 401 is replaced; the response goes to the caller, as with the policy of `azure_core` (challenges are not met by
/// either).
#[derive(Debug)]
pub(super) struct TokenPolicy {
    source: Arc<TokenSource>,
}

impl TokenPolicy {
    pub(super) fn new(source: Arc<TokenSource>) -> Self {
        Self { source }
    }
}

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait::async_trait]
impl Policy for TokenPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        if request.url().scheme() != "https" {
            return Err(Error::with_message(ErrorKind::Other, "a token is sent over https only"));
        }
        let token = ctx.value::<Arc<Token>>().ok_or_else(|| {
            Error::with_message(ErrorKind::Credential, "a policy removed the token from the context of the request")
        })?;
        request.insert_header(AUTHORIZATION, format!("Bearer {}", token.secret.secret()));
        let response = next[0].send(ctx, request, &next[1..]).await?;
        if response.status() == StatusCode::Unauthorized {
            self.source.refused(token);
        }
        Ok(response)
    }
}
