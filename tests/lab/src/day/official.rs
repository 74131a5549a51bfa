//! An instance of the official `EventProcessor` on the store of this crate.

use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_messaging_eventhubs::models::StartPositions;
use azure_messaging_eventhubs::processor::PartitionClient;
use azure_messaging_eventhubs::{ConsumerClient, EventProcessor, RetryOptions, StartLocation, StartPosition};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use futures::StreamExt;
use tokio::task::{JoinHandle, spawn_local};

use super::Failure;
use super::group::HUB;
use super::reading::Reading;

const UPDATE_INTERVAL: Duration = Duration::from_secs(2);

/// A running instance.
pub(super) struct Instance {
    processor: Arc<EventProcessor>,
    running: JoinHandle<azure_messaging_eventhubs::Result<()>>,
    reading: JoinHandle<()>,
}

impl Instance {
    pub(super) async fn start(
        name: &str,
        endpoint: String,
        container: Arc<dyn BlobContainer>,
        credential: Arc<dyn TokenCredential>,
        reading: Reading,
    ) -> Result<Self, Failure> {
        let consumer = ConsumerClient::builder()
            .with_application_id(name.to_owned())
            .with_custom_endpoint(endpoint)
            .with_retry_options(RetryOptions { max_retries: 0, ..RetryOptions::default() })
            .open("localhost", HUB.to_owned(), credential)
            .await?;
        let default = StartPosition { location: StartLocation::Earliest, inclusive: false };
        let processor = EventProcessor::builder()
            .with_update_interval(UPDATE_INTERVAL.try_into()?)
            .with_start_positions(StartPositions { default, ..StartPositions::default() })
            .build(consumer, BlobCheckpointStore::new(container))
            .await?;
        let (running, partitions) = (Arc::clone(&processor), Arc::clone(&processor));
        let running = spawn_local(async move { running.run().await });
        Ok(Self { processor, running, reading: spawn_local(read_all(partitions, reading)) })
    }

    /// Fails if the processor has ended by itself.
    pub(super) async fn shut_down(self) -> Result<(), Failure> {
        self.reading.abort();
        if self.running.is_finished() {
            self.running.await??;
            return Err("a processor has ended".into());
        }
        self.processor.shutdown().await?;
        Ok(self.running.await??)
    }
}

async fn read_all(processor: Arc<EventProcessor>, reading: Reading) {
    while let Ok(partition) = processor.next_partition_client().await {
        spawn_local(read(partition, reading.clone()));
    }
}

/// Reads until the partition is lost.
async fn read(partition: Arc<PartitionClient>, reading: Reading) {
    let mut events = partition.stream_events();
    while let Some(Ok(event)) = events.next().await {
        if let Some(number) = event.sequence_number() {
            reading.delivered(partition.get_partition_id(), number);
        }
        if partition.update_checkpoint(&event).await.is_err() {
            break;
        }
    }
    drop(events);
    // A client that is not closed is never returned again. An error is usual if its link has ended.
    if let Some(partition) = Arc::into_inner(partition) {
        let _ = partition.close().await;
    }
}
