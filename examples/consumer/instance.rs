//! One instance of the consumer: a client, a store and a processor of its own, in a task of its own.

use std::sync::Arc;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::ClaimReason;
use eventhubs_checkpoint::balancer::{OwnershipEvent, Snapshots};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, ShutdownReport, StopReason,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::RequestCounts;
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::args::Plan;
use crate::hub::Hub;
use crate::ledger::Ledger;

struct Worker {
    owner: String,
    ledger: Arc<Ledger>,
}

impl Handler<ReceivedEventData> for Worker {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            self.ledger.processed(context.partition_id(), event.sequence_number(), event.event_data().body());
        }
        let numbers = events.iter().filter_map(ReceivedEventData::sequence_number);
        self.ledger.journal(context.partition_id(), numbers, &self.owner)?;
        for event in &events {
            context.checkpoint(event);
        }
        Ok(())
    }

    async fn started(&self, context: PartitionContext) {
        self.ledger.started(context.partition_id(), &self.owner);
    }

    async fn stopped(&self, context: PartitionContext, _reason: StopReason) {
        self.ledger.stopped(context.partition_id());
    }
}

pub struct Instance {
    pub owner: String,
    pub snapshots: Snapshots,
    events: broadcast::Receiver<OwnershipEvent>,
    store: GroupStore,
    shutdown: Option<oneshot::Sender<()>>,
    running: JoinHandle<eventhubs_checkpoint::Result<ShutdownReport>>,
    dead: bool,
}

impl Instance {
    pub async fn start(
        number: u16,
        plan: &Plan,
        hub: &Arc<Hub>,
        container: Arc<dyn BlobContainer>,
        create_container: bool,
        ledger: Arc<Ledger>,
    ) -> Result<Self, Failure> {
        let owner = if plan.owner.is_empty() { String::new() } else { format!("{}-{number}", plan.owner) };
        let store = GroupStore::builder(container, hub.group().clone(), OwnerId::new(&owner)?)
            .with_lease_duration(plan.expiry)
            .with_foreign_lease_duration(plan.expiry.max(std::time::Duration::from_secs(180)))
            .with_create_container(create_container)
            .connect()
            .await?;
        let config = ProcessorConfig::default()
            .with_load_balancing_interval(plan.interval)
            .with_handoff(plan.handoff)
            .with_lease_scope(plan.lease_scope)
            .with_checkpoint_policy(CheckpointPolicy::default().with_interval(plan.interval));
        let worker = Worker { owner: owner.clone(), ledger };
        let source = hub.source().await?;
        let processor = Processor::builder(source, store.clone(), worker).with_config(config).build()?;
        let handle = processor.handle();
        let (snapshots, events) = (handle.snapshots(), handle.ownership_events());
        let (shutdown, asked) = oneshot::channel();
        let running = tokio::spawn(processor.run(async {
            // An error means that nobody will ever ask: the sample itself has ended.
            let _ = asked.await;
        }));
        Ok(Self { owner, snapshots, events, store, shutdown: Some(shutdown), running, dead: false })
    }

    /// How many partitions it holds. The dead hold none.
    pub fn held(&self) -> usize {
        if self.dead { 0 } else { self.snapshots.borrow().owned.len() }
    }

    /// How many partitions were handed over to it since this was last asked. It remembers the last thousand things.
    pub fn handed_over(&mut self) -> u64 {
        let told = std::iter::from_fn(|| self.events.try_recv().ok());
        told.map(|event| u64::from(matches!(event, OwnershipEvent::Claimed { reason: ClaimReason::HandedOver, .. })))
            .sum()
    }

    pub fn is_dead(&self) -> bool {
        self.dead
    }

    pub fn requests(&self) -> RequestCounts {
        self.store.request_counts()
    }

    /// Whether it has ended without being asked to.
    pub fn has_failed(&self) -> bool {
        !self.dead && self.running.is_finished()
    }

    /// Dies as a process does that is killed: nothing is checkpointed, nothing is released.
    pub async fn kill(&mut self) {
        self.dead = true;
        self.running.abort();
        // The task's end is all there is to wait for.
        let _ = (&mut self.running).await;
    }

    pub async fn shut_down(self) -> Result<(), Failure> {
        if self.dead {
            return Ok(());
        }
        if let Some(shutdown) = self.shutdown {
            // An error means that it has ended already, and tells why below.
            let _ = shutdown.send(());
        }
        self.running.await??;
        Ok(())
    }
}
