//! Credentials that are added to each request.

use std::sync::{Arc, RwLock};

use azure_core::base64;
use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};

use super::endpoint::{ContainerUrl, parse_url, without_query};
use crate::error::{Error, Result};
use crate::lock::{read, write};

/// Returns the signature in the query of a URL.
pub(super) fn sas_of_url(query: Option<&str>) -> Result<Credentials> {
    signed_query(query).map(|query| Credentials::Sas(SharedSas::new(query)))
}

fn signed_query(query: Option<&str>) -> Result<Secret> {
    query.and_then(signature).ok_or_else(|| {
        Error::config("the SAS URL has no signature; it should end with ?sv=...&sig=..., as the portal shows it")
    })
}

/// Returns the query without its question mark, if it contains a signature.
fn signature(query: &str) -> Option<Secret> {
    let query = query.strip_prefix('?').unwrap_or(query);
    let is_signed = query.split('&').any(|pair| pair.strip_prefix("sig=").is_some_and(|value| !value.is_empty()));
    is_signed.then(|| Secret::new(query.to_owned()))
}

/// The credentials of a container. `Debug` shows no secret, because [`Secret`] does not.
#[derive(Clone, Debug)]
pub(super) enum Credentials {
    AccountKey { account: String, key: Secret },
    Sas(SharedSas),
    Token(Arc<dyn TokenCredential>),
}

/// The kind of credentials. The advice in errors depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blob) enum CredentialKind {
    AccountKey,
    Sas,
    Token,
}

impl Credentials {
    pub(super) fn account_key(account: &str, key: Secret) -> Result<Self> {
        if account.is_empty() {
            return Err(Error::config("the account name is empty; it is required with an account key"));
        }
        // The value is not shown: it may be the key.
        if !account.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(Error::config("the account name has characters that no account name has; is it the key?"));
        }
        let is_base64 = base64::decode(key.secret()).is_ok_and(|bytes| !bytes.is_empty());
        if !is_base64 {
            return Err(Error::config("the account key (AccountKey) is not base64; copy the complete key"));
        }
        Ok(Self::AccountKey { account: account.to_owned(), key })
    }

    /// Returns the credentials for the query of a shared access signature, if it contains a signature.
    pub(super) fn sas(query: &str) -> Option<Self> {
        signature(query).map(|query| Self::Sas(SharedSas::new(query)))
    }

    pub(super) fn kind(&self) -> CredentialKind {
        match self {
            Self::AccountKey { .. } => CredentialKind::AccountKey,
            Self::Sas(_) => CredentialKind::Sas,
            Self::Token(_) => CredentialKind::Token,
        }
    }
}

/// The query of a shared access signature, without the question mark. Clones share it, so all of them see a
/// replacement.
#[derive(Clone, Debug)]
pub(super) struct SharedSas(Arc<RwLock<Secret>>);

impl SharedSas {
    fn new(query: Secret) -> Self {
        Self(Arc::new(RwLock::new(query)))
    }

    pub(super) fn query(&self) -> Secret {
        read(&self.0).clone()
    }

    pub(super) fn replace(&self, query: Secret) {
        *write(&self.0) = query;
    }
}

/// Returns the signature in a URL of this container or of its account, or in the query of such a URL.
pub(super) fn query_of_sas(sas: &str, container: &ContainerUrl) -> Result<Secret> {
    let sas = sas.trim();
    if !sas.contains("://") {
        return signed_query(Some(sas));
    }
    let url = parse_url("the SAS URL", sas)?;
    if !container.is_below(&url) {
        let (other, this) = (without_query(url), container.url());
        return Err(Error::config(format!("the SAS URL is for {other}, but this container is {this}")));
    }
    signed_query(url.query())
}

/// Adds a shared access signature to the URL. Runs once per call, so that a retried request has only one. The URL
/// contains the signature only from here to the wire.
#[derive(Debug)]
pub(super) struct SasPolicy {
    sas: SharedSas,
}

impl SasPolicy {
    pub(super) fn new(sas: SharedSas) -> Self {
        Self { sas }
    }
}

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait::async_trait]
impl Policy for SasPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let sas = self.sas.query();
        let query = match request.url().query() {
            Some(query) => format!("{query}&{}", sas.secret()),
            None => sas.secret().to_owned(),
        };
        request.url_mut().set_query(Some(&query));
        next[0].send(ctx, request, &next[1..]).await
    }
}
