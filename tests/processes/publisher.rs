//! Publishes an even load, and asks the hub what became of it.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// The client can wait for ever for an answer that got lost. Then the batch goes out again through a new client, and its
/// events are perhaps there twice.
const SEND_DEADLINE: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 4;

/// How to reach a hub.
#[derive(Clone, Debug)]
pub struct Address {
    pub endpoint: String,
    pub connection_string: String,
}

/// So many batches, one partition after the other.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub batches: u32,
    pub events_per_batch: u32,
    pub event_size: usize,
    pub pace: Duration,
}

/// Publishes the load, and goes on at the same pace for as long as more is wanted. Gives the last sequence number of every
/// partition.
pub async fn publish(address: Address, load: Load, more: watch::Receiver<bool>) -> BTreeMap<String, i64> {
    let (ended, end) = oneshot::channel();
    // On a thread of its own, for on several the client can hang; not one of the runtime's, whose end would wait for it.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // An error means that the test has failed meanwhile.
        let _ = ended.send(runtime.block_on(publish_here(&address, load, &more)));
    });
    end.await.expect("the publisher panicked")
}

async fn publish_here(address: &Address, load: Load, more: &watch::Receiver<bool>) -> BTreeMap<String, i64> {
    let mut producer = open(address).await;
    let hub = timeout(SEND_DEADLINE, producer.get_eventhub_properties()).await.unwrap().unwrap();
    let partitions = hub.partition_ids;
    let started = Instant::now();
    let mut batch = 0;
    while batch < load.batches || *more.borrow() {
        sleep_until(started + load.pace * batch).await;
        let partition = &partitions[batch as usize % partitions.len()];
        for attempt in 1.. {
            match timeout(SEND_DEADLINE, send(&producer, partition, load)).await {
                Ok(Ok(())) => break,
                failed => assert!(attempt < ATTEMPTS, "batch {batch} cannot be sent: {failed:?}"),
            }
            producer = open(address).await;
        }
        batch += 1;
    }
    last_sequence_numbers(&producer, partitions).await
}

async fn open(address: &Address) -> ProducerClient {
    let builder = ProducerClient::builder().with_custom_endpoint(address.endpoint.clone());
    let opening = builder.open_with_connection_string(&address.connection_string, None);
    timeout(SEND_DEADLINE, opening).await.unwrap().unwrap()
}

async fn send(producer: &ProducerClient, partition: &str, load: Load) -> azure_core::Result<()> {
    let options = EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() };
    let batch = producer.create_batch(Some(options)).await?;
    for _ in 0..load.events_per_batch {
        assert!(batch.try_add_event_data(EventData::from(vec![b'.'; load.event_size]), None)?, "{load:?} is too large");
    }
    producer.send_batch(batch, None).await?;
    Ok(())
}

async fn last_sequence_numbers(producer: &ProducerClient, partitions: Vec<String>) -> BTreeMap<String, i64> {
    let mut last = BTreeMap::new();
    for partition in partitions {
        let asked = timeout(SEND_DEADLINE, producer.get_partition_properties(&partition)).await.unwrap().unwrap();
        last.insert(partition, asked.last_enqueued_sequence_number);
    }
    last
}
