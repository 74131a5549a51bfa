//! Creates the clients of a source, the first and every later one in the same way, for the consumer group of the
//! source.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::Url;
use azure_messaging_eventhubs::builders::ConsumerClientBuilder;
use azure_messaging_eventhubs::{ConnectionString, ConsumerClient, EventHubsError};
use tokio::time::timeout;

use super::REQUEST_TIMEOUT;
use crate::error::{Error, ErrorKind, Result};
use crate::model::ConsumerGroup;

/// The default port of AMQP without TLS.
const AMQP_PORT: u16 = 5672;

pub(super) type Settings = Box<dyn Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync>;

/// How the client authenticates.
pub(super) enum Access {
    ConnectionString(Secret),
    Token(Arc<dyn TokenCredential>),
}

/// Creates clients for a consumer group.
pub(super) struct Connector {
    group: ConsumerGroup,
    access: Access,
    settings: Settings,
}

impl Connector {
    pub(super) fn new(group: &ConsumerGroup, access: Access) -> Self {
        Self { group: group.clone(), access, settings: Box::new(|client| client) }
    }

    pub(super) fn with_settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    pub(super) fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// Checks that the connection string belongs to the group's event hub.
    pub(super) fn check(&self) -> Result<()> {
        let Access::ConnectionString(secret) = &self.access else { return Ok(()) };
        let unusable = |error| Error::config("invalid connection string of the event hub").with_source(error);
        let named = ConnectionString::try_from(secret).map_err(unusable)?;
        let namespace = &named.fully_qualified_namespace;
        if self.emulator_endpoint().is_some() && namespace.contains(".servicebus.") {
            return Err(Error::config(format!(
                "the connection string has `UseDevelopmentEmulator=true`, which turns TLS off, but {namespace} is not an \
                 emulator: remove that key"
            )));
        }
        for (what, named, expected) in [
            ("namespace", Some(named.fully_qualified_namespace), self.group.namespace()),
            ("event hub", named.entity_path, self.group.event_hub()),
        ] {
            if let Some(named) = named.filter(|named| !named.eq_ignore_ascii_case(expected)) {
                return Err(Error::config(format!(
                    "the connection string names {what} {named:?}, but the consumer group names {expected:?}: configure the same {what} for both"
                )));
            }
        }
        Ok(())
    }

    /// Returns how long a login may take. A credential may start a tool for it.
    pub(super) fn login_limit(&self) -> Duration {
        match self.access {
            Access::ConnectionString(_) => Duration::ZERO,
            Access::Token(_) => REQUEST_TIMEOUT,
        }
    }

    /// Opens a connection.
    pub(super) async fn client(&self) -> Result<ConsumerClient> {
        let endpoint = self.emulator_endpoint().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
        let failed =
            || Error::new(ErrorKind::EventSource, format!("cannot create a client for {}{endpoint}", self.group));
        match timeout(REQUEST_TIMEOUT, self.open()).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(failed().with_source(error)),
            Err(elapsed) => Err(failed().with_source(elapsed)),
        }
    }

    async fn open(&self) -> Result<ConsumerClient, EventHubsError> {
        match &self.access {
            Access::ConnectionString(secret) => {
                let named = ConnectionString::try_from(secret)?;
                let client = self.builder(self.emulator_endpoint());
                // The client requires the name of the event hub in the spelling of the connection string.
                let event_hub = named.entity_path.as_deref().unwrap_or(self.group.event_hub());
                client.open_with_connection_string(secret.secret(), Some(event_hub)).await
            }
            Access::Token(credential) => {
                let event_hub = self.group.event_hub().to_owned();
                self.builder(None).open(self.group.namespace(), event_hub, Arc::clone(credential)).await
            }
        }
    }

    /// Returns the endpoint of the emulator, if the connection string is for one. The client ignores that key.
    fn emulator_endpoint(&self) -> Option<String> {
        let Access::ConnectionString(secret) = &self.access else { return None };
        let is_key = |part: &&str| part.trim().eq_ignore_ascii_case("UseDevelopmentEmulator=true");
        secret.secret().split(';').find(is_key)?;
        let endpoint = Url::parse(&ConnectionString::try_from(secret).ok()?.endpoint).ok()?;
        Some(format!("amqp://{}:{}", endpoint.host_str()?, endpoint.port().unwrap_or(AMQP_PORT)))
    }

    fn builder(&self, endpoint: Option<String>) -> ConsumerClientBuilder {
        let client = endpoint.into_iter().fold(ConsumerClient::builder(), ConsumerClientBuilder::with_custom_endpoint);
        (self.settings)(client).with_consumer_group(self.group.name().to_owned())
    }
}

/// Omits the access, which is a secret.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("group", &self.group).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_is_used_without_tls() {
        for (endpoint, key, expected) in [
            ("sb://localhost:5673", "UseDevelopmentEmulator=true;", Some("amqp://localhost:5673")),
            ("sb://emulator/", "usedevelopmentemulator=true", Some("amqp://emulator:5672")),
            ("sb://localhost", "UseDevelopmentEmulator=false", None),
            ("sb://localhost:5673", "", None),
        ] {
            let text = format!("Endpoint={endpoint};SharedAccessKeyName=a;SharedAccessKey=b; {key}");
            let group = ConsumerGroup::new("localhost", "hub", "$Default").unwrap();
            let connector = Connector::new(&group, Access::ConnectionString(Secret::new(text)));
            assert_eq!(connector.emulator_endpoint().as_deref(), expected, "{endpoint} {key}");
        }
    }
}
