//! Writes each batch into an object.

use std::sync::Arc;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ConsumerGroup, GroupStore, OwnerId, PartitionContext, Processor, handler_fn};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let objects: Arc<dyn ObjectStore> = Arc::new(MicrosoftAzureBuilder::from_env().build()?);
    let hub = MemoryHub::new("orders", 4);
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::random()?).await?;
    let handler = handler_fn(move |events: Vec<MemoryEvent>, partition: PartitionContext| {
        let objects = objects.clone();
        async move {
            let Some(last) = events.last() else { return Ok(()) };
            let path = Path::from(format!("orders/{}/{}", partition.partition_id(), last.sequence_number));
            objects.put(&path, format!("{} events", events.len()).into()).await?;
            partition.checkpoint(last);
            Ok(())
        }
    });
    Processor::builder(hub.source(), store, handler).run_until_signal().await?;
    Ok(())
}
