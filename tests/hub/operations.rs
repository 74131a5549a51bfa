//! What a test can do to the Event Hubs emulator, as the official client sees it.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use azure_messaging_eventhubs::error::ErrorKind;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{ConsumerClient, OpenReceiverOptions, StartLocation};
use eventhubs_emulator::EventHubEmulator;

use crate::hub_client::{
    assert_mentions, consumer, consumer_with, earliest, failure, first, next, numbered, open, producer, send, starting,
    until, within,
};

async fn hub() -> EventHubEmulator {
    EventHubEmulator::builder("hub").with_partitions(1).with_consumer_group("other").start("127.0.0.1:0").await.unwrap()
}

async fn hub_that_keeps(events: usize) -> EventHubEmulator {
    EventHubEmulator::builder("hub").with_partitions(1).with_retention_count(events).start("127.0.0.1:0").await.unwrap()
}

fn numbers(events: &[ReceivedEventData]) -> Vec<i64> {
    events.iter().map(|event| event.sequence_number().unwrap()).collect()
}

fn bodies(events: &[ReceivedEventData]) -> Vec<&[u8]> {
    events.iter().map(|event| event.event_data().body().unwrap()).collect()
}

async fn told_partitions(consumer: &ConsumerClient) -> Vec<String> {
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap().partition_ids
}

// Retention.

#[tokio::test]
async fn retention_keeps_the_newest_events() {
    let hub = hub_that_keeps(3).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(2)).await;
    let consumer = consumer(&hub).await;
    let properties = || within("partition properties", consumer.get_partition_properties("0"));
    assert_eq!(properties().await.unwrap().beginning_sequence_number, 0);

    send(&producer, "0", numbered(8)).await;

    let moved = properties().await.unwrap();
    assert_eq!((moved.beginning_sequence_number, moved.last_enqueued_sequence_number), (7, 9));
    assert!(!moved.is_empty);
    assert_eq!(hub.event_count("0"), Some(3));
    let receiver = open(&consumer, "0", earliest()).await;
    let events = next(&receiver, 3).await;
    assert_eq!(numbers(&events), [7, 8, 9]);
    assert_eq!(bodies(&events), [b"event-5", b"event-6", b"event-7"]);
}

#[tokio::test]
async fn an_expired_position_starts_at_the_oldest_event() {
    let hub = hub_that_keeps(3).await;
    send(&producer(&hub).await, "0", numbered(10)).await;
    let consumer = consumer(&hub).await;
    for (location, inclusive) in [
        (StartLocation::SequenceNumber(0), true),
        (StartLocation::SequenceNumber(4), false),
        (StartLocation::Offset("0".into()), false),
    ] {
        let shown = format!("{location:?}, inclusive: {inclusive}");
        assert_eq!(first(&consumer, "0", location, inclusive).await, 7, "{shown}");
    }
}

#[tokio::test]
async fn an_expired_position_is_rejected_if_configured() {
    let builder =
        EventHubEmulator::builder("hub").with_partitions(1).with_retention_count(3).with_expired_positions_rejected();
    let hub = builder.start("127.0.0.1:0").await.unwrap();
    send(&producer(&hub).await, "0", numbered(10)).await;
    let consumer = consumer(&hub).await;

    let refused = open(&consumer, "0", starting(StartLocation::SequenceNumber(2), false)).await;
    let error = failure(&refused).await;
    assert_mentions(&error, &["ArgumentError", "The first sequence number in the system is '7'"]);
    let _ = within("closing the rejected receiver", refused.close()).await;

    assert_eq!(first(&consumer, "0", StartLocation::SequenceNumber(6), false).await, 7, "nothing is missed");
    assert_eq!(first(&consumer, "0", StartLocation::Earliest, false).await, 7);
}

/// As after an event hub was recreated while its checkpoints remained.
#[tokio::test]
async fn a_position_above_the_last_event_is_an_error() {
    let hub = hub_that_keeps(3).await;
    send(&producer(&hub).await, "0", numbered(10)).await;
    let last = hub.partition_properties("0").unwrap().last_enqueued_offset;
    let consumer = consumer(&hub).await;
    for (location, hint) in [
        (StartLocation::Offset("123456789".into()), format!("offset in the system is '{last}'")),
        (StartLocation::SequenceNumber(10), "sequence number in the system is '9'".to_owned()),
    ] {
        let refused = open(&consumer, "0", starting(location, false)).await;
        let error = failure(&refused).await;
        assert_mentions(&error, &["ArgumentError", "is invalid. The last", &hint]);
        assert!(matches!(error.kind, ErrorKind::AmqpError(_)), "{error:?}");
        let _ = within("closing the rejected receiver", refused.close()).await;
    }
}

#[tokio::test]
async fn a_lagging_receiver_continues_with_the_oldest_event() {
    let hub = hub_that_keeps(100).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(100)).await;
    let consumer = consumer(&hub).await;
    let options = OpenReceiverOptions { prefetch: Some(10), ..earliest() };
    let receiver = open(&consumer, "0", options).await;
    assert_eq!(numbers(&next(&receiver, 1).await), [0]);

    send(&producer, "0", numbered(1000)).await;

    let mut seen = Vec::new();
    while seen.last() != Some(&1099) {
        seen.extend(numbers(&next(&receiver, 1).await));
    }
    assert!(seen.is_sorted(), "{seen:?}");
    assert!(seen.contains(&1000) && !seen.contains(&500), "{seen:?}");
}

// Growth.

#[tokio::test]
async fn new_partitions_are_reported_and_served_at_once() {
    let hub = EventHubEmulator::builder("hub").with_partitions(2).start("127.0.0.1:0").await.unwrap();
    let consumer = consumer(&hub).await;
    let producer = producer(&hub).await;
    assert_eq!(told_partitions(&consumer).await, ["0", "1"]);
    within("send_event", producer.send_event("before", None)).await.unwrap();

    hub.grow_to(4);

    assert_eq!(told_partitions(&consumer).await, ["0", "1", "2", "3"]);
    let fresh = within("partition properties", consumer.get_partition_properties("3")).await.unwrap();
    assert!(fresh.is_empty);
    for _ in 0..4 {
        within("send_event", producer.send_event("after", None)).await.unwrap();
    }
    let counts: Vec<_> = hub.partition_ids().iter().map(|id| hub.event_count(id).unwrap()).collect();
    assert_eq!(counts, [2, 1, 1, 1], "a link from before the growth reaches the new ones");
    send(&producer, "2", numbered(1)).await;
    let receiver = open(&consumer, "2", earliest()).await;
    assert_eq!(bodies(&next(&receiver, 2).await), [&b"after"[..], b"event-0"]);
}

// Detaches and cuts.

#[tokio::test]
async fn a_detach_on_demand_ends_the_stream() {
    let hub = hub().await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(2)).await;
    let (consumer, bystander) = (consumer(&hub).await, consumer_with(&hub, "other", &hub.connection_string()).await);
    let (receiver, untouched) = (open(&consumer, "0", earliest()).await, open(&bystander, "0", earliest()).await);
    assert_eq!(numbers(&next(&receiver, 2).await), [0, 1]);
    assert_eq!(numbers(&next(&untouched, 2).await), [0, 1]);

    assert_eq!(hub.detach_receivers("$Default", "0"), Some(1));

    let error = failure(&receiver).await;
    assert_mentions(&error, &["LinkDetachForced", "detached on demand"]);
    assert_eq!((hub.open_receivers("$Default", "0"), hub.open_receivers("other", "0")), (Some(0), Some(1)));
    let _ = within("closing the detached receiver", receiver.close()).await;
    send(&producer, "0", numbered(1)).await;
    let again = open(&consumer, "0", starting(StartLocation::SequenceNumber(1), false)).await;
    assert_eq!(numbers(&next(&again, 1).await), [2]);
    assert_eq!(numbers(&next(&untouched, 1).await), [2], "another group is not affected");
}

#[tokio::test]
async fn a_detach_has_the_requested_condition() {
    let hub = hub().await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let consumer = consumer(&hub).await;
    for (condition, shown) in [
        ("com.microsoft:server-busy", "ServerBusyError"),
        ("amqp:not-found", "NotFound"),
        ("amqp:unauthorized-access", "UnauthorizedAccess"),
    ] {
        let receiver = open(&consumer, "0", earliest()).await;
        assert_eq!(next(&receiver, 1).await.len(), 1);
        assert_eq!(hub.detach_receivers_with("$Default", "0", condition), Some(1));
        assert_mentions(&failure(&receiver).await, &[shown]);
        let _ = within("closing the detached receiver", receiver.close()).await;
    }
    assert_eq!(hub.detach_receivers("$Default", "0"), Some(0), "no receiver is left");
    assert_eq!((hub.detach_receivers("$Default", "1"), hub.detach_receivers("third", "0")), (None, None));
}

#[tokio::test]
async fn a_stolen_link_is_reported_as_a_lost_partition() {
    let hub = hub().await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(next(&receiver, 1).await.len(), 1);
    assert_eq!(hub.detach_receivers_with("$Default", "0", "amqp:link:stolen"), Some(1));
    let error = failure(&receiver).await;
    assert!(matches!(error.kind, ErrorKind::ConsumerDisconnected(Some(_))), "{error:?}");
}

/// The official client attaches again by itself, with its original start: events are redelivered.
#[tokio::test]
async fn a_client_that_retries_recovers_from_a_detach() {
    let hub = hub().await;
    send(&producer(&hub).await, "0", numbered(3)).await;
    let connection_string = hub.connection_string();
    let opening = ConsumerClient::builder()
        .with_custom_endpoint(hub.endpoint())
        .open_with_connection_string(&connection_string, None);
    let consumer = within("opening a consumer", opening).await.unwrap();
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(numbers(&next(&receiver, 3).await), [0, 1, 2]);

    assert_eq!(hub.detach_receivers("$Default", "0"), Some(1));

    assert_eq!(numbers(&next(&receiver, 3).await), [0, 1, 2]);
}

#[tokio::test]
async fn cut_connections_end_all_streams() {
    let hub = hub().await;
    send(&producer(&hub).await, "0", numbered(2)).await;
    let mut cut = Vec::new();
    for group in ["$Default", "other"] {
        let consumer = consumer_with(&hub, group, &hub.connection_string()).await;
        let receiver = open(&consumer, "0", earliest()).await;
        assert_eq!(next(&receiver, 1).await.len(), 1);
        cut.push((consumer, receiver));
    }

    assert!(hub.cut_connections() >= 2);

    for (_consumer, receiver) in &cut {
        let error = failure(receiver).await;
        assert!(!matches!(error.kind, ErrorKind::ConsumerDisconnected(_)), "{error:?}");
    }
    until("the hub has noticed", || hub.open_receivers("$Default", "0") == Some(0)).await;
    until("the hub has noticed", || hub.open_receivers("other", "0") == Some(0)).await;
    let consumer = consumer(&hub).await;
    assert_eq!(first(&consumer, "0", StartLocation::SequenceNumber(0), false).await, 1);
}

// Several event hubs.

async fn orders_and_payments() -> (EventHubEmulator, EventHubEmulator) {
    let orders = EventHubEmulator::builder("orders")
        .with_partitions(1)
        .with_consumer_group("billing")
        .with_event_hub("payments", |hub| hub.with_partitions(2).with_consumer_group("audit").with_retention_count(1))
        .start("127.0.0.1:0")
        .await
        .unwrap();
    let payments = orders.event_hub("PAYMENTS").expect("it was added");
    (orders, payments)
}

#[tokio::test]
async fn two_hubs_do_not_mix() {
    let (orders, payments) = orders_and_payments().await;
    assert_eq!((orders.endpoint(), payments.name()), (payments.endpoint(), "payments"));
    let (ordering, paying) = (producer(&orders).await, producer(&payments).await);
    send(&ordering, "0", [b"order".to_vec()]).await;
    send(&paying, "0", [b"early payment".to_vec(), b"payment".to_vec()]).await;
    assert_eq!((orders.event_count("0"), payments.event_count("0")), (Some(1), Some(1)), "each has its retention");

    let (of_orders, of_payments) = (consumer(&orders).await, consumer(&payments).await);
    assert_eq!(told_partitions(&of_orders).await, ["0"]);
    assert_eq!(told_partitions(&of_payments).await, ["0", "1"]);
    let from_orders = open(&of_orders, "0", earliest()).await;
    let from_payments = open(&of_payments, "0", earliest()).await;
    assert_eq!(bodies(&next(&from_orders, 1).await), [b"order"]);
    assert_eq!(bodies(&next(&from_payments, 1).await), [b"payment"]);

    assert_eq!(payments.detach_receivers("$Default", "0"), Some(1));
    assert_eq!((orders.open_receivers("$Default", "0"), payments.open_receivers("$Default", "0")), (Some(1), Some(0)));
    orders.grow_to(3);
    assert_eq!((told_partitions(&of_orders).await.len(), told_partitions(&of_payments).await.len()), (3, 2));
}

#[tokio::test]
async fn a_consumer_group_belongs_to_one_hub() {
    let (orders, payments) = orders_and_payments().await;
    send(&producer(&orders).await, "0", numbered(1)).await;
    let billing = consumer_with(&orders, "billing", &orders.connection_string()).await;
    let receiver = open(&billing, "0", earliest()).await;
    assert_eq!(next(&receiver, 1).await.len(), 1);

    let stranger = consumer_with(&payments, "billing", &payments.connection_string()).await;
    let refused = open(&stranger, "0", earliest()).await;
    assert_mentions(&failure(&refused).await, &["NotFound", "billing"]);
    assert_eq!(payments.open_receivers("billing", "0"), None);
}

#[tokio::test]
async fn an_emulator_runs_until_its_last_handle_is_dropped() {
    let (orders, payments) = orders_and_payments().await;
    drop(orders);
    let consumer = consumer(&payments).await;
    assert_eq!(told_partitions(&consumer).await, ["0", "1"]);
}
