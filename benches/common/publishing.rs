//! Fills partitions of an event hub.

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};

use crate::Result;

const BODY: [u8; 1024] = [b'x'; 1024];

/// Publishes this many events of 1 KiB, in batches as large as possible.
pub(crate) async fn publish(producer: &ProducerClient, partition: &str, events: u32) -> Result<()> {
    let options = || Some(EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() });
    let event = || EventData::from(BODY.to_vec());
    let mut batch = producer.create_batch(options()).await?;
    for _ in 0..events {
        if !batch.try_add_event_data(event(), None)? {
            producer.send_batch(batch, None).await?;
            batch = producer.create_batch(options()).await?;
            batch.try_add_event_data(event(), None)?;
        }
    }
    Ok(producer.send_batch(batch, None).await?)
}
