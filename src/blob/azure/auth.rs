//! Where a container is, and what opens it.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::{Secret, TokenCredential};

use super::connection_string::ConnectionString;
use super::credentials::{Credentials, sas_of_url};
use super::endpoint::{ContainerUrl, parse_url};
use crate::error::{Error, Result};

/// Where a container is, and what opens it. Making one never fails: a mistake shows when the container is built.
///
/// `Debug` shows the kind only.
#[derive(Clone)]
pub struct Access(Way);

#[derive(Clone)]
enum Way {
    ConnectionString { text: Secret, container: String },
    ContainerSas { url: Secret },
    AccountSas { url: Secret, container: String },
    AccountKey { account_url: String, account: String, key: Secret, container: String },
    Token { container_url: String, credential: Arc<dyn TokenCredential> },
}

impl Access {
    /// A connection string of a storage account, as the portal shows it, or `UseDevelopmentStorage=true` for an
    /// emulator on this machine.
    #[must_use]
    pub fn connection_string(text: impl Into<String>, container: impl Into<String>) -> Self {
        Self(Way::ConnectionString { text: Secret::new(text.into()), container: container.into() })
    }

    /// The URL of a container with a shared access signature for it or for its account.
    ///
    /// The signature needs the permissions read, create, write, delete and list (`rcwdl`). To make the container it has
    /// to be one for the account. [`AzureContainer::replace_sas`](super::AzureContainer::replace_sas) replaces it
    /// before it expires.
    #[must_use]
    pub fn sas_url(container_url: impl Into<String>) -> Self {
        Self(Way::ContainerSas { url: Secret::new(container_url.into()) })
    }

    /// The URL of a blob service with a shared access signature for the account.
    ///
    /// The signature needs the service blob, the resource types container and object (`srt=co`), and the permissions
    /// read, create, write, delete and list (`rcwdl`).
    #[must_use]
    pub fn account_sas_url(account_url: impl Into<String>, container: impl Into<String>) -> Self {
        Self(Way::AccountSas { url: Secret::new(account_url.into()), container: container.into() })
    }

    /// The URL of a blob service, the name of its account, and one of the account's two keys.
    #[must_use]
    pub fn account_key(
        account_url: impl Into<String>,
        account: impl Into<String>,
        key: impl Into<String>,
        container: impl Into<String>,
    ) -> Self {
        let (account_url, account) = (account_url.into(), account.into());
        Self(Way::AccountKey { account_url, account, key: Secret::new(key.into()), container: container.into() })
    }

    /// The URL of a container, and a credential of Entra ID. The identity needs the role *Storage Blob Data
    /// Contributor* on the container or above. Works over https only.
    ///
    /// The container, its clones and isolated containers share one token. From five minutes before its expiry a task of
    /// its own asks for another, once at a time; while the token is valid, no failure or delay of the issuer affects a
    /// request. Without a valid token a request waits for one, for at most four fifths of the request deadline. The
    /// credential is called on the runtime of the request that finds the token near its end.
    #[must_use]
    pub fn token(container_url: impl Into<String>, credential: Arc<dyn TokenCredential>) -> Self {
        Self(Way::Token { container_url: container_url.into(), credential })
    }

    pub(super) fn resolve(&self) -> Result<(ContainerUrl, Credentials)> {
        match &self.0 {
            Way::ConnectionString { text, container } => {
                let parsed = ConnectionString::parse(text.secret())?;
                Ok((ContainerUrl::in_account(parsed.account_url, container)?, parsed.credentials))
            }
            Way::ContainerSas { url } => {
                let url = parse_url("the SAS URL", url.secret())?;
                let credentials = sas_of_url(url.query())?;
                Ok((ContainerUrl::of_container(url)?, credentials))
            }
            Way::AccountSas { url, container } => {
                let url = parse_url("the SAS URL", url.secret())?;
                let credentials = sas_of_url(url.query())?;
                Ok((ContainerUrl::in_account(url, container)?, credentials))
            }
            Way::AccountKey { account_url, account, key, container } => {
                let url = parse_url("the account URL", account_url)?;
                Ok((ContainerUrl::in_account(url, container)?, Credentials::account_key(account, key.clone())?))
            }
            Way::Token { container_url, credential } => {
                let url = ContainerUrl::of_container(parse_url("the container URL", container_url)?)?;
                if !url.is_https() {
                    return Err(Error::config(format!(
                        "a token is sent over https only, but the URL is {}",
                        url.url()
                    )));
                }
                Ok((url, Credentials::Token(credential.clone())))
            }
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.0 {
            Way::ConnectionString { .. } => "connection string",
            Way::ContainerSas { .. } => "container URL with SAS",
            Way::AccountSas { .. } => "account URL with SAS",
            Way::AccountKey { .. } => "account key",
            Way::Token { .. } => "token credential",
        };
        write!(f, "Access({way})")
    }
}

#[cfg(test)]
mod tests {
    use azure_core::credentials::{AccessToken, TokenRequestOptions};

    use super::*;

    #[derive(Debug)]
    struct NoToken;

    #[async_trait::async_trait]
    impl TokenCredential for NoToken {
        async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
            Err(azure_core::Error::with_message(azure_core::error::ErrorKind::Credential, "none"))
        }
    }

    #[test]
    fn a_sas_url_is_split_into_address_and_signature() {
        let (url, credentials) = Access::sas_url("https://a.example/leases?sv=1&sig=x%2F").resolve().unwrap();
        assert_eq!(url.url().as_str(), "https://a.example/leases");
        assert!(matches!(credentials, Credentials::Sas(sas) if sas.query().secret() == "sv=1&sig=x%2F"));

        let (url, _) = Access::account_sas_url("https://a.example/?sig=x", "leases").resolve().unwrap();
        assert_eq!(url.url().as_str(), "https://a.example/leases");
    }

    #[test]
    fn a_sas_url_without_signature_is_refused() {
        for url in ["https://a.example/leases", "https://a.example/leases?sv=hush", "https://a.example/leases?sig="] {
            let message = Access::sas_url(url).resolve().unwrap_err().to_string();
            assert!(message.contains("has no signature") && !message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn a_token_needs_https() {
        let message = Access::token("http://a.example/leases", Arc::new(NoToken)).resolve().unwrap_err().to_string();
        assert!(message.contains("https only") && message.contains("http://a.example/leases"), "{message}");
        assert!(Access::token("https://a.example/leases", Arc::new(NoToken)).resolve().is_ok());
    }

    #[test]
    fn an_account_key_has_to_be_base64() {
        for key in ["", "hush!", "aHVz aA=="] {
            let error = Access::account_key("https://a.example", "a", key, "leases").resolve().unwrap_err();
            assert!(error.to_string().contains("base64") && !error.to_string().contains("hush"), "{error}");
        }
    }
}
