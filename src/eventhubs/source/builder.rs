//! The constructors and the builder of an [`EventHubSource`].

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::TokenCredential;
use azure_messaging_eventhubs::RetryOptions;
use azure_messaging_eventhubs::builders::ConsumerClientBuilder;

use super::client::Consumer;
use super::connection::{Connector, Settings};
use super::connections::Connections;
use super::event_source::EventHubSource;
use super::owner_level::OwnerLevel;
use crate::error::Result;
use crate::eventhubs::credentials::{HubAccess, ReplaceableConnectionString};
use crate::model::ConsumerGroup;

/// Configures an [`EventHubSource`]; see [`from_connection_string`](EventHubSource::from_connection_string) and
/// [`from_credential`](EventHubSource::from_credential).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubSourceBuilder {
    group: ConsumerGroup,
    access: HubAccess,
    settings: Settings<Consumer>,
    owner_level: OwnerLevel,
}

impl EventHubSource {
    /// Returns a builder for a source that reads the events of a consumer group with a connection string of the
    /// namespace or of the event hub.
    ///
    /// With `UseDevelopmentEmulator=true`, which the Event Hubs emulator requires, the client connects without TLS to
    /// the host and port of the `Endpoint`. The default port is 5672.
    ///
    /// To rotate the key while the source is running, pass a [`ReplaceableConnectionString`].
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
        connection_string: impl Into<ReplaceableConnectionString>,
    ) -> EventHubSourceBuilder {
        EventHubSourceBuilder::new(group, HubAccess::ConnectionString(connection_string.into()))
    }

    /// Returns a builder for a source that reads the events of a consumer group with a credential of Microsoft Entra
    /// ID. The credential needs the role *Azure Event Hubs Data Receiver*. The source wraps it in a
    /// [`RenewableCredential`](crate::eventhubs::RenewableCredential).
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use azure_core::credentials::TokenCredential;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(credential: Arc<dyn TokenCredential>) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", ConsumerGroup::DEFAULT_NAME)?;
    /// let source = EventHubSource::from_credential(&group, credential).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_credential(group: &ConsumerGroup, credential: Arc<dyn TokenCredential>) -> EventHubSourceBuilder {
        EventHubSourceBuilder::new(group, HubAccess::from_credential(credential))
    }
}

impl EventHubSourceBuilder {
    fn new(group: &ConsumerGroup, access: HubAccess) -> Self {
        Self { group: group.clone(), access, settings: Box::new(|client| client), owner_level: OwnerLevel::default() }
    }

    /// Sets options of the client's own builder. The function is called for the first client and for every later one.
    ///
    /// Before, the source sets [`RetryOptions::max_retries`] to 0, because it reopens links and connections itself; see
    /// [broken connections](EventHubSource#broken-connections). Afterwards it sets its consumer group.
    ///
    /// For a network that blocks the port of AMQP, 5671, use AMQP over WebSockets, port 443. The client supports no
    /// HTTP proxy, for either transport.
    ///
    /// ```no_run
    /// # use azure_messaging_eventhubs::models::AmqpTransport;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(group: ConsumerGroup, connection_string: String) -> eventhubs_checkpoint::Result<()> {
    /// let source = EventHubSource::from_connection_string(&group, connection_string)
    ///     .with_client_builder(|client| client.with_transport(AmqpTransport::WebSocket))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `with_application_id` names the connections, in the logs of a proxy for example. Version 0.16 of the client
    /// cannot name receivers: it sends the name of `with_instance_id` in a property that the service does not read, so
    /// the errors of the service call all receivers `nil`.
    pub fn with_client_builder(
        self,
        settings: impl Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self { settings: Box::new(settings), ..self }
    }

    /// Sets the owner level of the links. Default `OwnerLevel::Fixed(0)`, which the processors of all SDKs use.
    ///
    /// With [`OwnerLevel::Epoch`] the broker rejects previous owners. Use it only in groups in which every processor
    /// does.
    pub fn with_owner_level(self, owner_level: OwnerLevel) -> Self {
        Self { owner_level, ..self }
    }

    /// Opens the first connection, within 20 s.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string is invalid or names another namespace
    ///   or event hub than the consumer group, or if the owner level is negative. Correct the setting.
    /// - [`ErrorKind::EventSource`](crate::ErrorKind::EventSource) if the event hub cannot be reached. Retry.
    ///
    /// The first requests show whether the key or the credential is valid, and whether the event hub and its consumer
    /// group exist.
    pub async fn connect(self) -> Result<EventHubSource> {
        let Self { group, access, settings, owner_level } = self;
        owner_level.check_level()?;
        let name = group.name().to_owned();
        let settings: Settings<Consumer> = Box::new(move |client| {
            settings(client.with_retry_options(RetryOptions { max_retries: 0, ..RetryOptions::default() }))
                .with_consumer_group(name.clone())
        });
        let connector = Connector::new(group.namespace(), group.event_hub(), access, settings)?;
        Ok(EventHubSource { group, connections: Connections::open(connector).await?, owner_level })
    }
}

impl fmt::Debug for EventHubSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubSourceBuilder")
            .field("group", &self.group)
            .field("owner_level", &self.owner_level)
            .finish_non_exhaustive()
    }
}
