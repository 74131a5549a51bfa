//! Sets the gauges of what is at work, again and again.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::sleep;

use super::handle::ProcessorHandle;
use super::status::{PartitionState, PartitionStatus};
use crate::model::PartitionId;
use crate::telemetry::GroupMetrics;
use crate::telemetry::metrics::SAMPLE_EVERY;

/// As long as this runs. The handle must not outlive the processor, for which its balancer ends.
pub(super) async fn sample(metrics: GroupMetrics, handle: ProcessorHandle) {
    let mut gauges = Gauges { metrics, known: BTreeSet::new() };
    loop {
        gauges.set(&handle.partitions());
        sleep(SAMPLE_EVERY).await;
    }
}

/// All are 0 when this is dropped.
struct Gauges {
    metrics: GroupMetrics,
    /// Those whose gauges were set last.
    known: BTreeSet<PartitionId>,
}

impl Gauges {
    fn set(&mut self, partitions: &[PartitionStatus]) {
        let at_work: BTreeSet<_> = partitions.iter().map(|status| status.partition.clone()).collect();
        for gone in self.known.difference(&at_work) {
            self.metrics.in_flight(gone, 0);
            self.metrics.lag(gone, 0);
        }
        self.known = at_work;
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
