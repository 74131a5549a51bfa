//! An event hub over AMQP, through the official client.

use std::pin::pin;
use std::sync::Arc;

use azure_messaging_eventhubs::{ConsumerClient, OpenReceiverOptions, StartLocation, StartPosition};
use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use futures::StreamExt;
use tokio::task::JoinSet;

use crate::cost::{Cost, Stopwatch};
use crate::each::{Each, Order};
use crate::handler::Completion;
use crate::processes::Address;
use crate::work::{PARTITIONS, PREFETCH};
use crate::{Result, ours};

async fn client(hub: &Address) -> Result<ConsumerClient> {
    let builder = ConsumerClient::builder().with_custom_endpoint(hub.endpoint.clone());
    Ok(builder.open_with_connection_string(&hub.connection_string, None).await?)
}

pub(crate) async fn source(hub: &Address) -> Result<EventHubSource> {
    let group = ConsumerGroup::from_connection_string(&hub.connection_string, ConsumerGroup::DEFAULT_NAME)?;
    let endpoint = hub.endpoint.clone();
    let builder = EventHubSource::from_connection_string(&group, &hub.connection_string)
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    Ok(builder.connect().await?)
}

pub(crate) async fn ours(events: u32, hub: &Address) -> Result<Cost> {
    ours::process(source(hub).await?, events, Completion::Checkpoint).await
}

/// Processes the events one after another.
pub(crate) async fn each(events: u32, hub: &Address) -> Result<Cost> {
    let (handler, cost) = Each { order: Order::Partition, concurrency: 1, is_slow: false }.handler(events);
    ours::process_with(source(hub).await?, handler, cost).await
}

/// Reads with one task per partition, like the processor, and drops the events in batches of this size.
pub(crate) async fn bare(events: u32, batch: usize, hub: &Address) -> Result<Cost> {
    let client = Arc::new(client(hub).await?);
    let each = events / u32::from(PARTITIONS);
    let watch = Stopwatch::start();
    let mut reading = JoinSet::new();
    for partition in 0..PARTITIONS {
        reading.spawn(read(Arc::clone(&client), partition, each, batch));
    }
    while let Some(read) = reading.join_next().await {
        read??;
    }
    Ok(watch.stop())
}

async fn read(client: Arc<ConsumerClient>, partition: u16, events: u32, batch: usize) -> Result<()> {
    let earliest = StartPosition { location: StartLocation::Earliest, inclusive: false };
    let options = OpenReceiverOptions {
        owner_level: Some(0),
        prefetch: Some(u32::try_from(PREFETCH)?),
        start_position: Some(earliest),
        receive_timeout: None,
    };
    let receiver = client.open_receiver_on_partition(partition.to_string(), Some(options)).await?;
    let mut stream = pin!(receiver.stream_events());
    let mut kept = Vec::with_capacity(batch);
    for _ in 0..events {
        kept.push(stream.next().await.ok_or("the stream ended")??);
        if kept.len() == batch {
            kept.clear();
        }
    }
    Ok(())
}
