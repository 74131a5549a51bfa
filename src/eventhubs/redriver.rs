//! Sends dead letters back to the event hubs that they came from.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use azure_core::credentials::TokenCredential;
use azure_core_amqp::AmqpMessage;
use azure_messaging_eventhubs::builders::ProducerClientBuilder;
use azure_messaging_eventhubs::models::ReceivedEventData;
use tokio::sync::OnceCell;

use super::credentials::{HubAccess, ReplaceableConnectionString};
use super::dead_letter_origin::DeadLetterOrigin;
use super::dead_letters::{SendingConnections, producer_annotations, send_on};
use super::source::connection::Connector;
use crate::error::{Error, ErrorKind, Result};
use crate::util::lock;

/// Sends dead letters back to the event hubs that they came from, for example once the handler is corrected. `ehcp
/// redrive` does it for all letters in an event hub.
///
/// A dead letter becomes a new event, with the content that it has and the properties `x-original-*`
/// ([`DeadLetterOrigin`]): with its partition key if it has one, and otherwise in its original partition. Later events
/// of the same key may already have been processed. The event reaches all consumer groups of the event hub: a handler
/// that must not process it again compares [`DeadLetterOrigin::consumer_group`]. If the event fails again, the sink
/// replaces the properties. They do not name the namespace: use one redriver, and one event hub for dead letters, per
/// namespace.
///
/// A letter may be sent twice, after a crash or a lost response: the partition and the sequence number in its
/// properties identify it. The official client reports success also if the event hub releases or modifies a transfer
/// instead of accepting it. Such a letter is not sent.
///
/// Up to eight letters are sent at once to each event hub, on connections of their own if these can be opened.
///
/// To process the dead letters of one consumer group without the others, run its handler on the event hub of the dead
/// letters instead, and skip letters of other groups.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use eventhubs_checkpoint::azure_messaging_eventhubs::models::ReceivedEventData;
/// use eventhubs_checkpoint::eventhubs::{DeadLetterOrigin, EventHubRedriver};
/// use eventhubs_checkpoint::{EventContext, EventHandler, each_event, event_handler_fn};
///
/// /// Handles the event hub of the dead letters: sends back what a new version can process.
/// fn redrive(redriver: Arc<EventHubRedriver>) -> impl EventHandler<ReceivedEventData> {
///     event_handler_fn(move |letter: Arc<ReceivedEventData>, _: EventContext| {
///         let redriver = Arc::clone(&redriver);
///         async move {
///             if DeadLetterOrigin::of(&letter).is_some_and(|origin| origin.error.contains("unknown currency")) {
///                 redriver.send_back(&letter).await?;
///             }
///             Ok(())
///         }
///     })
/// }
///
/// # fn example(connection_string_of_the_namespace: String) {
/// let redriver = EventHubRedriver::from_connection_string(connection_string_of_the_namespace);
/// let handler = each_event(redrive(Arc::new(redriver)));
/// # let _ = handler;
/// # }
/// ```
pub struct EventHubRedriver {
    /// Missing if the connection string names it.
    namespace: Option<String>,
    access: HubAccess,
    settings: Arc<dyn Fn(ProducerClientBuilder) -> ProducerClientBuilder + Send + Sync>,
    /// By the event hub.
    targets: Mutex<HashMap<String, Arc<OnceCell<SendingConnections>>>>,
}

impl EventHubRedriver {
    /// Returns a redriver for the namespace of a connection string. The key needs the right *Send* for all event hubs
    /// that letters came from. A connection string with `EntityPath` is for the letters of that event hub.
    ///
    /// Connects with the first letter of each event hub.
    pub fn from_connection_string(connection_string: impl Into<ReplaceableConnectionString>) -> Self {
        Self::new(None, HubAccess::ConnectionString(connection_string.into()))
    }

    /// Returns a redriver for a namespace, with a credential of Microsoft Entra ID. The credential needs the role
    /// *Azure Event Hubs Data Sender* for all event hubs that letters came from.
    ///
    /// Connects with the first letter of each event hub.
    pub fn from_credential(namespace: impl Into<String>, credential: Arc<dyn TokenCredential>) -> Self {
        Self::new(Some(namespace.into()), HubAccess::from_credential(credential))
    }

    fn new(namespace: Option<String>, access: HubAccess) -> Self {
        Self { namespace, access, settings: Arc::new(|client| client), targets: Mutex::default() }
    }

    /// Sets options of the client's own builder, as
    /// [`EventHubSourceBuilder::with_client_builder`](super::EventHubSourceBuilder::with_client_builder) does.
    #[must_use]
    pub fn with_client_builder(
        self,
        settings: impl Fn(ProducerClientBuilder) -> ProducerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self { settings: Arc::new(settings), ..self }
    }

    /// Sends a dead letter back, within 20 s after it has got a connection. Returns once the event hub has accepted it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] if the event is no dead letter, or the letter of an event that the client could
    ///   not decode: its content is missing. Nothing was sent; look for the event in its event hub.
    /// - [`ErrorKind::Config`] if the connection string is invalid or names another event hub, or if the event hub does
    ///   not exist any more. Correct the setting.
    /// - [`ErrorKind::Unauthorized`] if the key or the credential may not send there. Add the permission.
    /// - [`ErrorKind::Indeterminate`] if no response came: the event was sent, or not. Sending the letter again may
    ///   store it twice.
    /// - [`ErrorKind::EventSource`] if the event hub cannot be reached, or rejects the event, or if the connection broke:
    ///   then the event may have been sent. Retry.
    pub async fn send_back(&self, letter: &ReceivedEventData) -> Result<()> {
        let origin = DeadLetterOrigin::of(letter)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the event has no x-original-* properties"))?;
        if !origin.has_content {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the dead letter has no content: the client could not decode the event",
            ));
        }
        let original = letter.raw_amqp_message();
        let message = AmqpMessage {
            message_annotations: producer_annotations(original),
            delivery_annotations: None,
            ..original.clone()
        };
        // The event hub derives the partition from the key.
        let partition = letter.partition_key().is_none().then_some(&origin.partition_id);
        let what = format!("event hub {}", origin.event_hub);
        let target = self.target(&origin.event_hub);
        let connections = target.get_or_try_init(|| self.connect(&origin.event_hub)).await?;
        connections.with_free_connection(async |connection| send_on(connection, &what, message, partition).await).await
    }

    /// Returns the place for the connections to an event hub, so that one that cannot be reached does not delay others.
    fn target(&self, event_hub: &str) -> Arc<OnceCell<SendingConnections>> {
        Arc::clone(lock(&self.targets).entry(event_hub.to_owned()).or_default())
    }

    async fn connect(&self, event_hub: &str) -> Result<SendingConnections> {
        let namespace = self.access.resolve_namespace(self.namespace.as_deref())?;
        let settings = Arc::clone(&self.settings);
        let connector =
            Connector::new(&namespace, event_hub, self.access.clone(), Box::new(move |client| settings(client)))?;
        SendingConnections::open(Arc::new(connector)).await
    }
}

impl fmt::Debug for EventHubRedriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubRedriver").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use azure_core_amqp::message::AmqpApplicationProperties;

    use super::*;
    use crate::processor::dead_letters::UndecodableEvent;

    #[tokio::test]
    async fn what_has_no_content_is_not_sent() {
        let plain: ReceivedEventData = AmqpMessage::builder().with_body(b"body".to_vec()).build().into();
        let mut properties = AmqpApplicationProperties::new();
        let event = UndecodableEvent {
            group: Arc::new(crate::ConsumerGroup::new("ns", "orders", "readers").unwrap()),
            partition_id: 3.into(),
            epoch: 5,
            sequence_number: 42,
            error: Arc::new(Error::new(ErrorKind::Undecodable, "a section is missing")),
        };
        DeadLetterOrigin::of_undecodable(&event).add_to(&mut properties);
        let empty: ReceivedEventData = AmqpMessage::builder().with_application_properties(properties).build().into();
        let redriver = EventHubRedriver::from_connection_string("no connection is needed");
        for letter in [plain, empty] {
            assert_eq!(redriver.send_back(&letter).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
