//! The levels at which `EventHubSource` opens its links, and what processors on it do.
//!
//! All clients run on one thread: with more, a send of the client can miss its answer and hang.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::error::ErrorKind as ClientErrorKind;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{OpenReceiverOptions, RetryOptions};
use eventhubs_checkpoint::balancer::BalancerConfig;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, StartPosition, handler_fn,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::event_hub::EventHub;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Position};
use tokio::sync::watch;

use crate::captured::Captured;
use crate::hub_client::{consumer, earliest, failure, next, numbered, open, producer, send, until, within};

const GROUP: &str = "$Default";
const INTERVAL: Duration = Duration::from_millis(250);

fn group() -> ConsumerGroup {
    ConsumerGroup::new("localhost", "hub", GROUP).unwrap()
}

async fn hub(partitions: u16) -> EventHub {
    EventHub::builder("hub").partitions(partitions).start("127.0.0.1:0").await.unwrap()
}

async fn source(hub: &EventHub) -> EventHubSource {
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group(), hub.connection_string()).settings(move |client| {
        let no_retries = RetryOptions { max_retries: 0, ..RetryOptions::default() };
        client.with_retry_options(no_retries).with_custom_endpoint(endpoint.clone())
    });
    within("opening a consumer", builder.connect()).await.unwrap()
}

/// With the shortest expiry that is allowed.
async fn store(container: Arc<dyn BlobContainer>, owner: &str) -> GroupStore {
    let builder = GroupStore::builder(container, group(), OwnerId::new(owner).unwrap());
    builder.expiry(Duration::from_secs(4)).connect().await.unwrap()
}

/// The sequence numbers that an owner's handler got, in order.
type Handled = Arc<watch::Sender<Vec<i64>>>;

/// Notes the events, and writes a checkpoint after each batch.
fn noting(handled: Handled) -> impl Handler<ReceivedEventData> {
    handler_fn(move |events: Vec<ReceivedEventData>, context: PartitionContext| {
        for event in &events {
            context.checkpoint(event);
        }
        handled.send_modify(|numbers| numbers.extend(events.iter().filter_map(ReceivedEventData::sequence_number)));
        async { Ok::<_, HandlerError>(()) }
    })
}

fn config() -> ProcessorConfig {
    let balancer = BalancerConfig::default().with_interval(INTERVAL);
    ProcessorConfig::default().with_balancer(balancer)
}

/// Partition 1 was added to a group that begins at the latest event, and a processor of another SDK reads it. An
/// instance looks for the start of that partition, which it does not own.
#[tokio::test]
async fn a_look_at_a_partition_of_another_owner_does_not_displace_its_reader() {
    let (log, _guard) = Captured::begin();
    let hub = hub(2).await;
    let producer = producer(&hub).await;
    send(&producer, "1", numbered(3)).await;
    let store = store(Arc::new(MemoryContainer::new()), "a").await;
    assert!(store.pin(&0.into(), &Position::new(-1, "-1")).await.unwrap());
    let other_sdk = consumer(&hub).await;
    let other_reader = open(&other_sdk, "1", OpenReceiverOptions { owner_level: Some(0), ..earliest() }).await;
    assert_eq!(next(&other_reader, 3).await.len(), 3);

    let handled = Handled::default();
    let start_of_added = StartPosition::AfterSequenceNumber(0);
    let config = config().with_start(StartPosition::Latest).with_start_of_added(start_of_added);
    let processor =
        Processor::builder(source(&hub).await, store.clone(), noting(handled.clone())).config(config).build().unwrap();
    let running = tokio::spawn(processor.run(std::future::pending()));

    until("a look is refused", || log.text().contains("another reader holds partition 1")).await;
    assert_eq!(hub.owner_levels(GROUP, "1"), Some(vec![Some(0)]));
    send(&producer, "1", numbered(1)).await;
    assert_eq!(next(&other_reader, 1).await[0].sequence_number(), Some(3), "the other reader goes on");
    assert!(handled.borrow().is_empty());

    let offset = hub.partition_properties("1").unwrap().last_enqueued_offset;
    assert!(store.pin(&1.into(), &Position::new(3, offset)).await.unwrap());
    let displaced = failure(&other_reader).await;
    assert!(matches!(displaced.kind, ClientErrorKind::ConsumerDisconnected(Some(_))), "by an owner: {displaced:?}");
    send(&producer, "1", numbered(1)).await;
    within("the next event", handled.subscribe().wait_for(|numbers| *numbers == [4])).await.unwrap();
    running.abort();
}
