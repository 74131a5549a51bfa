//! An event hub as the sink of dead letters.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::TokenCredential;
use azure_core_amqp::AmqpMessage;
use azure_messaging_eventhubs::builders::ProducerClientBuilder;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{EventHubsError, ProducerClient};
use tokio::time::timeout;

use super::REQUEST_TIMEOUT;
use super::connection::Connection;
use super::connection_health::{Outcome, Route};
use super::connection_string::{ReplaceableConnectionString, parsed};
use super::connector::{Access, Connector, Settings};
use super::dead_letter::{message, message_of_undecodable};
use super::errors;
use crate::error::{Error, ErrorKind, Result};
use crate::processor::{DeadLetter, DeadLetterSink, HandlerError, UndecodableEvent};

/// Moves dead letters to an event hub, by the official producer.
///
/// It is created [from a connection string](Self::from_connection_string) or [with a
/// credential](Self::from_credential), for the event hub that gets the dead letters.
///
/// A dead letter has the body, the message properties, the application properties and the annotations of the original
/// event, without the annotations that an event hub sets (`x-opt-*`, except the keys of a producer), and these
/// application properties in addition:
///
/// | property | value |
/// |---|---|
/// | `x-original-event-hub`, `x-original-consumer-group` | the event hub of the event, and the consumer group that could not process it |
/// | `x-original-partition`, `x-original-offset` | the partition and the offset, as text |
/// | `x-original-sequence-number` | the sequence number, a 64-bit integer |
/// | `x-original-enqueued-time` | when the event hub enqueued the event, as RFC 3339 text |
/// | `x-original-attempts` | how many times in a row the event failed, a 32-bit integer |
/// | `x-original-error` | the last failure with its causes, at most 1024 bytes |
///
/// The dead letter of an [event that the client cannot decode](crate::processor::OnUndecodable) has an empty body, and of
/// these properties those for the event hub, the consumer group, the partition, the sequence number and the error.
///
/// An event may be sent twice, after a crash or a lost response. A property of the same name is replaced, for example if
/// a handler of the dead-letter hub fails. The error text is that of the application: if it contains personal data or
/// secrets, so does the property.
///
/// The official client reports success also if the event hub releases or modifies a transfer instead of accepting it.
/// Such an event would be lost.
///
/// The sink replaces its client like [`EventHubSource`](crate::EventHubSource#broken-connections): after a refusal of
/// the event hub, a send without a response within 20 s, or three failures in a row. The dead letter that failed is
/// stored when its partition is retried.
///
/// An event that is too large for the event hub together with its new properties cannot be moved. Its partition keeps
/// failing; use a sink of your own for such events.
#[derive(Debug)]
pub struct EventHubDeadLetters {
    connection: Connection<ProducerClient>,
}

/// Configures an [`EventHubDeadLetters`]; see [`from_connection_string`](EventHubDeadLetters::from_connection_string)
/// and [`from_credential`](EventHubDeadLetters::from_credential).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubDeadLettersBuilder {
    /// Missing if the connection string names it.
    namespace: Option<String>,
    event_hub: String,
    access: Access,
    settings: Settings<ProducerClient>,
}

impl EventHubDeadLetters {
    /// Returns a builder for a sink that sends to an event hub with a connection string of its namespace or of the event
    /// hub. The key needs the right *Send*.
    ///
    /// ```no_run
    /// # use eventhubs_checkpoint::EventHubDeadLetters;
    /// # async fn example(connection_string: String) -> eventhubs_checkpoint::Result<()> {
    /// let dead_letters =
    ///     EventHubDeadLetters::from_connection_string("orders-dead-letters", connection_string).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection_string(
        event_hub: impl Into<String>,
        connection_string: impl Into<ReplaceableConnectionString>,
    ) -> EventHubDeadLettersBuilder {
        let access = Access::ConnectionString(connection_string.into());
        EventHubDeadLettersBuilder::new(None, event_hub.into(), access)
    }

    /// Returns a builder for a sink that sends to an event hub with a credential of Microsoft Entra ID. The credential
    /// needs the role *Azure Event Hubs Data Sender*. The sink wraps it in a
    /// [`RenewableCredential`](super::RenewableCredential).
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use azure_core::credentials::TokenCredential;
    /// # use eventhubs_checkpoint::EventHubDeadLetters;
    /// # async fn example(credential: Arc<dyn TokenCredential>) -> eventhubs_checkpoint::Result<()> {
    /// let namespace = "example.servicebus.windows.net";
    /// let dead_letters =
    ///     EventHubDeadLetters::from_credential(namespace, "orders-dead-letters", credential).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_credential(
        namespace: impl Into<String>,
        event_hub: impl Into<String>,
        credential: Arc<dyn TokenCredential>,
    ) -> EventHubDeadLettersBuilder {
        EventHubDeadLettersBuilder::new(Some(namespace.into()), event_hub.into(), Access::credential(credential))
    }

    async fn send(&self, message: AmqpMessage) -> Result<()> {
        let client = self.connection.usable().await;
        // The client may wait forever for a lost response.
        let sent = timeout(REQUEST_TIMEOUT, client.client().send_message(message, None)).await;
        client.record(&Route::Hub, outcome(sent.as_ref().ok()));
        let what = "the event hub for dead letters";
        match sent {
            Ok(sent) => sent.map_err(|error| errors::sending(what, error)),
            Err(elapsed) => {
                let message = format!("{what} did not respond within {REQUEST_TIMEOUT:?}");
                Err(Error::new(ErrorKind::Indeterminate, message).with_source(elapsed))
            }
        }
    }
}

impl DeadLetterSink<ReceivedEventData> for EventHubDeadLetters {
    async fn store(&self, letter: DeadLetter<ReceivedEventData>) -> Result<(), HandlerError> {
        Ok(self.send(message(&letter)).await?)
    }

    async fn store_undecodable(&self, event: UndecodableEvent) -> Result<(), HandlerError> {
        Ok(self.send(message_of_undecodable(&event)).await?)
    }
}

fn outcome(sent: Option<&Result<(), EventHubsError>>) -> Outcome {
    match sent {
        Some(Ok(())) => Outcome::Responded,
        Some(Err(error)) => errors::outcome(error),
        None => Outcome::Broken,
    }
}

impl EventHubDeadLettersBuilder {
    fn new(namespace: Option<String>, event_hub: String, access: Access) -> Self {
        Self { namespace, event_hub, access, settings: Box::new(|client| client) }
    }

    /// Sets options of the client's own builder, as
    /// [`EventHubSourceBuilder::with_client_builder`](super::EventHubSourceBuilder::with_client_builder) does. The client
    /// keeps its default of eight retries: a send after half an hour needs one, because the event hub closes idle links.
    pub fn with_client_builder(
        self,
        settings: impl Fn(ProducerClientBuilder) -> ProducerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self { settings: Box::new(settings), ..self }
    }

    /// Opens the connection, within 20 s.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string is invalid or names another event hub.
    ///   Correct the setting.
    /// - [`ErrorKind::EventSource`](crate::ErrorKind::EventSource) if the event hub cannot be reached. Retry.
    ///
    /// The first dead letter shows whether the key or the credential is valid, and whether the event hub exists.
    pub async fn connect(self) -> Result<EventHubDeadLetters> {
        let namespace = match (self.namespace, &self.access) {
            (None, Access::ConnectionString(connection_string)) => {
                parsed(&connection_string.secret())?.fully_qualified_namespace
            }
            (namespace, _) => namespace.unwrap_or_default(),
        };
        let connector = Connector::new(&namespace, &self.event_hub, self.access, self.settings)?;
        Ok(EventHubDeadLetters { connection: Connection::open(Arc::new(connector)).await? })
    }
}

impl fmt::Debug for EventHubDeadLettersBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event_hub = &self.event_hub;
        f.debug_struct("EventHubDeadLettersBuilder").field("event_hub", event_hub).finish_non_exhaustive()
    }
}
