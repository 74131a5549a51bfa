//! The processor of this crate.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, StopReason,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

use crate::Result;
use crate::settings::{BATCH, Line, Settings};

struct Consumer {
    durable: bool,
    progress: Progress,
}

/// Reports the first event of each partition, and the expected number of events.
#[derive(Debug)]
pub(crate) struct Progress {
    met: Mutex<HashSet<String>>,
    processed: AtomicU32,
    expected: u32,
}

impl Progress {
    pub(crate) fn until(expected: u32) -> Self {
        Self { met: Mutex::default(), processed: AtomicU32::new(0), expected }
    }

    pub(crate) fn received(&self, partition: &str) {
        let is_new = self.met.lock().is_ok_and(|mut met| !met.contains(partition) && met.insert(partition.to_owned()));
        if is_new {
            Line::First(partition.to_owned()).print();
        }
    }

    pub(crate) fn processed(&self, events: u32) {
        let before = self.processed.fetch_add(events, Ordering::Relaxed);
        if before < self.expected && before + events >= self.expected {
            Line::Processed(before + events).print();
        }
    }
}

impl Handler<ReceivedEventData> for Consumer {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        self.progress.received(context.partition_id().as_str());
        if let Some(last) = events.last() {
            if self.durable {
                context.checkpoint_now(last).await?;
            } else {
                context.checkpoint(last);
            }
        }
        self.progress.processed(u32::try_from(events.len())?);
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, _: StopReason) {
        Line::Lost(context.partition_id().to_string()).print();
    }
}

/// Runs until the process is killed.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    Line::versions(&["eventhubs-checkpoint", "azure_messaging_eventhubs"]).print();
    let group = ConsumerGroup::from_connection_string(&settings.event_hub, &settings.consumer_group)?;
    let container = AzureContainer::from_connection_string(&settings.storage, &settings.container)?;
    let builder = GroupStore::builder(std::sync::Arc::new(container), group.clone(), OwnerId::new("ours")?);
    let endpoint = settings.endpoint.clone();
    let source = EventHubSource::from_connection_string(&group, &settings.event_hub)
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    let mut config = ProcessorConfig::default().with_max_batch_size(BATCH as usize);
    if settings.greedy {
        config = config.with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    }
    let consumer = Consumer { durable: settings.durable, progress: Progress::until(settings.expected) };
    let (source, store) = (source.connect().await?, builder.connect().await?);
    let processor = Processor::builder(source, store, consumer).with_config(config).build()?;
    processor.run(std::future::pending()).await?;
    Ok(())
}
