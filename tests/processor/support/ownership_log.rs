//! The ownership events of instances, and instances that hand over.

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::OwnershipEvent;
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;

use crate::world::{Instance, TIMEOUT, World};

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

/// Starts an instance that needs a partition, and waits until it has requested one.
pub async fn requesting_instance(world: &World) -> (Instance, PartitionId) {
    let mut b = world.start("b").await;
    b.wait_until("a request", |snapshot| !snapshot.requested_handoffs.is_empty()).await;
    let requested = b.snapshots.borrow().requested_handoffs.keys().next().unwrap().clone();
    (b, requested)
}
