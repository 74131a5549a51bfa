//! Dead letters that are sent back to the event hub that they came from.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::sync::{Arc, Mutex};

use azure_messaging_eventhubs::EventDataBatchOptions;
use azure_messaging_eventhubs::models::{AmqpSimpleValue, EventData, ReceivedEventData};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::{DeadLetterOrigin, EventHubRedriver, EventHubSource};
use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{PartitionContext, Processor, handler_fn};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, EventHubDeadLetterSink, OwnerId, PartitionId};
use eventhubs_emulator::EventHubEmulator;

use crate::hub_client::{consumer, earliest, next, open, producer, until, within};

const LETTERS: &str = "orders-dead-letters";

/// Publishes one event to partition 1, and one with a key.
async fn publish(hub: &EventHubEmulator) {
    let producer = producer(hub).await;
    for (body, partition_id, partition_key) in [("order-1", Some("1"), None), ("order-2", None, Some("customer-7"))] {
        let event = EventData::builder()
            .with_body(body.as_bytes().to_vec())
            .with_message_id(format!("message of {body}"))
            .add_property("type".to_owned(), "order")
            .build();
        let options = EventDataBatchOptions {
            partition_id: partition_id.map(str::to_owned),
            partition_key: partition_key.map(str::to_owned),
            ..Default::default()
        };
        let batch = within("create_batch", producer.create_batch(Some(options))).await.unwrap();
        assert!(batch.try_add_event_data(event, None).unwrap());
        within("send_batch", producer.send_batch(batch, None)).await.unwrap();
    }
}

/// The handler fails with each event when it first comes, and processes it when it has been sent back.
#[tokio::test]
async fn a_letter_comes_back_as_it_was() {
    let hub = EventHubEmulator::builder("orders")
        .with_partitions(4)
        .with_event_hub(LETTERS, |hub| hub.with_partitions(1))
        .start("127.0.0.1:0")
        .await
        .unwrap();
    publish(&hub).await;
    let connection_string = hub.namespace_connection_string_with_port();
    let group = ConsumerGroup::new("localhost", "orders", "$Default").unwrap();
    let source = EventHubSource::from_connection_string(&group, connection_string.clone());
    let source = within("opening a consumer", source.connect()).await.unwrap();
    let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::new("a").unwrap()).await.unwrap();
    let sink = EventHubDeadLetterSink::from_connection_string(LETTERS, connection_string.clone()).connect();
    let sink = within("opening the sink", sink).await.unwrap();
    let seen: Arc<Mutex<Vec<(PartitionId, ReceivedEventData)>>> = Arc::default();
    let seeing = Arc::clone(&seen);
    let handler = handler_fn(move |events: Vec<ReceivedEventData>, context: PartitionContext| {
        let seen = Arc::clone(&seeing);
        async move {
            for event in events {
                let copy = event.raw_amqp_message().clone().into();
                seen.lock().unwrap().push((context.partition_id().clone(), copy));
                context.checkpoint(&event);
                if DeadLetterOrigin::of(&event).is_none() {
                    context.dead_letter(event, "not implemented yet").await?;
                }
            }
            Ok(())
        }
    });
    let processor = Processor::builder(source, store, handler)
        .with_dead_letters(sink, DeadLetterPolicy::default())
        .build()
        .unwrap();
    let handle = processor.handle();
    let running = tokio::spawn(processor.run(std::future::pending()));
    let dead_letters = hub.event_hub(LETTERS).unwrap();
    until("both events are dead letters", || dead_letters.event_count("0") == Some(2)).await;

    let letters = next(&open(&consumer(&dead_letters).await, "0", earliest()).await, 2).await;
    let redriver = EventHubRedriver::from_connection_string(connection_string);
    within("send_back", redriver.send_back(&letters[0])).await.unwrap();
    // The service closes links that were idle for half an hour.
    assert!(hub.detach_senders() > 0);
    within("send_back", redriver.send_back(&letters[1])).await.unwrap();
    until("both events are back", || seen.lock().unwrap().len() == 4).await;
    handle.shutdown();
    assert!(within("the shutdown", running).await.unwrap().unwrap().is_clean());

    let mut seen = seen.lock().unwrap();
    let returned = seen.split_off(2);
    for (partition, event) in &*seen {
        let is_same =
            |(_, other): &&(PartitionId, ReceivedEventData)| other.event_data().body() == event.event_data().body();
        let (back_in, back) = returned.iter().find(is_same).unwrap();
        assert_eq!(back_in, partition);
        assert_eq!(back.partition_key(), event.partition_key());
        assert_eq!(back.event_data().message_id(), event.event_data().message_id());
        assert_eq!(back.event_data().properties().unwrap()["type"], AmqpSimpleValue::from("order"));
        let origin = DeadLetterOrigin::of(back).unwrap();
        assert_eq!((origin.event_hub.as_str(), origin.consumer_group.as_str()), ("orders", "$Default"));
        assert_eq!((&origin.partition_id, origin.sequence_number), (partition, event.sequence_number()));
        assert!(origin.error.contains("not implemented yet"), "{}", origin.error);
    }
    assert_eq!(dead_letters.event_count("0"), Some(2), "nothing failed again");
}
