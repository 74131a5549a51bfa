//! Runs a processor over all events of a hub.

use std::sync::Arc;

use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{Handler, Processor, ProcessorBuilder, ProcessorConfig};
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use tokio::sync::oneshot;

use crate::Result;
use crate::cost::Cost;
use crate::handler::{Completion, Done};
use crate::work::{BATCH, EVENT_HUB, PREFETCH};

/// Returns settings with which the processor claims all partitions at once.
pub(crate) fn config() -> ProcessorConfig {
    ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy))
        .with_max_batch_size(BATCH)
        .with_prefetch(PREFETCH)
}

/// Returns a store with its records in memory.
pub(crate) async fn store() -> Result<GroupStore> {
    let group = ConsumerGroup::new("localhost", EVENT_HUB, "$Default")?;
    Ok(GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("worker-1")?).connect().await?)
}

pub(crate) async fn process<S>(source: S, events: u32, completion: Completion) -> Result<Cost>
where
    S: EventSource<Event: Sync>,
{
    let (done, cost) = Done::new(completion, events);
    process_with(source, done, cost).await
}

/// Processes all events with this handler, until it reports their cost.
pub(crate) async fn process_with<S: EventSource>(
    source: S,
    handler: impl Handler<S::Event>,
    cost: oneshot::Receiver<Cost>,
) -> Result<Cost> {
    run_until_counted(Processor::builder(source, store().await?, handler), cost).await
}

/// Runs a processor until its handler reports the cost.
pub(crate) async fn run_until_counted<S: EventSource, H: Handler<S::Event>>(
    builder: ProcessorBuilder<S, H>,
    cost: oneshot::Receiver<Cost>,
) -> Result<Cost> {
    let processor = builder.with_config(config()).build()?;
    let handle = processor.handle();
    let waiting = async move {
        let cost = cost.await;
        handle.shutdown();
        cost
    };
    let (report, cost) = tokio::join!(processor.run(std::future::pending()), waiting);
    let (report, cost) = (report?, cost?);
    if report.is_clean() {
        Ok(cost)
    } else {
        Err(format!("the processor did not shut down cleanly: {report:?}").into())
    }
}
