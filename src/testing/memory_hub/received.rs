//! Events of the hub in the type of the official client.

use std::time::SystemTime;

use azure_core_amqp::message::{AmqpAnnotations, AmqpApplicationProperties, AmqpMessageBody};
use azure_core_amqp::{AmqpMessage, AmqpSimpleValue, AmqpSymbol, AmqpTimestamp, AmqpValue};
use azure_messaging_eventhubs::models::ReceivedEventData;

use super::event::{MemoryEvent, PropertyValue};

/// For a handler of events of the official client: with body, sequence number, offset, time of enqueuing, partition key
/// and application properties. Text is an AMQP string, and a whole number a `Long`.
impl From<MemoryEvent> for ReceivedEventData {
    fn from(event: MemoryEvent) -> Self {
        let mut annotations = AmqpAnnotations::default();
        let mut annotate = |name: &str, value: AmqpValue| annotations.insert(AmqpSymbol(name.to_owned()), value);
        annotate("x-opt-sequence-number", AmqpValue::Long(event.sequence_number));
        annotate("x-opt-offset", AmqpValue::String(event.offset.to_string()));
        annotate("x-opt-enqueued-time", AmqpValue::TimeStamp(AmqpTimestamp(Some(SystemTime::from(event.enqueued_at)))));
        if let Some(key) = &event.partition_key {
            annotate("x-opt-partition-key", AmqpValue::String(key.to_string()));
        }
        let mut message = AmqpMessage::builder()
            .with_body(AmqpMessageBody::Binary(vec![event.body.to_vec()]))
            .with_message_annotations(annotations);
        if !event.properties.is_empty() {
            let mut properties = AmqpApplicationProperties::new();
            for (name, value) in &*event.properties {
                properties.insert(name.clone(), AmqpSimpleValue::from(value));
            }
            message = message.with_application_properties(properties);
        }
        message.build().into()
    }
}

impl From<&PropertyValue> for AmqpSimpleValue {
    fn from(value: &PropertyValue) -> Self {
        match value {
            PropertyValue::Text(text) => Self::String(text.clone()),
            PropertyValue::Integer(number) => Self::Long(*number),
            PropertyValue::Boolean(value) => Self::Boolean(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;
    use time::macros::datetime;

    use super::*;
    use crate::source::{EventSource, Positioned, StartPosition};
    use crate::testing::memory_hub::event::BEGINNING;
    use crate::testing::memory_hub::{MemoryHub, NewEvent};

    const NOON: OffsetDateTime = datetime!(2026-01-01 12:00 UTC);

    /// Publishes an event, and returns it as a reader of each type receives it.
    async fn publish_and_receive(event: NewEvent) -> (MemoryEvent, ReceivedEventData) {
        async fn receive<S: EventSource>(source: S) -> S::Event {
            let mut receiver = source.open_receiver(&0.into(), StartPosition::Earliest, 9, 1).await.unwrap();
            receiver.next_batch(9).await.unwrap().remove(0)
        }
        let hub = MemoryHub::new("hub", 1);
        assert_eq!(hub.publish(0, event), Some(0));
        (receive(hub.source()).await, receive(hub.source_of()).await)
    }

    #[tokio::test(start_paused = true)]
    async fn received_events_carry_what_was_published() {
        for (event, body, key, enqueued_at) in [
            (NewEvent::from("text"), b"text".as_slice(), None, BEGINNING),
            (NewEvent::from(String::new()), b"", None, BEGINNING),
            (NewEvent::new([0xff, 0]), &[0xff, 0], None, BEGINNING),
            (NewEvent::new("x").with_partition_key("device-7"), b"x", Some("device-7"), BEGINNING),
            (NewEvent::new("x").with_enqueued_at(NOON), b"x", None, NOON),
        ] {
            let (in_memory, official) = publish_and_receive(event).await;
            assert_eq!((&*in_memory.body, in_memory.partition_key.as_deref()), (body, key));
            assert_eq!((official.event_data().body(), official.partition_key().as_deref()), (Some(body), key));
            assert_eq!(in_memory.enqueued_at, enqueued_at);
            assert_eq!(Positioned::enqueued_at(&official), Some(enqueued_at));
            assert_eq!((Positioned::sequence_number(&official), Positioned::offset(&official)), (Some(0), Some("0")));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn properties_keep_their_types() {
        let published = NewEvent::new("x").with_property("type", "order").with_property("size", 12);
        let (in_memory, official) = publish_and_receive(published.with_property("urgent", true)).await;
        for (name, value, amqp) in [
            ("type", PropertyValue::Text("order".into()), AmqpSimpleValue::String("order".into())),
            ("size", PropertyValue::Integer(12), AmqpSimpleValue::Long(12)),
            ("urgent", PropertyValue::Boolean(true), AmqpSimpleValue::Boolean(true)),
        ] {
            assert_eq!(in_memory.properties.get(name), Some(&value));
            assert_eq!(official.event_data().properties().unwrap().get(name), Some(&amqp));
        }
        assert_eq!(in_memory.properties.len(), 3);
    }
}
