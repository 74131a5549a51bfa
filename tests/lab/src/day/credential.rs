//! A credential that caches tokens as those of `azure_identity` do.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::testing::event_hub::EventHubEmulator;
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};

/// `azure_identity` returns a cached token until this long before its expiry (`cache.rs` of version 1.1).
const RENEWED_BEFORE: Duration = Duration::from_secs(300);

/// Issues tokens of the emulator.
#[derive(Debug)]
pub(super) struct CachingCredential {
    hub: EventHubEmulator,
    life: Duration,
    cached: Mutex<Option<AccessToken>>,
    issued: AtomicUsize,
}

impl CachingCredential {
    pub(super) fn new(hub: EventHubEmulator, life: Duration) -> Arc<Self> {
        Arc::new(Self { hub, life, cached: Mutex::default(), issued: AtomicUsize::new(0) })
    }

    /// Returns how many tokens were issued.
    pub(super) fn issued(&self) -> usize {
        self.issued.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl TokenCredential for CachingCredential {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let now = SystemWallClock.now();
        let mut cached = lock(&self.cached);
        if let Some(token) = cached.as_ref().filter(|token| token.expires_on > now + RENEWED_BEFORE) {
            return Ok(token.clone());
        }
        self.issued.fetch_add(1, Ordering::Relaxed);
        let expires_on = now + self.life;
        let token = AccessToken::new(self.hub.entra_token(expires_on), expires_on);
        Ok(cached.insert(token).clone())
    }
}
