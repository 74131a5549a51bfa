//! What depends on the version of the official client. The release line of another version replaces this file.

use azure_core::credentials::Secret;
use azure_messaging_eventhubs::builders::{ConsumerClientBuilder, ProducerClientBuilder};
use azure_messaging_eventhubs::{ConnectionString, ConsumerClient, EventHubsError, ProducerClient};

use super::errors::INVALID_CONNECTION_STRING;
use crate::error::{Error, Result};

/// A connection string of an event hub or a namespace.
pub(super) struct HubConnectionString {
    secret: Secret,
    parsed: ConnectionString,
}

impl HubConnectionString {
    /// Parses a connection string. The error names no part of it.
    pub(super) fn parse(secret: &Secret) -> Result<Self> {
        let parsed = ConnectionString::try_from(secret)
            .map_err(|error| Error::config(INVALID_CONNECTION_STRING).with_source(error))?;
        Ok(Self { secret: secret.clone(), parsed })
    }

    pub(super) fn text(&self) -> &str {
        self.secret.secret()
    }

    /// Returns the fully qualified namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.parsed.fully_qualified_namespace
    }

    /// Returns the event hub, unless the connection string is for all event hubs of the namespace.
    pub(super) fn event_hub(&self) -> Option<&str> {
        self.parsed.entity_path.as_deref()
    }

    /// Returns the value of `Endpoint`, a URL.
    pub(super) fn endpoint(&self) -> &str {
        &self.parsed.endpoint
    }

    pub(super) async fn open_consumer(
        &self,
        builder: ConsumerClientBuilder,
        event_hub: &str,
    ) -> Result<ConsumerClient, EventHubsError> {
        builder.open_with_connection_string(self.text(), Some(self.spelling_of(event_hub))).await
    }

    pub(super) async fn open_producer(
        &self,
        builder: ProducerClientBuilder,
        event_hub: &str,
    ) -> Result<ProducerClient, EventHubsError> {
        builder.open_with_connection_string(self.text(), Some(self.spelling_of(event_hub))).await
    }

    /// The client requires the name of the event hub in the spelling of the connection string.
    fn spelling_of<'a>(&'a self, event_hub: &'a str) -> &'a str {
        self.event_hub().unwrap_or(event_hub)
    }
}
