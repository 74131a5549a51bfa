//! A consumer beside a gRPC service, with metrics and a probe.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ConsumerGroup, GroupStore, OwnerId, PartitionContext, Processor, handler_fn};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;
use tonic::transport::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let hub = MemoryHub::new("orders", 4);
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::random()?).await?;
    let handler = handler_fn(|events: Vec<MemoryEvent>, partition: PartitionContext| {
        events.iter().for_each(|event| partition.checkpoint(event));
        std::future::ready(Ok(()))
    });
    let processor = Processor::builder(hub.source(), store, handler).build()?;
    let handle = Arc::new(processor.handle());
    let live = move || async move {
        if handle.health().is_live() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    };
    let router = Router::new().route("/live", get(live)).route("/metrics", get(async move || metrics.render()));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let grpc = Server::builder().add_service(health).serve("127.0.0.1:50051".parse()?);
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    tokio::select! {
        ended = processor.run(std::future::pending()) => drop(ended?),
        ended = grpc => ended?,
        ended = axum::serve(listener, router) => ended?,
    }
    Ok(())
}
