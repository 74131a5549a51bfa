//! Takes events: one by one or in batches.

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

/// The message format of a batch: every data section of its body is an encoded message.
const BATCH_FORMAT: u32 = 0x8001_3700;

/// How long after they were stored events are accepted.
///
/// The official Rust client 0.16 notes that it waits for an answer only after it has passed the events on: an answer
/// that overtakes it is lost, and the send never returns. On a runtime with several threads it can lose the processor
/// just there: on a busy machine 12 of 2400 sends hung when only the delay of all bytes, 2 or 5 ms, stood between. This
/// makes it rare; a client on a single thread is safe.
const ACCEPT_AFTER: Duration = Duration::from_millis(10);

/// Appends what comes on this link, to this partition if the link names one, until the link ends.
pub(super) async fn serve(hub: Arc<Hub>, mut link: Receiver, partition: Option<Arc<Partition>>) {
    while let Ok(delivery) = link.recv::<Body<Value>>().await {
        let is_batch = *delivery.message_format() == Some(BATCH_FORMAT);
        let (delivery, message) = delivery.into_parts();
        let stored = store(&hub, partition.as_ref(), message, is_batch);
        sleep(ACCEPT_AFTER).await;
        let settled = match stored {
            Ok(()) => link.accept(delivery).await,
            Err(refusal) => link.reject(delivery, refusal).await,
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

/// All events of a batch; a batch is taken as a whole or not at all.
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
    fn a_batch_is_stored_event_by_event_in_one_partition() {
        let hub = hub();
        store(&hub, None, batch(&[TWO, TWO, TWO]), true).expect("good");
        assert_eq!(counts(&hub), [3, 0]);
    }

    #[test]
    fn a_link_to_a_partition_stores_there() {
        let hub = hub();
        store(&hub, hub.partition("1").as_ref(), batch(&[TWO]), false).expect("good");
        assert_eq!(counts(&hub), [0, 1]);
    }

    #[test]
    fn a_batch_with_one_bad_event_is_refused_as_a_whole() {
        let hub = hub();
        let refusal = store(&hub, None, batch(&[TWO, b"\xff\xff"]), true).expect_err("bad");
        assert_eq!(refusal.condition, AmqpError::DecodeError.into());
        assert_eq!(counts(&hub), [0, 0]);
    }
}
