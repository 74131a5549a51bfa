//! Sends numbered events through the official client.

use std::ops::Range;
use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use tokio::time::timeout;

/// The client can wait forever for a lost response.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends each number to the partition at that place, in turn. Uses a runtime with one thread, because on several
/// threads the client can hang.
pub async fn publish(endpoint: &str, connection_string: &str, partitions: &[String], numbers: Range<u32>) {
    let builder = ProducerClient::builder().with_custom_endpoint(endpoint.to_owned());
    let opening = builder.open_with_connection_string(connection_string, None);
    let producer = timeout(TIMEOUT, opening).await.unwrap().unwrap();
    for (index, partition) in partitions.iter().enumerate() {
        let options = EventDataBatchOptions { partition_id: Some(partition.clone()), ..Default::default() };
        let batch = timeout(TIMEOUT, producer.create_batch(Some(options))).await.unwrap().unwrap();
        for number in numbers.clone().filter(|number| *number as usize % partitions.len() == index) {
            assert!(batch.try_add_event_data(EventData::from(number.to_string()), None).unwrap());
        }
        if !batch.is_empty() {
            timeout(TIMEOUT, producer.send_batch(batch, None)).await.unwrap().unwrap();
        }
    }
}
