//! Geo-replication, and namespaces that move.

use azure_messaging_eventhubs::StartLocation;
use eventhubs_emulator::EventHubEmulator;

use super::hub;
use crate::hub_client::{
    assert_mentions, consumer, earliest, failure, first, next, numbered, open, producer, send, starting, within,
};

#[tokio::test]
async fn offsets_of_a_geo_replicated_hub_are_text() {
    let builder = EventHubEmulator::builder("hub").with_geo_replication();
    let hub = builder.start("127.0.0.1:0").await.unwrap();
    send(&producer(&hub).await, "0", numbered(3)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    let offset = next(&receiver, 2).await[1].offset().clone().unwrap();
    assert!(offset.starts_with("1:") && offset.ends_with(":1"), "{offset}");
    within("closing the receiver", receiver.close()).await.unwrap();

    assert_eq!(first(&consumer, "0", StartLocation::Offset(offset), false).await, 2);
    assert_eq!(first(&consumer, "0", StartLocation::SequenceNumber(1), true).await, 1);
    let of_properties =
        within("properties", consumer.get_partition_properties("0")).await.unwrap().last_enqueued_offset;
    let rejected = open(&consumer, "0", starting(StartLocation::Offset(of_properties), true)).await;
    assert_mentions(&failure(&rejected).await, &["com.microsoft:georeplication:invalid-offset"]);
}

#[tokio::test]
async fn a_promotion_uses_the_numbers_of_lost_events_again() {
    let builder = EventHubEmulator::builder("hub").with_geo_replication();
    let hub = builder.start("127.0.0.1:0").await.unwrap();
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(3)).await;
    let former = consumer(&hub).await;
    let receiver = open(&former, "0", earliest()).await;
    assert_eq!(next(&receiver, 3).await.len(), 3);

    hub.promote("0", 2);

    assert_mentions(&failure(&receiver).await, &["detached on demand"]);
    send(&producer, "0", numbered(1)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", starting(StartLocation::SequenceNumber(0), false)).await;
    let event = next(&receiver, 1).await.remove(0);
    assert_eq!(event.sequence_number(), Some(1));
    assert!(event.offset().as_deref().is_some_and(|offset| offset.starts_with("2:")), "{:?}", event.offset());
}

#[tokio::test]
async fn open_connections_stay_with_the_former_primary() {
    let hub = hub(1).await;
    let producer_before = producer(&hub).await;
    send(&producer_before, "0", numbered(2)).await;
    let consumer_before = consumer(&hub).await;
    let receiver = open(&consumer_before, "0", earliest()).await;
    assert_eq!(next(&receiver, 2).await.len(), 2);

    hub.move_namespace();

    assert_eq!(hub.event_count("0"), Some(0));
    send(&producer(&hub).await, "0", numbered(1)).await;
    assert_eq!(hub.event_count("0"), Some(1));
    let last = within("properties", consumer_before.get_partition_properties("0")).await.unwrap();
    assert_eq!(last.last_enqueued_sequence_number, 1);
    send(&producer_before, "0", numbered(1)).await;
    assert_eq!(next(&receiver, 1).await[0].sequence_number(), Some(2));
    let consumer_after = consumer(&hub).await;
    assert_eq!(next(&open(&consumer_after, "0", earliest()).await, 1).await[0].sequence_number(), Some(0));
}
