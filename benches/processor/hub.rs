//! The emulator, in a separate process.

use std::io::Write;

use azure_messaging_eventhubs::ProducerClient;
use eventhubs_emulator::EventHubEmulator;

use crate::Result;
use crate::publishing::publish;
use crate::work::{EVENT_HUB, PARTITIONS};

/// Fills the partitions evenly, prints endpoint and connection string, and serves until the process is killed.
pub(crate) async fn run(events: u32) -> Result<()> {
    let each = events / u32::from(PARTITIONS);
    let builder = EventHubEmulator::builder(EVENT_HUB).with_partitions(PARTITIONS).with_retention_count(each as usize);
    let hub = builder.start("127.0.0.1:0").await?;
    let producer = ProducerClient::builder().with_custom_endpoint(hub.endpoint());
    let producer = producer.open_with_connection_string(&hub.connection_string(), None).await?;
    for partition in hub.partition_ids() {
        publish(&producer, &partition, each).await?;
    }
    producer.close().await?;
    println!("{}\n{}", hub.endpoint(), hub.connection_string());
    std::io::stdout().flush()?;
    std::future::pending().await
}
