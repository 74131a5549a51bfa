//! Publishes numbered events at an even pace.
//!
//! The client runs on one dedicated thread: on several threads it can miss a response, and then waits forever.

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Failure;
use crate::hub::Hub;
use crate::ledger::Ledger;

/// The interval between batches.
const PACE: Duration = Duration::from_millis(100);

/// The timeout of one batch. A batch that fails, or whose response was lost, is sent again with a new client, so its
/// events may be published twice.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;

/// The events to publish.
pub struct Order {
    pub hub: Arc<Hub>,
    pub ledger: Arc<Ledger>,
    pub events: u32,
    pub duration: Duration,
}

/// Publishes over the duration, to one partition after the other. Sends the number of published events.
pub async fn publish(order: Order, sent: watch::Sender<u32>) -> Result<(), Failure> {
    let (ended, end) = oneshot::channel();
    // Not a blocking task of the runtime, because the runtime would wait for it if the example is interrupted.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let published =
            runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(publish_here(&order, &sent)));
        // An error means that the example has ended.
        let _ = ended.send(published);
    });
    end.await?
}

async fn publish_here(order: &Order, sent: &watch::Sender<u32>) -> Result<(), Failure> {
    let Order { hub, ledger, events, duration } = order;
    let mut producer = hub.producer().await?;
    let partitions = producer.get_eventhub_properties().await?.partition_ids;
    let started = Instant::now();
    let steps = u32::try_from(duration.as_millis() / PACE.as_millis()).unwrap_or(u32::MAX).max(1);
    let mut next = 0;
    for step in 1..=steps {
        sleep_until(started + PACE * step).await;
        // Computed in 64 bits, so that the product cannot overflow. The quotient is at most `events`.
        let until = u32::try_from(u64::from(*events) * u64::from(step) / u64::from(steps)).unwrap_or(*events);
        if until == next {
            continue;
        }
        let partition = &partitions[step as usize % partitions.len()];
        let mut attempts = 0;
        while let Err(error) = send_in_time(&producer, ledger, partition, next..until).await {
            attempts += 1;
            if attempts == ATTEMPTS {
                return Err(error);
            }
            producer = hub.producer().await?;
        }
        next = until;
        sent.send_replace(next);
    }
    Ok(())
}

async fn send_in_time(
    producer: &ProducerClient,
    ledger: &Ledger,
    partition: &str,
    numbers: Range<u32>,
) -> Result<(), Failure> {
    timeout(SEND_TIMEOUT, send(producer, ledger, partition, numbers))
        .await
        .unwrap_or_else(|_| Err(format!("the event hub did not accept events for {SEND_TIMEOUT:?}").into()))
}

async fn send(producer: &ProducerClient, ledger: &Ledger, partition: &str, numbers: Range<u32>) -> Result<(), Failure> {
    let options = || Some(EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() });
    let mut batch = producer.create_batch(options()).await?;
    for number in numbers {
        let event = || EventData::from(ledger.body(number));
        if batch.try_add_event_data(event(), None)? {
            continue;
        }
        // The client panics if it sends an empty batch.
        if !batch.is_empty() {
            producer.send_batch(batch, None).await?;
            batch = producer.create_batch(options()).await?;
        }
        if !batch.try_add_event_data(event(), None)? {
            let size = ledger.body(number).len();
            return Err(format!("an event of {size} bytes is too large for the event hub; lower --event-size").into());
        }
    }
    producer.send_batch(batch, None).await?;
    Ok(())
}
