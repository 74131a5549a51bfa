//! The Event Hubs emulator as the official Rust client and a plain AMQP client see it.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

mod amqp;
mod frames;
#[path = "../../../common/hub_client/mod.rs"]
mod hub_client;
mod levels;
mod limits;
mod links;
mod program;
mod raw_events;
mod regions;
mod tokens;

use std::net::TcpListener;
use std::time::{Duration, SystemTime};

use azure_messaging_eventhubs::error::ErrorKind;
use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, OpenReceiverOptions, SendEventOptions, StartLocation};
use eventhubs_emulator::EventHubEmulator;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::hub_client::{
    assert_mentions, consumer, consumer_with, earliest, failure, first, next, numbered, open, producer, send, starting,
    until, within,
};

fn now(hub: &EventHubEmulator) -> SystemTime {
    hub.now().into()
}

async fn hub(partitions: u16) -> EventHubEmulator {
    EventHubEmulator::builder("hub")
        .with_partitions(partitions)
        .with_consumer_group("other")
        .start("127.0.0.1:0")
        .await
        .unwrap()
}

fn with_epoch(epoch: i64) -> OpenReceiverOptions {
    OpenReceiverOptions { owner_level: Some(epoch), ..earliest() }
}

#[tokio::test]
async fn reports_the_hub_and_its_partitions() {
    let hub = hub(8).await;
    let consumer = consumer(&hub).await;

    let properties = within("hub properties", consumer.get_eventhub_properties()).await.unwrap();
    assert_eq!(properties.name, "hub");
    assert_eq!(properties.partition_ids, hub.partition_ids());
    assert_eq!(properties.partition_ids.len(), 8);

    let empty = within("partition properties", consumer.get_partition_properties("3")).await.unwrap();
    assert!(empty.is_empty);
    assert_eq!((empty.beginning_sequence_number, empty.last_enqueued_sequence_number), (0, -1));

    send(&producer(&hub).await, "3", numbered(2)).await;
    let filled = within("partition properties", consumer.get_partition_properties("3")).await.unwrap();
    let expected = hub.partition_properties("3").unwrap();
    assert!(!filled.is_empty);
    assert_eq!(filled.last_enqueued_sequence_number, 1);
    assert_eq!(filled.last_enqueued_offset, expected.last_enqueued_offset);
    assert!(filled.last_enqueued_time_utc.unwrap() <= now(&hub));
    within("closing the consumer", consumer.close()).await.unwrap();
}

#[tokio::test]
async fn returns_what_was_published() {
    let hub = hub(4).await;
    let producer = producer(&hub).await;
    let event = EventData::builder().with_body("single").add_property("colour".into(), "red").build();
    let to_two = Some(SendEventOptions { partition_id: Some("2".into()) });
    within("send_event", producer.send_event(event, to_two)).await.unwrap();
    send(&producer, "2", numbered(3)).await;
    assert_eq!(hub.event_count("2"), Some(4));

    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "2", earliest()).await;
    let events = next(&receiver, 4).await;

    let bodies: Vec<_> = events.iter().map(|event| event.event_data().body().unwrap()).collect();
    assert_eq!(bodies, [&b"single"[..], b"event-0", b"event-1", b"event-2"]);
    let numbers: Vec<_> = events.iter().map(|event| event.sequence_number().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(events[0].event_data().properties().unwrap().contains_key("colour"));
    assert_eq!(events[3].offset().clone(), Some(hub.partition_properties("2").unwrap().last_enqueued_offset));
    assert!(events[3].enqueued_time().unwrap() <= now(&hub));
    within("closing the receiver", receiver.close()).await.unwrap();
    within("closing the consumer", consumer.close()).await.unwrap();
}

#[tokio::test]
async fn spreads_events_and_keeps_equal_keys_together() {
    let hub = hub(4).await;
    let producer = producer(&hub).await;
    for _ in 0..8 {
        within("send_event", producer.send_event("turn", None)).await.unwrap();
    }
    let counts = || hub.partition_ids().iter().map(|id| hub.event_count(id).unwrap()).collect::<Vec<_>>();
    assert_eq!(counts(), [2, 2, 2, 2]);

    for _ in 0..3 {
        let options = EventDataBatchOptions { partition_key: Some("a key".into()), ..Default::default() };
        let batch = within("create_batch", producer.create_batch(Some(options))).await.unwrap();
        assert!(batch.try_add_event_data("keyed", None).unwrap());
        within("send_batch", producer.send_batch(batch, None)).await.unwrap();
    }
    let id = hub.partition_ids().into_iter().find(|id| hub.event_count(id) == Some(5)).expect("all three in one");

    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, &id, starting(StartLocation::SequenceNumber(2), true)).await;
    for event in next(&receiver, 3).await {
        assert_eq!(event.partition_key().as_deref(), Some("a key"));
    }
}

#[tokio::test]
async fn starts_at_the_requested_position() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(10)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    let events = next(&receiver, 10).await;
    let fifth_offset = events[5].offset().clone().unwrap();
    within("closing the receiver", receiver.close()).await.unwrap();

    let an_hour_ago = now(&hub) - Duration::from_secs(3600);
    for (location, inclusive, expected) in [
        (StartLocation::Earliest, false, 0),
        (StartLocation::Offset(fifth_offset.clone()), false, 6),
        (StartLocation::Offset(fifth_offset), true, 5),
        (StartLocation::SequenceNumber(5), false, 6),
        (StartLocation::SequenceNumber(5), true, 5),
        (StartLocation::EnqueuedTime(an_hour_ago), false, 0),
        (StartLocation::EnqueuedTime(events[0].enqueued_time().unwrap()), true, 0),
    ] {
        let shown = format!("{location:?}, inclusive: {inclusive}");
        assert_eq!(first(&consumer, "0", location, inclusive).await, expected, "{shown}");
    }
}

#[tokio::test]
async fn latest_returns_only_later_events() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(3)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", starting(StartLocation::Latest, false)).await;

    let later = async {
        until("the receiver attaches", || hub.open_receivers("$Default", "0") == Some(1)).await;
        send(&producer, "0", numbered(1)).await;
    };
    let (events, ()) = tokio::join!(next(&receiver, 1), later);

    assert_eq!(events[0].sequence_number(), Some(3));
}

#[tokio::test]
async fn rejects_a_position_above_the_last_event() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(3)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", starting(StartLocation::SequenceNumber(100), false)).await;
    let error = failure(&receiver).await;
    assert_mentions(&error, &["ArgumentError", "The last sequence number in the system is '2'"]);
    assert_eq!(hub.open_receivers("$Default", "0"), Some(0));
}

#[tokio::test]
async fn accepts_batches_of_a_megabyte() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    let body = |n: usize| {
        let mut body = n.to_string().into_bytes();
        body.resize(1024, b'.');
        body
    };
    send(&producer, "0", (0..3000).map(body)).await;

    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    let events = next(&receiver, 3000).await;

    assert!(events.iter().enumerate().all(|(n, event)| event.event_data().body() == Some(&body(n)[..])));
}

#[tokio::test]
async fn an_epoch_displaces_a_lower_and_an_equal_one() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let (loser, winner) = (consumer(&hub).await, consumer(&hub).await);
    for (old, new) in [(1, 2), (3, 3)] {
        let displaced = open(&loser, "0", with_epoch(old)).await;
        assert_eq!(next(&displaced, 1).await.len(), 1);
        let ruling = open(&winner, "0", with_epoch(new)).await;

        let (error, events) = tokio::join!(failure(&displaced), next(&ruling, 1));

        assert!(matches!(error.kind, ErrorKind::ConsumerDisconnected(Some(_))), "{old} against {new}: {error:?}");
        assert_eq!(events.len(), 1);
        assert_eq!(hub.open_receivers("$Default", "0"), Some(1));
        within("closing the ruling receiver", ruling.close()).await.unwrap();
        let _ = within("closing the displaced receiver", displaced.close()).await;
        until("all receivers are gone", || hub.open_receivers("$Default", "0") == Some(0)).await;
    }
}

#[tokio::test]
async fn a_lower_epoch_or_none_is_rejected() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(1)).await;
    let ruler = consumer(&hub).await;
    let ruling = open(&ruler, "0", with_epoch(5)).await;
    assert_eq!(next(&ruling, 1).await.len(), 1);

    for options in [with_epoch(4), earliest()] {
        let challenger = consumer(&hub).await;
        let refused = open(&challenger, "0", options).await;
        let error = failure(&refused).await;
        assert!(matches!(error.kind, ErrorKind::ConsumerDisconnected(Some(_))), "{error:?}");
    }
    let other_group = consumer_with(&hub, "other", &hub.connection_string()).await;
    let elsewhere = open(&other_group, "0", with_epoch(0)).await;
    assert_eq!(next(&elsewhere, 1).await.len(), 1, "a group knows no other");

    send(&producer, "0", numbered(1)).await;
    assert_eq!(next(&ruling, 1).await[0].sequence_number(), Some(1), "the ruling one continues");
}

#[tokio::test]
async fn a_closed_receiver_frees_its_partition_at_once() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let first = consumer(&hub).await;
    let receiver = open(&first, "0", with_epoch(5)).await;
    assert_eq!(next(&receiver, 1).await.len(), 1);
    within("closing the receiver", receiver.close()).await.unwrap();
    until("the receiver is gone", || hub.open_receivers("$Default", "0") == Some(0)).await;

    let second = consumer(&hub).await;
    let lower = open(&second, "0", with_epoch(0)).await;
    assert_eq!(next(&lower, 1).await.len(), 1);
    drop((lower, second));
    until("a dropped client is gone", || hub.open_receivers("$Default", "0") == Some(0)).await;
}

#[tokio::test]
async fn a_small_prefetch_is_enough_to_read_everything() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(100)).await;
    let consumer = consumer(&hub).await;
    let options = OpenReceiverOptions { prefetch: Some(10), ..earliest() };
    let receiver = open(&consumer, "0", options).await;
    for (n, event) in next(&receiver, 100).await.iter().enumerate() {
        assert_eq!(event.sequence_number(), i64::try_from(n).ok());
    }
}

#[tokio::test]
async fn rejects_a_wrong_key() {
    let hub = hub(1).await;
    let connection_string = hub.connection_string().replace("SharedAccessKey=", "SharedAccessKey=X");
    let consumer = consumer_with(&hub, "$Default", &connection_string).await;
    let error = within("hub properties", consumer.get_eventhub_properties()).await.expect_err("a wrong key");
    assert_mentions(&error, &["401"]);
}

#[tokio::test]
async fn accepts_the_key_that_it_was_given() {
    let hub = EventHubEmulator::builder("hub").with_sas_key("reader", "custom key").start("127.0.0.1:0").await.unwrap();
    let consumer = consumer(&hub).await;
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();
}

#[tokio::test]
async fn rejects_another_hub() {
    let hub = hub(1).await;
    let connection_string = hub.connection_string().replace("EntityPath=hub", "EntityPath=nohub");
    let consumer = consumer_with(&hub, "$Default", &connection_string).await;
    let error = within("hub properties", consumer.get_eventhub_properties()).await.expect_err("no such hub");
    assert_mentions(&error, &["404"]);
}

#[tokio::test]
async fn rejects_another_partition() {
    let hub = hub(1).await;
    let consumer = consumer(&hub).await;
    let error = within("properties", consumer.get_partition_properties("1")).await.expect_err("no such partition");
    assert_mentions(&error, &["400", "It should be between 0 and 0."]);
    let receiver = open(&consumer, "1", earliest()).await;
    assert_mentions(&failure(&receiver).await, &["ArgumentOutOfRange", "It should be between 0 and 0."]);
}

#[tokio::test]
async fn rejects_an_unknown_consumer_group() {
    let hub = hub(1).await;
    let consumer = consumer_with(&hub, "third", &hub.connection_string()).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_mentions(&failure(&receiver).await, &["NotFound", "third"]);
    assert_eq!(hub.open_receivers("third", "0"), None);
}

#[tokio::test]
async fn serves_many_receivers_at_once() {
    let hub = hub(8).await;
    let producer = producer(&hub).await;
    for id in hub.partition_ids() {
        send(&producer, &id, numbered(500)).await;
    }
    let mut receivers = JoinSet::new();
    for group in ["$Default", "other"] {
        let consumer = consumer_with(&hub, group, &hub.connection_string()).await;
        for id in hub.partition_ids() {
            let receiver = open(&consumer, &id, with_epoch(0)).await;
            receivers.spawn(async move {
                let events = next(&receiver, 500).await;
                assert_eq!(events.last().unwrap().sequence_number(), Some(499));
                receiver
            });
        }
    }
    let mut open = Vec::new();
    while let Some(receiver) = within("a receiver's 500 events", receivers.join_next()).await {
        open.push(receiver.unwrap());
    }
    assert_eq!(open.len(), 16);
    for id in hub.partition_ids() {
        assert_eq!((hub.open_receivers("$Default", &id), hub.open_receivers("other", &id)), (Some(1), Some(1)));
    }
}

#[test]
fn a_dropped_hub_leaves_no_tasks_and_no_port() {
    let servers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let clients = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hub = servers.block_on(hub(2));
    let port = hub.port();
    let (client, receiver) = clients.block_on(async {
        send(&producer(&hub).await, "0", numbered(5)).await;
        let client = consumer(&hub).await;
        let receiver = open(&client, "0", earliest()).await;
        assert_eq!(next(&receiver, 5).await.len(), 5);
        (client, receiver)
    });
    assert!(servers.metrics().num_alive_tasks() > 0);

    drop(hub);

    clients.block_on(async {
        let error = failure(&receiver).await;
        assert!(!matches!(error.kind, ErrorKind::ConsumerDisconnected(_)), "{error:?}");
        until("all tasks have ended", || servers.metrics().num_alive_tasks() == 0).await;
        until("the port is free", || TcpListener::bind(("127.0.0.1", port)).is_ok()).await;
    });
    drop(client);
}

/// Detects an emulator that is very slow; `--nocapture` prints the times.
#[tokio::test]
async fn passes_twenty_thousand_events_in_seconds() {
    const PER_PARTITION: usize = 2500;
    let hub = hub(8).await;
    let producer = producer(&hub).await;
    let started = Instant::now();
    for id in hub.partition_ids() {
        send(&producer, &id, (0..PER_PARTITION).map(|_| vec![b'x'; 100])).await;
    }
    let published = started.elapsed();
    let consumer = consumer(&hub).await;
    let mut receivers = JoinSet::new();
    for id in hub.partition_ids() {
        let receiver = open(&consumer, &id, earliest()).await;
        receivers.spawn(async move { next(&receiver, PER_PARTITION).await.len() });
    }
    let counts = within("reading all events", receivers.join_all()).await;
    assert_eq!(counts, [PER_PARTITION; 8]);
    println!("published in {published:?}, all done in {:?}", started.elapsed());
}
