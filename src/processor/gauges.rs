//! Sets the gauges of the running partitions at a fixed interval.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::sleep;

use super::handle::ProcessorHandle;
use super::status::{PartitionState, PartitionStatus};
use crate::model::PartitionId;
use crate::telemetry::GroupMetrics;
use crate::telemetry::metrics::SAMPLE_EVERY;

/// Sets the gauges as long as the task runs. The handle must not outlive the processor, because the balancer of the
/// processor ends when its last handle is dropped.
pub(super) async fn sample(metrics: GroupMetrics, handle: ProcessorHandle) {
    let mut gauges = Gauges { metrics, known: BTreeSet::new() };
    loop {
        gauges.set(&handle.partitions());
        sleep(SAMPLE_EVERY).await;
    }
}

/// Sets all gauges to 0 when it is dropped.
struct Gauges {
    metrics: GroupMetrics,
    /// The partitions whose gauges were last set.
    known: BTreeSet<PartitionId>,
}

impl Gauges {
    fn set(&mut self, partitions: &[PartitionStatus]) {
        let running: BTreeSet<_> = partitions.iter().map(|status| status.partition.clone()).collect();
        for gone in self.known.difference(&running) {
            self.metrics.in_flight(gone, 0);
            self.metrics.lag(gone, 0);
        }
        self.known = running;
        for status in partitions {
            self.metrics.in_flight(&status.partition, status.in_flight);
            if let Some(events) = status.lag.events {
                self.metrics.lag(&status.partition, events);
            }
        }
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
        self.set(&[]);
    }
}
