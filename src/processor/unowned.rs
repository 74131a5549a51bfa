//! Reads how far the partitions are processed that no instance owns, for the metrics of the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::handle::ProcessorHandle;
use super::lag::Lag;
use super::shared::Shared;
use super::source::{EventSource, caught_request};
use crate::balancer::Snapshot;
use crate::error::Result;
use crate::model::PartitionId;
use crate::telemetry::{self, PartitionGauges};

/// The partitions that no instance owns, and how far they are processed.
pub(super) type Unowned = BTreeMap<PartitionId, PartitionGauges>;

/// Reads once per period, as long as the task runs. Most of the time it has nothing to read.
pub(super) async fn watch_unowned<S: EventSource, H: Send + Sync + 'static>(
    shared: Arc<Shared<S, H>>,
    handle: ProcessorHandle,
    period: Duration,
    found: watch::Sender<Unowned>,
) {
    let mut before = BTreeSet::new();
    loop {
        sleep(period).await;
        let unowned = to_be_read(&handle.snapshots().borrow());
        // A partition that moves is without an owner for a moment.
        let lasting: Vec<_> = unowned.intersection(&before).cloned().collect();
        before = unowned;
        if lasting.is_empty() {
            found.send_replace(Unowned::new());
            continue;
        }
        match read(&shared, &lasting).await {
            Ok(read) => drop(found.send_replace(read)),
            Err(error) => telemetry::unowned_check_failed(&error),
        }
    }
}

async fn read<S: EventSource, H>(shared: &Shared<S, H>, partitions: &[PartitionId]) -> Result<Unowned> {
    let checkpoints = shared.store.list_checkpoints().await?.records;
    let mut unowned = Unowned::new();
    for partition in partitions {
        let properties = caught_request(shared.source.partition_properties(partition)).await?;
        let record = checkpoints.iter().find(|seen| seen.partition == *partition);
        let checkpoint = record.and_then(|seen| seen.record.sequence_number);
        let lag = Lag::between(checkpoint, Some(&properties), Duration::ZERO, Duration::MAX).events;
        let last_enqueued = properties.last_enqueued().map(|last| last.sequence_number);
        // When the first waiting event was enqueued is unknown without a receiver.
        let behind = lag.filter(|events| *events == 0).map(|_| Duration::ZERO);
        unowned.insert(partition.clone(), PartitionGauges { lag, behind, checkpoint, last_enqueued });
    }
    Ok(unowned)
}

/// Returns the partitions without a live owner, if it is for this instance to read them: its id is the least one among
/// the owners. Other instances may disagree for a moment, and then both report the same values.
fn to_be_read(snapshot: &Snapshot) -> BTreeSet<PartitionId> {
    if snapshot.counts().keys().any(|owner| *owner < snapshot.owner) {
        return BTreeSet::new();
    }
    snapshot.unowned().cloned().collect()
}
