//! A consumer and a gRPC service in one program. It writes objects to Azure, and has metrics and a health endpoint.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ConsumerGroup, GroupStore, OwnerId, PartitionContext, Processor, handler_fn};
use metrics_exporter_prometheus::PrometheusBuilder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::net::TcpListener;
use tonic::transport::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Dependencies enable both providers of rustls: the application chooses one before anything opens a connection.
    #[cfg(feature = "ring")]
    let provider = rustls::crypto::ring::default_provider();
    #[cfg(feature = "aws_lc")]
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.install_default().map_err(|_| "another provider is installed")?;

    let client = reqwest::Client::new();
    let objects: Arc<dyn ObjectStore> = Arc::new(MicrosoftAzureBuilder::from_env().build()?);
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let hub = MemoryHub::new("orders", 4);
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::random()?).await?;
    let handler = handler_fn(move |events: Vec<MemoryEvent>, partition: PartitionContext| {
        let objects = Arc::clone(&objects);
        let client = client.clone();
        async move {
            let Some(last) = events.last() else { return Ok(()) };
            let path = Path::from(format!("orders/{}/{}", partition.partition_id(), last.sequence_number));
            objects.put(&path, format!("{} events", events.len()).into()).await?;
            client.post("https://example.com/written").body(path.to_string()).send().await?.error_for_status()?;
            partition.checkpoint(last);
            Ok(())
        }
    });
    let processor = Processor::builder(hub.source(), store, handler).build()?;
    let handle = processor.handle();
    let router = Router::new()
        .route("/health", get(async move || format!("{:?}", handle.health())))
        .route("/metrics", get(async move || metrics.render()));
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
