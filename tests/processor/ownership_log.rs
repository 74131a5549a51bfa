//! The ownership events of instances.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::OwnershipEvent;
use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext, StopReason};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::sync::broadcast::Receiver;
use tokio::time::{sleep, timeout};

use crate::world::{Instance, Recorder, TIMEOUT, World};

/// All ownership events of an instance from now on, without partitions and epochs.
pub struct OwnershipLog {
    events: Receiver<OwnershipEvent>,
    recorded: Vec<String>,
}

impl OwnershipLog {
    pub fn of(instance: &Instance) -> Self {
        Self { events: instance.handle.ownership_events(), recorded: Vec::new() }
    }

    pub async fn wait_for(&mut self, what: &str) {
        let waiting = async {
            while self.recorded.last().is_none_or(|last| last != what) {
                self.recorded.push(describe(self.events.recv().await.unwrap()));
            }
        };
        let came = timeout(TIMEOUT, waiting).await;
        came.unwrap_or_else(|_| panic!("no event {what:?}, but {:?}", self.recorded));
    }

    /// Returns the events since the last call.
    pub fn take(&mut self) -> Vec<String> {
        while let Ok(event) = self.events.try_recv() {
            self.recorded.push(describe(event));
        }
        std::mem::take(&mut self.recorded)
    }
}

fn describe(event: OwnershipEvent) -> String {
    match event {
        OwnershipEvent::Claimed { reason, .. } => format!("claimed: {reason:?}"),
        OwnershipEvent::Lost { by, .. } => format!("lost to {by:?}"),
        OwnershipEvent::Releasing { reason, .. } => format!("releasing: {reason:?}"),
        OwnershipEvent::Released { .. } => "released".to_owned(),
        OwnershipEvent::HandoffRequested { from, .. } => format!("requested from {from}"),
        OwnershipEvent::HandoffReceived { by, .. } => format!("requested by {by}"),
        OwnershipEvent::DuplicatesPossible { cause, .. } => format!("duplicates: {cause:?}"),
        other => format!("{other:?}"),
    }
}

/// Takes `stop_delay` to stop.
pub struct SlowHandler {
    pub recorder: Recorder,
    pub stop_delay: Duration,
}

impl Handler<MemoryEvent> for SlowHandler {
    async fn started(&self, context: PartitionContext) {
        self.recorder.started(context).await;
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.recorder.handle(events, context).await
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        sleep(self.stop_delay).await;
        self.recorder.stopped(context, reason).await;
    }
}

/// Starts an instance whose handler takes `stop_delay` to stop, and waits until it owns all partitions.
pub async fn owner_of_all(world: &World, partitions: usize, stop_delay: Duration) -> Instance {
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_with("a", world.hub.source(), SlowHandler { recorder, stop_delay }).await;
    a.wait_until_it_holds(partitions).await;
    a
}

/// Starts an instance that needs a partition, and waits until it has requested one.
pub async fn requesting_instance(world: &World) -> (Instance, PartitionId) {
    let mut b = world.start("b").await;
    b.wait_until("a request", |snapshot| !snapshot.requested_handoffs.is_empty()).await;
    let requested = b.snapshots.borrow().requested_handoffs.keys().next().unwrap().clone();
    (b, requested)
}

/// Returns the keys of a record.
pub async fn record(world: &World, name: &str) -> Option<Metadata> {
    let blob = world.container.get(&format!("ns.servicebus.windows.net/hub/$default/{name}")).await;
    blob.ok().map(|blob| blob.metadata)
}

/// Publishes one event to each partition.
pub fn publish(world: &World, partitions: u32, body: &str) {
    for partition in 0..partitions {
        world.hub.publish(partition, format!("{body} {partition}"));
    }
}

/// Waits until these events of each partition have been processed. Returns those that were processed more than once.
pub async fn repeated(world: &World, partitions: u32, bodies: &[&str]) -> Vec<String> {
    let all = || bodies.iter().flat_map(|body| (0..partitions).map(move |partition| format!("{body} {partition}")));
    world.log.wait_for("all events", |log| all().all(|body| log.times(&body) > 0)).await;
    all().filter(|body| world.log.times(body) > 1).collect()
}
