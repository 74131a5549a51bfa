//! Accepts published events, individually or in batches.

use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp::Receiver;
use fe2o3_amqp_types::definitions::{AmqpError, Error};
use fe2o3_amqp_types::messaging::Body;
use fe2o3_amqp_types::messaging::message::DecodeIntoMessage;
use fe2o3_amqp_types::primitives::Value;
use serde_amqp::read::SliceReader;
use tokio::time::sleep;

use super::hub::Hub;
use super::message::{AnyMessage, annotation, error};
use super::partition::Partition;
use crate::clock::{SystemWallClock, WallClock};

/// The message format of a batch: each data section of its body is an encoded message.
const BATCH_FORMAT: u32 = 0x8001_3700;

/// The delay between storing events and accepting them.
///
/// The official Rust client 0.16 registers its wait for the response only after it has passed the events on: an earlier
/// response is lost, and the send never returns. On a multi-threaded runtime the client can be preempted at this point:
/// on a busy machine 12 of 2400 sends hung when there was only the delay of all bytes, 2 or 5 ms. This delay makes that
/// rare. A single-threaded client is safe.
const ACCEPT_AFTER: Duration = Duration::from_millis(10);

/// Appends the events of this link until the link ends. If the link names a partition, they go there.
pub(super) async fn serve(hub: Arc<Hub>, mut link: Receiver, partition: Option<Arc<Partition>>) {
    while let Ok(delivery) = link.recv::<Body<Value>>().await {
        let is_batch = *delivery.message_format() == Some(BATCH_FORMAT);
        let (delivery, message) = delivery.into_parts();
        let stored = store(&hub, partition.as_ref(), message, is_batch);
        sleep(ACCEPT_AFTER).await;
        let settled = match stored {
            Ok(()) => link.accept(delivery).await,
            Err(error) => link.reject(delivery, error).await,
        };
        if settled.is_err() {
            break;
        }
    }
    let _ = link.close().await;
}

fn store(hub: &Hub, partition: Option<&Arc<Partition>>, message: AnyMessage, is_batch: bool) -> Result<(), Error> {
    let key = match annotation(&message, "x-opt-partition-key") {
        Some(Value::String(key)) => Some(key.clone()),
        _ => None,
    };
    let events = if is_batch { unpack(message)? } else { vec![message] };
    let partition = partition.cloned().unwrap_or_else(|| hub.partition_for(key.as_deref()));
    partition.append(events, key.as_deref(), SystemWallClock.now());
    Ok(())
}

/// Returns all events of a batch. A batch is accepted completely or not at all.
fn unpack(batch: AnyMessage) -> Result<Vec<AnyMessage>, Error> {
    let Body::Data(parts) = batch.body else {
        return Err(error(AmqpError::DecodeError, "The body of a batch consists of data sections."));
    };
    parts
        .iter()
        .map(|part| {
            Body::<Value>::decode_message_from_reader(SliceReader::new(&part.0)).map_err(|cause| {
                error(AmqpError::DecodeError, format!("An event of the batch cannot be decoded: {cause}"))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::event_hub::settings::HubSettings;
    use fe2o3_amqp_types::messaging::{Batch, Data, Message};
    use fe2o3_amqp_types::primitives::Binary;

    /// `two` as a message: a data section (0x75) of three bytes.
    const TWO: &[u8] = b"\x00\x53\x75\xa0\x03two";

    fn batch(parts: &[&[u8]]) -> AnyMessage {
        let parts: Vec<_> = parts.iter().map(|part| Data(Binary::from(part.to_vec()))).collect();
        Message::builder().body(Body::Data(Batch::new(parts))).build()
    }

    fn counts(hub: &Hub) -> Vec<usize> {
        hub.partition_ids().iter().filter_map(|id| Some(hub.partition(id)?.event_count())).collect()
    }

    fn hub() -> Hub {
        Hub::new(HubSettings::new("hub").with_partitions(2))
    }

    #[test]
    fn batch_is_stored_in_one_partition() {
        let hub = hub();
        store(&hub, None, batch(&[TWO, TWO, TWO]), true).expect("a valid batch");
        assert_eq!(counts(&hub), [3, 0]);
    }

    #[test]
    fn link_to_a_partition_stores_there() {
        let hub = hub();
        store(&hub, hub.partition("1").as_ref(), batch(&[TWO]), false).expect("a valid batch");
        assert_eq!(counts(&hub), [0, 1]);
    }

    #[test]
    fn batch_with_an_invalid_event_is_rejected() {
        let hub = hub();
        let refusal = store(&hub, None, batch(&[TWO, b"\xff\xff"]), true).expect_err("an invalid batch");
        assert_eq!(refusal.condition, AmqpError::DecodeError.into());
        assert_eq!(counts(&hub), [0, 0]);
    }
}
