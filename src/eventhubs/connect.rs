//! How a source is described and connected.

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

/// Describes an [`EventHubSource`]; see [`from_connection_string`](EventHubSource::from_connection_string) and
/// [`from_credential`](EventHubSource::from_credential).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubSourceBuilder {
    connector: Connector,
    owner_level: OwnerLevel,
}

impl EventHubSource {
    /// Reads the events of a consumer group, with a connection string of the namespace or of the event hub.
    ///
    /// With `UseDevelopmentEmulator=true` in it, as the emulator of Event Hubs wants it, the client connects without
    /// TLS to the host and the port of its `Endpoint`, 5672 by default.
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

    /// Sets what else the client's own builder can: a custom endpoint, WebSockets, how often to retry. Called for the
    /// first client and for every fresh one. The consumer group is set afterwards: it is that of the source.
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
    pub fn with_consumer(
        self,
        settings: impl Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self { connector: self.connector.with_settings(Box::new(settings)), ..self }
    }

    /// Sets the owner level of the links. Default `OwnerLevel::Fixed(0)`, as the processors of all SDKs have it.
    ///
    /// [`OwnerLevel::Epoch`] lets the broker refuse a displaced owner, and is only for groups in which every processor
    /// has it.
    pub fn with_owner_level(self, owner_level: OwnerLevel) -> Self {
        Self { owner_level, ..self }
    }

    /// Opens the first connection, within 20 s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string cannot be used, or names another
    /// namespace or event hub than the consumer group, or if the owner level is negative: correct it.
    /// [`ErrorKind::EventSource`](crate::ErrorKind::EventSource) if the event hub cannot be reached: try again. Whether the key or
    /// the credential is good, and the event hub and its consumer group exist, is found out by the first requests.
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

    fn refusal(group: (&str, &str), connection_string: &str) -> Option<String> {
        let group = ConsumerGroup::new(group.0, group.1, "billing").unwrap();
        let connection_string =
            connection_string.replace("KEY", &format!("SharedAccessKeyName=n;SharedAccessKey={SECRET}"));
        let builder = EventHubSource::from_connection_string(&group, connection_string);
        assert!(!format!("{builder:?}{:?}", builder.connector).contains(SECRET));
        let refusal = builder.connector.check().err()?;
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
                (SECRET, Some("invalid connection string")),
            ] {
                let refusal = refusal(("ns.example.net", "orders"), connection_string);
                assert_eq!(refusal.is_some(), named.is_some(), "{connection_string}: {refusal:?}");
                assert!(refusal.unwrap_or_default().contains(named.unwrap_or_default()), "{connection_string}");
            }
        }
    }
}
