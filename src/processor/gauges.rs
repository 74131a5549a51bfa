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
        let mut states: BTreeMap<_, usize> = STATES.into_iter().map(|state| (name(state), 0)).collect();
        for status in partitions {
            *states.entry(name(status.state)).or_default() += 1;
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

const STATES: [PartitionState; 12] = [
    PartitionState::Adopting,
    PartitionState::Starting,
    PartitionState::Opening,
    PartitionState::Idle,
    PartitionState::Silent,
    PartitionState::Handling,
    PartitionState::HandlerStuck,
    PartitionState::Full,
    PartitionState::Paused,
    PartitionState::Failing,
    PartitionState::Parked,
    PartitionState::Stopping,
];

/// As when serialized.
fn name(state: PartitionState) -> &'static str {
    match state {
        PartitionState::Adopting => "adopting",
        PartitionState::Starting => "starting",
        PartitionState::Opening => "opening",
        PartitionState::Idle => "idle",
        PartitionState::Silent => "silent",
        PartitionState::Handling => "handling",
        PartitionState::HandlerStuck => "handler_stuck",
        PartitionState::Full => "full",
        PartitionState::Paused => "paused",
        PartitionState::Failing => "failing",
        PartitionState::Parked => "parked",
        PartitionState::Stopping => "stopping",
    }
}
