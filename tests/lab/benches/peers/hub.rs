//! The event hub, in its own process.

use std::io::Write;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use eventhubs_checkpoint::testing::event_hub::EventHubEmulator;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::settings::{EVENT_HUB, PARTITIONS};

const BODY: [u8; 1024] = [b'x'; 1024];

/// The line that the process prints once the event hub is filled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) endpoint: String,
    pub(crate) port: u16,
    pub(crate) connection_string: String,
}

/// Fills each partition with this many events, and serves until the process is killed.
pub(crate) async fn run(each: usize) -> Result<()> {
    let builder = EventHubEmulator::builder(EVENT_HUB).with_partitions(PARTITIONS).with_retention_count(each);
    let hub = builder.start("127.0.0.1:0").await?;
    let producer = ProducerClient::builder().with_custom_endpoint(hub.endpoint());
    let producer = producer.open_with_connection_string(&hub.connection_string(), None).await?;
    for partition in hub.partition_ids() {
        publish(&producer, &partition, each).await?;
    }
    producer.close().await?;
    let address = Address { endpoint: hub.endpoint(), port: hub.port(), connection_string: hub.connection_string() };
    println!("{}", serde_json::to_string(&address)?);
    std::io::stdout().flush()?;
    std::future::pending().await
}

async fn publish(producer: &ProducerClient, partition: &str, events: usize) -> Result<()> {
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
