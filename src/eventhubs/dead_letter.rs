//! The AMQP message of a dead letter.

use azure_core_amqp::message::{AmqpAnnotationKey, AmqpAnnotations, AmqpApplicationProperties};
use azure_core_amqp::{AmqpMessage, AmqpSimpleValue, AmqpSymbol};
use azure_messaging_eventhubs::models::ReceivedEventData;
use time::format_description::well_known::Rfc3339;

use crate::error::Error;
use crate::model::{ConsumerGroup, PartitionId};
use crate::processor::{DeadLetter, UndecodableEvent};
use crate::source::Positioned;
use crate::telemetry::Causes;

/// The longest text of an error, in bytes. The event and its properties together must not exceed the size limit of the
/// event hub.
const LONGEST_ERROR: usize = 1024;

/// The event hub sets the annotations with this prefix, such as `x-opt-sequence-number`.
const SERVICE_PREFIX: &str = "x-opt-";
/// The producer sets these annotations, in spite of their prefix.
const PRODUCER_KEYS: [&str; 2] = ["x-opt-partition-key", "x-opt-kafka-key"];

/// Returns the message for a dead letter: the content of the event, and its origin.
pub(super) fn message(letter: &DeadLetter<ReceivedEventData>) -> AmqpMessage {
    let original = letter.event.raw_amqp_message();
    let mut properties = original.application_properties.clone().unwrap_or_default();
    add_origin(&mut properties, letter);
    AmqpMessage {
        application_properties: Some(properties),
        message_annotations: original.message_annotations.as_ref().and_then(annotations_to_keep),
        delivery_annotations: None,
        ..original.clone()
    }
}

/// Returns the annotations that the producer has set. IoT Hub, for example, adds `iothub-connection-device-id`.
fn annotations_to_keep(original: &AmqpAnnotations) -> Option<AmqpAnnotations> {
    let mut kept = AmqpAnnotations::new();
    for (key, value) in original.0.iter().filter(|(key, _)| !is_of_the_service(key)) {
        kept.insert(key.clone(), value.clone());
    }
    (!kept.0.is_empty()).then_some(kept)
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

fn add_origin(properties: &mut AmqpApplicationProperties, letter: &DeadLetter<ReceivedEventData>) {
    let event = &letter.event;
    add_place(properties, &letter.group, &letter.partition_id, &letter.error);
    if let Some(number) = event.sequence_number() {
        set(properties, "x-original-sequence-number", number);
    }
    if let Some(offset) = event.offset() {
        set(properties, "x-original-offset", offset.as_str());
    }
    if let Some(Ok(time)) = event.enqueued_at().map(|time| time.format(&Rfc3339)) {
        set(properties, "x-original-enqueued-time", time);
    }
    set(properties, "x-original-attempts", i32::try_from(letter.attempts).unwrap_or(i32::MAX));
}

/// Returns the message for an event that the client could not decode: no body, and the origin as far as it is known.
pub(super) fn message_of_undecodable(event: &UndecodableEvent) -> AmqpMessage {
    let mut properties = AmqpApplicationProperties::new();
    add_place(&mut properties, &event.group, &event.partition_id, &event.error);
    set(&mut properties, "x-original-sequence-number", event.sequence_number);
    AmqpMessage::builder().with_body(Vec::<u8>::new()).with_application_properties(properties).build()
}

fn add_place(
    properties: &mut AmqpApplicationProperties,
    group: &ConsumerGroup,
    partition: &PartitionId,
    error: &Error,
) {
    set(properties, "x-original-event-hub", group.event_hub());
    set(properties, "x-original-consumer-group", group.name());
    set(properties, "x-original-partition", partition.as_str());
    set(properties, "x-original-error", shortened(Causes(error).to_string()));
}

fn set(properties: &mut AmqpApplicationProperties, name: &str, value: impl Into<AmqpSimpleValue>) {
    // `insert` keeps a former value, too.
    while properties.0.remove(name).is_some() {}
    properties.insert(name.to_owned(), value.into());
}

fn shortened(mut text: String) -> String {
    let ends = text.char_indices().map(|(start, char)| start + char.len_utf8());
    text.truncate(ends.take_while(|end| *end <= LONGEST_ERROR).last().unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use azure_core_amqp::AmqpValue;

    use super::*;
    use crate::error::{Error, ErrorKind};
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
            ("x-opt-enqueued-time", AmqpValue::Long(0)),
            ("x-opt-partition-key", AmqpValue::String("customer-1".into())),
            ("iothub-connection-device-id", AmqpValue::String("thermostat-7".into())),
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
        let of_the_producer = annotated(&[
            ("x-opt-partition-key", AmqpValue::String("customer-1".into())),
            ("iothub-connection-device-id", AmqpValue::String("thermostat-7".into())),
        ]);
        assert_eq!(message.message_annotations, of_the_producer.message_annotations);
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
