//! Dead letters in an event hub, sent by the official producer.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_messaging_eventhubs::models::{AmqpSimpleValue, EventData, ReceivedEventData};
use azure_messaging_eventhubs::{RetryOptions, SendEventOptions};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{
    EventContext, EventError, EventOrder, PartitionContext, PartitionState, Processor, ProcessorConfig,
    ProcessorHandle, each_event, event_handler_fn, handler_fn,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, EventHubDeadLetterSink, OwnerId};
use eventhubs_emulator::EventHubEmulator;

use crate::captured::Captured;
use crate::hub_client::{consumer, earliest, next, numbered, open, producer, send, until, within};
use crate::relay::Relay;

const EVENTS: usize = 10_000;
const POISON: usize = 6_789;

async fn orders() -> EventHubEmulator {
    let hub = EventHubEmulator::builder("orders").with_partitions(1).start("127.0.0.1:0").await.unwrap();
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(POISON)).await;
    let poison = EventData::builder()
        .with_body(b"poison".to_vec())
        .with_message_id("message-7")
        .add_property("type".to_owned(), "order")
        .build();
    let options = SendEventOptions { partition_id: Some("0".to_owned()) };
    within("send_event", producer.send_event(poison, Some(options))).await.unwrap();
    send(&producer, "0", numbered(EVENTS - POISON - 1)).await;
    hub
}

pub async fn dead_letter_hub() -> EventHubEmulator {
    EventHubEmulator::builder("orders-dead-letters").with_partitions(1).start("127.0.0.1:0").await.unwrap()
}

pub async fn sink(hub: &EventHubEmulator) -> EventHubDeadLetterSink {
    sink_at(hub.endpoint(), hub).await
}

async fn sink_at(endpoint: String, hub: &EventHubEmulator) -> EventHubDeadLetterSink {
    let retries = RetryOptions {
        max_retries: 1,
        initial_delay: azure_core::time::Duration::milliseconds(10),
        ..Default::default()
    };
    let builder = EventHubDeadLetterSink::from_connection_string(hub.name(), hub.connection_string())
        .with_client_builder(move |client| {
            client.with_custom_endpoint(endpoint.clone()).with_retry_options(retries.clone())
        });
    within("opening the sink", builder.connect()).await.unwrap()
}

struct Consumer {
    handle: ProcessorHandle,
    running: tokio::task::JoinHandle<eventhubs_checkpoint::Result<eventhubs_checkpoint::processor::ShutdownReport>>,
    processed: Arc<Mutex<Vec<i64>>>,
    store: GroupStore,
}

/// Connects an instance to the event hub and to an in-memory store.
async fn connect(hub: &EventHubEmulator) -> (EventHubSource, GroupStore) {
    let group = ConsumerGroup::new("localhost", "orders", "$Default").unwrap();
    let endpoint = hub.endpoint();
    let source = EventHubSource::from_connection_string(&group, hub.connection_string())
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    let source = within("opening a consumer", source.connect()).await.unwrap();
    let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::new("a").unwrap()).await.unwrap();
    (source, store)
}

/// Processes the hub with a handler that fails at the poison event.
async fn start(hub: &EventHubEmulator, sink: EventHubDeadLetterSink) -> Consumer {
    let (source, store) = connect(hub).await;
    let processed = Arc::new(Mutex::new(Vec::new()));
    let done = Arc::clone(&processed);
    let handler = handler_fn(move |events: Vec<ReceivedEventData>, context: PartitionContext| {
        let done = Arc::clone(&done);
        async move {
            for event in &events {
                if event.event_data().body() == Some(b"poison") {
                    return Err(EventError::new(event, "no customer has this id").into());
                }
                done.lock().unwrap().extend(event.sequence_number());
                context.checkpoint(event);
            }
            Ok(())
        }
    });
    let policy = DeadLetterPolicy::default().with_max_attempts(2).with_min_failing_time(Duration::ZERO);
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_millis(250)));
    let processor = Processor::builder(source, store.clone(), handler)
        .with_dead_letters(sink, policy)
        .with_config(config)
        .build()
        .unwrap();
    let handle = processor.handle();
    let running = tokio::spawn(processor.run(std::future::pending()));
    Consumer { handle, running, processed, store }
}

impl Consumer {
    async fn processes_all_others_in_order(self) {
        let last = i64::try_from(EVENTS).unwrap() - 1;
        until("the last event", || self.processed.lock().unwrap().last() == Some(&last)).await;
        let mut processed = self.processed.lock().unwrap().clone();
        // The events before the poison one in its batch may be redelivered.
        let mut expected = -1;
        processed.retain(|number| {
            let is_new = *number > expected;
            expected = expected.max(*number);
            is_new
        });
        let others: Vec<_> = (0..=last).filter(|number| *number != i64::try_from(POISON).unwrap()).collect();
        assert!(processed == others, "all others are processed, in order");
        assert_eq!(self.handle.partitions()[0].dead_letters, 1);
        self.handle.shutdown();
        assert!(within("the shutdown", self.running).await.unwrap().unwrap().is_clean());
        let checkpoints = self.store.list_checkpoints().await.unwrap().records;
        assert_eq!(checkpoints[0].record.sequence_number, Some(last));
    }
}

async fn assert_that_it_has_the_letter(hub: &EventHubEmulator) {
    let consumer = consumer(hub).await;
    let letters = next(&open(&consumer, "0", earliest()).await, 1).await;
    let letter = letters[0].event_data();
    assert_eq!(letter.body(), Some(b"poison".as_slice()));
    assert_eq!(letter.message_id(), Some(&"message-7".into()));
    let properties = letter.properties().unwrap();
    let text = |name: &str| format!("{:?}", properties.get(name).unwrap_or_else(|| panic!("no {name}")));
    for (name, value) in [
        ("type", "order"),
        ("x-original-event-hub", "orders"),
        ("x-original-consumer-group", "$Default"),
        ("x-original-partition", "0"),
        ("x-original-sequence-number", &POISON.to_string()),
        ("x-original-error", "could not be processed: no customer has this id"),
        ("x-original-enqueued-time", "20"),
    ] {
        assert!(text(name).contains(value), "{name} is {}", text(name));
    }
    assert!(properties.contains_key("x-original-offset"));
    assert_eq!(
        properties.get("x-original-attempts"),
        Some(&AmqpSimpleValue::Int(2)),
        "failures of the sink do not count"
    );
    assert_eq!(hub.event_count("0"), Some(1));
}

#[tokio::test]
async fn a_poison_event_among_10000_is_moved() {
    let (log, _guard) = Captured::begin();
    let (orders, dead_letters) = (orders().await, dead_letter_hub().await);
    let consumer = start(&orders, sink(&dead_letters).await).await;
    consumer.processes_all_others_in_order().await;
    assert_that_it_has_the_letter(&dead_letters).await;
    let failure = log.text().lines().find(|line| line.contains("handler failed")).map(str::to_owned).unwrap();
    assert!(failure.contains("first_sequence_number=") && failure.contains("last_sequence_number="), "{failure}");
}

#[tokio::test]
async fn a_sink_that_is_down_holds_the_partition() {
    let (orders, dead_letters) = (orders().await, dead_letter_hub().await);
    let relay = Relay::start(dead_letters.port()).await;
    let sink = sink_at(relay.endpoint.clone(), &dead_letters).await;
    relay.set_cut_off(true);
    let consumer = start(&orders, sink).await;
    let last_error = || consumer.handle.partitions().first()?.last_error.clone();
    let sink_fails = || last_error().is_some_and(|error| error.message.contains("was not moved to the dead letters"));
    until("the sink fails", sink_fails).await;
    let status = consumer.handle.partitions().remove(0);
    assert_eq!((status.dead_letters, status.state), (0, PartitionState::Failing));
    assert!(status.checkpoint < Some(i64::try_from(POISON).unwrap()), "{status:?}");

    relay.set_cut_off(false);
    consumer.processes_all_others_in_order().await;
    assert_that_it_has_the_letter(&dead_letters).await;
}

/// Moves a dead letter, lets the event hub for dead letters disturb the sink, and moves another one.
async fn a_sink_sends_again_after(disturbance: impl Fn(&EventHubEmulator)) {
    let orders = EventHubEmulator::builder("orders").with_partitions(1).start("127.0.0.1:0").await.unwrap();
    let dead_letters = dead_letter_hub().await;
    let producer = producer(&orders).await;
    let consumer = start(&orders, sink(&dead_letters).await).await;
    let moved = || consumer.handle.partitions().first().map_or(0, |status| status.dead_letters);
    send(&producer, "0", [b"poison".to_vec()]).await;
    until("the first event is moved", || moved() == 1).await;

    disturbance(&dead_letters);

    send(&producer, "0", [b"poison".to_vec()]).await;
    until("the second event is moved", || moved() == 2).await;
    assert_eq!(dead_letters.event_count("0"), Some(2));
}

/// The client presents its token again until it is replaced.
#[tokio::test]
async fn an_unauthorized_sink_replaces_its_client() {
    a_sink_sends_again_after(|hub| assert!(hub.expire_authorizations("") > 0)).await;
}

#[tokio::test]
async fn a_sink_whose_connection_was_cut_sends_again() {
    a_sink_sends_again_after(|hub| assert!(hub.cut_connections() > 0)).await;
}

/// The service closes links that were idle for half an hour.
#[tokio::test]
async fn a_sink_whose_link_was_closed_sends_again() {
    a_sink_sends_again_after(|hub| assert!(hub.detach_senders() > 0)).await;
}

/// One event in a hundred is bad, and up to 64 events run at once, in the order of 47 keys. The handler takes a
/// millisecond.
#[tokio::test]
async fn one_bad_event_in_a_hundred_is_moved_once() {
    const BAD_EVERY: usize = 100;
    let hub = EventHubEmulator::builder("orders").with_partitions(1).start("127.0.0.1:0").await.unwrap();
    let bodies = (0..EVENTS).map(|number| if number % BAD_EVERY == 0 { "bad".into() } else { format!("{number}") });
    send(&producer(&hub).await, "0", bodies.map(String::into_bytes)).await;
    let dead_letters = dead_letter_hub().await;
    let (source, store) = connect(&hub).await;
    let processed: Arc<Mutex<BTreeMap<i64, Vec<i64>>>> = Arc::default();
    let done = Arc::clone(&processed);
    let handler = each_event(event_handler_fn(move |event: Arc<ReceivedEventData>, _: EventContext| {
        let done = Arc::clone(&done);
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if event.event_data().body() == Some(b"bad") {
                return Err(EventError::permanent(&*event, "an unknown format").into());
            }
            done.lock().unwrap().entry(key_of(&event)).or_default().extend(event.sequence_number());
            Ok(())
        }
    }));
    let handler = handler.with_concurrency(64).with_order(EventOrder::by_key(key_of));
    let processor = Processor::builder(source, store.clone(), handler)
        .with_dead_letters(sink(&dead_letters).await, DeadLetterPolicy::default())
        .build()
        .unwrap();
    let handle = processor.handle();
    let running = tokio::spawn(processor.run(std::future::pending()));
    let moved = || handle.partitions().first().map_or(0, |status| status.dead_letters);
    let count = || processed.lock().unwrap().values().map(Vec::len).sum::<usize>();
    let bad = EVENTS / BAD_EVERY;
    until("all events are processed or moved", || count() == EVENTS - bad && moved() == bad as u64).await;
    assert_eq!(handle.partitions()[0].failures, bad as u64, "nothing restarted");
    let connections = dead_letters.cut_connections();
    assert!((2..=8).contains(&connections), "several are sent at once, each on a connection: {connections}");
    handle.shutdown();
    assert!(within("the shutdown", running).await.unwrap().unwrap().is_clean());

    let in_order = |numbers: &Vec<i64>| numbers.is_sorted_by(|one, next| one < next);
    assert!(processed.lock().unwrap().values().all(in_order), "each event once, in the order of its key");
    let letters = next(&open(&consumer(&dead_letters).await, "0", earliest()).await, bad).await;
    let origin = |letter: &ReceivedEventData| match letter.event_data().properties()?.get("x-original-sequence-number")
    {
        Some(AmqpSimpleValue::Long(number)) => Some(*number),
        _ => None,
    };
    let origins: BTreeSet<_> = letters.iter().map(|letter| origin(letter).unwrap()).collect();
    let expected = (0..EVENTS).step_by(BAD_EVERY).map(|number| i64::try_from(number).unwrap());
    assert_eq!(origins, expected.collect());
    assert_eq!(dead_letters.event_count("0"), Some(bad), "each one is stored once");
    let checkpoints = store.list_checkpoints().await.unwrap().records;
    assert_eq!(checkpoints[0].record.sequence_number, i64::try_from(EVENTS - 1).ok());
}

fn key_of(event: &ReceivedEventData) -> i64 {
    event.sequence_number().unwrap_or_default() % 47
}
