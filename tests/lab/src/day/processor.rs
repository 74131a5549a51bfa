//! An instance of this crate.

use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy, OwnershipEvent};
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{ProcessorConfig, ProcessorHandle, ShutdownReport};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, Handler, HandlerError, OwnerId, PartitionContext, Processor, Result};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use super::Failure;
use super::group::{HUB, Host};
use super::reading::Reading;

/// A partition that an instance has released is unread until another instance looks.
const LOAD_BALANCING_INTERVAL: Duration = Duration::from_secs(1);

/// A running instance.
pub(super) struct Instance {
    handle: ProcessorHandle,
    events: broadcast::Receiver<OwnershipEvent>,
    running: JoinHandle<Result<ShutdownReport>>,
}

struct Reader(Reading);

impl Handler<ReceivedEventData> for Reader {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            if let Some(number) = event.sequence_number() {
                self.0.delivered(context.partition_id().as_str(), number);
            }
            context.checkpoint(event);
        }
        Ok(())
    }
}

impl Instance {
    pub(super) async fn start(host: Host) -> Result<Self> {
        let group = ConsumerGroup::new("localhost", HUB, ConsumerGroup::DEFAULT_NAME)?;
        let source = EventHubSource::from_credential(&group, host.credential)
            .with_client_builder(move |client| client.with_custom_endpoint(host.endpoint.clone()))
            .connect()
            .await?;
        let store = GroupStore::builder(host.container, group, OwnerId::new(host.name)?).connect().await?;
        let config = ProcessorConfig::default()
            .with_balancer(|balancer| {
                balancer
                    .with_load_balancing_interval(LOAD_BALANCING_INTERVAL)
                    .with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
            })
            .with_start_position(StartPosition::Earliest);
        let processor = Processor::builder(source, store, Reader(host.reading)).with_config(config).build()?;
        let handle = processor.handle();
        let events = handle.ownership_events();
        Ok(Self { handle, events, running: tokio::spawn(processor.run(std::future::pending())) })
    }

    /// Returns how many partitions others have handed over to this instance since the last call.
    pub(super) fn handed_over(&mut self) -> usize {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.filter(|event| matches!(event, OwnershipEvent::Claimed { reason: ClaimReason::HandedOver, .. })).count()
    }

    /// Fails if the processor has ended by itself.
    pub(super) async fn shut_down(self) -> Result<(), Failure> {
        if self.running.is_finished() {
            self.running.await??;
            return Err("a processor has ended".into());
        }
        self.handle.shutdown();
        self.running.await??;
        Ok(())
    }
}
