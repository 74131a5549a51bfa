//! Background tasks of a processor: what it does in addition to processing partitions.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Instrument;

use super::handle::ProcessorHandle;
use super::handler::Handler;
#[cfg(feature = "metrics")]
use super::monitoring::gauges::{UnownedPartitions, sample_gauges, watch_unowned};
use super::partition::control::Registry;
use super::shared::{SharedResources, first_wait, shorten_randomly};
use super::start::discovery::refresh_partitions;
use crate::balancer::LivenessTracker;
use crate::model::PartitionId;
use crate::source::{EventSource, guard_request};
use crate::telemetry;

/// The most requests to the event hub at the same time.
const AT_ONCE: usize = 4;

/// Starts the tasks that run in addition to the partitions.
pub(super) fn spawn_background_tasks<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<SharedResources<S, H>>,
    partitions: watch::Sender<Arc<[PartitionId]>>,
    handle: &ProcessorHandle,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(refresh_partitions(Arc::clone(shared), partitions, handle.snapshots()).in_current_span());
    let lag_check_interval = shared.config.lag_check_interval;
    if let Some(period) = lag_check_interval {
        tasks.spawn(check_lag(Arc::clone(shared), handle.registry.clone(), period).in_current_span());
    }
    #[cfg(feature = "metrics")]
    {
        let (found, unowned) = watch::channel(UnownedPartitions::new());
        if let Some(period) = lag_check_interval {
            tasks.spawn(watch_unowned(Arc::clone(shared), handle.clone(), period, found).in_current_span());
        }
        tasks.spawn(sample_gauges(shared.store.telemetry().metrics().clone(), handle.clone(), unowned));
    }
    tasks
}

/// Compares every running partition with the event hub, to determine its lag and to find receivers that deliver
/// nothing. Checks each once per period, or slightly sooner, as long as the task runs.
async fn check_lag<S: EventSource, H: Send + Sync + 'static>(
    shared: Arc<SharedResources<S, H>>,
    registry: Registry,
    period: Duration,
) {
    let mut wait = first_wait(period, shared.store.next_random());
    let shared = &shared;
    loop {
        sleep(wait).await;
        wait = shorten_randomly(period, shared.store.next_random());
        stream::iter(registry.controls())
            .for_each_concurrent(AT_ONCE, |control| async move {
                match guard_request(shared.source.partition_properties(&control.partition)).await {
                    Ok(properties) => control.publish_properties(properties),
                    Err(error) => telemetry::lag_check_failed(&control.partition, &error),
                }
            })
            .await;
    }
}

/// Reports that the application's runtime runs: that the task which polls the processor does, and that new tasks do.
/// They may be on different threads, and both are needed to start a partition.
pub(super) async fn tick_liveness(liveness: LivenessTracker) -> Infallible {
    loop {
        // An error means that the runtime is shutting down.
        let _ = tokio::spawn(async {}).await;
        liveness.tick();
        sleep(LivenessTracker::TICK).await;
    }
}
