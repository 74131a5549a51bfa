//! Events that the official client cannot decode, over AMQP.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_messaging_eventhubs::models::{AmqpSimpleValue, ReceivedEventData};
use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{
    Handler, OnUndecodable, PartitionContext, Processor, ProcessorConfig, ProcessorHandle, handler_fn,
};
use eventhubs_checkpoint::{ErrorKind, EventHubDeadLetterSink};
use eventhubs_emulator::EventHubEmulator;
use tokio::task::JoinHandle;

use crate::dead_letters::{dead_letter_hub, sink};
use crate::hub_client::{consumer, earliest, next, open, until};
use crate::reading::{counted_source, hub, publish, store};

/// A list among the application properties, written by SDKs for JavaScript (Azure/azure-sdk-for-js#31067).
const LIST_PROPERTY: &[u8] = b"\x00\x53\x74\xc1\x09\x02\xa1\x01k\xc0\x03\x01\x54\x07\x00\x53\x75\xa0\x01x";
/// A body that is null: `{ body: null }` of the SDK for JavaScript.
const NULL_BODY: &[u8] = b"\x00\x53\x75\x40";
/// A footer with a string as key, as that SDK writes it.
const STRING_FOOTER: &[u8] = b"\x00\x53\x75\xa0\x01x\x00\x53\x78\xc1\x07\x02\xa1\x01f\xa1\x01v";

/// Two partitions with five events each. Of the first one, events 1 to 3 cannot be decoded.
async fn hub_with_undecodable_events() -> EventHubEmulator {
    let hub = hub(2).await;
    publish(&hub, "0", 1, 10).await;
    for (number, message) in (1..).zip([LIST_PROPERTY, NULL_BODY, STRING_FOOTER]) {
        assert_eq!(hub.append_raw("0", message), Some(number));
    }
    publish(&hub, "0", 1, 10).await;
    publish(&hub, "1", 5, 10).await;
    hub
}

/// The sequence numbers of the handled events, by partition.
#[derive(Clone, Default)]
struct Handled(Arc<Mutex<[Vec<i64>; 2]>>);

impl Handled {
    fn of(&self, partition: usize) -> Vec<i64> {
        self.0.lock().unwrap()[partition].clone()
    }

    fn recorder(&self) -> impl Handler<ReceivedEventData> + use<> {
        let log = self.clone();
        handler_fn(move |events: Vec<ReceivedEventData>, context: PartitionContext| {
            let partition: usize = context.partition_id().as_str().parse().unwrap();
            log.0.lock().unwrap()[partition].extend(events.iter().filter_map(ReceivedEventData::sequence_number));
            async { Ok(()) }
        })
    }
}

async fn run(
    hub: &EventHubEmulator,
    on_undecodable: OnUndecodable,
    handler: impl Handler<ReceivedEventData>,
    sink: Option<EventHubDeadLetterSink>,
) -> (ProcessorHandle, JoinHandle<()>) {
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_millis(250)))
        .with_on_undecodable(on_undecodable);
    let (source, made) = counted_source(hub).await;
    let mut builder = Processor::builder(source, store().await, handler).with_config(config);
    if let Some(sink) = sink {
        builder = builder.with_dead_letters(sink, DeadLetterPolicy::default());
    }
    let processor = builder.build().unwrap();
    let handle = processor.handle();
    let running = tokio::spawn(async move {
        assert!(processor.run(std::future::pending()).await.unwrap().is_clean());
        assert_eq!(made.load(Ordering::Relaxed), 2, "one is that of the check at the start");
    });
    (handle, running)
}

#[tokio::test]
async fn undecodable_events_are_skipped_and_stored() {
    let (hub, dead_letters) = (hub_with_undecodable_events().await, dead_letter_hub().await);
    let log = Handled::default();
    let sink = sink(&dead_letters).await;
    let (handle, running) = run(&hub, OnUndecodable::Skip, log.recorder(), Some(sink)).await;
    until("all others are handled", || log.of(0) == [0, 4] && log.of(1).len() == 5).await;
    let status = handle.partitions().into_iter().find(|status| status.partition == 0.into()).unwrap();
    assert_eq!((status.undecodable, status.failures), (3, 0));
    handle.shutdown();
    running.await.unwrap();

    let letters = next(&open(&consumer(&dead_letters).await, "0", earliest()).await, 3).await;
    for (number, letter) in (1_i64..).zip(&letters) {
        let letter = letter.event_data();
        let properties = letter.properties().unwrap();
        assert_eq!(letter.body(), Some(&[][..]), "its content is not known");
        assert_eq!(properties.get("x-original-sequence-number"), Some(&AmqpSimpleValue::Long(number)));
        let error = format!("{:?}", properties.get("x-original-error"));
        assert!(error.contains("cannot decode") && error.contains("Decoding Message failed"), "{error}");
    }
}

#[tokio::test]
async fn an_undecodable_event_disturbs_no_other_link() {
    let hub = hub_with_undecodable_events().await;
    let log = Handled::default();
    let (handle, running) = run(&hub, OnUndecodable::Fail, log.recorder(), None).await;
    let failed = || {
        let status = handle.partitions().into_iter().find(|status| status.failures >= 3)?;
        status.last_error.map(|error| (status.partition.to_string(), error))
    };
    until("the partition fails again and again", || failed().is_some()).await;
    let (partition, error) = failed().unwrap();
    assert_eq!((&*partition, error.kind), ("0", ErrorKind::Undecodable));
    assert!(error.message.contains("cannot decode event 1 of partition 0"), "{}", error.message);
    publish(&hub, "1", 5, 10).await;
    until("the other partition is read", || log.of(1).len() == 10).await;
    assert_eq!(hub.sent_events("1"), Some(10), "the link of partition 1 was not reopened");
    assert_eq!(log.of(0), [0]);
    handle.shutdown();
    running.await.unwrap();
}
