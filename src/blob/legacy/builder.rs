//! The settings of a [`LegacyContainer`].

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use azure_core_legacy::Url;
use azure_core_legacy::prelude::MaxResults;
use azure_storage_blobs::prelude::ContainerClient;

use super::LegacyContainer;
use crate::blob::azure::builder::{DEFAULT_REQUEST_DEADLINE, check_limits};
use crate::blob::azure::endpoint::host_of;
use crate::error::{Error, Result};

type Connect = Arc<dyn Fn() -> ContainerClient + Send + Sync>;

/// Collects the settings of a [`LegacyContainer`]. Setters cannot fail; [`build`](Self::build) can.
///
/// `Debug` shows no secret.
#[derive(Clone)]
pub struct LegacyContainerBuilder {
    client: ContainerClient,
    request_deadline: Duration,
    page_size: Option<u32>,
    connect: Option<Connect>,
}

pub(super) struct Settings {
    /// Of the container. The SDK adds a SAS to each request only.
    pub(super) url: Url,
    /// Host and, if it is not the usual one, port.
    pub(super) host: String,
    pub(super) request_deadline: Duration,
    pub(super) page_size: Option<MaxResults>,
    pub(super) connect: Option<Connect>,
}

impl LegacyContainerBuilder {
    pub(super) fn new(client: ContainerClient) -> Self {
        Self { client, request_deadline: DEFAULT_REQUEST_DEADLINE, page_size: None, connect: None }
    }

    /// How long a request may take, with all that the client does to repeat it, and with the fetching of a token. Each
    /// page of a listing is a request of its own. Default: 5 s, so that a hung request costs a fraction of a lease.
    #[must_use]
    pub fn request_deadline(mut self, deadline: Duration) -> Self {
        self.request_deadline = deadline;
        self
    }

    /// How many blobs to ask for in one page of a listing, 1 to 5000. Default: as many as the service gives, which is
    /// 5000.
    #[must_use]
    pub fn page_size(mut self, blobs: u32) -> Self {
        self.page_size = Some(blobs);
        self
    }

    /// How to make another client of the same container, with an HTTP client of its own, for
    /// [`isolated`](crate::blob::BlobContainer::isolated) containers. Default: they share the one client, which is safe
    /// only if its HTTP client keeps no connections, as the SDK's own does not.
    #[must_use]
    pub fn isolated_by(mut self, connect: impl Fn() -> ContainerClient + Send + Sync + 'static) -> Self {
        self.connect = Some(Arc::new(connect));
        self
    }

    /// Makes the container. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if a setting or the address of the client is malformed. The
    /// message names it and the remedy.
    pub fn build(self) -> Result<LegacyContainer> {
        check_limits(self.request_deadline, self.page_size)?;
        let url = self.client.url().map_err(|error| Error::config(format!("the client has no URL: {error}")))?;
        let settings = Settings {
            host: host_of(&url),
            url,
            request_deadline: self.request_deadline,
            page_size: self.page_size.and_then(NonZeroU32::new).map(MaxResults::new),
            connect: self.connect,
        };
        Ok(LegacyContainer { client: self.client, settings: Arc::new(settings) })
    }
}

impl fmt::Debug for LegacyContainerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LegacyContainerBuilder")
            .field("container", &self.client.container_name())
            .field("request_deadline", &self.request_deadline)
            .field("page_size", &self.page_size)
            .field("isolated_by", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url.as_str())
            .field("request_deadline", &self.request_deadline)
            .field("page_size", &self.page_size)
            .field("isolated_by", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}
