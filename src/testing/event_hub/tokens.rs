//! The tokens that an emulator accepts: shared access signatures, and bearer tokens as of Microsoft Entra ID.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, RwLock};

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::sas::SasKey;
use crate::lock::{lock, read, write};

/// The service's form of an expiry: `2020-06-17 19:35:26Z`.
const EXPIRY: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z");

/// A valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) expires_at: OffsetDateTime,
    /// The URL that the token is for, and the paths below. `None` means all.
    pub(super) resource: Option<String>,
}

/// Why a token is invalid. Contains nothing that helps to forge one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadToken {
    Missing,
    Malformed,
    UnknownKeyName,
    Expired { at: OffsetDateTime },
    WrongSignature,
    WrongResource,
}

/// The text for an expired token is the service's (Azure/azure-sdk-for-js#9601).
impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "MissingToken: the request has no token",
            Self::Malformed => "MalformedToken: the token is not a shared access signature or a bearer token",
            Self::UnknownKeyName => "InvalidSignature: the token names an unknown key",
            Self::WrongSignature => "InvalidSignature: the token has an invalid signature",
            Self::WrongResource => "InvalidAudience: the token is for another resource",
            Self::Expired { at } => {
                let at = at.format(EXPIRY).map_err(|_| fmt::Error)?;
                return write!(f, "ExpiredToken: The token is expired. Expiration time: '{at}'.");
            }
        })
    }
}

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
        let (short, long) = (tokens.issue(NOW), tokens.issue(NOW + time::Duration::HOUR));
        assert_ne!(short, long);
        assert_eq!(tokens.check(&short, NOW), Err(BadToken::Expired { at: NOW }));
        let verified = Verified { expires_at: NOW + time::Duration::HOUR, resource: None };
        assert_eq!(tokens.check(&long, NOW), Ok(verified));
        assert_eq!(tokens.check("entra-token-2", NOW), Err(BadToken::Malformed));
    }

    #[test]
    fn an_expired_token_is_rejected_in_the_words_of_the_service() {
        let text = BadToken::Expired { at: NOW }.to_string();
        assert_eq!(text, "ExpiredToken: The token is expired. Expiration time: '2026-01-02 03:04:05Z'.");
    }

    #[test]
    fn debug_shows_no_token() {
        let tokens = tokens();
        let token = tokens.issue(NOW);
        assert!(!format!("{tokens:?}").contains(&token));
    }
}
