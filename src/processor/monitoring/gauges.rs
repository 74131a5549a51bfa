//! Sets the gauges of partitions at a fixed interval.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use tokio::time::sleep;

use super::status::{PartitionState, PartitionStatus};
use super::unowned::Unowned;
use crate::model::{OwnerId, PartitionId};
use crate::processor::handle::ProcessorHandle;
use crate::telemetry::metrics::SAMPLE_EVERY;
use crate::telemetry::{GroupMetrics, PartitionGauges};

/// Sets the gauges as long as the task runs. The handle must not outlive the processor, because the balancer of the
/// processor ends when its last handle is dropped.
pub(crate) async fn sample(metrics: GroupMetrics, handle: ProcessorHandle, unowned: watch::Receiver<Unowned>) {
    let snapshots = handle.snapshots();
    let owner = snapshots.borrow().owner.clone();
    let mut gauges = Gauges { metrics, owner, running: BTreeSet::new(), unowned: BTreeSet::new() };
    loop {
        let snapshot = snapshots.borrow();
        let without_owner: BTreeSet<_> = snapshot.unowned().collect();
        let mut unowned = unowned.borrow().clone();
        unowned.retain(|partition, _| without_owner.contains(partition));
        gauges.metrics.unowned(without_owner.len());
        gauges.set(&handle.partitions(), &unowned);
        sleep(SAMPLE_EVERY).await;
    }
}

/// Sets all gauges to 0 when it is dropped.
struct Gauges {
    metrics: GroupMetrics,
    owner: OwnerId,
    /// The partitions of this instance whose gauges were last set.
    running: BTreeSet<PartitionId>,
    /// The partitions without an owner whose gauges were last set.
    unowned: BTreeSet<PartitionId>,
}

impl Gauges {
    fn set(&mut self, partitions: &[PartitionStatus], unowned: &Unowned) {
        let running: BTreeSet<_> = partitions.iter().map(|status| status.partition.clone()).collect();
        let unowned: BTreeMap<_, _> = unowned.iter().filter(|(partition, _)| !running.contains(*partition)).collect();
        for gone in self.running.difference(&running) {
            self.metrics.in_flight(gone, 0);
            self.metrics.owner_info(gone, &self.owner, false);
        }
        for gone in self.running.union(&self.unowned) {
            if !running.contains(gone) && !unowned.contains_key(gone) {
                self.metrics.progress(gone, &PartitionGauges::GONE);
            }
        }
        for status in partitions {
            self.metrics.in_flight(&status.partition, status.in_flight);
            self.metrics.owner_info(&status.partition, &self.owner, true);
            self.metrics.progress(&status.partition, &of(status));
        }
        for (partition, gauges) in &unowned {
            self.metrics.progress(partition, gauges);
        }
        (self.running, self.unowned) = (running, unowned.into_keys().cloned().collect());
        let mut states: BTreeMap<_, usize> = PartitionState::ALL.iter().map(|state| (state.as_str(), 0)).collect();
        for status in partitions {
            *states.entry(status.state.as_str()).or_default() += 1;
        }
        for (state, partitions) in states {
            self.metrics.in_state(state, partitions);
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.metrics.unowned(0);
        self.set(&[], &Unowned::new());
    }
}

fn of(status: &PartitionStatus) -> PartitionGauges {
    PartitionGauges {
        lag: status.lag.events,
        behind: status.behind,
        checkpoint: status.checkpoint,
        last_enqueued: status.last_enqueued,
    }
}
