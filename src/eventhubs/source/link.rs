//! One link to a partition.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_stream::stream;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{EventHubsError, EventReceiver as ClientReceiver};
use futures::{Stream, StreamExt, poll};
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::client::Consumer;
use super::connection::SharedClient;
use super::connection_health::{ConnectionOutcome, Route};
use super::connections::LinkUse;
use crate::error::{Error, ErrorKind, Result};
use crate::eventhubs::{CLIENT_REQUEST_TIMEOUT, errors};
use crate::model::PartitionId;
use crate::source::{BatchLimit, StartPosition, StopSignal};
use crate::telemetry;

/// How long closing a link of a broken connection may take. The time does not matter, because the next link uses
/// another connection.
const BROKEN_CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// How long a link may deliver nothing after its client was replaced.
const IDLE_LIMIT: Duration = Duration::from_secs(3);

/// An open link. It is always closed completely: the client keeps one link per partition and would continue it,
/// wherever the next one should start. An incomplete close is worse than none, because events that arrive over such a
/// link end the whole session.
pub(super) struct PartitionLink {
    open: Option<AttachedLink>,
}

/// The fields are dropped in this order: once the subscription is dropped, the link no longer holds the client.
struct AttachedLink {
    receiver: ClientReceiver,
    client: Arc<SharedClient<Consumer>>,
    route: Route,
    replaced: watch::Receiver<bool>,
    /// Dropped when the link is closed.
    _used: LinkUse,
}

/// Returns the part of a start that the broker may reject: an offset or a sequence number.
fn rejectable_position(from: &StartPosition) -> Option<String> {
    match from {
        StartPosition::AfterSequenceNumber(number) => Some(format!("sequence number {number}")),
        StartPosition::AfterOffset(offset) => Some(format!("offset {offset:?}")),
        StartPosition::Earliest | StartPosition::Latest | StartPosition::EnqueuedAfter(_) => None,
    }
}

impl PartitionLink {
    pub(super) fn new(
        partition: &PartitionId,
        receiver: ClientReceiver,
        client: Arc<SharedClient<Consumer>>,
        used: LinkUse,
    ) -> Self {
        Self {
            open: Some(AttachedLink {
                receiver,
                replaced: client.watch_replacement(),
                client,
                route: Route::Partition(partition.clone()),
                _used: used,
            }),
        }
    }

    /// Returns the available events in batches, up to the limit, until the receiver is closed or the link ends. The
    /// link is closed before its failure is returned, so that it can be reopened at once.
    ///
    /// The events of the client are large, and its stream hands on one at a time. A batch is collected where the stream
    /// is polled, because each further stream would move every event several times.
    pub(super) fn into_batches(
        mut self,
        from: &StartPosition,
        limit: BatchLimit,
        mut stopped: StopSignal,
    ) -> impl Stream<Item = Result<Vec<ReceivedEventData>>> + use<> {
        // Until an event arrives; after that the broker cannot mean this position.
        let mut position = rejectable_position(from);
        stream! {
            let Some(link) = &self.open else { return };
            let failure = {
                let mut events = pin!(link.receiver.stream_events());
                loop {
                    // A busy link always has another event, so that nothing else would be polled.
                    if stopped.is_stopped() {
                        break None;
                    }
                    // Events come first, so that the other branches cost nothing while events are available.
                    let event = select! {
                        biased;
                        event = events.next() => event,
                        () = &mut stopped => break None,
                        failure = link.client_replaced() => break Some(failure),
                    };
                    let (batch, end) = collect_available(event, &mut events, &limit).await;
                    if !batch.is_empty() {
                        link.record_outcome(ConnectionOutcome::Responded);
                        position = None;
                        yield Ok(batch);
                    }
                    match end {
                        BatchEnd::Continues => {}
                        BatchEnd::Ended => {
                            break Some(Error::new(ErrorKind::EventSource, "the broker closed the link"));
                        }
                        BatchEnd::Failed(error) => {
                            link.record_outcome(errors::connection_outcome(&error));
                            break Some(errors::receive_error(link.receiver.partition_id(), position.as_deref(), error));
                        }
                    }
                }
            };
            self.close().await;
            if let Some(failure) = failure {
                yield Err(failure);
            }
        }
    }

    /// Returns the error that ends the start of a processor, if the broker rejects the link with one within the limit.
    pub(super) async fn wait_for_rejection(mut self, limit: Duration) -> Option<Error> {
        let mut rejection = None;
        if let Some(link) = &self.open
            && let Ok(Some(Err(error))) = timeout(limit, pin!(link.receiver.stream_events()).next()).await
        {
            link.record_outcome(errors::connection_outcome(&error));
            rejection = errors::missing_partition_error(link.receiver.partition_id(), error);
        }
        self.close().await;
        rejection
    }

    async fn close(&mut self) {
        if let Some(closing) = self.start_closing() {
            // The task does not panic, and ends with the runtime at the latest.
            let _ = closing.await;
        }
    }

    /// Closes the link in its own task, because the caller may not wait as long as it takes.
    fn start_closing(&mut self) -> Option<JoinHandle<()>> {
        Some(Handle::try_current().ok()?.spawn(self.open.take()?.close().in_current_span()))
    }
}

/// What follows the events of a batch.
enum BatchEnd {
    Continues,
    Ended,
    Failed(EventHubsError),
}

/// Returns an event with the available events after it, and what follows them.
async fn collect_available(
    mut next: Option<Result<ReceivedEventData, EventHubsError>>,
    events: &mut (impl Stream<Item = Result<ReceivedEventData, EventHubsError>> + Unpin),
    limit: &BatchLimit,
) -> (Vec<ReceivedEventData>, BatchEnd) {
    let mut batch = limit.new_batch();
    loop {
        match next {
            Some(Ok(event)) => batch.push(event),
            Some(Err(error)) => return (batch, BatchEnd::Failed(error)),
            None => return (batch, BatchEnd::Ended),
        }
        if batch.len() >= limit.max_events() {
            return (batch, BatchEnd::Continues);
        }
        match poll!(events.next()) {
            Poll::Ready(event) => next = event,
            Poll::Pending => return (batch, BatchEnd::Continues),
        }
    }
}

impl Drop for PartitionLink {
    fn drop(&mut self) {
        self.start_closing();
    }
}

impl AttachedLink {
    fn record_outcome(&self, outcome: ConnectionOutcome) {
        self.client.record_outcome(&self.route, outcome);
    }

    /// Waits until the client was replaced and the link has delivered nothing since: the client can lose a link without
    /// an error.
    async fn client_replaced(&self) -> Error {
        let _ = self.replaced.clone().wait_for(|replaced| *replaced).await;
        sleep(IDLE_LIMIT).await;
        Error::new(ErrorKind::EventSource, "the client of the link was replaced")
    }

    /// Closes the link. The client first removes the link, so after an error there is nothing that it could continue.
    /// An error is usual if the broker has ended the link before.
    async fn close(self) {
        let limit = if self.client.is_broken() { BROKEN_CLOSE_LIMIT } else { CLIENT_REQUEST_TIMEOUT };
        let partition = self.receiver.partition_id().to_owned();
        match timeout(limit, self.receiver.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => telemetry::link_not_closed(&partition, &error),
            Err(_) => {
                self.client.record_outcome(&self.route, ConnectionOutcome::Broken);
                telemetry::link_not_closed(&partition, &"timed out");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offsets_and_sequence_numbers_can_be_rejected() {
        for (from, position) in [
            (StartPosition::Earliest, None),
            (StartPosition::Latest, None),
            (StartPosition::AfterSequenceNumber(7), Some("sequence number 7")),
            (StartPosition::AfterOffset("12".into()), Some("offset \"12\"")),
        ] {
            assert_eq!(rejectable_position(&from).as_deref(), position, "{from:?}");
        }
    }
}
