//! The event hub, in its own process.

use std::io::Write;
use std::time::Duration;

use azure_messaging_eventhubs::ProducerClient;
use eventhubs_emulator::EventHubEmulator;
use serde::{Deserialize, Serialize};
use tokio::time::interval;

use crate::Result;
use crate::publishing::publish;
use crate::settings::EVENT_HUB;

/// The line that the process prints once the event hub is filled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) endpoint: String,
    pub(crate) port: u16,
    pub(crate) connection_string: String,
}

/// The most partitions to which one connection of the official client sends.
const MOST_SENDERS: usize = 200;

/// The most events that a partition keeps.
const RETENTION: usize = 100_000;

/// Fills each partition with this many events, and serves until the process is killed.
pub(crate) async fn run(partitions: u16, each: u32) -> Result<()> {
    let builder = EventHubEmulator::builder(EVENT_HUB).with_partitions(partitions).with_retention_count(RETENTION);
    let hub = builder.start("127.0.0.1:0").await?;
    let address = Address { endpoint: hub.endpoint(), port: hub.port(), connection_string: hub.connection_string() };
    for partitions in hub.partition_ids().chunks(MOST_SENDERS) {
        let producer = producer(&address).await?;
        for partition in partitions {
            publish(&producer, partition, each).await?;
        }
        producer.close().await?;
    }
    println!("{}", serde_json::to_string(&address)?);
    std::io::stdout().flush()?;
    std::future::pending().await
}

/// Publishes ten events to one partition after the other, so many per second in all, until the process is killed.
pub(crate) async fn publish_at_a_rate(partitions: u16, rate: u32, address: &Address) -> Result<()> {
    const BATCH: u32 = 10;
    let mut producers = Vec::new();
    for _ in (0..partitions).step_by(MOST_SENDERS) {
        producers.push(producer(address).await?);
    }
    let mut pace = interval(Duration::from_secs(1) * BATCH / rate);
    for partition in (0..partitions).cycle() {
        pace.tick().await;
        let producer = &producers[usize::from(partition) / MOST_SENDERS];
        publish(producer, &partition.to_string(), BATCH).await?;
    }
    Ok(())
}

async fn producer(address: &Address) -> Result<ProducerClient> {
    let producer = ProducerClient::builder().with_custom_endpoint(address.endpoint.clone());
    Ok(producer.open_with_connection_string(&address.connection_string, None).await?)
}
