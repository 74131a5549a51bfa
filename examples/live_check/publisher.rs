//! Publishes events to all partitions until the end is requested.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Failure;
use crate::hub::Hub;

/// Each round publishes one batch to each partition.
const ROUND: Duration = Duration::from_millis(400);
const EVENTS_PER_BATCH: u32 = 5;
const EVENT_SIZE: usize = 100;

/// The timeout of one batch. A batch that fails, or whose response was lost, is sent again with a new client, so its
/// events may be published twice. They are then different events.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 4;

/// Publishes at least this many events to each partition, and more until the end is requested.
pub async fn publish(hub: Arc<Hub>, events: u32, is_end: watch::Receiver<bool>) -> Result<(), Failure> {
    let (ended, end) = oneshot::channel();
    // The client runs on one dedicated thread, because it can hang on several. The thread does not belong to the
    // runtime, because the runtime would wait for it at its end.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let published =
            runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(publish_here(&hub, events, &is_end)));
        // An error means that the caller does not wait anymore.
        let _ = ended.send(published);
    });
    end.await.map_err(|_| "the publisher panicked")?
}

async fn publish_here(hub: &Hub, events: u32, is_end: &watch::Receiver<bool>) -> Result<(), Failure> {
    let mut producer = hub.producer().await?;
    let partitions = timeout(SEND_TIMEOUT, producer.get_eventhub_properties()).await??.partition_ids;
    let rounds = events.div_ceil(EVENTS_PER_BATCH);
    let mut round = 0;
    while round < rounds || !*is_end.borrow() {
        let began = Instant::now();
        for partition in &partitions {
            for attempt in 1.. {
                match timeout(SEND_TIMEOUT, send_batch(&producer, partition)).await {
                    Ok(Ok(())) => break,
                    failed if attempt == ATTEMPTS => return Err(format!("events cannot be sent: {failed:?}").into()),
                    _ => producer = hub.producer().await?,
                }
            }
        }
        round += 1;
        sleep_until(began + ROUND).await;
    }
    Ok(())
}

async fn send_batch(producer: &ProducerClient, partition: &str) -> Result<(), Failure> {
    let options = EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() };
    let batch = producer.create_batch(Some(options)).await?;
    for _ in 0..EVENTS_PER_BATCH {
        batch.try_add_event_data(EventData::from(vec![b'.'; EVENT_SIZE]), None)?;
    }
    producer.send_batch(batch, None).await?;
    Ok(())
}
