//! Publishes an even load, and reads the last sequence numbers from the hub.

use std::collections::BTreeMap;
use std::error::Error;
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// The timeout of one batch. The client can wait forever for a lost response. Then the batch is sent again with a new
/// client, so its events may be published twice.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 4;
/// The timeout of what is not repeated.
const TIMEOUT: Duration = Duration::from_secs(60);

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The address of an event hub.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) endpoint: String,
    pub(crate) connection_string: String,
}

/// Batches at an even pace, to one partition after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) events_per_batch: u32,
    pub(crate) event_size: usize,
    pub(crate) pace: Duration,
}

/// Publishes the load until the wanted number of batches is sent, which may change in the meantime. Returns the last
/// sequence number of each partition.
pub(crate) async fn publish(
    address: Address,
    load: Load,
    batches: watch::Receiver<u32>,
) -> Result<BTreeMap<String, i64>> {
    let (ended, end) = oneshot::channel();
    // The client runs on one dedicated thread, because it can hang on several. The thread does not belong to the
    // runtime, because the runtime would wait for it at its end.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let published =
            runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(publish_here(&address, load, &batches)));
        // An error means that the caller does not wait anymore.
        let _ = ended.send(published);
    });
    end.await.map_err(|_| "the publisher panicked")?
}

async fn publish_here(address: &Address, load: Load, batches: &watch::Receiver<u32>) -> Result<BTreeMap<String, i64>> {
    let mut producer = open_producer(address).await?;
    let partitions = timeout(TIMEOUT, producer.get_eventhub_properties()).await??.partition_ids;
    let started = Instant::now();
    let mut batch = 0;
    while batch < *batches.borrow() {
        sleep_until(started + load.pace * batch).await;
        let partition = &partitions[batch as usize % partitions.len()];
        for attempt in 1.. {
            match timeout(SEND_TIMEOUT, send_batch(&producer, partition, load)).await {
                Ok(Ok(())) => break,
                failed if attempt == ATTEMPTS => return Err(format!("batch {batch} cannot be sent: {failed:?}").into()),
                _ => producer = open_producer(address).await?,
            }
        }
        batch += 1;
    }
    last_sequence_numbers(&producer, partitions).await
}

async fn open_producer(address: &Address) -> Result<ProducerClient> {
    let builder = ProducerClient::builder().with_custom_endpoint(address.endpoint.clone());
    let opening = builder.open_with_connection_string(&address.connection_string, None);
    Ok(timeout(TIMEOUT, opening).await??)
}

async fn send_batch(producer: &ProducerClient, partition: &str, load: Load) -> Result<()> {
    let options = EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() };
    let batch = producer.create_batch(Some(options)).await?;
    for _ in 0..load.events_per_batch {
        if !batch.try_add_event_data(EventData::from(vec![b'.'; load.event_size]), None)? {
            return Err(format!("a batch of {load:?} is too large for the event hub").into());
        }
    }
    producer.send_batch(batch, None).await?;
    Ok(())
}

async fn last_sequence_numbers(producer: &ProducerClient, partitions: Vec<String>) -> Result<BTreeMap<String, i64>> {
    let mut last = BTreeMap::new();
    for partition in partitions {
        let properties = timeout(TIMEOUT, producer.get_partition_properties(&partition)).await??;
        last.insert(partition, properties.last_enqueued_sequence_number);
    }
    Ok(last)
}
