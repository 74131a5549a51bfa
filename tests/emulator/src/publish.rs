//! Accepts published events, individually or in batches.

use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp::Receiver;
use fe2o3_amqp_types::definitions::{AmqpError, Error, LinkError};
use fe2o3_amqp_types::messaging::{Batch, Data};
use tokio::time::{sleep, timeout};

use super::connection::Expiry;
use super::event::Event;
use super::hub::Hub;
use super::idle::idle_sender;
use super::message::{MAX_MESSAGE_SIZE, error};
use super::partition::Partition;

/// The message format of a batch: each data section of its body is an encoded message.
const BATCH_FORMAT: u32 = 0x8001_3700;

/// The delay between storing events and accepting them.
///
/// The official Rust client 0.16 registers its wait for the response only after it has passed the events on: an earlier
/// response is lost, and the send never returns. On a multi-threaded runtime the client can be preempted at this point:
/// on a busy machine 12 of 2400 sends hung when there was only the delay of all bytes, 2 or 5 ms. This delay makes that
/// rare. A single-threaded client is safe.
const ACCEPT_AFTER: Duration = Duration::from_millis(10);

/// Appends the events of this link until the link ends or is idle for too long, its authorization expires, or it is
/// detached. If the link names a partition, they go there.
pub(super) async fn serve(
    hub: Arc<Hub>,
    mut link: Receiver,
    partition: Option<Arc<Partition>>,
    idle: Duration,
    expiry: Expiry,
) {
    let mut open = hub.senders().open();
    let reason = tokio::select! {
        biased;
        reason = expiry => Some(reason),
        reason = &mut open.ending => reason.ok(),
        reason = store_all(&hub, &mut link, partition.as_ref(), idle) => reason,
    };
    // The client may not answer the close before it sends again.
    drop(open);
    // The link ends, whatever the result.
    let _ = match reason {
        Some(reason) => link.close_with_error(reason).await,
        None => link.close().await,
    };
}

/// Returns the error with which to close the link, or `None` if the client ended it.
async fn store_all(
    hub: &Hub,
    link: &mut Receiver,
    partition: Option<&Arc<Partition>>,
    idle: Duration,
) -> Option<Error> {
    loop {
        let Ok(received) = timeout(idle, link.recv::<Batch<Data>>()).await else {
            return Some(idle_sender(link.name(), idle));
        };
        let delivery = received.ok()?;
        let is_batch = *delivery.message_format() == Some(BATCH_FORMAT);
        let (delivery, message) = delivery.into_parts();
        let pieces: Vec<&[u8]> = message.body.iter().map(|piece| piece.0.as_slice()).collect();
        let stored = store(hub, partition, &pieces.concat(), delivery.delivery_id(), is_batch);
        sleep(ACCEPT_AFTER).await;
        let settled = match stored {
            Ok(()) => link.accept(delivery).await,
            Err(error) => link.reject(delivery, error).await,
        };
        settled.ok()?;
    }
}

fn store(
    hub: &Hub,
    partition: Option<&Arc<Partition>>,
    message: &[u8],
    delivery_id: u32,
    is_batch: bool,
) -> Result<(), Error> {
    check_size(message.len() as u64, delivery_id)?;
    let sent = parse(message)?;
    let parts: Vec<&[u8]> = sent.data().collect();
    let events = if is_batch { parts.into_iter().map(parse).collect::<Result<_, _>>()? } else { vec![sent] };
    let key = sent.partition_key();
    let partition = partition.cloned().unwrap_or_else(|| hub.partition_for(key));
    partition.append(&events, key, hub.now());
    Ok(())
}

/// Rejects the message and keeps the link, as a live test of Azure/azure-sdk-for-js expects: the message after a too
/// large one succeeds on the same link. The text is from that test.
fn check_size(size: u64, delivery_id: u32) -> Result<(), Error> {
    if size <= MAX_MESSAGE_SIZE {
        return Ok(());
    }
    let text = format!(
        "The received message (delivery-id:{delivery_id}, size:{size} bytes) exceeds the limit ({MAX_MESSAGE_SIZE} \
         bytes) currently allowed on the link."
    );
    Err(error(LinkError::MessageSizeExceeded, text))
}

fn parse(message: &[u8]) -> Result<Event<'_>, Error> {
    Event::parse(message).ok_or_else(|| error(AmqpError::DecodeError, "The message or an event of it is not AMQP."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::data_head;
    use crate::settings::HubSettings;

    /// `two` as a message: a data section (0x75) of three bytes.
    const TWO: &[u8] = b"\x00\x53\x75\xa0\x03two";

    fn batch(parts: &[&[u8]]) -> Vec<u8> {
        parts.iter().flat_map(|part| [&data_head(part.len())[..], part].concat()).collect()
    }

    fn counts(hub: &Hub) -> Vec<usize> {
        hub.partition_ids().iter().filter_map(|id| Some(hub.partition(id)?.event_count())).collect()
    }

    fn hub() -> Hub {
        Hub::new(HubSettings::new("hub").with_partitions(2), Arc::default())
    }

    #[test]
    fn batch_is_stored_in_one_partition() {
        let hub = hub();
        store(&hub, None, &batch(&[TWO, TWO, TWO]), 0, true).expect("a valid batch");
        assert_eq!(counts(&hub), [3, 0]);
    }

    #[test]
    fn link_to_a_partition_stores_there() {
        let hub = hub();
        store(&hub, hub.partition("1").as_ref(), TWO, 0, false).expect("a valid event");
        assert_eq!(counts(&hub), [0, 1]);
    }

    #[test]
    fn a_too_large_message_is_rejected_with_its_size() {
        let large = vec![0; 1_300_052];
        let refusal = store(&hub(), None, &large, 7, false).expect_err("too large");
        assert_eq!(refusal.condition, LinkError::MessageSizeExceeded.into());
        let text = "The received message (delivery-id:7, size:1300052 bytes) exceeds the limit (1048576 bytes) \
                    currently allowed on the link.";
        assert_eq!(refusal.description.as_deref(), Some(text));
    }

    #[test]
    fn batch_with_an_invalid_event_is_rejected() {
        let hub = hub();
        let refusal = store(&hub, None, &batch(&[TWO, b"\xff\xff"]), 0, true).expect_err("an invalid batch");
        assert_eq!(refusal.condition, AmqpError::DecodeError.into());
        assert_eq!(counts(&hub), [0, 0]);
    }
}
