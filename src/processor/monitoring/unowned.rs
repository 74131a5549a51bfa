//! Reads how far the partitions are processed that no instance owns, for the metrics of the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::balancer::Snapshot;
use crate::error::Result;
use crate::model::PartitionId;
use crate::processor::handle::ProcessorHandle;
use crate::processor::jitter::{first_wait, jittered};
use crate::processor::shared::Shared;
use crate::source::Lag;
use crate::source::is_of_former_hub;
use crate::source::{EventSource, caught_request};
use crate::store::Checkpoint;
use crate::telemetry::{self, PartitionGauges};

/// The most requests to the event hub at the same time.
const AT_ONCE: usize = 4;

/// The partitions that no instance owns, and how far they are processed.
pub(crate) type Unowned = BTreeMap<PartitionId, PartitionGauges>;

/// Reads once per period, or slightly sooner, as long as the task runs. Most of the time it has nothing to read.
pub(crate) async fn watch_unowned<S: EventSource, H: Send + Sync + 'static>(
    shared: Arc<Shared<S, H>>,
    handle: ProcessorHandle,
    period: Duration,
    found: watch::Sender<Unowned>,
) {
    // When each partition was first seen without an owner.
    let mut unowned = BTreeMap::<PartitionId, Instant>::new();
    let mut wait = first_wait(period, shared.store.random());
    loop {
        sleep(wait).await;
        wait = jittered(period, shared.store.random());
        let now_unowned = to_be_read(&handle.snapshots().borrow());
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
        match read(&shared, &lasting, &unowned).await {
            Ok(read) => found.send_modify(|found| found.extend(read)),
            Err(error) => telemetry::unowned_check_failed(&error),
        }
    }
}

/// Reads the partitions. Those whose properties cannot be read are missing.
async fn read<S: EventSource, H>(
    shared: &Shared<S, H>,
    partitions: &BTreeSet<PartitionId>,
    since: &BTreeMap<PartitionId, Instant>,
) -> Result<Unowned> {
    let checkpoints = shared.store.list_checkpoints().await?.records;
    let reads = stream::iter(partitions.clone()).map(|partition| async move {
        let properties = caught_request(shared.source.partition_properties(&partition)).await;
        (partition, properties)
    });
    let read: Vec<_> = reads.buffer_unordered(AT_ONCE).collect().await;
    let mut unowned = Unowned::new();
    for (partition, properties) in read {
        let properties = match properties {
            Ok(properties) => properties,
            Err(error) => {
                telemetry::lag_check_failed(&partition, &error);
                continue;
            }
        };
        let created_at = shared.hub_creation.known();
        let is_valid = |seen: &&Checkpoint| !is_of_former_hub(&seen.dated_record(), created_at);
        let record = checkpoints.iter().find(|seen| seen.partition == partition).filter(is_valid);
        let checkpoint = record.and_then(|seen| seen.record.sequence_number);
        let lag = Lag::between(checkpoint, Some(&properties), Duration::ZERO, Duration::MAX).events;
        let last_enqueued = properties.last_enqueued().map(|last| last.sequence_number);
        // An event may have waited for longer; a receiver would be needed to know.
        let waiting = since.get(&partition).map(Instant::elapsed);
        let behind = if lag == Some(0) { Some(Duration::ZERO) } else { waiting };
        unowned.insert(partition, PartitionGauges { lag, behind, checkpoint, last_enqueued });
    }
    Ok(unowned)
}

/// Returns the partitions without a live owner, if this instance reports them: see [`Snapshot::reports_unowned`].
fn to_be_read(snapshot: &Snapshot) -> BTreeSet<PartitionId> {
    if snapshot.reports_unowned() { snapshot.unowned().cloned().collect() } else { BTreeSet::new() }
}
