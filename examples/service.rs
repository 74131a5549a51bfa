//! A consumer as a service: a handler with state, a graceful end, metrics and probes.
//!
//! Reads the event hub of `EVENTHUBS_CONNECTION_STRING` (with its `EntityPath`) and keeps its records in the account of
//! `AZURE_STORAGE_CONNECTION_STRING`, on behalf of `OWNER_ID`. Serves `/ready`, `/alive`, `/status` and `/metrics` on
//! port 8080, or on `PORT`; 0 is any free port, which the log names.

use std::env;
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::metrics::BUCKETS;
use eventhubs_checkpoint::processor::HealthIssue;
use eventhubs_checkpoint::{
    AzureContainer, EventHubSource, GroupStore, HandlerError, LOG_FILTER, LoadBalancingStrategy, OwnerId,
    PartitionContext, PartitionHandler, PartitionStart, Processor, ProcessorConfig, ProcessorHandle, StopReason,
    StoreConfig, per_partition,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::time::interval;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Counts the events of a partition, for each of its starts. A real handler loads its state here, and has a database
/// client.
#[derive(Default)]
struct Orders {
    events: usize,
}

impl PartitionHandler<ReceivedEventData> for Orders {
    async fn handle(
        &mut self,
        events: Vec<ReceivedEventData>,
        partition: &PartitionContext,
    ) -> Result<(), HandlerError> {
        self.events += events.len();
        // The batch succeeds or fails as a whole, so one checkpoint at its last event is enough.
        if let Some(last) = events.last() {
            partition.checkpoint(last);
        }
        Ok(())
    }

    async fn stopped(self, partition: PartitionContext, _reason: StopReason) {
        tracing::info!(partition_id = %partition.partition_id(), self.events, "counted");
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().with_env_filter(LOG_FILTER).with_writer(std::io::stderr).init();
    let metrics = install_recorder()?; // before the store connects

    let source = EventHubSource::from_env("$Default")?.connect().await?;
    let container = AzureContainer::from_env("checkpoints")?;
    // Unique, and the same after a restart: the name of the pod.
    let owner = OwnerId::new(env::var("OWNER_ID").map_err(|error| format!("OWNER_ID: {error}"))?)?;
    let store = GroupStore::builder(container, source.group().clone(), owner)
        .with_config(StoreConfig::default().with_create_container(true))
        .connect()
        .await?;
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy)); // a few instances
    let handler = per_partition(|_: PartitionStart| async { Ok(Orders::default()) });
    let processor = Processor::builder(source, store, handler).with_config(config).build()?;

    let port = env::var("PORT").map_or(Ok(8080), |port| port.parse())?;
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    tracing::info!(port = listener.local_addr()?.port(), "serving");
    tokio::spawn(axum::serve(listener, routes(processor.handle(), metrics)).into_future());

    let report = processor.run_until_signal().await?;
    tracing::info!(clean = report.is_clean(), "ended");
    Ok(())
}

/// Installs a recorder with the recommended buckets. `PrometheusBuilder::install` would serve on port 9000 itself.
fn install_recorder() -> Result<PrometheusHandle, BoxError> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)?;
    }
    let recorder = builder.install_recorder()?;
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        let mut interval = interval(Duration::from_secs(5));
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}

/// `/status` shows the text of the handler's errors: do not expose it to the public.
fn routes(processor: ProcessorHandle, metrics: PrometheusHandle) -> Router {
    let ready = processor.clone();
    let alive = processor.clone();
    Router::new()
        .route("/ready", get(async move || status(ready.health().ready)))
        // Only a stalled runtime is a reason to restart the process.
        .route("/alive", get(async move || status(!alive.health().issues.contains(&HealthIssue::RuntimeStalled))))
        .route("/status", get(async move || Json(processor.partitions())))
        .route("/metrics", get(async move || metrics.render()))
}

fn status(is_ok: bool) -> StatusCode {
    if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
