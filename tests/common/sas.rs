//! Shared access signatures, made by hand, and names for containers.

use std::hash::{BuildHasher, RandomState};

use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;

use crate::support::azurite::{ACCOUNT, ACCOUNT_KEY};

pub const FUTURE: &str = "2099-01-01T00:00:00Z";
pub const SAS_VERSION: &str = "2021-12-02";

/// Returns a container name that no other test has, not even in another process.
pub fn fresh_name() -> String {
    format!("t{:016x}", RandomState::new().hash_one(()))
}

/// Returns a shared access signature for the blob service of the account, containers and blobs.
///
/// Rules: <https://learn.microsoft.com/rest/api/storageservices/create-account-sas>.
pub fn account_sas(permissions: &str, expires: &str) -> String {
    let text = format!("{ACCOUNT}\n{permissions}\nb\nco\n\n{expires}\n\n\n{SAS_VERSION}\n\n");
    signed(&text, &format!("sv={SAS_VERSION}&ss=b&srt=co&sp={permissions}&se={expires}"))
}

pub fn signed(text: &str, query: &str) -> String {
    let signature = hmac_sha256(text, &Secret::new(ACCOUNT_KEY)).unwrap();
    let encoded = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("{query}&sig={encoded}")
}
