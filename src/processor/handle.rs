//! Watches and steers a running processor.

use std::time::Duration;

use tokio::sync::broadcast;

use super::control::Control;
use super::health::{self, Health};
use super::registry::Registry;
use super::shutdown::Requests;
use super::status::PartitionStatus;
use crate::balancer::{BalancerHandle, OwnershipEvent, Snapshots};
use crate::model::PartitionId;

/// Watches and steers a running [`Processor`](super::Processor), from anywhere. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProcessorHandle {
    pub(super) balancer: BalancerHandle,
    pub(super) registry: Registry,
    pub(super) requests: Requests,
    /// How old numbers from the hub may be.
    pub(super) lag_checks_due: Duration,
}

impl ProcessorHandle {
    /// What this instance knows of the group: who owns what.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        self.balancer.snapshots()
    }

    /// What happens to partitions from now on, and why. Who listens too slowly misses the oldest of the last thousand.
    #[must_use]
    pub fn ownership_events(&self) -> broadcast::Receiver<OwnershipEvent> {
        self.balancer.ownership_events()
    }

    /// Every partition that this instance processes: what it is doing, how far it is, and how far behind.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionStatus> {
        let status = |control: &Control| {
            control.progress.status(&control.partition, self.balancer.liveness(), self.lag_checks_due)
        };
        self.registry.all().iter().map(|control| status(control)).collect()
    }

    /// Whether this instance is ready, and what is not well.
    #[must_use]
    pub fn health(&self) -> Health {
        let controls = self.registry.all();
        let failure = |control: &Control| Some((control.partition.clone(), control.progress.checkpoint_failure()?));
        let held = |control: &Control| Some((control.partition.clone(), control.progress.held()?));
        health::of(&health::Signs {
            snapshot: &self.balancer.snapshots().borrow(),
            storage_unavailable: self.balancer.storage_unavailable_for(),
            cycles_failing: self.balancer.cycles_failing_for(),
            partitions: &self.partitions(),
            checkpoint_failures: controls.iter().filter_map(|control| failure(control)).collect(),
            held: controls.iter().filter_map(|control| held(control)).collect(),
            liveness: self.balancer.liveness(),
            ending: self.requests.is_requested() || self.requests.has_ended(),
        })
    }

    /// Delivers no further batches of this partition until [`resume`](Self::resume). It is kept meanwhile. False if
    /// this instance does not process it. A partition that is lost and won again is not paused.
    pub fn pause(&self, partition: &PartitionId) -> bool {
        self.control(partition, Control::pause)
    }

    /// Goes on with a partition that was paused, or parked by [`OnFailure::Park`](super::OnFailure::Park). False if
    /// this instance does not process it.
    pub fn resume(&self, partition: &PartitionId) -> bool {
        self.control(partition, Control::resume)
    }

    /// Gives a partition back, in good order, and does not take it again before this time is over, nor within the next
    /// interval. Others may take it at once. False if this instance does not process it, or if it stops already.
    pub fn release(&self, partition: &PartitionId, cooldown: Duration) -> bool {
        self.registry.get(partition).is_some_and(|control| control.release(cooldown))
    }

    /// Asks the processor to shut down, as the future given to [`run`](super::Processor::run) does.
    ///
    /// Asked again at least a second after the first request, it ends at once: what is not finished then is as after a
    /// crash. A request within that second changes nothing, so that several parts of a program may pass on the same
    /// signal. The first request may also have come from the future or from a signal.
    pub fn shutdown(&self) {
        self.requests.request();
    }

    fn control(&self, partition: &PartitionId, order: impl FnOnce(&Control)) -> bool {
        let control = self.registry.get(partition);
        control.as_deref().map(order).is_some()
    }
}
