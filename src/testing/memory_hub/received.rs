//! Events of the hub in the type of the official client.

use azure_core_amqp::message::{AmqpAnnotations, AmqpMessageBody};
use azure_core_amqp::{AmqpMessage, AmqpSymbol, AmqpValue};
use azure_messaging_eventhubs::models::ReceivedEventData;

use super::event::MemoryEvent;

/// For a handler of events of the official client. The event has its body, sequence number and offset, and no enqueued
/// time.
impl From<MemoryEvent> for ReceivedEventData {
    fn from(event: MemoryEvent) -> Self {
        let mut annotations = AmqpAnnotations::default();
        let mut annotate = |name: &str, value: AmqpValue| annotations.insert(AmqpSymbol(name.to_owned()), value);
        annotate("x-opt-sequence-number", AmqpValue::Long(event.sequence_number));
        annotate("x-opt-offset", AmqpValue::String(event.offset.to_string()));
        let body = AmqpMessageBody::Binary(vec![event.body.as_bytes().to_vec()]);
        AmqpMessage::builder().with_body(body).with_message_annotations(annotations).build().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Positioned;

    #[test]
    fn an_event_keeps_its_body_and_position() {
        let event = ReceivedEventData::from(MemoryEvent::new(7, "body"));
        assert_eq!(event.event_data().body(), Some(b"body".as_slice()));
        assert_eq!((Positioned::sequence_number(&event), Positioned::offset(&event)), (Some(7), Some("70")));
    }
}
