//! Tokens of Entra ID: all requests use one token, which is replaced while it is still valid.
//!
//! The policy of `azure_core` requests a new token inside the request that finds the current token close to its expiry,
//! and all other requests wait. The credentials of `azure_identity` retry for more than a minute, so the request
//! timeout would cancel each such attempt before it succeeds or fails. Here a background task requests the token, which
//! no request cancels, and requests use the current token as long as it is valid.
//!
//! # Time
//!
//! The expiry of a token is wall-clock time. It is compared with the local clock once, when the token arrives. From
//! then on the age of the token is measured like the age of a lease, including the time that the machine is suspended,
//! so a later change of the clock has no effect. If the local clock is wrong, there are two cases. A credential that
//! computes the expiry from the local clock is as wrong as the comparison, and there is no error. A credential that
//! passes on the issuer's time (managed identities) makes the token appear older or younger than it is: a token that
//! appears expired is used nevertheless and replaced often; a token that is used too long is rejected by the storage
//! with 401, and dropped.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use azure_core::Error;
use azure_core::credentials::{AccessToken, TokenCredential};
use azure_core::error::ErrorKind;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::errors::{is_temporary, refresh_error};
use super::refresh::{RefreshFailure, Refreshes, Step, Token};
use crate::clock::{LeaseClock, SystemLeaseClock, WallClock};
use crate::telemetry;
use crate::util::lock;

/// The scope of tokens for Azure Storage, in every Azure cloud.
const STORAGE_SCOPE: &str = "https://storage.azure.com/.default";

/// The timeout of one refresh. About as long as the credentials of `azure_identity` retry (60 s, managed identities 72
/// s), so that a slow issuer succeeds. A refresh that hangs is abandoned five times in the last five minutes of a
/// token.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a running refresh reports, and how often a request that waits for it checks its state.
const PULSE: Duration = Duration::from_millis(500);

/// The token of a container, of its clones, and of the containers that
/// [`with_new_connections`](crate::blob::BlobContainer::with_new_connections) returned.
pub(super) struct TokenSource {
    credential: Arc<dyn TokenCredential>,
    wall_clock: Arc<dyn WallClock>,
    clock: SystemLeaseClock,
    refreshes: Mutex<Refreshes>,
    changed: watch::Sender<()>,
}

impl TokenSource {
    pub(super) fn new(credential: Arc<dyn TokenCredential>, wall_clock: Arc<dyn WallClock>) -> Arc<Self> {
        Arc::new(Self {
            credential,
            wall_clock,
            clock: SystemLeaseClock::default(),
            refreshes: Mutex::default(),
            changed: watch::Sender::new(()),
        })
    }

    /// Returns a valid token, and waits for one if there is none. A rejection of the issuer ends the wait. The caller
    /// limits the wait.
    pub(super) async fn valid_token(self: &Arc<Self>) -> Result<Arc<Token>, Arc<Error>> {
        let mut changed = self.changed.subscribe();
        loop {
            match self.take_next_step() {
                Step::Use(token) => return Ok(token),
                Step::Fail(error) => return Err(error),
                // Also wakes up without a change, because a pause may be over, or a refresh may have stalled.
                Step::Wait => drop(timeout(PULSE, changed.changed()).await),
            }
        }
    }

    /// Returns the error of the last refresh, if it failed.
    pub(super) fn last_error(&self) -> Option<Arc<Error>> {
        self.lock_refreshes().last_error().cloned()
    }

    fn take_next_step(self: &Arc<Self>) -> Step {
        let now = self.clock.now();
        let mut refreshes = self.lock_refreshes();
        let begun = refreshes.begin_refresh(now);
        let step = refreshes.next_step(now);
        // A runtime that is shutting down drops the task at once, and the drop takes the lock.
        drop(refreshes);
        if let Some(number) = begun {
            tokio::spawn(Refresh { source: Arc::clone(self), number, outcome: None }.run().in_current_span());
        }
        step
    }

    /// Replaces a token that the storage rejected.
    pub(super) fn replace_rejected(self: &Arc<Self>, token: &Arc<Token>) {
        self.lock_refreshes().discard_token(token);
        self.take_next_step();
    }

    fn settle_refresh(&self, number: u64, outcome: azure_core::Result<AccessToken>) {
        let now = self.clock.now();
        let outcome = outcome
            .map(|token| Token::from_response(token, self.wall_clock.now(), now))
            .map_err(|error| RefreshFailure { is_temporary: is_temporary(&error), error: Arc::new(error) });
        let failed = outcome.as_ref().err().cloned();
        let mut refreshes = self.lock_refreshes();
        let was_failing = refreshes.last_error().is_some();
        refreshes.end_refresh(number, outcome, now);
        let valid_for = refreshes.valid_for(now);
        drop(refreshes);
        self.changed.send_replace(());
        match (failed, valid_for) {
            (Some(failure), Some(valid_for)) => {
                telemetry::token_not_replaced(&refresh_error(&failure.error), valid_for);
            }
            (None, _) if was_failing => telemetry::token_replaced(),
            // Without a token, each request that needs one reports the failure.
            _ => {}
        }
    }

    fn lock_refreshes(&self) -> MutexGuard<'_, Refreshes> {
        lock(&self.refreshes)
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSource").finish_non_exhaustive()
    }
}

/// A running refresh. Dropping it settles it, even if its runtime ends or the credential panics.
struct Refresh {
    source: Arc<TokenSource>,
    number: u64,
    outcome: Option<azure_core::Result<AccessToken>>,
}

impl Refresh {
    async fn run(mut self) {
        let mut response = pin!(timeout(REFRESH_TIMEOUT, self.source.credential.get_token(&[STORAGE_SCOPE], None)));
        let outcome = loop {
            tokio::select! {
                outcome = &mut response => break outcome,
                () = sleep(PULSE) => self.source.lock_refreshes().record_running(self.number, self.source.clock.now()),
            }
        };
        self.outcome = Some(outcome.unwrap_or_else(|_| {
            Err(Error::with_message(
                ErrorKind::Io,
                format!("the token issuer did not respond within {REFRESH_TIMEOUT:?}"),
            ))
        }));
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        let outcome = self
            .outcome
            .take()
            .unwrap_or_else(|| Err(Error::with_message(ErrorKind::Io, "the request to the token issuer was canceled")));
        self.source.settle_refresh(self.number, outcome);
    }
}
