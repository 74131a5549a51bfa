//! Observes and controls a running processor.

use std::time::Duration;

use tokio::sync::broadcast;

use super::monitoring::health::{self, Health};
use super::monitoring::status::{ObservedPartition, PartitionStatus};
use super::partition::control::{Control, Registry};
use super::shutdown::ShutdownRequests;
use crate::balancer::{BalancerHandle, OwnershipEvent, Snapshots};
use crate::model::PartitionId;

/// Observes and controls a running [`Processor`](super::Processor), from any task. Cheap to clone.
///
/// ```
/// use eventhubs_checkpoint::source::EventSource;
/// use eventhubs_checkpoint::{GroupStore, Handler, Processor, Result};
///
/// async fn run<S: EventSource>(source: S, store: GroupStore, handler: impl Handler<S::Event>) -> Result<()> {
///     let processor = Processor::builder(source, store, handler).build()?;
///     let handle = processor.handle();
///     tokio::spawn(async move {
///         while handle.snapshots().changed().await.is_ok() {
///             for partition in handle.partitions() {
///                 println!("{}: {}", partition.partition, partition.state.as_str());
///             }
///         }
///     });
///     processor.run_until_signal().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ProcessorHandle {
    pub(super) balancer: BalancerHandle,
    pub(super) registry: Registry,
    pub(super) requests: ShutdownRequests,
    /// The age at which partition properties become stale.
    pub(super) lag_checks_due: Duration,
}

impl ProcessorHandle {
    /// Returns what this instance knows of the group: which instance owns which partition.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        self.balancer.snapshots()
    }

    /// Subscribes to changes of ownership and their reasons, from now on. A receiver that is too slow misses the oldest
    /// events, if more than a thousand wait.
    #[doc(alias = "rebalance")]
    #[must_use]
    pub fn ownership_events(&self) -> broadcast::Receiver<OwnershipEvent> {
        self.balancer.ownership_events()
    }

    /// Returns the status of every partition that this instance processes: state, progress and lag.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionStatus> {
        self.observe_partitions().into_iter().map(|observed| observed.status).collect()
    }

    fn observe_partitions(&self) -> Vec<ObservedPartition> {
        let liveness = self.balancer.liveness();
        self.registry
            .controls()
            .iter()
            .map(|control| control.progress.observe_partition(&control.partition, liveness, self.lag_checks_due))
            .collect()
    }

    /// Returns whether this instance is ready, and its current issues.
    #[must_use]
    pub fn health(&self) -> Health {
        health::assess_health(&health::HealthInputs {
            snapshot: &self.balancer.snapshots().borrow(),
            storage_unavailable: self.balancer.storage_unavailable_for(),
            cycles_failing: self.balancer.cycles_failing_for(),
            heartbeat_failing: self.balancer.heartbeat_failing_for(),
            case_check_failing: self.balancer.case_check_failing_for(),
            unclaimable: self.balancer.unclaimable(),
            partitions: &self.observe_partitions(),
            liveness: self.balancer.liveness(),
            ending: self.requests.is_ending(),
        })
    }

    /// Stops delivering batches of this partition until [`resume`](Self::resume). This instance keeps its lease, but
    /// load balancing may still move the partition: after a move, or a restart of the process, it is not paused. For a
    /// pause that survives both: [`Operator::pause`](crate::admin::Operator::pause).
    ///
    /// Returns false if this instance does not process the partition.
    pub fn pause(&self, partition: &PartitionId) -> bool {
        self.change_control(partition, Control::pause)
    }

    /// Continues with a partition that was paused, or parked by [`OnFailure::Park`](super::OnFailure::Park). Only an
    /// operator can end a [pause that an operator set](crate::admin::Operator::pause).
    ///
    /// Returns false if this instance does not process the partition.
    pub fn resume(&self, partition: &PartitionId) -> bool {
        self.change_control(partition, Control::resume)
    }

    /// Releases a partition after a clean stop. This instance does not claim it again for `cooldown` (at least one
    /// load-balancing interval, at most a year) and half an interval more. Other instances may claim it at once.
    ///
    /// Returns false if this instance does not process the partition, or if the partition is already stopping.
    #[allow(clippy::must_use_candidate, reason = "a caller may not care")]
    pub fn release(&self, partition: &PartitionId, cooldown: Duration) -> bool {
        self.registry.get(partition).is_some_and(|control| control.request_release(cooldown))
    }

    /// Stops the partition cleanly and starts it again, without giving it up: the handler may finish its batch, the
    /// last checkpoint is written, and then the checkpoint is taken over and
    /// [`Handler::start_position`](super::Handler::start_position) is called again. The epoch stays the same. A
    /// partition that waits after a failure starts at once. A parked or paused partition stays parked or paused.
    ///
    /// Events that this owner has moved to the dead letters are not delivered again, and a partition that stops after a
    /// failure does what [`OnFailure`](super::OnFailure) says.
    ///
    /// Returns false if this instance does not process the partition, or if the partition is already stopping.
    #[allow(clippy::must_use_candidate, reason = "a caller may not care")]
    pub fn restart(&self, partition: &PartitionId) -> bool {
        self.registry.get(partition).is_some_and(|control| control.request_restart())
    }

    /// Requests a shutdown, as the future passed to [`run`](super::Processor::run) does. Returns at once.
    ///
    /// A second request, at least a second after the first, ends the processor at once, as a crash does. A request
    /// within that second is ignored, so that several parts of a program may pass on the same signal. The first request
    /// may also have come from the future or from a signal.
    pub fn shutdown(&self) {
        self.requests.request_shutdown();
    }

    fn change_control(&self, partition: &PartitionId, change: impl FnOnce(&Control)) -> bool {
        self.registry.get(partition).as_deref().map(change).is_some()
    }
}
