//! Publishes numbered events at an even pace.

use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::ledger::Ledger;

/// How often a batch goes out.
const PACE: Duration = Duration::from_millis(100);

/// Publishes `events` events over `duration`, evenly over all partitions; tells how many are out.
pub async fn publish(
    producer: &ProducerClient,
    ledger: &Ledger,
    events: u32,
    duration: Duration,
    sent: &watch::Sender<u32>,
) -> Result<(), Failure> {
    let partitions = producer.get_eventhub_properties().await?.partition_ids;
    let started = Instant::now();
    let steps = u32::try_from(duration.as_millis() / PACE.as_millis()).unwrap_or(u32::MAX).max(1);
    let mut next = 0;
    for step in 1..=steps {
        sleep_until(started + PACE * step).await;
        // In 64 bits, so that the product cannot overflow; the quotient is at most `events`.
        let until = u32::try_from(u64::from(events) * u64::from(step) / u64::from(steps)).unwrap_or(events);
        if until > next {
            let partition = &partitions[step as usize % partitions.len()];
            send(producer, ledger, partition, next..until).await?;
            next = until;
            sent.send_replace(next);
        }
    }
    Ok(())
}

async fn send(
    producer: &ProducerClient,
    ledger: &Ledger,
    partition: &str,
    numbers: std::ops::Range<u32>,
) -> Result<(), Failure> {
    let options = || Some(EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() });
    let mut batch = producer.create_batch(options()).await?;
    for number in numbers {
        let event = || EventData::from(ledger.body(number));
        if !batch.try_add_event_data(event(), None)? {
            producer.send_batch(batch, None).await?;
            batch = producer.create_batch(options()).await?;
            batch.try_add_event_data(event(), None)?;
        }
    }
    producer.send_batch(batch, None).await?;
    Ok(())
}
