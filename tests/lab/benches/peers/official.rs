//! The official `EventProcessor` with the checkpoint store of this crate.

use std::pin::pin;
use std::sync::Arc;

use azure_messaging_eventhubs::models::StartPositions;
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{ConsumerClient, EventProcessor, ProcessorStrategy, StartLocation, StartPosition};
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use futures::stream::{FuturesUnordered, StreamExt};

use crate::Result;
use crate::ours::Progress;
use crate::settings::{BATCH, Line, Settings};

/// Runs until the process is killed.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    Line::versions(&["azure_messaging_eventhubs"]).print();
    let builder = ConsumerClient::builder().with_custom_endpoint(settings.endpoint.clone());
    let consumer = builder.open_with_connection_string(&settings.event_hub, None).await?;
    let store =
        BlobCheckpointStore::new(AzureContainer::from_connection_string(&settings.storage, &settings.container)?);
    let earliest = StartPosition { location: StartLocation::Earliest, inclusive: false };
    let start = StartPositions { default: earliest, ..StartPositions::default() };
    let mut processor = EventProcessor::builder().with_start_positions(start);
    if settings.greedy {
        processor = processor.with_load_balancing_strategy(ProcessorStrategy::Greedy);
    }
    let processor = processor.build(consumer, store).await?;
    let progress = Progress::until(settings.expected);
    let mut readers = FuturesUnordered::new();
    let mut running = pin!(processor.run());
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended?),
            client = processor.next_partition_client() => readers.push(read(client?, &progress)),
            Some(()) = readers.next() => {}
        }
    }
}

/// It delivers one event at a time, so a batch is a number of events.
async fn read(client: Arc<PartitionClient>, progress: &Progress) {
    let mut events = client.stream_events();
    let mut unwritten = 0;
    while let Some(Ok(event)) = events.next().await {
        progress.received(client.get_partition_id());
        unwritten += 1;
        if unwritten == BATCH {
            if let Err(error) = client.update_checkpoint(&event).await {
                eprintln!("partition {}: {error}", client.get_partition_id());
                return;
            }
            progress.processed(std::mem::take(&mut unwritten));
        }
    }
}
