//! `EventHubSource` over the Event Hubs emulator, alone and under a processor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_messaging_eventhubs::RetryOptions;
use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::{EventHubSource, EventHubSourceBuilder};
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, ShutdownReport, handler_fn,
};
use eventhubs_checkpoint::source::{EventReceiver, EventSource, StartPosition};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Result};
use eventhubs_emulator::EventHubEmulator;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::hub_client::{producer, send, until, within};

/// Far longer than it takes to detect a broken connection, and a second attempt if the client's fresh connection
/// breaks, too.
pub const RECOVERY: Duration = Duration::from_secs(90);

/// The epoch with which a partition is opened.
pub const EPOCH: i64 = 1;

pub async fn hub(partitions: u16) -> EventHubEmulator {
    EventHubEmulator::builder("hub").with_partitions(partitions).start("127.0.0.1:0").await.unwrap()
}

pub async fn publish(hub: &EventHubEmulator, partition: &str, count: usize, size: usize) {
    let producer = producer(hub).await;
    send(&producer, partition, (0..count).map(|_| vec![b'.'; size])).await;
    within("closing a producer", producer.close()).await.unwrap();
}

/// Publishes to the partitions one event after another, until dropped.
pub struct Busy(JoinHandle<()>);

impl Busy {
    pub async fn start(hub: &EventHubEmulator, partitions: impl IntoIterator<Item = u16>) -> Self {
        let producer = producer(hub).await;
        let partitions = Vec::from_iter(partitions);
        Self(tokio::spawn(async move {
            loop {
                for partition in &partitions {
                    send(&producer, &partition.to_string(), [b"busy".to_vec()]).await;
                }
                sleep(Duration::from_millis(5)).await;
            }
        }))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub fn group(name: &str) -> ConsumerGroup {
    ConsumerGroup::new("localhost", "hub", name).unwrap()
}

pub fn partition(id: &str) -> PartitionId {
    PartitionId::new(id).unwrap()
}

/// Returns a source of the builder, and the number of clients that it has created.
pub async fn counted(hub: &EventHubEmulator, builder: EventHubSourceBuilder) -> (EventHubSource, Arc<AtomicUsize>) {
    let endpoint = hub.endpoint();
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let builder = builder.with_client_builder(move |client| {
        count.fetch_add(1, Ordering::Relaxed);
        client.with_custom_endpoint(endpoint.clone())
    });
    (within("opening a consumer", builder.connect()).await.unwrap(), made)
}

pub async fn counted_source(hub: &EventHubEmulator) -> (EventHubSource, Arc<AtomicUsize>) {
    counted(hub, EventHubSource::from_connection_string(&group("$Default"), hub.connection_string())).await
}

/// Returns a source whose client re-attaches links by itself.
pub async fn retrying_source(hub: &EventHubEmulator) -> EventHubSource {
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group("$Default"), hub.connection_string())
        .with_client_builder(move |client| {
            client.with_retry_options(RetryOptions::default()).with_custom_endpoint(endpoint.clone())
        });
    within("opening a consumer", builder.connect()).await.unwrap()
}

pub async fn source(hub: &EventHubEmulator) -> EventHubSource {
    counted_source(hub).await.0
}

pub async fn open(source: &EventHubSource, id: &str) -> EventReceiver<ReceivedEventData> {
    source.open_receiver(&partition(id), StartPosition::Earliest, 10, EPOCH).await.unwrap()
}

pub async fn next(receiver: &mut EventReceiver<ReceivedEventData>) -> Vec<ReceivedEventData> {
    within("a batch", receiver.next_batch(100)).await.unwrap()
}

/// Attaches the link of a partition without events. The client does so with the first wait for an event.
pub async fn attach(hub: &EventHubEmulator, id: &str, receiver: &mut EventReceiver<ReceivedEventData>) {
    tokio::select! {
        batch = receiver.next_batch(1) => panic!("partition {id}: {:?}", batch.map(|batch| batch.len())),
        () = until("the link is attached", || hub.open_receivers("$Default", id) == Some(1)) => {}
    }
}

/// How many events of each partition were handled without a gap.
pub type Read = BTreeMap<PartitionId, watch::Sender<i64>>;

pub fn unread(hub: &EventHubEmulator) -> Arc<Read> {
    Arc::new(hub.partition_ids().iter().map(|id| (partition(id), watch::Sender::new(0))).collect())
}

/// Counts the events. Fails as `failure` says, which gets the partition.
pub fn counting(
    read: Arc<Read>,
    failure: impl Fn(&PartitionId) -> Result<(), HandlerError> + Send + Sync + 'static,
) -> impl Handler<ReceivedEventData> {
    handler_fn(move |events: Vec<ReceivedEventData>, context: PartitionContext| {
        let outcome = failure(context.partition_id());
        for number in events.iter().map(|event| event.sequence_number().unwrap()) {
            let read = &read[context.partition_id()];
            let expected = *read.borrow();
            assert!(
                number <= expected,
                "partition {}: {number} comes where {expected} was due",
                context.partition_id()
            );
            read.send_replace(expected.max(number + 1));
        }
        async { outcome }
    })
}

pub async fn run(
    source: EventHubSource,
    handler: impl Handler<ReceivedEventData>,
) -> JoinHandle<Result<ShutdownReport>> {
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_millis(250)))
        .with_lag_check_interval(Duration::from_secs(1));
    let processor = Processor::builder(source, store().await, handler).with_config(config).build().unwrap();
    tokio::spawn(processor.run(std::future::pending()))
}

pub async fn store() -> GroupStore {
    let container = Arc::new(MemoryContainer::new());
    GroupStore::builder(container, group("$Default"), OwnerId::new("a").unwrap()).connect().await.unwrap()
}

/// Waits until the partitions have read at least this many events each.
pub async fn have_read(count: i64, read: &Read, ids: impl IntoIterator<Item = u16>) {
    let deadline = Instant::now() + RECOVERY;
    for id in ids {
        let mut reader = read[&partition(&id.to_string())].subscribe();
        let done = timeout_at(deadline, reader.wait_for(|read| *read >= count)).await.is_ok();
        assert!(done, "partition {id} has read {} of {count} within {RECOVERY:?}", *reader.borrow());
    }
}
