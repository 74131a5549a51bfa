//! A credential that signs with a key which a test can replace.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::base64;
use azure_core::credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions};
use azure_core::hmac::hmac_sha256;
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_emulator::{DEFAULT_KEY, DEFAULT_KEY_NAME, EventHubEmulator};

/// Returns shared access signatures of an hour for the event hub `hub`. Like a new token of Microsoft Entra ID, a new
/// key affects only later tokens: requests with an earlier token are rejected, and open links stay.
#[derive(Debug)]
pub struct KeyCredential(Mutex<String>);

impl KeyCredential {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(DEFAULT_KEY.to_owned())))
    }

    /// Replaces the key here and in the emulator.
    pub fn replace_key(&self, hub: &EventHubEmulator, key: &str) {
        hub.replace_key(DEFAULT_KEY_NAME, key);
        key.clone_into(&mut self.0.lock().unwrap());
    }
}

#[async_trait::async_trait]
impl TokenCredential for KeyCredential {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let expires_on = SystemWallClock.now() + Duration::from_secs(3600);
        let resource = "amqps%3a%2f%2flocalhost%2fhub";
        let expiry = expires_on.unix_timestamp();
        let key = base64::encode(self.0.lock().unwrap().as_bytes());
        let signature = hmac_sha256(&format!("{resource}\n{expiry}"), &Secret::new(key))?;
        let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        let token = format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={DEFAULT_KEY_NAME}");
        Ok(AccessToken::new(Secret::new(token), expires_on))
    }
}
