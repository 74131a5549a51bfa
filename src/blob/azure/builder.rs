//! The constructors and the builder of an [`AzureContainer`].

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::TokenCredential;
use azure_core::http::ClientOptions;

use super::access::Access;
use super::client::ContainerSettings;
use super::container::AzureContainer;
use super::credentials::CurrentCredentials;
use super::listing::UnusableLog;
use crate::clock::{SystemWallClock, WallClock};
use crate::error::{Error, Result};
use crate::util::read_variable;

/// Old enough for every cloud, and new enough for names that XML cannot represent (2021-02-12).
const DEFAULT_API_VERSION: &str = "2023-11-03";
/// The largest page that the service returns.
const MAX_PAGE_SIZE: u32 = 5000;

/// Builds an [`AzureContainer`]. Setters cannot fail; [`build`](Self::build) can.
///
/// `Debug` shows no secret.
///
/// ```
/// use eventhubs_checkpoint::AzureContainer;
/// use eventhubs_checkpoint::blob::azure::Access;
///
/// let access = Access::connection_string("UseDevelopmentStorage=true", "checkpoints");
/// let container = AzureContainer::builder(access).with_page_size(1000).build()?;
/// # let _ = container;
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// ```
#[derive(Clone)]
pub struct AzureContainerBuilder {
    access: Access,
    api_version: String,
    page_size: Option<u32>,
    allow_http: bool,
    wall_clock: Arc<dyn WallClock>,
    client_options: ClientOptions,
}

impl AzureContainer {
    /// Creates a builder with this access and default settings.
    #[must_use]
    pub fn builder(access: Access) -> AzureContainerBuilder {
        AzureContainerBuilder::new(access)
    }

    /// Opens a container by a connection string of its storage account. See [`Access::connection_string`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the string or the container name is malformed. The message
    /// names the problem and the remedy.
    pub fn from_connection_string(text: impl Into<String>, container: impl Into<String>) -> Result<Self> {
        Self::builder(Access::connection_string(text, container)).build()
    }

    /// Opens a container by the connection string in the environment variable `AZURE_STORAGE_CONNECTION_STRING`, which
    /// the Azure CLI and `ehcp` also use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the variable is not set. Otherwise the errors of
    /// [`from_connection_string`](Self::from_connection_string).
    pub fn from_env(container: impl Into<String>) -> Result<Self> {
        Self::from_connection_string(read_variable("AZURE_STORAGE_CONNECTION_STRING")?, container)
    }

    /// Opens a container by its URL with a shared access signature. See [`Access::sas_url`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the URL names no container or has no signature. The message
    /// names the problem and the remedy.
    pub fn from_sas_url(container_url: impl Into<String>) -> Result<Self> {
        Self::builder(Access::sas_url(container_url)).build()
    }

    /// Opens a container by the URL of its blob service with a shared access signature for the account. See
    /// [`Access::account_sas_url`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the URL has no signature or the container name is malformed.
    /// The message names the problem and the remedy.
    pub fn from_account_sas_url(account_url: impl Into<String>, container: impl Into<String>) -> Result<Self> {
        Self::builder(Access::account_sas_url(account_url, container)).build()
    }

    /// Opens a container with a key of its account. See [`Access::account_key`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the URL, the key or the container name is malformed. The
    /// message names the problem and the remedy.
    pub fn from_account_key(
        account_url: impl Into<String>,
        account: impl Into<String>,
        key: impl Into<String>,
        container: impl Into<String>,
    ) -> Result<Self> {
        Self::builder(Access::account_key(account_url, account, key, container)).build()
    }

    /// Opens a container with a credential of Entra ID. See [`Access::token`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the URL names no container or is not https. The message
    /// names the problem and the remedy.
    pub fn from_credential(container_url: impl Into<String>, credential: Arc<dyn TokenCredential>) -> Result<Self> {
        Self::builder(Access::token(container_url, credential)).build()
    }
}

impl AzureContainerBuilder {
    pub(super) fn new(access: Access) -> Self {
        Self {
            access,
            api_version: DEFAULT_API_VERSION.to_owned(),
            page_size: None,
            allow_http: false,
            wall_clock: Arc::new(SystemWallClock),
            client_options: ClientOptions::default(),
        }
    }

    /// Sets the version of the REST API, sent as `x-ms-version`. Default `2023-11-03`. An emulator or an Azure Stack
    /// may require an older version.
    #[must_use]
    pub fn with_api_version(mut self, version: impl Into<String>) -> Self {
        self.api_version = version.into();
        self
    }

    /// Sets the number of blobs per page of a listing, from 1 to 5000. Default: the service decides, which is 5000.
    #[must_use]
    pub fn with_page_size(mut self, blobs: u32) -> Self {
        self.page_size = Some(blobs);
        self
    }

    /// Sets whether requests that carry a shared access signature, or are signed with an account key, may be sent over
    /// plain http to any host. Default false, because others on the network path can read a shared access signature,
    /// and can read and replay a signed request. Not needed for a loopback address, or for the well-known account of
    /// emulators, as in `http://azurite:10000/devstoreaccount1`. A token is always sent over https only.
    #[must_use]
    pub fn with_allow_http(mut self, allowed: bool) -> Self {
        self.allow_http = allowed;
        self
    }

    /// Sets the clock that dates signatures with an account key, and that the expiry of a new token is compared with.
    /// Default: the clock of the operating system.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_wall_clock(mut self, clock: Arc<dyn WallClock>) -> Self {
        self.wall_clock = clock;
        self
    }

    /// Sets options of the HTTP pipeline, such as policies, logging and a transport. Default: the options of
    /// `azure_core`.
    ///
    /// `retry` has no effect: writes are never retried, and reads only in their first second. A `transport` is shared
    /// by the container and the containers that
    /// [`with_new_connections`](crate::blob::BlobContainer::with_new_connections) returns, so it must work on several
    /// runtimes at once. Per-try policies run after the request is signed: with an account key they must not change
    /// headers that begin with `x-ms-`.
    #[must_use]
    pub fn with_client_options(mut self, options: ClientOptions) -> Self {
        self.client_options = options;
        self
    }

    /// Builds the container. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if a setting, an address, a container name or a credential is
    /// malformed, if a credential would be sent over plain http (see [`with_allow_http`](Self::with_allow_http)), or if
    /// the HTTP client cannot be created. The message names the problem and the remedy.
    pub fn build(self) -> Result<AzureContainer> {
        check_page_size(self.page_size)?;
        if !is_date(&self.api_version) {
            return Err(Error::config(format!(
                "the API version {:?} must be a date like {DEFAULT_API_VERSION}",
                self.api_version
            )));
        }
        let (container_url, credentials) = self.access.resolve(&self.wall_clock)?;
        if !self.allow_http {
            container_url.check_encrypted()?;
        }
        AzureContainer::connect(Arc::new(ContainerSettings {
            container_url,
            credentials: CurrentCredentials::new(credentials),
            unusable: UnusableLog::default(),
            api_version: self.api_version,
            page_size: self.page_size,
            wall_clock: self.wall_clock,
            client_options: self.client_options,
        }))
    }
}

/// Rejects a page size that the service does not accept.
pub(in crate::blob) fn check_page_size(page_size: Option<u32>) -> Result<()> {
    if let Some(size) = page_size.filter(|size| !(1..=MAX_PAGE_SIZE).contains(size)) {
        return Err(Error::config(format!("the page size {size} must be 1 to {MAX_PAGE_SIZE}")));
    }
    Ok(())
}

fn is_date(version: &str) -> bool {
    let bytes = version.as_bytes();
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(index, byte)| match index {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

impl fmt::Debug for AzureContainerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureContainerBuilder")
            .field("access", &self.access)
            .field("api_version", &self.api_version)
            .field("page_size", &self.page_size)
            .field("allow_http", &self.allow_http)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn builder() -> AzureContainerBuilder {
        AzureContainer::builder(Access::sas_url("https://a.example/leases?sig=x"))
    }

    #[test]
    fn error_names_the_setting_and_its_value() {
        for (builder, expected) in [
            (builder().with_page_size(0), "page size 0"),
            (builder().with_page_size(5001), "page size 5001"),
            (builder().with_api_version("latest"), "\"latest\""),
            (builder().with_api_version("2023/11/03"), "\"2023/11/03\""),
        ] {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
