//! The tokens that an emulator accepts: shared access signatures, and bearer tokens as of Microsoft Entra ID.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, RwLock};

use time::OffsetDateTime;

use super::sas::SasKey;
use super::token_check::{BadToken, Verified};
use crate::lock::{lock, read, write};

/// The accepted key, and the bearer tokens that were issued.
pub(super) struct Tokens {
    key: RwLock<SasKey>,
    issued: Mutex<HashMap<String, OffsetDateTime>>,
}

impl Tokens {
    pub(super) fn new(key: SasKey) -> Self {
        Self { key: RwLock::new(key), issued: Mutex::default() }
    }

    pub(super) fn key(&self) -> SasKey {
        read(&self.key).clone()
    }

    pub(super) fn replace_key(&self, key: SasKey) {
        *write(&self.key) = key;
    }

    /// Returns a new bearer token that is accepted until this time.
    pub(super) fn issue(&self, expires_at: OffsetDateTime) -> String {
        let mut issued = lock(&self.issued);
        let token = format!("entra-token-{}", issued.len());
        issued.insert(token.clone(), expires_at);
        token
    }

    /// Checks a token of either kind. Its form decides, not the type that the client names with it.
    pub(super) fn check(&self, token: &str, now: OffsetDateTime) -> Result<Verified, BadToken> {
        let verified = match lock(&self.issued).get(token) {
            Some(expires_at) => Verified { expires_at: *expires_at, resource: None },
            None => read(&self.key).verify(token)?,
        };
        if verified.expires_at <= now {
            return Err(BadToken::Expired { at: verified.expires_at });
        }
        Ok(verified)
    }
}

/// Without the tokens.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("key", &self.key()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

    fn tokens() -> Tokens {
        Tokens::new(SasKey { name: "name".into(), secret: "key".into() })
    }

    #[test]
    fn an_issued_bearer_token_is_valid_until_its_expiry() {
        let tokens = tokens();
        let short = tokens.issue(NOW);
        let long = tokens.issue(NOW + time::Duration::HOUR);
        assert_ne!(short, long);
        assert_eq!(tokens.check(&short, NOW), Err(BadToken::Expired { at: NOW }));
        let verified = Verified { expires_at: NOW + time::Duration::HOUR, resource: None };
        assert_eq!(tokens.check(&long, NOW), Ok(verified));
        assert_eq!(tokens.check("entra-token-2", NOW), Err(BadToken::Malformed));
    }

    #[test]
    fn debug_shows_no_token() {
        let tokens = tokens();
        let token = tokens.issue(NOW);
        assert!(!format!("{tokens:?}").contains(&token));
    }
}
