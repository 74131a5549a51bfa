//! The builder of a source.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::{Secret, TokenCredential};
use azure_messaging_eventhubs::builders::ConsumerClientBuilder;

use super::clients::Clients;
use super::connector::{Access, Connector};
use super::owner_level::OwnerLevel;
use super::source::EventHubSource;
use crate::error::Result;
use crate::model::ConsumerGroup;

/// Configures an [`EventHubSource`]; see [`from_connection_string`](EventHubSource::from_connection_string) and
/// [`from_credential`](EventHubSource::from_credential).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubSourceBuilder {
    connector: Connector,
    owner_level: OwnerLevel,
}

impl EventHubSource {
    /// Returns a builder for a source that reads the events of a consumer group with a connection string of the
    /// namespace or of the event hub.
    ///
    /// With `UseDevelopmentEmulator=true`, which the Event Hubs emulator requires, the client connects without TLS to
    /// the host and port of the `Endpoint`. The default port is 5672.
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

    /// Returns a builder for a source that reads the events of a consumer group with a credential of Microsoft Entra
    /// ID. The credential needs the role *Azure Event Hubs Data Receiver*.
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
        EventHubSourceBuilder::new(group, Access::Token(credential))
    }
}

impl EventHubSourceBuilder {
    fn new(group: &ConsumerGroup, access: Access) -> Self {
        Self { connector: Connector::new(group, access), owner_level: OwnerLevel::default() }
    }

    /// Sets options of the client's own builder, such as a custom endpoint, WebSockets or retries. The function is
    /// called for the first client and for every later one. Afterwards the source sets its own consumer group.
    ///
    /// ```no_run
    /// # use azure_messaging_eventhubs::RetryOptions;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(group: ConsumerGroup, connection_string: String) -> eventhubs_checkpoint::Result<()> {
    /// let source = EventHubSource::from_connection_string(&group, connection_string)
    ///     .with_client_builder(|client| client.with_retry_options(RetryOptions { max_retries: 3, ..RetryOptions::default() }))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_client_builder(
        self,
        settings: impl Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self { connector: self.connector.with_settings(Box::new(settings)), ..self }
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
        let Self { connector, owner_level } = self;
        owner_level.check()?;
        connector.check()?;
        let client = connector.client().await?;
        Ok(EventHubSource::new(Clients::new(client, connector), owner_level))
    }
}

impl fmt::Debug for EventHubSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubSourceBuilder")
            .field("group", self.connector.group())
            .field("owner_level", &self.owner_level)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const SECRET: &str = "c2VjcmV0";

    fn rejection(group: (&str, &str), connection_string: &str) -> Option<String> {
        let group = ConsumerGroup::new(group.0, group.1, "billing").unwrap();
        let connection_string =
            connection_string.replace("KEY", &format!("SharedAccessKeyName=n;SharedAccessKey={SECRET}"));
        let builder = EventHubSource::from_connection_string(&group, connection_string);
        assert!(!format!("{builder:?}{:?}", builder.connector).contains(SECRET));
        let rejection = builder.connector.check().err()?;
        assert_eq!(rejection.kind(), ErrorKind::Config);
        let shown = format!("{rejection} {rejection:?}");
        assert!(!shown.contains(SECRET), "{shown}");
        Some(shown)
    }

    mod defects {
        use super::*;

        #[test]
        fn e03_a_connection_string_of_another_hub_is_rejected() {
            for (connection_string, named) in [
                ("Endpoint=sb://ns.example.net/;KEY", None),
                ("Endpoint=sb://NS.example.net;KEY;EntityPath=Orders", None),
                ("Endpoint=sb://other.example.net;KEY;EntityPath=orders", Some("\"other.example.net\"")),
                ("Endpoint=sb://ns.example.net;KEY;EntityPath=payments", Some("\"payments\"")),
                ("Endpoint=sb://ns.example.net;EntityPath=orders", Some("missing shared access key")),
                (SECRET, Some("invalid connection string")),
            ] {
                let rejection = rejection(("ns.example.net", "orders"), connection_string);
                assert_eq!(rejection.is_some(), named.is_some(), "{connection_string}: {rejection:?}");
                assert!(rejection.unwrap_or_default().contains(named.unwrap_or_default()), "{connection_string}");
            }
        }
    }
}
