//! How the clients of a source are made: the first and every fresh one alike, for the consumer group of the source.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::Url;
use azure_messaging_eventhubs::builders::ConsumerClientBuilder;
use azure_messaging_eventhubs::{ConnectionString, ConsumerClient, EventHubsError};
use tokio::time::timeout;

use super::clients::Clients;
use super::source::{EventHubSource, REQUEST_DEADLINE};
use crate::error::{Error, ErrorKind, Result};
use crate::model::ConsumerGroup;

/// The port of AMQP without TLS.
const AMQP_PORT: u16 = 5672;

type Settings = Box<dyn Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync>;

/// How the client shows that it may read.
enum Access {
    ConnectionString(Secret),
    Token(Arc<dyn TokenCredential>),
}

/// Makes clients for a consumer group.
pub(super) struct Connector {
    group: ConsumerGroup,
    access: Access,
    settings: Settings,
}

/// Describes an [`EventHubSource`]; see [`from_connection_string`](EventHubSource::from_connection_string) and
/// [`with_token`](EventHubSource::with_token).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubSourceBuilder(Connector);

impl EventHubSource {
    /// Reads the events of a consumer group, with a connection string of the namespace or of the event hub.
    ///
    /// With `UseDevelopmentEmulator=true` in it, as the emulator of Event Hubs wants it, the client connects without TLS to
    /// the host and the port of its `Endpoint`, 5672 by default.
    ///
    /// ```no_run
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(connection_string: String) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = ConsumerGroup::from_connection_string(&connection_string, ConsumerGroup::DEFAULT_NAME)?;
    /// let source = EventHubSource::from_connection_string(&group, connection_string).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection_string(
        group: &ConsumerGroup,
        connection_string: impl Into<String>,
    ) -> EventHubSourceBuilder {
        EventHubSourceBuilder::new(group, Access::ConnectionString(Secret::new(connection_string.into())))
    }

    /// Reads the events of a consumer group, with a credential of Entra ID. It needs the role *Azure Event Hubs Data
    /// Receiver*.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use azure_core::credentials::TokenCredential;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(credential: Arc<dyn TokenCredential>) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", ConsumerGroup::DEFAULT_NAME)?;
    /// let source = EventHubSource::with_token(&group, credential).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_token(group: &ConsumerGroup, credential: Arc<dyn TokenCredential>) -> EventHubSourceBuilder {
        EventHubSourceBuilder::new(group, Access::Token(credential))
    }
}

impl EventHubSourceBuilder {
    fn new(group: &ConsumerGroup, access: Access) -> Self {
        Self(Connector { group: group.clone(), access, settings: Box::new(|client| client) })
    }

    /// Sets what else the client's own builder can: a custom endpoint, WebSockets, how often to retry. Called for the first
    /// client and for every fresh one. The consumer group is set afterwards: it is that of the source.
    ///
    /// ```no_run
    /// # use azure_messaging_eventhubs::RetryOptions;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(group: ConsumerGroup, connection_string: String) -> eventhubs_checkpoint::Result<()> {
    /// let source = EventHubSource::from_connection_string(&group, connection_string)
    ///     .settings(|client| client.with_retry_options(RetryOptions { max_retries: 3, ..RetryOptions::default() }))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn settings(
        mut self,
        settings: impl Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        self.0.settings = Box::new(settings);
        self
    }

    /// Opens the first connection, within 20 s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if the connection string cannot be used, or names another namespace or event hub than the
    /// consumer group: correct it. [`ErrorKind::Source`] if the event hub cannot be reached: try again. Whether the key or
    /// the credential is good, and the event hub and its consumer group exist, is found out by the first requests.
    pub async fn connect(self) -> Result<EventHubSource> {
        let Self(connector) = self;
        connector.check()?;
        let client = connector.client().await?;
        Ok(EventHubSource::new(Clients::new(client, connector)))
    }
}

impl Connector {
    pub(super) fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    fn check(&self) -> Result<()> {
        let Access::ConnectionString(secret) = &self.access else { return Ok(()) };
        let unusable =
            |error| Error::config("the connection string of the event hub cannot be used").with_source(error);
        let named = ConnectionString::try_from(secret).map_err(unusable)?;
        for (what, named, expected) in [
            ("namespace", Some(named.fully_qualified_namespace), self.group.namespace()),
            ("event hub", named.entity_path, self.group.event_hub()),
        ] {
            if let Some(named) = named.filter(|named| !named.eq_ignore_ascii_case(expected)) {
                return Err(Error::config(format!(
                    "the connection string is of {what} {named:?}, but the consumer group is of {expected:?}: name the same one"
                )));
            }
        }
        Ok(())
    }

    /// Opens a connection.
    pub(super) async fn client(&self) -> Result<ConsumerClient> {
        let failed = || Error::new(ErrorKind::Source, format!("no client could be made for {}", self.group));
        match timeout(REQUEST_DEADLINE, self.open()).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(failed().with_source(error)),
            Err(elapsed) => Err(failed().with_source(elapsed)),
        }
    }

    async fn open(&self) -> Result<ConsumerClient, EventHubsError> {
        match &self.access {
            Access::ConnectionString(secret) => {
                let named = ConnectionString::try_from(secret)?;
                let client = self.builder(without_tls(secret.secret(), &named.endpoint));
                // The client wants the event hub spelled as it is in there.
                let event_hub = named.entity_path.as_deref().unwrap_or(self.group.event_hub());
                client.open_with_connection_string(secret.secret(), Some(event_hub)).await
            }
            Access::Token(credential) => {
                let event_hub = self.group.event_hub().to_owned();
                self.builder(None).open(self.group.namespace(), event_hub, Arc::clone(credential)).await
            }
        }
    }

    fn builder(&self, endpoint: Option<String>) -> ConsumerClientBuilder {
        let client = endpoint.into_iter().fold(ConsumerClient::builder(), ConsumerClientBuilder::with_custom_endpoint);
        (self.settings)(client).with_consumer_group(self.group.name().to_owned())
    }
}

/// Where the emulator listens, if the connection string is of one. The client does not know the key.
fn without_tls(connection_string: &str, endpoint: &str) -> Option<String> {
    let is_key = |part: &&str| part.trim().eq_ignore_ascii_case("UseDevelopmentEmulator=true");
    connection_string.split(';').find(is_key)?;
    let endpoint = Url::parse(endpoint).ok()?;
    Some(format!("amqp://{}:{}", endpoint.host_str()?, endpoint.port().unwrap_or(AMQP_PORT)))
}

/// The access is a secret.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("group", &self.group).finish_non_exhaustive()
    }
}

impl fmt::Debug for EventHubSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubSourceBuilder").field("group", &self.0.group).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "c2VjcmV0";

    fn refusal(group: (&str, &str), connection_string: &str) -> Option<String> {
        let group = ConsumerGroup::new(group.0, group.1, "billing").unwrap();
        let connection_string =
            connection_string.replace("KEY", &format!("SharedAccessKeyName=n;SharedAccessKey={SECRET}"));
        let builder = EventHubSource::from_connection_string(&group, connection_string);
        assert!(!format!("{builder:?}{:?}", builder.0).contains(SECRET));
        let refusal = builder.0.check().err()?;
        assert_eq!(refusal.kind(), ErrorKind::Config);
        let shown = format!("{refusal} {refusal:?}");
        assert!(!shown.contains(SECRET), "{shown}");
        Some(shown)
    }

    mod defects {
        use super::*;

        #[test]
        fn e03_a_connection_string_of_another_hub_is_refused() {
            for (connection_string, named) in [
                ("Endpoint=sb://ns.example.net/;KEY", None),
                ("Endpoint=sb://NS.example.net;KEY;EntityPath=Orders", None),
                ("Endpoint=sb://other.example.net;KEY;EntityPath=orders", Some("\"other.example.net\"")),
                ("Endpoint=sb://ns.example.net;KEY;EntityPath=payments", Some("\"payments\"")),
                ("Endpoint=sb://ns.example.net;EntityPath=orders", Some("missing shared access key")),
                (SECRET, Some("cannot be used")),
            ] {
                let refusal = refusal(("ns.example.net", "orders"), connection_string);
                assert_eq!(refusal.is_some(), named.is_some(), "{connection_string}: {refusal:?}");
                assert!(refusal.unwrap_or_default().contains(named.unwrap_or_default()), "{connection_string}");
            }
        }
    }

    #[test]
    fn the_emulator_is_reached_without_tls_at_its_port() {
        for (connection_string, endpoint, expected) in [
            ("A=b; UseDevelopmentEmulator=true;", "sb://localhost:5673", Some("amqp://localhost:5673")),
            ("usedevelopmentemulator=true", "sb://emulator/", Some("amqp://emulator:5672")),
            ("UseDevelopmentEmulator=false", "sb://localhost", None),
            ("", "sb://localhost:5673", None),
        ] {
            assert_eq!(without_tls(connection_string, endpoint).as_deref(), expected);
        }
    }
}
