//! An event hub as the sink of dead letters.

use azure_core_amqp::message::{AmqpAnnotations, AmqpApplicationProperties};
use azure_core_amqp::{AmqpMessage, AmqpSimpleValue, AmqpSymbol, AmqpValue};
use azure_messaging_eventhubs::ProducerClient;
use azure_messaging_eventhubs::models::ReceivedEventData;
use time::format_description::well_known::Rfc3339;
use tokio::time::timeout;

use super::REQUEST_TIMEOUT;
use crate::error::{Error, ErrorKind, Result};
use crate::processor::{DeadLetter, DeadLetterSink, HandlerError, Positioned};
use crate::telemetry::Causes;

/// The longest text of an error, in bytes. The event and its properties together must not exceed the size limit of the
/// event hub.
const LONGEST_ERROR: usize = 1024;

const PARTITION_KEY: &str = "x-opt-partition-key";

/// Moves dead letters to an event hub, by the official producer.
///
/// A dead letter has the body, the message properties, the application properties and the partition key of the original
/// event, and these application properties in addition:
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
/// An event may be sent twice, after a crash or a lost response. A property of the same name is replaced, for example if
/// a handler of the dead-letter hub fails. The error text is that of the application: if it contains personal data or
/// secrets, so does the property.
///
/// The official client reports success also if the event hub releases or modifies a transfer instead of accepting it.
/// Such an event would be lost.
///
/// The producer needs the right to send to its event hub. An event that is too large for that event hub together with
/// its new properties cannot be moved. Its partition keeps failing; use a sink of your own for such events.
#[derive(Debug)]
pub struct EventHubDeadLetters {
    producer: Producer,
}

/// The client does not implement `Debug`.
struct Producer(ProducerClient);

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProducerClient")
    }
}

impl EventHubDeadLetters {
    /// Creates a sink that sends to the producer's event hub.
    #[must_use]
    pub fn new(producer: ProducerClient) -> Self {
        Self { producer: Producer(producer) }
    }

    async fn send(&self, message: AmqpMessage) -> Result<()> {
        // The client may wait forever for a lost response.
        let sent = timeout(REQUEST_TIMEOUT, self.producer.0.send_message(message, None)).await.map_err(|_| {
            let message = format!("the event hub for dead letters did not respond within {REQUEST_TIMEOUT:?}");
            Error::new(ErrorKind::Indeterminate, message)
        })?;
        sent.map_err(|error| {
            Error::new(ErrorKind::EventSource, "cannot send to the event hub for dead letters").with_source(error)
        })
    }
}

impl DeadLetterSink<ReceivedEventData> for EventHubDeadLetters {
    async fn store(&self, letter: DeadLetter<ReceivedEventData>) -> Result<(), HandlerError> {
        Ok(self.send(message(&letter)).await?)
    }
}

fn message(letter: &DeadLetter<ReceivedEventData>) -> AmqpMessage {
    let event = &letter.event;
    let mut properties = event.raw_amqp_message().application_properties.clone().unwrap_or_default();
    add_origin(&mut properties, letter);
    let message_annotations = event.partition_key().as_ref().map(|key| {
        let mut annotations = AmqpAnnotations::new();
        annotations.insert(AmqpSymbol(PARTITION_KEY.to_owned()), AmqpValue::from(key.as_str()));
        annotations
    });
    AmqpMessage {
        application_properties: Some(properties),
        // The other annotations are those of the original event hub.
        message_annotations,
        delivery_annotations: None,
        ..event.raw_amqp_message().clone()
    }
}

fn add_origin(properties: &mut AmqpApplicationProperties, letter: &DeadLetter<ReceivedEventData>) {
    let event = &letter.event;
    let mut set = |name: &str, value: AmqpSimpleValue| {
        // `insert` keeps a former value, too.
        while properties.0.remove(name).is_some() {}
        properties.insert(name.to_owned(), value);
    };
    set("x-original-event-hub", letter.group.event_hub().into());
    set("x-original-consumer-group", letter.group.name().into());
    set("x-original-partition", letter.partition_id.as_str().into());
    if let Some(number) = event.sequence_number() {
        set("x-original-sequence-number", number.into());
    }
    if let Some(offset) = event.offset() {
        set("x-original-offset", offset.as_str().into());
    }
    if let Some(Ok(time)) = event.enqueued_at().map(|time| time.format(&Rfc3339)) {
        set("x-original-enqueued-time", time.into());
    }
    set("x-original-attempts", i32::try_from(letter.attempts).unwrap_or(i32::MAX).into());
    set("x-original-error", shortened(Causes(&letter.error).to_string()).into());
}

fn shortened(mut text: String) -> String {
    let ends = text.char_indices().map(|(start, char)| start + char.len_utf8());
    text.truncate(ends.take_while(|end| *end <= LONGEST_ERROR).last().unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{ConsumerGroup, PartitionId};

    fn letter(message: AmqpMessage, error: Error) -> DeadLetter<ReceivedEventData> {
        DeadLetter {
            event: message.into(),
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
            ("x-opt-partition-key", AmqpValue::String("customer-1".into())),
        ]);
        let mut properties = AmqpApplicationProperties::new();
        properties.insert("type".into(), "order");
        properties.insert("x-original-error".into(), "of a former dead letter");
        original.application_properties = Some(properties);
        let failed = Error::new(ErrorKind::Handler, "the handler failed").with_source("no such customer");
        let message = message(&letter(original.clone(), failed));
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
        let key = annotated(&[("x-opt-partition-key", AmqpValue::String("customer-1".into()))]).message_annotations;
        assert_eq!(message.message_annotations, key, "only the partition key remains");
    }

    #[test]
    fn a_long_error_is_shortened_between_characters() {
        let failed = Error::new(ErrorKind::Handler, "ü".repeat(LONGEST_ERROR));
        let message = message(&letter(annotated(&[]), failed));
        let expected = AmqpSimpleValue::from("ü".repeat(LONGEST_ERROR / 2));
        assert_eq!(property(&message, "x-original-error"), Some(&expected));
        assert_eq!(property(&message, "x-original-offset"), None);
        assert_eq!(message.message_annotations, None);
    }
}
