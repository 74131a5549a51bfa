//! Publishing, and the timeout of every call.

use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use eventhubs_emulator::EventHubEmulator;
use tokio::time::timeout;

/// The client can hang; no call to it goes without a timeout, which is far longer than any step takes.
pub const LIMIT: Duration = Duration::from_secs(90);

pub async fn within<T>(what: &str, call: impl Future<Output = T>) -> T {
    timeout(LIMIT, call).await.unwrap_or_else(|_| panic!("{what} took more than {LIMIT:?}"))
}

pub async fn producer(hub: &EventHubEmulator) -> ProducerClient {
    let connection_string = hub.connection_string();
    let opening = ProducerClient::builder()
        .with_custom_endpoint(hub.endpoint())
        .open_with_connection_string(&connection_string, None);
    within("opening a producer", opening).await.unwrap()
}

pub async fn send(producer: &ProducerClient, partition: &str, bodies: impl IntoIterator<Item = Vec<u8>>) {
    let options = || Some(EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() });
    let mut batch = within("create_batch", producer.create_batch(options())).await.unwrap();
    for body in bodies {
        let event = EventData::builder().with_body(body).build();
        if batch.try_add_event_data(event.clone(), None).unwrap() {
            continue;
        }
        within("send_batch", producer.send_batch(batch, None)).await.unwrap();
        batch = within("create_batch", producer.create_batch(options())).await.unwrap();
        assert!(batch.try_add_event_data(event, None).unwrap(), "an event must fit an empty batch");
    }
    within("send_batch", producer.send_batch(batch, None)).await.unwrap();
}
