//! The page, and the policy that forbids it everything else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Complete: it needs no other file.
pub const PAGE: &str = include_str!("page.html");

/// Returns the policy of the page: its own script and style, and this server's data.
pub fn content_security_policy() -> String {
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash_element(PAGE, "script"),
        hash_element(PAGE, "style")
    )
}

/// Returns the source expression of the only inline element with this tag.
fn hash_element(page: &str, tag: &str) -> String {
    let element = page.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(element.map(|(text, _)| text).unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_complete() {
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}>")).count(), 1, "the policy has one hash per tag");
            assert_eq!(PAGE.matches(&format!("</{tag}>")).count(), 1);
        }
        for foreign in [" src=", "@import", "https://", "innerHTML", "style=\"", "onclick", "eval("] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
    }

    /// `echo -n 'a{}' | openssl dgst -sha256 -binary | base64`
    #[test]
    fn the_policy_has_the_hash_of_the_text() {
        assert_eq!(
            hash_element("<style>a{}</style>", "style"),
            "'sha256-X1RutGBrXCt9KkSaXMK7tHftWiRscFHOhxsS8tv8hBk='"
        );
        assert!(content_security_policy().starts_with("default-src 'none'; script-src 'sha256-"));
    }
}
