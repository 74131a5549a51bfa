//! Events that the emulator stores as they were published.

use azure_core_amqp::message::AmqpMessageBody;
use azure_core_amqp::{AmqpList, AmqpMessage, AmqpValue};
use azure_messaging_eventhubs::models::EventData;

use super::frames::tapped;
use super::hub;
use crate::hub_client::{assert_mentions, consumer, earliest, failure, next, numbered, open, producer, send, within};

/// An application property `k` that is a list with one element, a data section that holds null, and a footer with a
/// string as key.
const UNDECODABLE: &[u8] =
    b"\x00\x53\x74\xc1\x09\x02\xa1\x01k\xc0\x03\x01\x54\x07\x00\x53\x75\x40\x00\x53\x78\xc1\x07\x02\xa1\x01f\xa1\x01v";

#[tokio::test]
async fn an_undecodable_event_is_sent_as_it_was_stored() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    assert_eq!(hub.append_raw("0", UNDECODABLE), Some(1));
    assert_eq!((hub.append_raw("0", b"no section"), hub.append_raw("1", UNDECODABLE)), (None, None));

    let (consumer, bytes) = tapped(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(next(&receiver, 1).await.len(), 1);
    assert_mentions(&failure(&receiver).await, &["Decoding Message failed"]);

    let sent = bytes.lock().unwrap();
    assert!(sent.windows(UNDECODABLE.len()).any(|window| window == UNDECODABLE), "it is not among the bytes");
}

#[tokio::test]
async fn values_and_sequences_are_returned_as_published() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    let value = AmqpMessageBody::Value(AmqpValue::from("a value"));
    let sequence = AmqpMessageBody::Sequence(vec![AmqpList::from(vec![AmqpValue::from(7_i32)])]);
    for body in [value.clone(), sequence.clone()] {
        let message = AmqpMessage::builder().with_body(body).build();
        within("send_message", producer.send_message(message, None)).await.unwrap();
    }
    let consumer = consumer(&hub).await;
    let received = next(&open(&consumer, "0", earliest()).await, 2).await;
    let bodies: Vec<_> = received.iter().map(|event| event.raw_amqp_message().body.clone()).collect();
    assert_eq!(bodies, [value, sequence]);
}

#[tokio::test]
async fn events_of_several_frames_are_returned_whole() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    let bodies = [700_000, 10, 65_000, 300_000].map(|length| vec![b'x'; length]);
    for body in &bodies {
        let event = EventData::builder().with_body(body.clone()).build();
        within("send_event", producer.send_event(event, None)).await.unwrap();
    }
    let consumer = consumer(&hub).await;
    let received = next(&open(&consumer, "0", earliest()).await, bodies.len()).await;
    for (event, body) in received.iter().zip(&bodies) {
        assert!(event.event_data().body() == Some(body), "of {} bytes", body.len());
    }
}

#[tokio::test]
async fn a_removed_event_is_not_delivered_and_stays_the_end() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(3)).await;
    assert!(hub.remove_event("0", 0) && hub.remove_event("0", 2) && !hub.remove_event("0", 2));
    let end = hub.partition_properties("0").unwrap().last_enqueued_sequence_number;
    assert_eq!((end, hub.event_count("0")), (2, Some(1)));
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(next(&receiver, 1).await[0].sequence_number(), Some(1));
    send(&producer, "0", numbered(1)).await;
    assert_eq!(next(&receiver, 1).await[0].sequence_number(), Some(3));
}
