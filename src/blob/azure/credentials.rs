//! The credentials of a container, the credentials of one call, and the token in each attempt of a request.

use std::sync::{Arc, RwLock};

use azure_core::base64;
use azure_core::credentials::Secret;
use azure_core::error::ErrorKind;
use azure_core::http::headers::AUTHORIZATION;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request, StatusCode};

use super::refresh::Token;
use super::refusals::CredentialKind;
use super::token::TokenSource;
use crate::error::{Error, Result};
use crate::util::{lock_for_reading, lock_for_writing};

/// Credentials. `Debug` shows no secret, because neither [`Secret`] nor [`TokenSource`] does.
#[derive(Debug)]
pub(super) enum Credentials {
    AccountKey {
        account: String,
        key: Secret,
    },
    /// The query of a shared access signature, without the question mark.
    Sas(Secret),
    Token(Arc<TokenSource>),
}

impl Credentials {
    pub(super) fn from_account_key(account: &str, key: Secret) -> Result<Self> {
        if account.is_empty() {
            return Err(Error::config("the account name is empty; it is required with an account key"));
        }
        // The value is not shown: it may be the key.
        if !account.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(Error::config("the account name has characters that no account name has; is it the key?"));
        }
        if !base64::decode(key.secret()).is_ok_and(|bytes| !bytes.is_empty()) {
            return Err(Error::config("the account key (AccountKey) is not base64; copy the complete key"));
        }
        Ok(Self::AccountKey { account: account.to_owned(), key })
    }

    /// Returns the credentials for the query of a shared access signature, if it contains a signature.
    pub(super) fn from_sas_query(query: &str) -> Option<Self> {
        let query = query.strip_prefix('?').unwrap_or(query);
        query
            .split('&')
            .any(|pair| pair.strip_prefix("sig=").is_some_and(|value| !value.is_empty()))
            .then(|| Self::Sas(Secret::new(query.to_owned())))
    }

    /// Returns the signature in the query of a URL.
    pub(super) fn from_sas_url(query: Option<&str>) -> Result<Self> {
        query.and_then(Self::from_sas_query).ok_or_else(|| {
            Error::config("the SAS URL has no signature; it should end with ?sv=...&sig=..., as the portal shows it")
        })
    }

    pub(super) fn kind(&self) -> CredentialKind {
        match self {
            Self::AccountKey { .. } => CredentialKind::AccountKey,
            Self::Sas(_) => CredentialKind::Sas,
            Self::Token(_) => CredentialKind::Token,
        }
    }
}

/// What a container, its clones, and the containers that
/// [`with_new_connections`](crate::blob::BlobContainer::with_new_connections) returned use now.
#[derive(Debug)]
pub(super) struct CurrentCredentials(RwLock<Arc<Credentials>>);

impl CurrentCredentials {
    pub(super) fn new(credentials: Credentials) -> Self {
        Self(RwLock::new(Arc::new(credentials)))
    }

    /// Returns the credentials for a call that begins now. It uses them for all its attempts.
    pub(super) fn get(&self) -> Arc<Credentials> {
        Arc::clone(&lock_for_reading(&self.0))
    }

    pub(super) fn replace(&self, credentials: Credentials) {
        *lock_for_writing(&self.0) = Arc::new(credentials);
    }
}

/// Returns the credentials of a call, which the client puts into its context.
pub(super) fn call_credentials<'a>(ctx: &'a Context<'_>) -> azure_core::Result<&'a Credentials> {
    ctx.value::<Arc<Credentials>>().map(AsRef::as_ref).ok_or_else(|| missing_from_context("the credentials"))
}

/// Returns the error of a call whose context lacks what the client put into it.
pub(super) fn missing_from_context(what: &str) -> azure_core::Error {
    azure_core::Error::with_message(
        ErrorKind::Credential,
        format!("a policy removed {what} from the context of the request"),
    )
}

/// Adds a shared access signature to the URL. Once per call, so that a retried request has only one. The URL contains
/// the signature only from here to the wire.
pub(super) fn add_sas(request: &mut Request, sas: &Secret) {
    let query = match request.url().query() {
        Some(query) => format!("{query}&{}", sas.secret()),
        None => sas.secret().to_owned(),
    };
    request.url_mut().set_query(Some(&query));
}

/// Adds the token in the context to each attempt of a request, over https only. A token is replaced if the response is
/// 401. The response is returned to the caller, as by the policy of `azure_core` (neither supports challenges).
#[derive(Debug)]
pub(super) struct TokenPolicy;

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait::async_trait]
impl Policy for TokenPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let Credentials::Token(source) = call_credentials(ctx)? else {
            return next[0].send(ctx, request, &next[1..]).await;
        };
        if request.url().scheme() != "https" {
            return Err(azure_core::Error::with_message(ErrorKind::Other, "a token is only sent over https"));
        }
        let token = ctx.value::<Arc<Token>>().ok_or_else(|| missing_from_context("the token"))?;
        request.insert_header(AUTHORIZATION, format!("Bearer {}", token.secret.secret()));
        let response = next[0].send(ctx, request, &next[1..]).await?;
        if response.status() == StatusCode::Unauthorized {
            source.replace_rejected(token);
        }
        Ok(response)
    }
}
