//! Reads an event hub through the official `ConsumerClient`.

use std::sync::Arc;
use std::time::Duration;

use azure_core_amqp::message::AmqpMessageBody;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{OpenReceiverOptions, StartLocation, StartPosition as ClientPosition};
use time::OffsetDateTime;

use super::clients::{Clients, SharedClient};
use super::errors;
use super::link::{self, Link};
use super::owner_level::OwnerLevel;
use crate::error::Result;
use crate::model::{ConsumerGroup, PartitionId};
use crate::processor::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, Positioned, StartPosition,
};

/// How long to look whether the broker refuses a consumer group. A refusal comes with the first answer; on an empty
/// partition nothing comes where all is well.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);

/// An [`EventSource`] over an event hub. Every instance needs a source of its own: two receivers of one client share a
/// link.
///
/// Its clients are made [from a connection string](Self::from_connection_string) or [with a token](Self::from_credential),
/// for the consumer group whose records the store keeps.
///
/// # Connections that die
///
/// The official client mends a link that breaks. When many break at once, as with a connection that is cut or a broker
/// that restarts, version 0.16 may not get over it: its links then fail for ever, or fall silent. Only a fresh client
/// helps, so the source makes one when the connection of the last one is dead.
///
/// A connection counts as dead after an error that says so, a request that got no answer within 20 s, a link that was
/// [distrusted](EventSource::connection_suspect) or took as long to close, or three failures in a row over all partitions. What
/// is opened next goes through the fresh client. Links that still get events keep the old one, the others end with an
/// error, to be opened again; the old client is closed once no link uses it. A fresh one is made 2 s after the last one
/// at the earliest, and more seldom, up to every 30 s, while nothing comes through them.
///
/// # Links that begin again
///
/// The official client re-attaches a link that the broker detaches at the place where it was opened, so that everything
/// since then would be delivered again. The [`Processor`](crate::processor::Processor) sees it by the first event that
/// does, and opens another link after the last event. What was on its way by then, up to `prefetch` events, was sent
/// for nothing.
/// `RetryOptions { max_retries: 0, .. }` in the [settings](super::EventHubSourceBuilder::with_consumer) spares that, too:
/// the client then repairs nothing by itself.
///
/// # Two readers of a partition
///
/// The broker lets one of them read: by default the one that opened its link last, as with the processors of other
/// SDKs; see [`OwnerLevel`](super::OwnerLevel).
///
/// # Memory
///
/// A partition holds at most [`prefetch`](crate::processor::ProcessorConfig::prefetch) events ahead of its reader, in
/// the client: it is the credit that the broker gets. In the worst case, with readers that stand still, that is
/// `prefetch` times the size of an event for every partition: 300 KiB with the default of 300 events and 1 KiB each,
/// but 300 MiB with the greatest events of 1 MiB. Two batches come on top, the one at hand and the next.
#[derive(Debug)]
pub struct EventHubSource {
    clients: Clients,
    owner_level: OwnerLevel,
}

impl EventHubSource {
    pub(super) fn new(clients: Clients, owner_level: OwnerLevel) -> Self {
        Self { clients, owner_level }
    }

    async fn open_link(
        &self,
        client: Arc<SharedClient>,
        partition: &PartitionId,
        from: ClientPosition,
        owner_level: Option<i64>,
        credit: u32,
    ) -> Result<Link> {
        let options = OpenReceiverOptions {
            owner_level,
            prefetch: Some(credit),
            start_position: Some(from),
            receive_timeout: None,
        };
        let used = self.clients.use_for(partition, &client).await?;
        let opening = client.client().open_receiver_on_partition(partition.to_string(), Some(options));
        let receiver = opening.await.map_err(|error| errors::receiving(partition.as_str(), None, error))?;
        Ok(Link::new(receiver, client, used))
    }
}

impl EventSource for EventHubSource {
    type Event = ReceivedEventData;

    fn consumer_group(&self) -> Option<&ConsumerGroup> {
        Some(self.clients.group())
    }

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        let client = self.clients.current().await;
        let failed = |error| errors::properties("the event hub", error);
        let properties = client.answer(client.client().get_eventhub_properties(), failed).await?;
        let partitions = properties.partition_ids.iter().map(PartitionId::new).collect::<Result<_, _>>()?;
        Ok(EventHubProperties { event_hub: properties.name, partitions })
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        let client = self.clients.current().await;
        link::properties(&client, partition.as_str()).await
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<ReceivedEventData>> {
        from.check()?;
        let level = self.owner_level.of_link(epoch)?;
        let client = self.clients.current().await;
        let position = client_position(from.clone());
        let credit = u32::try_from(prefetch.max(1)).unwrap_or(u32::MAX);
        let link = self.open_link(client, partition, position, level, credit).await?;
        Ok(EventReceiver::new(|stopped| link.events(&from, stopped)))
    }

    /// Opens a link without an owner level, which displaces no other: the broker refuses it where a processor reads.
    async fn check_access(&self, partition: &PartitionId) -> Result<()> {
        let client = self.clients.current().await;
        let link = self.open_link(client, partition, client_position(StartPosition::Earliest), None, 1).await?;
        link.refusal(CHECK_DEADLINE).await.map_or(Ok(()), Err)
    }

    fn connection_suspect(&self, partition: &PartitionId) {
        self.clients.distrust(partition);
    }

    async fn close(self) -> Result<()> {
        self.clients.close().await
    }
}

impl Positioned for ReceivedEventData {
    fn sequence_number(&self) -> Option<i64> {
        self.sequence_number()
    }

    fn offset(&self) -> Option<&str> {
        self.offset().as_deref()
    }

    fn enqueued_at(&self) -> Option<OffsetDateTime> {
        self.enqueued_time().map(OffsetDateTime::from)
    }

    /// Of a body of data, which is what producers send; the other kinds of AMQP count 0. Taken from the message, for
    /// the event's own body is a copy.
    fn size(&self) -> usize {
        match &self.raw_amqp_message().body {
            AmqpMessageBody::Binary(parts) => parts.iter().map(Vec::len).sum(),
            _ => 0,
        }
    }
}

fn client_position(from: StartPosition) -> ClientPosition {
    let location = match from {
        StartPosition::Earliest => StartLocation::Earliest,
        StartPosition::Latest => StartLocation::Latest,
        StartPosition::AfterSequenceNumber(number) => StartLocation::SequenceNumber(number),
        StartPosition::AfterOffset(offset) => StartLocation::Offset(offset),
        StartPosition::EnqueuedAfter(time) => StartLocation::EnqueuedTime(time.into()),
    };
    ClientPosition { location, inclusive: false }
}

#[cfg(test)]
mod tests {
    use azure_core_amqp::{AmqpList, AmqpMessage, AmqpValue};

    use super::*;

    #[test]
    fn the_size_of_an_event_is_that_of_its_data() {
        for (body, size) in [
            (AmqpMessageBody::Binary(vec![vec![0; 3], vec![0; 4]]), 7),
            (AmqpMessageBody::Binary(Vec::new()), 0),
            (AmqpMessageBody::Sequence(vec![AmqpList::default()]), 0),
            (AmqpMessageBody::Value(AmqpValue::from("text")), 0),
            (AmqpMessageBody::Empty, 0),
        ] {
            let event = ReceivedEventData::from(AmqpMessage { body, ..AmqpMessage::default() });
            assert_eq!(Positioned::size(&event), size);
        }
    }
}
