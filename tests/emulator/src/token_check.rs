//! The result of checking a token.

use std::fmt;

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

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

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn an_expired_token_is_rejected_with_its_expiry() {
        let text = BadToken::Expired { at: datetime!(2026-01-02 03:04:05 UTC) }.to_string();
        assert_eq!(text, "ExpiredToken: The token is expired. Expiration time: '2026-01-02 03:04:05Z'.");
    }
}
