//! The gauges of partitions, set at a fixed interval. They show the partitions of this instance, and those that no
//! instance owns: how far these are processed is read from the group's checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::status::{PartitionState, PartitionStatus};
use crate::error::Result;
use crate::model::{OwnerId, PartitionId};
use crate::processor::handle::ProcessorHandle;
use crate::processor::shared::{SharedResources, first_wait, shorten_randomly};
use crate::source::{EventSource, Lag, guard_request, is_of_former_hub};
use crate::telemetry::metrics::SAMPLE_EVERY;
use crate::telemetry::{self, GroupMetrics, PartitionGauges};

/// The most requests to the event hub at the same time.
const AT_ONCE: usize = 4;

/// The partitions that no instance owns, and how far they are processed.
pub(crate) type UnownedPartitions = BTreeMap<PartitionId, PartitionGauges>;

/// Sets the gauges as long as the task runs. The handle must not outlive the processor, because the balancer of the
/// processor ends when its last handle is dropped.
pub(crate) async fn sample_gauges(
    metrics: GroupMetrics,
    handle: ProcessorHandle,
    unowned: watch::Receiver<UnownedPartitions>,
) {
    let snapshots = handle.snapshots();
    let mut gauges =
        Gauges { metrics, owner: snapshots.borrow().owner.clone(), running: BTreeSet::new(), unowned: BTreeSet::new() };
    loop {
        let snapshot = snapshots.borrow();
        let without_owner: BTreeSet<_> = snapshot.unowned().collect();
        let mut unowned = unowned.borrow().clone();
        unowned.retain(|partition, _| without_owner.contains(partition));
        gauges.metrics.set_unowned(without_owner.len());
        gauges.set_gauges(&handle.partitions(), &unowned);
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
    fn set_gauges(&mut self, partitions: &[PartitionStatus], unowned: &UnownedPartitions) {
        let running: BTreeSet<_> = partitions.iter().map(|status| status.partition.clone()).collect();
        let unowned: BTreeMap<_, _> = unowned.iter().filter(|(partition, _)| !running.contains(*partition)).collect();
        for gone in self.running.difference(&running) {
            self.metrics.set_in_flight(gone, 0);
            self.metrics.set_owner_info(gone, &self.owner, false);
        }
        for gone in self.running.union(&self.unowned) {
            if !running.contains(gone) && !unowned.contains_key(gone) {
                self.metrics.set_progress(gone, &PartitionGauges::GONE);
            }
        }
        for status in partitions {
            self.metrics.set_in_flight(&status.partition, status.in_flight);
            self.metrics.set_owner_info(&status.partition, &self.owner, true);
            let gauges = PartitionGauges {
                lag: status.lag.events,
                behind: status.behind,
                checkpoint: status.checkpoint,
                last_enqueued: status.last_enqueued,
            };
            self.metrics.set_progress(&status.partition, &gauges);
        }
        for (partition, gauges) in &unowned {
            self.metrics.set_progress(partition, gauges);
        }
        self.running = running;
        self.unowned = unowned.into_keys().cloned().collect();
        let mut states: BTreeMap<_, usize> = PartitionState::ALL.iter().map(|state| (state.as_str(), 0)).collect();
        for status in partitions {
            *states.entry(status.state.as_str()).or_default() += 1;
        }
        for (state, partitions) in states {
            self.metrics.set_in_state(state, partitions);
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.metrics.set_unowned(0);
        self.set_gauges(&[], &UnownedPartitions::new());
    }
}

/// Reads the partitions that no instance owns, once per period, or slightly sooner, as long as the task runs. Most of
/// the time it has nothing to read.
pub(crate) async fn watch_unowned<S: EventSource, H: Send + Sync + 'static>(
    shared: Arc<SharedResources<S, H>>,
    handle: ProcessorHandle,
    period: Duration,
    found: watch::Sender<UnownedPartitions>,
) {
    // When each partition was first seen without an owner.
    let mut unowned = BTreeMap::<PartitionId, Instant>::new();
    let mut wait = first_wait(period, shared.store.next_random());
    loop {
        sleep(wait).await;
        wait = shorten_randomly(period, shared.store.next_random());
        let snapshot = handle.snapshots().borrow();
        // One instance reports them for the group.
        let now_unowned: BTreeSet<_> =
            if snapshot.reports_unowned() { snapshot.unowned().cloned().collect() } else { BTreeSet::new() };
        // A partition that moves is without an owner for a moment.
        let lasting: BTreeSet<_> = now_unowned.iter().filter(|id| unowned.contains_key(*id)).cloned().collect();
        unowned.retain(|partition, _| now_unowned.contains(partition));
        for partition in now_unowned {
            unowned.entry(partition).or_insert_with(Instant::now);
        }
        found.send_modify(|found| found.retain(|partition, _| lasting.contains(partition)));
        if lasting.is_empty() {
            continue;
        }
        match read_unowned(&shared, &lasting, &unowned).await {
            Ok(read) => found.send_modify(|found| found.extend(read)),
            Err(error) => telemetry::unowned_check_failed(&error),
        }
    }
}

/// Reads the partitions. Those whose properties cannot be read are missing.
async fn read_unowned<S: EventSource, H>(
    shared: &SharedResources<S, H>,
    partitions: &BTreeSet<PartitionId>,
    since: &BTreeMap<PartitionId, Instant>,
) -> Result<UnownedPartitions> {
    let checkpoints = shared.store.list_checkpoints().await?.records;
    let read: Vec<_> = stream::iter(partitions.clone())
        .map(|partition| async move {
            let properties = guard_request(shared.source.partition_properties(&partition)).await;
            (partition, properties)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut unowned = UnownedPartitions::new();
    for (partition, properties) in read {
        let properties = match properties {
            Ok(properties) => properties,
            Err(error) => {
                telemetry::lag_check_failed(&partition, &error);
                continue;
            }
        };
        let created_at = shared.hub_creation.creation_time();
        let checkpoint = checkpoints
            .iter()
            .find(|seen| seen.partition == partition)
            .filter(|seen| !is_of_former_hub(&seen.record_with_time(), created_at))
            .and_then(|seen| seen.record.sequence_number);
        let lag = Lag::between(checkpoint, Some(&properties), Duration::ZERO, Duration::MAX).events;
        // An event may have waited for longer; a receiver would be needed to know.
        let waiting = since.get(&partition).map(Instant::elapsed);
        let gauges = PartitionGauges {
            lag,
            behind: if lag == Some(0) { Some(Duration::ZERO) } else { waiting },
            checkpoint,
            last_enqueued: properties.last_enqueued().map(|last| last.sequence_number),
        };
        unowned.insert(partition, gauges);
    }
    Ok(unowned)
}
