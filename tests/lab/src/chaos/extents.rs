//! Queries the event hub for the events of its partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::ProducerClient;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::chaos::Failure;
use crate::chaos::hub::Hello;

/// The client may wait for a response without limit.
const DEADLINE: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 3;

/// The sequence numbers of the oldest and the last event of each partition.
pub type Extents = BTreeMap<u16, (i64, i64)>;

/// Runs on its own thread, like the publisher: on several threads the client can hang.
pub async fn extents(hub: Arc<Hello>, partitions: Vec<u16>) -> Result<Extents, Failure> {
    let (ended, end) = oneshot::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let found = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(persistently(&hub, &partitions)));
        // The receiver is gone if the run has ended.
        let _ = ended.send(found);
    });
    end.await?
}

async fn persistently(hub: &Hello, partitions: &[u16]) -> Result<Extents, Failure> {
    let mut failed = String::new();
    for _ in 0..ATTEMPTS {
        match timeout(DEADLINE, ask(hub, partitions)).await {
            Ok(Ok(extents)) => return Ok(extents),
            Ok(Err(failure)) => failed = failure.to_string(),
            Err(elapsed) => failed = elapsed.to_string(),
        }
    }
    Err(format!("cannot read the extents of the event hub: {failed}").into())
}

async fn ask(hub: &Hello, partitions: &[u16]) -> Result<Extents, Failure> {
    let builder = ProducerClient::builder().with_custom_endpoint(hub.endpoint.clone());
    let client = builder.open_with_connection_string(&hub.connection_string, None).await?;
    let mut extents = Extents::new();
    for partition in partitions {
        let requested = client.get_partition_properties(&partition.to_string()).await?;
        extents.insert(*partition, (requested.beginning_sequence_number, requested.last_enqueued_sequence_number));
    }
    Ok(extents)
}
