//! Reads an event hub through the official `ConsumerClient`.

use std::pin::pin;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{
    ConsumerClient, EventReceiver as ClientReceiver, OpenReceiverOptions, StartLocation,
    StartPosition as ClientPosition,
};
use futures::StreamExt;
use tokio::time::timeout;

use super::errors;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{PartitionId, Position};
use crate::processor::source::{
    EventReceiver, EventSender, EventSource, HubProperties, PartitionProperties, Positioned, StartPosition,
};
use crate::telemetry;

/// The client can wait for ever for an answer that got lost.
const REQUEST_DEADLINE: Duration = Duration::from_secs(20);

/// How long to look whether the broker refuses a consumer group. A refusal comes with the first answer; on an empty
/// partition nothing comes where all is well.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);

/// All receivers of all instances have this epoch, as those of the other SDKs' processors: the broker then gives a
/// partition to the one who opened it last, who is the one who won it last.
const OWNER_LEVEL: i64 = 0;

/// An [`EventSource`] over an event hub. Every instance needs a client of its own, for two receivers of one client share
/// a link.
#[derive(Debug)]
pub struct EventHubSource {
    client: ClientHolder,
}

struct ClientHolder(ConsumerClient);

impl std::fmt::Debug for ClientHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsumerClient")
    }
}

impl EventHubSource {
    /// Reads through this client, in the consumer group for which it was opened.
    #[must_use]
    pub fn new(client: ConsumerClient) -> Self {
        Self { client: ClientHolder(client) }
    }

    fn client(&self) -> &ConsumerClient {
        &self.client.0
    }

    async fn open_link(
        &self,
        partition: &PartitionId,
        from: ClientPosition,
        owner_level: Option<i64>,
        prefetch: usize,
    ) -> Result<ClientReceiver> {
        let options = OpenReceiverOptions {
            owner_level,
            prefetch: Some(u32::try_from(prefetch).unwrap_or(u32::MAX)),
            start_position: Some(from),
            receive_timeout: None,
        };
        let opened = self.client().open_receiver_on_partition(partition.to_string(), Some(options));
        within(opened).await?.map_err(|error| errors::receiving(partition.as_str(), error))
    }
}

impl EventSource for EventHubSource {
    type Event = ReceivedEventData;

    async fn hub(&self) -> Result<HubProperties> {
        let properties = within(self.client().get_eventhub_properties()).await?;
        let properties = properties.map_err(|error| errors::properties("the event hub", error))?;
        let partitions = properties.partition_ids.iter().map(PartitionId::new).collect::<Result<_, _>>()?;
        Ok(HubProperties { event_hub: properties.name, partitions })
    }

    async fn partition(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        let properties = within(self.client().get_partition_properties(partition.as_str())).await?;
        let properties = properties.map_err(|error| errors::properties(&format!("partition {partition}"), error))?;
        let last = Position {
            sequence_number: properties.last_enqueued_sequence_number,
            offset: properties.last_enqueued_offset,
        };
        Ok(PartitionProperties {
            first_sequence_number: properties.beginning_sequence_number,
            last: (last.sequence_number >= 0).then_some(last),
        })
    }

    async fn open(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
    ) -> Result<EventReceiver<ReceivedEventData>> {
        let receiver = self.open_link(partition, client_position(from), Some(OWNER_LEVEL), prefetch).await?;
        Ok(EventReceiver::spawn(prefetch, |sender| forward(receiver, sender)))
    }

    /// Opens a link without an epoch, which harms nobody: the broker refuses it where a processor is reading.
    async fn check(&self, partition: &PartitionId) -> Result<()> {
        let receiver = self.open_link(partition, client_position(StartPosition::Earliest), None, 1).await?;
        let first = timeout(CHECK_DEADLINE, pin!(receiver.stream_events()).next()).await;
        close_link(receiver).await;
        let Ok(Some(Err(error))) = first else { return Ok(()) };
        let error = errors::receiving(partition.as_str(), error);
        if error.kind() == ErrorKind::Config { Err(error) } else { Ok(()) }
    }

    async fn close(self) -> Result<()> {
        self.client.0.close().await.map_err(|error| {
            Error::new(ErrorKind::Source, "the connection to the event hub could not be closed").with_source(error)
        })
    }
}

impl Positioned for ReceivedEventData {
    fn sequence_number(&self) -> Option<i64> {
        self.sequence_number()
    }

    fn offset(&self) -> Option<&str> {
        self.offset().as_deref()
    }
}

/// Owns the receiver, from which its stream borrows. The link is closed before a failure is told, so that it can be
/// opened again at once: the client keeps one link per partition.
async fn forward(receiver: ClientReceiver, sender: EventSender<ReceivedEventData>) {
    let failure = forward_events(&receiver, &sender).await;
    close_link(receiver).await;
    if let Some(failure) = failure {
        sender.send(Err(failure)).await;
    }
}

/// Answers why it ended, or nothing if nobody wants any more.
async fn forward_events(receiver: &ClientReceiver, sender: &EventSender<ReceivedEventData>) -> Option<Error> {
    let mut events = pin!(receiver.stream_events());
    loop {
        let event = tokio::select! {
            biased;
            () = sender.stopped() => return None,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                if !sender.send(Ok(event)).await {
                    return None;
                }
            }
            Some(Err(error)) => return Some(errors::receiving(receiver.partition_id(), error)),
            None => return Some(Error::new(ErrorKind::Source, "the broker ended the link")),
        }
    }
}

/// Closing with deliveries in flight can fail in the client; the broker drops the link all the same.
async fn close_link(receiver: ClientReceiver) {
    let partition = receiver.partition_id().to_owned();
    match timeout(REQUEST_DEADLINE, receiver.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => telemetry::link_not_closed(&partition, &error),
        Err(_) => telemetry::link_not_closed(&partition, &"it took too long"),
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

async fn within<T>(request: impl Future<Output = T>) -> Result<T> {
    timeout(REQUEST_DEADLINE, request)
        .await
        .map_err(|_| Error::new(ErrorKind::Source, format!("the event hub did not answer within {REQUEST_DEADLINE:?}")))
}
