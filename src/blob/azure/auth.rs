//! The location of a container, and the credentials for it.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::{Secret, TokenCredential};

use super::connection_string::ConnectionString;
use super::credentials::Credentials;
use super::endpoint::{ContainerUrl, parse_url};
use super::token::TokenSource;
use crate::clock::WallClock;
use crate::error::{Error, Result};

/// The location of a container, and the credentials for it. The constructors cannot fail: errors are reported when the
/// container is built.
///
/// `Debug` shows only the kind.
#[derive(Clone)]
pub struct Access(Kind);

#[derive(Clone)]
enum Kind {
    ConnectionString { text: Secret, container: String },
    ContainerSas { url: Secret },
    AccountSas { url: Secret, container: String },
    AccountKey { account_url: String, account: String, key: Secret, container: String },
    Token { container_url: String, credential: Arc<dyn TokenCredential> },
}

impl Access {
    /// Uses a connection string of a storage account, as the portal shows it, or `UseDevelopmentStorage=true` for an
    /// emulator on this machine.
    #[must_use]
    pub fn connection_string(text: impl Into<String>, container: impl Into<String>) -> Self {
        Self(Kind::ConnectionString { text: Secret::new(text.into()), container: container.into() })
    }

    /// Uses the URL of a container with a shared access signature for the container or for its account.
    ///
    /// The signature needs the permissions read, create, write, delete and list (`rcwdl`). Only a signature for the
    /// account can create the container. Replace the signature with
    /// [`AzureContainer::replace_credentials`](super::AzureContainer::replace_credentials) before it expires.
    #[must_use]
    pub fn sas_url(container_url: impl Into<String>) -> Self {
        Self(Kind::ContainerSas { url: Secret::new(container_url.into()) })
    }

    /// Uses the URL of a blob service with a shared access signature for the account.
    ///
    /// The signature needs the service blob, the resource types container and object (`srt=co`), and the permissions
    /// read, create, write, delete and list (`rcwdl`).
    #[must_use]
    pub fn account_sas_url(account_url: impl Into<String>, container: impl Into<String>) -> Self {
        Self(Kind::AccountSas { url: Secret::new(account_url.into()), container: container.into() })
    }

    /// Uses the URL of a blob service, the name of its account, and one of the two keys of the account.
    #[must_use]
    pub fn account_key(
        account_url: impl Into<String>,
        account: impl Into<String>,
        key: impl Into<String>,
        container: impl Into<String>,
    ) -> Self {
        let (account_url, account) = (account_url.into(), account.into());
        Self(Kind::AccountKey { account_url, account, key: Secret::new(key.into()), container: container.into() })
    }

    /// Uses the URL of a container, and a credential of Entra ID. The identity needs the role *Storage Blob Data
    /// Contributor* on the container or above. Requires https.
    ///
    /// The container, its clones and those that
    /// [`with_new_connections`](crate::blob::BlobContainer::with_new_connections) returned share one token. From five
    /// minutes before the token expires, a background task requests a new one, and never two at once. While the token
    /// is valid, failures and delays of the issuer do not affect requests. Without a valid token, a request waits for
    /// one for at most four fifths of the time that its caller gives it, such as
    /// [`with_request_timeout`](crate::store::StoreConfig::with_request_timeout). The credential is called on the runtime of the request that
    /// finds the token close to its expiry.
    #[must_use]
    pub fn token(container_url: impl Into<String>, credential: Arc<dyn TokenCredential>) -> Self {
        Self(Kind::Token { container_url: container_url.into(), credential })
    }

    /// Returns the container and the credentials. The expiry of tokens is compared with the clock.
    pub(super) fn resolve(&self, wall_clock: &Arc<dyn WallClock>) -> Result<(ContainerUrl, Credentials)> {
        match &self.0 {
            Kind::ConnectionString { text, container } => {
                let parsed = ConnectionString::parse(text.secret())?;
                Ok((ContainerUrl::in_account(parsed.account_url, container)?, parsed.credentials))
            }
            Kind::ContainerSas { url } => {
                let url = parse_url("the SAS URL", url.secret())?;
                let credentials = Credentials::sas_of_url(url.query())?;
                Ok((ContainerUrl::of_container(url)?, credentials))
            }
            Kind::AccountSas { url, container } => {
                let url = parse_url("the SAS URL", url.secret())?;
                let credentials = Credentials::sas_of_url(url.query())?;
                Ok((ContainerUrl::in_account(url, container)?, credentials))
            }
            Kind::AccountKey { account_url, account, key, container } => {
                let url = parse_url("the account URL", account_url)?;
                Ok((ContainerUrl::in_account(url, container)?, Credentials::account_key(account, key.clone())?))
            }
            Kind::Token { container_url, credential } => {
                let url = ContainerUrl::of_container(parse_url("the container URL", container_url)?)?;
                if !url.is_https() {
                    return Err(Error::config(format!(
                        "a token is only sent over https, but the URL is {}",
                        url.url()
                    )));
                }
                Ok((url, Credentials::Token(TokenSource::new(credential.clone(), wall_clock.clone()))))
            }
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Kind::ConnectionString { .. } => "connection string",
            Kind::ContainerSas { .. } => "container URL with SAS",
            Kind::AccountSas { .. } => "account URL with SAS",
            Kind::AccountKey { .. } => "account key",
            Kind::Token { .. } => "token credential",
        };
        write!(f, "Access({kind})")
    }
}

#[cfg(test)]
mod tests {
    use azure_core::credentials::{AccessToken, TokenRequestOptions};
    use proptest::prelude::*;

    use super::*;
    use crate::clock::SystemWallClock;
    use crate::hostile::hostile_text;

    fn clock() -> Arc<dyn WallClock> {
        Arc::new(SystemWallClock)
    }

    #[derive(Debug)]
    struct NoToken;

    #[async_trait::async_trait]
    impl TokenCredential for NoToken {
        async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
            Err(azure_core::Error::with_message(azure_core::error::ErrorKind::Credential, "none"))
        }
    }

    #[test]
    fn sas_url_is_split_into_address_and_signature() {
        let (url, credentials) = Access::sas_url("https://a.example/leases?sv=1&sig=x%2F").resolve(&clock()).unwrap();
        assert_eq!(url.url().as_str(), "https://a.example/leases");
        assert!(matches!(credentials, Credentials::Sas(sas) if sas.secret() == "sv=1&sig=x%2F"));

        let (url, _) = Access::account_sas_url("https://a.example/?sig=x", "leases").resolve(&clock()).unwrap();
        assert_eq!(url.url().as_str(), "https://a.example/leases");
    }

    #[test]
    fn sas_url_without_signature_is_rejected() {
        for url in ["https://a.example/leases", "https://a.example/leases?sv=hush", "https://a.example/leases?sig="] {
            let message = Access::sas_url(url).resolve(&clock()).unwrap_err().to_string();
            assert!(message.contains("has no signature") && !message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn token_requires_https() {
        let message =
            Access::token("http://a.example/leases", Arc::new(NoToken)).resolve(&clock()).unwrap_err().to_string();
        assert!(message.contains("only sent over https") && message.contains("http://a.example/leases"), "{message}");
        assert!(Access::token("https://a.example/leases", Arc::new(NoToken)).resolve(&clock()).is_ok());
    }

    #[test]
    fn account_key_must_be_base64() {
        for key in ["", "hush!", "aHVz aA=="] {
            let error = Access::account_key("https://a.example", "a", key, "leases").resolve(&clock()).unwrap_err();
            assert!(error.to_string().contains("base64") && !error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn account_and_key_in_the_wrong_order_are_rejected() {
        let swapped = Access::account_key("https://a.example", "aHVzaA==", "account", "leases");
        let message = swapped.resolve(&clock()).unwrap_err().to_string();
        assert!(message.contains("is it the key?") && !message.contains("aHVzaA"), "{message}");
    }

    const SIGNED: &[&str] = &[
        "https://a.example/leases?sv=2021-01-01&sp=rl&sig=aHVzaC1odXNo",
        "http://127.0.0.1:10000/devstoreaccount1/leases?sig=aHVzaC1odXNo%3D&se=2030-01-01",
        "https://a.example/?sv=2021-01-01&ss=b&sig=aHVzaC1odXNo",
    ];

    proptest! {
        #[test]
        fn any_sas_url_is_split_or_rejected(text in hostile_text(SIGNED)) {
            let is_hidden = |shown: &str| !shown.contains("aHVzaC1odXNo");
            // Errors show the address, into which a change may copy the signature.
            let path = parse_url("the URL", &text).map_or(String::new(), |url| url.path().to_owned());
            for access in [Access::sas_url(&text), Access::account_sas_url(&text, "leases")] {
                match access.resolve(&clock()) {
                    Ok((url, Credentials::Sas(sas))) => {
                        prop_assert!(url.url().query().is_none() && url.url().has_host());
                        prop_assert!(sas.secret().contains("sig="));
                    }
                    Ok(_) => prop_assert!(false, "{access:?} has another kind of credential"),
                    Err(error) => prop_assert!(is_hidden(&error.to_string()) || !is_hidden(&path), "{}", error),
                }
            }
        }
    }
}
