//! The settings of a container.

use std::fmt;
use std::sync::Arc;

use azure_core::http::ClientOptions;

use super::credentials::CurrentCredentials;
use super::endpoint::ContainerUrl;
use super::unusable::Reported;
use crate::clock::WallClock;

/// The settings of a container and the state that it shares with containers on other runtimes.
pub(super) struct Settings {
    pub(super) container_url: ContainerUrl,
    pub(super) credentials: CurrentCredentials,
    pub(super) unusable: Reported,
    pub(super) api_version: String,
    pub(super) page_size: Option<u32>,
    pub(super) wall_clock: Arc<dyn WallClock>,
    pub(super) client_options: ClientOptions,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.container_url.url().as_str())
            .field("credentials", &self.credentials.get().kind())
            .field("api_version", &self.api_version)
            .field("page_size", &self.page_size)
            .finish_non_exhaustive()
    }
}
