//! Shared access signatures: `SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={key name}`.
//!
//! The signature is the Base64 of an HMAC-SHA256 with the key's own text, over the resource as written in the token, a
//! line feed, and the expiry in seconds since 1970. The source of the format is Azure's page on authenticating to Event
//! Hubs with shared access signatures.

use std::collections::HashMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use percent_encoding::percent_decode_str;
use sha2::Sha256;
use time::OffsetDateTime;

/// A shared access key.
#[derive(Clone)]
pub(super) struct SasKey {
    pub(super) name: String,
    pub(super) secret: String,
}

impl fmt::Debug for SasKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SasKey").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a token is invalid. Contains nothing that helps to forge one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadToken {
    Malformed,
    UnknownKeyName,
    Expired,
    WrongSignature,
}

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "MalformedToken: the token is not a shared access signature",
            Self::UnknownKeyName => "InvalidSignature: the token names an unknown key",
            Self::Expired => "ExpiredToken: the token has expired",
            Self::WrongSignature => "InvalidSignature: the token has an invalid signature",
        })
    }
}

impl SasKey {
    /// Checks that the token was signed with this key and has not expired.
    pub(super) fn check(&self, token: &str, now: OffsetDateTime) -> Result<(), BadToken> {
        let fields = token.strip_prefix("SharedAccessSignature ").ok_or(BadToken::Malformed)?;
        let fields: HashMap<_, _> = fields.split('&').filter_map(|field| field.split_once('=')).collect();
        let field = |name| fields.get(name).copied().ok_or(BadToken::Malformed);
        let (resource, signature, expiry, key_name) = (field("sr")?, field("sig")?, field("se")?, field("skn")?);

        if percent_decode_str(key_name).decode_utf8_lossy() != self.name {
            return Err(BadToken::UnknownKeyName);
        }
        let signature = percent_decode_str(signature).decode_utf8_lossy();
        let signature = STANDARD.decode(signature.as_bytes()).map_err(|_| BadToken::Malformed)?;
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()).map_err(|_| BadToken::WrongSignature)?;
        mac.update(format!("{resource}\n{expiry}").as_bytes());
        mac.verify_slice(&signature).map_err(|_| BadToken::WrongSignature)?;

        let expiry: i64 = expiry.parse().map_err(|_| BadToken::Malformed)?;
        if expiry <= now.unix_timestamp() {
            return Err(BadToken::Expired);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

    fn key() -> SasKey {
        SasKey { name: "root key".into(), secret: "c2VjcmV0".into() }
    }

    /// Signed with Python's `hmac` and `hashlib`, expiring at 2026-01-02 04:04:05.
    const TOKEN: &str = concat!(
        "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fhub",
        "&sig=yG%2FkGKyolNjH52ikIo4aikUJ0rC4isRD8p3L99CQ28U%3D&se=1767326645&skn=root%20key"
    );

    #[test]
    fn valid_token_is_accepted() {
        assert_eq!(key().check(TOKEN, NOW), Ok(()));
    }

    #[test]
    fn expired_token_is_rejected() {
        let expiry = datetime!(2026-01-02 04:04:05 UTC);
        assert_eq!(key().check(TOKEN, expiry - time::Duration::SECOND), Ok(()));
        assert_eq!(key().check(TOKEN, expiry), Err(BadToken::Expired));
    }

    #[test]
    fn other_keys_and_names_are_rejected() {
        let other_secret = SasKey { secret: "b3RoZXI=".into(), ..key() };
        assert_eq!(other_secret.check(TOKEN, NOW), Err(BadToken::WrongSignature));
        let other_name = SasKey { name: "other".into(), ..key() };
        assert_eq!(other_name.check(TOKEN, NOW), Err(BadToken::UnknownKeyName));
    }

    #[test]
    fn changed_token_is_rejected() {
        for changed in [TOKEN.replace("Fhub", "Fhub2"), TOKEN.replace("se=1767326645", "se=1867326645")] {
            assert_eq!(key().check(&changed, NOW), Err(BadToken::WrongSignature), "{changed}");
        }
    }

    #[test]
    fn malformed_token_is_rejected() {
        for malformed in ["", "Bearer abc", "SharedAccessSignature sr=a&se=1", "SharedAccessSignature "] {
            assert_eq!(key().check(malformed, NOW), Err(BadToken::Malformed), "{malformed}");
        }
        let not_base64 = TOKEN.replace("yG%2F", "!!!");
        assert_eq!(key().check(&not_base64, NOW), Err(BadToken::Malformed));
    }
}
