//! Links that the emulator ends on demand of a test.

use super::hub;
use crate::hub_client::{assert_mentions, consumer, earliest, failure, next, numbered, open, producer, send, until};

#[tokio::test]
async fn detached_senders_attach_again() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    assert_eq!(hub.detach_senders(), 0);
    send(&producer, "0", numbered(1)).await;
    assert_eq!(hub.detach_senders(), 1);
    send(&producer, "0", numbered(1)).await;
    assert_eq!(hub.event_count("0"), Some(2));
}

#[tokio::test]
async fn a_recreated_hub_is_empty_and_younger_and_its_links_are_detached() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(2)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(next(&receiver, 2).await.len(), 2);
    let created = hub.created_at();
    hub.advance_clock(std::time::Duration::from_secs(60));

    hub.recreate();

    assert!(hub.created_at() > created);
    assert_eq!(hub.event_count("0"), Some(0));
    assert_mentions(&failure(&receiver).await, &["NotFound", "The messaging entity 'hub' could not be found."]);
    until("the receiver is gone", || hub.open_receivers("$Default", "0") == Some(0)).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    assert_eq!(hub.partition_properties("0").unwrap().last_enqueued_sequence_number, 0);
}
