//! A credential of Microsoft Entra ID for tests.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use azure_core::credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind;
use azure_core::{Error, Result};
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_emulator::EventHubEmulator;

/// A credential that caches its token as `azure_identity` does: it returns the same token until five minutes
/// before its expiry (`should_refresh` in `cache.rs` of `azure_identity` 1.1.0-beta.1).
pub struct CachingCredential {
    hub: EventHubEmulator,
    lifetime: Duration,
    renews_before: Duration,
    cached: Mutex<Option<AccessToken>>,
    failing: AtomicBool,
    asked: AtomicUsize,
    issued: AtomicUsize,
}

impl CachingCredential {
    /// Issues tokens that the emulator accepts for this long.
    pub fn new(hub: &EventHubEmulator, lifetime: Duration) -> Self {
        Self {
            hub: hub.clone(),
            lifetime,
            renews_before: Duration::from_secs(300),
            cached: Mutex::default(),
            failing: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            issued: AtomicUsize::new(0),
        }
    }

    /// Caches each token until this long before its expiry.
    pub fn with_renewal(self, before_expiry: Duration) -> Self {
        Self { renews_before: before_expiry, ..self }
    }

    /// Lets the issuer fail, or work again. Cached tokens are returned nevertheless.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }

    /// Returns how many times a client asked for a token.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns how many different tokens were issued.
    pub fn issued(&self) -> usize {
        self.issued.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl TokenCredential for CachingCredential {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> Result<AccessToken> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let now = SystemWallClock.now();
        let mut cached = self.cached.lock().unwrap();
        if let Some(token) = cached.as_ref().filter(|token| token.expires_on > now + self.renews_before) {
            return Ok(token.clone());
        }
        if self.failing.load(Ordering::Relaxed) {
            return Err(Error::with_message(ErrorKind::Credential, "the issuer is down"));
        }
        self.issued.fetch_add(1, Ordering::Relaxed);
        let expires_on = now + self.lifetime;
        let token = AccessToken::new(Secret::new(self.hub.entra_token(expires_on)), expires_on);
        *cached = Some(token.clone());
        Ok(token)
    }
}

impl fmt::Debug for CachingCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachingCredential").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}
