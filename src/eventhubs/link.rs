//! One link to a partition.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{EventHubsError, EventReceiver as ClientReceiver};
use futures::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::REQUEST_DEADLINE;
use super::clients::{SharedClient, Used};
use super::errors;
use super::health::Signal;
use crate::error::{Error, ErrorKind, Result};
use crate::model::Position;
use crate::processor::PartitionProperties;
use crate::processor::{StartPosition, StopSignal};
use crate::telemetry;

/// How long closing a link of a dead connection may take. Nothing hangs on it, for the next link has another
/// connection.
const DEAD_CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// How long a link may stay silent after its client was replaced.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

/// An open link. However it ends, it is closed to the end: the client keeps one link per partition and would go on with
/// it, wherever the next one is to begin. Half a close is worse than none, for what then comes over the link ends the
/// whole session.
pub(super) struct Link {
    open: Option<Open>,
}

/// The fields are dropped in this order: once the subscription is dropped, this link no longer holds the client.
struct Open {
    receiver: ClientReceiver,
    client: Arc<SharedClient>,
    replaced: watch::Receiver<bool>,
    /// Dropped when the link is closed.
    _used: Used,
}

/// What the broker may refuse of a start: an offset or a sequence number.
fn position_of(from: &StartPosition) -> Option<String> {
    match from {
        StartPosition::AfterSequenceNumber(number) => Some(format!("sequence number {number}")),
        StartPosition::AfterOffset(offset) => Some(format!("offset {offset:?}")),
        StartPosition::Earliest | StartPosition::Latest | StartPosition::EnqueuedAfter(_) => None,
    }
}

impl Link {
    pub(super) fn new(receiver: ClientReceiver, client: Arc<SharedClient>, used: Used) -> Self {
        let replaced = client.replaced();
        Self { open: Some(Open { receiver, client, replaced, _used: used }) }
    }

    /// The events, until nobody wants any more or the link ends. The link is closed before its failure is told, so that
    /// it can be opened again at once.
    pub(super) fn events(
        mut self,
        from: &StartPosition,
        mut stopped: StopSignal,
    ) -> impl Stream<Item = Result<ReceivedEventData>> + use<> {
        // Until an event came; later on it cannot be what the broker refuses.
        let mut position = position_of(from);
        stream! {
            let Some(link) = &self.open else { return };
            let failure = {
                let mut events = pin!(link.receiver.stream_events());
                loop {
                    // A link in full flow always has another event, so that nothing else would be polled.
                    if stopped.is_stopped() {
                        break None;
                    }
                    // With the events first the others cost nothing as long as events are there.
                    let event = select! {
                        biased;
                        event = events.next() => event,
                        () = &mut stopped => break None,
                        failure = link.left_behind() => break Some(failure),
                    };
                    match event {
                        Some(Ok(event)) => {
                            link.client.note(Signal::Alive);
                            position = None;
                            yield Ok(event);
                        }
                        Some(Err(error)) => break Some(link.failure(position.as_deref(), error)),
                        None => break Some(Error::new(ErrorKind::EventSource, "the broker closed the link")),
                    }
                }
            };
            self.close().await;
            if let Some(failure) = failure {
                yield Err(failure);
            }
        }
    }

    /// The error that ends the start of a processor, if the broker refuses the link with one within the limit.
    pub(super) async fn refusal(mut self, limit: Duration) -> Option<Error> {
        let refusal = match &self.open {
            Some(link) => link.refusal(limit).await,
            None => None,
        };
        self.close().await;
        refusal
    }

    async fn close(&mut self) {
        if let Some(closing) = self.start_closing() {
            // It does not panic, and ends with the runtime at the latest.
            let _ = closing.await;
        }
    }

    /// In a task of its own, for the caller may wait for less than it takes.
    fn start_closing(&mut self) -> Option<JoinHandle<()>> {
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(self.open.take()?.close().in_current_span()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.start_closing();
    }
}

impl Open {
    async fn refusal(&self, limit: Duration) -> Option<Error> {
        match timeout(limit, pin!(self.receiver.stream_events()).next()).await {
            Ok(Some(Err(error))) => {
                self.client.note(errors::signal(&error));
                errors::checking(self.receiver.partition_id(), error)
            }
            _ => None,
        }
    }

    fn failure(&self, position: Option<&str>, error: EventHubsError) -> Error {
        self.client.note(errors::signal(&error));
        errors::receiving(self.receiver.partition_id(), position, error)
    }

    /// Ready when the client was replaced and the link is silent since: the client can lose one without an error.
    async fn left_behind(&self) -> Error {
        let _ = self.replaced.clone().wait_for(|replaced| *replaced).await;
        sleep(SILENCE_LIMIT).await;
        Error::new(ErrorKind::EventSource, "the client of the link was replaced")
    }

    /// The client forgets the link first, so an error leaves nothing that it could go on with. It fails where the
    /// broker has ended the link before, for instance.
    async fn close(self) {
        let limit = if self.client.is_dead() { DEAD_CLOSE_LIMIT } else { REQUEST_DEADLINE };
        let partition = self.receiver.partition_id().to_owned();
        match timeout(limit, self.receiver.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => telemetry::link_not_closed(&partition, &error),
            Err(_) => {
                self.client.note(Signal::Dead);
                telemetry::link_not_closed(&partition, &"it took too long");
            }
        }
    }
}

/// Asks what is in a partition.
pub(super) async fn properties(client: &SharedClient, partition: &str) -> Result<PartitionProperties> {
    let request = client.client().get_partition_properties(partition);
    let failed = |error| errors::properties(&format!("partition {partition}"), error);
    let properties = client.answer(request, failed).await?;
    let last =
        Position { sequence_number: properties.last_enqueued_sequence_number, offset: properties.last_enqueued_offset };
    let reported = PartitionProperties::new(properties.beginning_sequence_number, Some(last), properties.is_empty);
    Ok(match properties.last_enqueued_time_utc {
        Some(time) => reported.with_last_enqueued_at(time.into()),
        None => reported,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offsets_and_sequence_numbers_can_be_refused() {
        for (from, position) in [
            (StartPosition::Earliest, None),
            (StartPosition::Latest, None),
            (StartPosition::AfterSequenceNumber(7), Some("sequence number 7")),
            (StartPosition::AfterOffset("12".into()), Some("offset \"12\"")),
        ] {
            assert_eq!(position_of(&from).as_deref(), position, "{from:?}");
        }
    }
}
