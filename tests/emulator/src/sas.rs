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

use super::token_check::{BadToken, Verified};

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

impl SasKey {
    /// Checks that the token was signed with this key. It may have expired.
    pub(super) fn verify(&self, token: &str) -> Result<Verified, BadToken> {
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

        let expiry = expiry.parse().map_err(|_| BadToken::Malformed)?;
        let expires_at = OffsetDateTime::from_unix_timestamp(expiry).map_err(|_| BadToken::Malformed)?;
        let resource = percent_decode_str(resource).decode_utf8_lossy().into_owned();
        Ok(Verified { expires_at, resource: Some(resource) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    fn key() -> SasKey {
        SasKey { name: "root key".into(), secret: "c2VjcmV0".into() }
    }

    /// Signed with Python's `hmac` and `hashlib`, expiring at 2026-01-02 04:04:05.
    const TOKEN: &str = concat!(
        "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fhub",
        "&sig=yG%2FkGKyolNjH52ikIo4aikUJ0rC4isRD8p3L99CQ28U%3D&se=1767326645&skn=root%20key"
    );

    #[test]
    fn a_valid_token_names_its_resource_and_expiry() {
        let expires_at = datetime!(2026-01-02 04:04:05 UTC);
        assert_eq!(key().verify(TOKEN), Ok(Verified { expires_at, resource: Some("sb://localhost/hub".into()) }));
    }

    #[test]
    fn other_keys_and_names_are_rejected() {
        let other_secret = SasKey { secret: "b3RoZXI=".into(), ..key() };
        assert_eq!(other_secret.verify(TOKEN), Err(BadToken::WrongSignature));
        let other_name = SasKey { name: "other".into(), ..key() };
        assert_eq!(other_name.verify(TOKEN), Err(BadToken::UnknownKeyName));
    }

    #[test]
    fn changed_token_is_rejected() {
        for changed in [TOKEN.replace("Fhub", "Fhub2"), TOKEN.replace("se=1767326645", "se=1867326645")] {
            assert_eq!(key().verify(&changed), Err(BadToken::WrongSignature), "{changed}");
        }
    }

    #[test]
    fn malformed_token_is_rejected() {
        for malformed in ["", "Bearer abc", "SharedAccessSignature sr=a&se=1", "SharedAccessSignature "] {
            assert_eq!(key().verify(malformed), Err(BadToken::Malformed), "{malformed}");
        }
        let not_base64 = TOKEN.replace("yG%2F", "!!!");
        assert_eq!(key().verify(&not_base64), Err(BadToken::Malformed));
    }
}
