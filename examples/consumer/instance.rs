//! One instance of the consumer: its own client, store and processor, in its own task.

use std::sync::Arc;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::{ClaimReason, OwnershipEvent, Snapshots};
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, ShutdownReport, StopReason,
};
use eventhubs_checkpoint::store::{GroupStore, RequestCounts, StoreConfig};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::args::Plan;
use crate::hub::Hub;
use crate::ledger::Ledger;
use crate::storage::Storage;

struct Worker {
    owner: String,
    ledger: Arc<Ledger>,
}

impl Handler<ReceivedEventData> for Worker {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            self.ledger.note_processed(context.partition_id(), event.sequence_number(), event.event_data().body());
        }
        let numbers = events.iter().filter_map(ReceivedEventData::sequence_number);
        self.ledger.journal(context.partition_id(), numbers, &self.owner)?;
        for event in &events {
            context.checkpoint(event);
        }
        Ok(())
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.ledger.note_start(context.partition_id(), &self.owner);
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, _reason: StopReason) {
        self.ledger.note_stop(context.partition_id());
    }
}

pub struct Instance {
    pub owner: String,
    pub snapshots: Snapshots,
    events: broadcast::Receiver<OwnershipEvent>,
    store: GroupStore,
    shutdown: Option<oneshot::Sender<()>>,
    running: JoinHandle<eventhubs_checkpoint::Result<ShutdownReport>>,
    crashed: bool,
}

impl Instance {
    pub async fn start(
        number: u16,
        plan: &Plan,
        hub: &Hub,
        storage: &Storage,
        ledger: Arc<Ledger>,
    ) -> Result<Self, Failure> {
        let prefix = &plan.owner_prefix;
        let owner = if prefix.is_empty() { String::new() } else { format!("{prefix}-{number}") };
        let store_config = StoreConfig::default()
            .with_lease_duration(plan.lease_duration)
            .with_foreign_lease_duration(plan.lease_duration.max(std::time::Duration::from_secs(180)))
            .with_create_container(storage.create);
        let store = GroupStore::builder(storage.container.clone(), hub.group().clone(), OwnerId::new(&owner)?)
            .with_config(store_config)
            .connect()
            .await?;
        let config = ProcessorConfig::default()
            .with_balancer(|balancer| {
                balancer
                    .with_load_balancing_interval(plan.load_balancing_interval)
                    .with_handoff(plan.handoff)
                    .with_lease_scope(plan.lease_scope)
            })
            .with_checkpoint_policy(CheckpointPolicy::default().with_interval(plan.load_balancing_interval));
        let worker = Worker { owner: owner.clone(), ledger };
        let source = hub.source().await?;
        let processor = Processor::builder(source, store.clone(), worker).with_config(config).build()?;
        let handle = processor.handle();
        let (shutdown, requested) = oneshot::channel();
        Ok(Self {
            owner,
            snapshots: handle.snapshots(),
            events: handle.ownership_events(),
            store,
            shutdown: Some(shutdown),
            running: tokio::spawn(processor.run(async {
                // An error means that the example itself has ended.
                let _ = requested.await;
            })),
            crashed: false,
        })
    }

    /// Returns the number of owned partitions. A crashed instance owns none.
    pub fn owned_partitions(&self) -> usize {
        if self.crashed { 0 } else { self.snapshots.borrow().owned.len() }
    }

    /// Returns the number of handoffs to this instance since the last call. The last thousand events are buffered.
    pub fn count_handoffs(&mut self) -> u64 {
        std::iter::from_fn(|| self.events.try_recv().ok())
            .map(|event| u64::from(matches!(event, OwnershipEvent::Claimed { reason: ClaimReason::HandedOver, .. })))
            .sum()
    }

    pub fn has_crashed(&self) -> bool {
        self.crashed
    }

    pub fn requests(&self) -> RequestCounts {
        self.store.request_counts()
    }

    /// Returns whether the instance has ended without a request.
    pub fn has_failed(&self) -> bool {
        !self.crashed && self.running.is_finished()
    }

    /// Crashes like a process that is killed: writes no checkpoint and releases nothing.
    pub async fn kill(&mut self) {
        self.crashed = true;
        self.running.abort();
        // Waits for the end of the task.
        let _ = (&mut self.running).await;
    }

    pub async fn shut_down(self) -> Result<(), Failure> {
        if self.crashed {
            return Ok(());
        }
        if let Some(shutdown) = self.shutdown {
            // An error means that the instance has already ended. The result below has the reason.
            let _ = shutdown.send(());
        }
        self.running.await??;
        Ok(())
    }
}
