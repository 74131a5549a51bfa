//! An event hub as the sink of dead letters, its connections, and the AMQP messages.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_core_amqp::message::{AmqpAnnotationKey, AmqpAnnotations, AmqpApplicationProperties};
use azure_core_amqp::{AmqpMessage, AmqpSymbol};
use azure_messaging_eventhubs::builders::ProducerClientBuilder;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{ProducerClient, SendMessageOptions};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::CLIENT_REQUEST_TIMEOUT;
use super::credentials::{HubAccess, ReplaceableConnectionString};
use super::dead_letter_origin::DeadLetterOrigin;
use super::errors;
use super::source::connection::{Connection, Connector, Settings};
use super::source::connection_health::{ConnectionOutcome, Route};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::processor::HandlerError;
use crate::processor::dead_letters::{DeadLetter, DeadLetterSink, UndecodableEvent};
use crate::telemetry;
use crate::util::lock;

/// How many connections there are besides the first one, at most.
const FURTHER: usize = 7;

/// How long opening a further connection may take, while the dead letter that needs it waits.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// After a further connection could not be opened, none is opened for so long.
const REOPEN_AFTER: Duration = Duration::from_secs(30);

/// The event hub sets the annotations with this prefix, such as `x-opt-sequence-number`.
const SERVICE_PREFIX: &str = "x-opt-";
/// The producer sets these annotations, in spite of their prefix.
const PRODUCER_KEYS: [&str; 2] = ["x-opt-partition-key", "x-opt-kafka-key"];

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
/// The dead letter of an [event that the client cannot decode](crate::processor::OnUndecodable) has an empty body. Of
/// these properties it has the event hub, the consumer group, the partition, the sequence number and the error.
///
/// An event may be sent twice, after a crash or a lost response. A property of the same name is replaced, for example
/// if a handler of the dead-letter hub fails. The application provides the error text: if it contains personal data or
/// secrets, so does the property.
///
/// The official client reports success also if the event hub releases or modifies a transfer instead of accepting it.
/// Such an event would be lost.
///
/// The sink replaces its client like [`EventHubSource`](crate::EventHubSource#broken-connections): after a refusal of
/// the event hub, a send without a response within 20 s, or three failures in a row. The dead letter that failed is
/// stored when its partition is retried.
///
/// Up to eight dead letters are sent at once, each on a connection of its own, because the client sends one message
/// after the other. The first connection is opened by [`connect`](EventHubDeadLetterSinkBuilder::connect), the others
/// when they are needed, and all stay open.
///
/// An event that is too large for the event hub together with its new properties cannot be moved. Its partition keeps
/// failing; use a sink of your own for such events.
#[derive(Debug)]
pub struct EventHubDeadLetterSink {
    connections: SendingConnections,
}

/// Configures an [`EventHubDeadLetterSink`]; see
/// [`from_connection_string`](EventHubDeadLetterSink::from_connection_string) and
/// [`from_credential`](EventHubDeadLetterSink::from_credential).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubDeadLetterSinkBuilder {
    /// Missing if the connection string names it.
    namespace: Option<String>,
    event_hub: String,
    access: HubAccess,
    settings: Settings<ProducerClient>,
}

impl EventHubDeadLetterSink {
    /// Returns a builder for a sink that sends to an event hub with a connection string of its namespace or of the
    /// event hub. The key needs the right *Send*.
    ///
    /// ```no_run
    /// # use eventhubs_checkpoint::EventHubDeadLetterSink;
    /// # async fn example(connection_string: String) -> eventhubs_checkpoint::Result<()> {
    /// let dead_letters =
    ///     EventHubDeadLetterSink::from_connection_string("orders-dead-letters", connection_string).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection_string(
        event_hub: impl Into<String>,
        connection_string: impl Into<ReplaceableConnectionString>,
    ) -> EventHubDeadLetterSinkBuilder {
        EventHubDeadLetterSinkBuilder::new(
            None,
            event_hub.into(),
            HubAccess::ConnectionString(connection_string.into()),
        )
    }

    /// Returns a builder for a sink that sends to an event hub with a credential of Microsoft Entra ID. The credential
    /// needs the role *Azure Event Hubs Data Sender*. The sink wraps it in a
    /// [`RenewableCredential`](super::RenewableCredential).
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use azure_core::credentials::TokenCredential;
    /// # use eventhubs_checkpoint::EventHubDeadLetterSink;
    /// # async fn example(credential: Arc<dyn TokenCredential>) -> eventhubs_checkpoint::Result<()> {
    /// let namespace = "example.servicebus.windows.net";
    /// let dead_letters =
    ///     EventHubDeadLetterSink::from_credential(namespace, "orders-dead-letters", credential).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_credential(
        namespace: impl Into<String>,
        event_hub: impl Into<String>,
        credential: Arc<dyn TokenCredential>,
    ) -> EventHubDeadLetterSinkBuilder {
        EventHubDeadLetterSinkBuilder::new(
            Some(namespace.into()),
            event_hub.into(),
            HubAccess::from_credential(credential),
        )
    }

    async fn send(&self, message: AmqpMessage) -> Result<()> {
        self.connections
            .with_free_connection(async |connection| {
                send_on(connection, "the event hub for dead letters", message, None).await
            })
            .await
    }
}

/// The connections over which messages are sent to an event hub: one that is always open, and further ones that are
/// opened while others are busy.
///
/// The client sends one message after the other on a connection, and waits for each response, so that messages which
/// are to be sent at once need several.
#[derive(Debug)]
pub(super) struct SendingConnections {
    connector: Arc<Connector<ProducerClient>>,
    first: Connection<ProducerClient>,
    further: [OnceLock<Connection<ProducerClient>>; FURTHER],
    /// The places that are not taken: 0 for the first connection, then the further ones.
    free: Mutex<Vec<usize>>,
    places: Semaphore,
    /// When a further connection could not be opened. Locked while one is being opened.
    failed_at: tokio::sync::Mutex<Option<Instant>>,
}

impl SendingConnections {
    pub(super) async fn open(connector: Arc<Connector<ProducerClient>>) -> Result<Self> {
        Ok(Self {
            first: Connection::open(Arc::clone(&connector)).await?,
            connector,
            further: [const { OnceLock::new() }; FURTHER],
            free: Mutex::new((0..=FURTHER).rev().collect()),
            places: Semaphore::new(FURTHER + 1),
            failed_at: tokio::sync::Mutex::new(None),
        })
    }

    /// Waits until a connection is free, and lends it to this work. If no further one can be opened, lends the first
    /// one in its place.
    pub(super) async fn with_free_connection<T>(&self, work: impl AsyncFnOnce(&Connection<ProducerClient>) -> T) -> T {
        // The semaphore is never closed.
        let _permit = self.places.acquire().await;
        let place = Place::take(&self.free);
        work(self.connection_at(place.index).await).await
    }

    async fn connection_at(&self, place: usize) -> &Connection<ProducerClient> {
        let Some(further) = place.checked_sub(1).and_then(|index| self.further.get(index)) else { return &self.first };
        if let Some(connection) = further.get() {
            return connection;
        }
        let Ok(mut failed_at) = self.failed_at.try_lock() else { return &self.first };
        if failed_at.is_some_and(|failed_at| failed_at.elapsed() < REOPEN_AFTER) {
            return &self.first;
        }
        match timeout(OPENING_LIMIT, Connection::open(Arc::clone(&self.connector))).await {
            Ok(Ok(connection)) => further.get_or_init(|| connection),
            failure => {
                *failed_at = Some(Instant::now());
                telemetry::dead_letters_on_one_connection(failure.ok().and_then(Result::err).as_ref());
                &self.first
            }
        }
    }
}

/// A place that is taken until it is dropped.
struct Place<'a> {
    index: usize,
    free: &'a Mutex<Vec<usize>>,
}

impl<'a> Place<'a> {
    /// Takes the place that was given back last, so that one message after the other uses the same connection.
    fn take(free: &'a Mutex<Vec<usize>>) -> Self {
        let index = lock(free).pop().unwrap_or_default();
        Self { index, free }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(self.free).push(self.index);
    }
}

/// Sends a message to a partition, or to the one that the event hub chooses.
pub(super) async fn send_on(
    connection: &Connection<ProducerClient>,
    what: &str,
    message: AmqpMessage,
    partition: Option<&PartitionId>,
) -> Result<()> {
    let client = connection.usable_client().await;
    let options = SendMessageOptions { partition_id: partition.map(|id| id.as_str().to_owned()) };
    // The client may wait forever for a lost response.
    let sent = timeout(CLIENT_REQUEST_TIMEOUT, client.inner().send_message(message, Some(options))).await;
    let outcome = match &sent {
        Ok(Ok(())) => ConnectionOutcome::Responded,
        Ok(Err(error)) => errors::connection_outcome(error),
        Err(_) => ConnectionOutcome::Broken,
    };
    client.record_outcome(&Route::Hub, outcome);
    match sent {
        Ok(sent) => sent.map_err(|error| errors::send_error(what, error)),
        Err(elapsed) => Err(Error::new(
            ErrorKind::Indeterminate,
            format!("{what} did not respond within {CLIENT_REQUEST_TIMEOUT:?}"),
        )
        .with_source(elapsed)),
    }
}

impl DeadLetterSink<ReceivedEventData> for EventHubDeadLetterSink {
    async fn store(&self, letter: DeadLetter<ReceivedEventData>) -> Result<(), HandlerError> {
        Ok(self.send(message_of_letter(&letter)).await?)
    }

    async fn store_undecodable(&self, event: UndecodableEvent) -> Result<(), HandlerError> {
        let mut properties = AmqpApplicationProperties::new();
        DeadLetterOrigin::of_undecodable(&event).add_to(&mut properties);
        let message =
            AmqpMessage::builder().with_body(Vec::<u8>::new()).with_application_properties(properties).build();
        Ok(self.send(message).await?)
    }
}

impl EventHubDeadLetterSinkBuilder {
    fn new(namespace: Option<String>, event_hub: String, access: HubAccess) -> Self {
        Self { namespace, event_hub, access, settings: Box::new(|client| client) }
    }

    /// Sets options of the client's own builder, as
    /// [`EventHubSourceBuilder::with_client_builder`](super::EventHubSourceBuilder::with_client_builder) does. The
    /// client keeps its default of eight retries: a send after half an hour needs one, because the event hub closes
    /// idle links.
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
    /// - [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string is invalid or names another event
    ///   hub. Correct the setting.
    /// - [`ErrorKind::EventSource`](crate::ErrorKind::EventSource) if the event hub cannot be reached. Retry.
    ///
    /// The first dead letter shows whether the key or the credential is valid, and whether the event hub exists.
    pub async fn connect(self) -> Result<EventHubDeadLetterSink> {
        let namespace = self.access.resolve_namespace(self.namespace.as_deref())?;
        let connector = Connector::new(&namespace, &self.event_hub, self.access, self.settings)?;
        Ok(EventHubDeadLetterSink { connections: SendingConnections::open(Arc::new(connector)).await? })
    }
}

impl fmt::Debug for EventHubDeadLetterSinkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubDeadLetterSinkBuilder").field("event_hub", &self.event_hub).finish_non_exhaustive()
    }
}

/// Returns the message for a dead letter: the content of the event, and its origin.
fn message_of_letter(letter: &DeadLetter<ReceivedEventData>) -> AmqpMessage {
    let original = letter.event.raw_amqp_message();
    let mut properties = original.application_properties.clone().unwrap_or_default();
    DeadLetterOrigin::of_event(letter).add_to(&mut properties);
    AmqpMessage {
        application_properties: Some(properties),
        message_annotations: producer_annotations(original),
        delivery_annotations: None,
        ..original.clone()
    }
}

/// Returns the annotations that the producer has set. IoT Hub, for example, adds `iothub-connection-device-id`.
pub(super) fn producer_annotations(message: &AmqpMessage) -> Option<AmqpAnnotations> {
    let mut annotations = AmqpAnnotations::new();
    for (key, value) in message.message_annotations.iter().flat_map(|annotations| annotations.0.iter()) {
        if !is_of_the_service(key) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    (!annotations.0.is_empty()).then_some(annotations)
}

fn is_of_the_service(key: &AmqpAnnotationKey) -> bool {
    match key {
        AmqpAnnotationKey::Symbol(AmqpSymbol(name)) => {
            name.starts_with(SERVICE_PREFIX) && !PRODUCER_KEYS.contains(&name.as_str())
        }
        // Reserved by AMQP.
        AmqpAnnotationKey::Ulong(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use azure_core_amqp::{AmqpSimpleValue, AmqpValue};

    use super::*;
    use crate::model::ConsumerGroup;

    fn letter(message: AmqpMessage, error: Error) -> DeadLetter<ReceivedEventData> {
        DeadLetter {
            event: Arc::new(message.into()),
            group: Arc::new(ConsumerGroup::new("ns", "orders", "readers").unwrap()),
            partition_id: PartitionId::from(3),
            epoch: 5,
            attempts: 7,
            error: Arc::new(error),
        }
    }

    fn annotated(annotations: &[(&str, AmqpValue)]) -> AmqpMessage {
        let mut all = AmqpAnnotations::new();
        for (name, value) in annotations {
            all.insert(AmqpSymbol((*name).to_owned()), value.clone());
        }
        AmqpMessage::builder().with_body(b"body".to_vec()).with_message_annotations(all).build()
    }

    fn property<'a>(message: &'a AmqpMessage, name: &str) -> Option<&'a AmqpSimpleValue> {
        let properties = message.application_properties.as_ref()?;
        properties.0.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value)
    }

    #[test]
    fn a_letter_has_the_content_and_the_origin() {
        let mut original = annotated(&[
            ("x-opt-sequence-number", AmqpValue::Long(42)),
            ("x-opt-offset", AmqpValue::String("420".into())),
            ("x-opt-enqueued-time", AmqpValue::Long(0)),
            ("x-opt-partition-key", AmqpValue::String("customer-1".into())),
            ("iothub-connection-device-id", AmqpValue::String("thermostat-7".into())),
        ]);
        let mut properties = AmqpApplicationProperties::new();
        properties.insert("type".into(), "order");
        properties.insert("x-original-error".into(), "of a former dead letter");
        original.application_properties = Some(properties);
        let failed = Error::new(ErrorKind::Handler, "the handler failed").with_source("no such customer");
        let message = message_of_letter(&letter(original.clone(), failed));
        assert_eq!(message.body, original.body);
        for (name, value) in [
            ("type", "order".into()),
            ("x-original-event-hub", "orders".into()),
            ("x-original-consumer-group", "readers".into()),
            ("x-original-partition", "3".into()),
            ("x-original-sequence-number", 42_i64.into()),
            ("x-original-offset", "420".into()),
            ("x-original-attempts", 7_i32.into()),
            ("x-original-error", "the handler failed: no such customer".into()),
        ] {
            assert_eq!(property(&message, name), Some(&value), "{name}");
        }
        assert_eq!(message.application_properties.as_ref().unwrap().0.len(), 8, "no property occurs twice");
        let of_the_producer = annotated(&[
            ("x-opt-partition-key", AmqpValue::String("customer-1".into())),
            ("iothub-connection-device-id", AmqpValue::String("thermostat-7".into())),
        ]);
        assert_eq!(message.message_annotations, of_the_producer.message_annotations);
    }
}
