//! One link to a partition, whose events a task forwards.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{EventHubsError, EventReceiver as ClientReceiver};
use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::clients::SharedClient;
use super::errors;
use super::health::Sign;
use super::source::REQUEST_DEADLINE;
use crate::error::{Error, ErrorKind, Result};
use crate::model::Position;
use crate::processor::source::{EventSender, PartitionProperties, StartPosition};
use crate::telemetry;

/// How long closing a link of a dead connection may take. Nothing hangs on it, for the next link has another connection.
const DEAD_CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// How long a link may stay silent after its client was replaced, or with events waiting at the broker.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

/// An open link. The fields are dropped in this order: without a subscription nobody has the client.
pub(super) struct Link {
    receiver: ClientReceiver,
    client: Arc<SharedClient>,
    replaced: watch::Receiver<bool>,
    probe_after: Duration,
    /// The most events taken from the client at once.
    gathered: usize,
}

/// How far the reading came.
struct Progress {
    /// The offset or sequence number at which the link was opened, until an event came.
    position: Option<String>,
    /// The sequence number behind which everything is still to come, if it is known.
    reached: Option<i64>,
}

impl Progress {
    fn new(from: &StartPosition) -> Self {
        let (position, reached) = match from {
            StartPosition::Earliest => (None, Some(-1)),
            StartPosition::AfterSequenceNumber(number) => (Some(format!("sequence number {number}")), Some(*number)),
            StartPosition::AfterOffset(offset) => (Some(format!("offset {offset:?}")), None),
            StartPosition::Latest | StartPosition::EnqueuedAfter(_) => (None, None),
        };
        Self { position, reached }
    }

    fn received(&mut self, event: &ReceivedEventData) {
        self.position = None;
        self.reached = event.sequence_number().or(self.reached);
    }
}

impl Link {
    pub(super) fn new(
        receiver: ClientReceiver,
        client: Arc<SharedClient>,
        probe_after: Duration,
        gathered: usize,
    ) -> Self {
        let replaced = client.replaced();
        Self { receiver, client, replaced, probe_after, gathered }
    }

    /// Forwards until nobody wants any more or the link ends. The link is closed before its failure is told, so that it
    /// can be opened again at once: the client keeps one link per partition.
    pub(super) async fn forward(self, from: StartPosition, sender: EventSender<ReceivedEventData>) {
        let failure = self.forward_events(Progress::new(&from), &sender).await;
        self.close().await;
        if let Some(failure) = failure {
            sender.send(Err(failure)).await;
        }
    }

    /// The error with which the broker refuses the link at once, if it does so within the limit.
    pub(super) async fn refusal(self, limit: Duration) -> Option<Error> {
        let first = timeout(limit, pin!(self.receiver.stream_events()).next()).await;
        let refusal = match first {
            Ok(Some(Err(error))) => Some(self.failure(None, error)),
            _ => None,
        };
        self.close().await;
        refusal
    }

    /// Answers why it ended, or nothing if nobody wants any more. Events that are there together are handed on together:
    /// waking the reader for each would cost about as much as receiving it.
    async fn forward_events(&self, mut progress: Progress, sender: &EventSender<ReceivedEventData>) -> Option<Error> {
        let mut chunks = pin!(self.receiver.stream_events().ready_chunks(self.gathered));
        loop {
            // With the events first the others cost nothing as long as events are there; then sending says who stopped.
            let chunk = tokio::select! {
                biased;
                chunk = chunks.next() => chunk,
                () = sender.stopped() => return None,
                failure = self.stuck(progress.reached) => return Some(failure),
            };
            let Some(chunk) = chunk else { return Some(Error::new(ErrorKind::Source, "the broker ended the link")) };
            for event in chunk {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => return Some(self.failure(progress.position.as_deref(), error)),
                };
                self.client.note(Sign::Alive);
                progress.received(&event);
                if !sender.send(Ok(event)).await {
                    return None;
                }
            }
        }
    }

    fn failure(&self, position: Option<&str>, error: EventHubsError) -> Error {
        self.client.note(errors::sign(&error));
        errors::receiving(self.receiver.partition_id(), position, error)
    }

    /// Ready when a silent link cannot be trusted any more: the client can lose one without an error.
    async fn stuck(&self, reached: Option<i64>) -> Error {
        let mut replaced = self.replaced.clone();
        let left_behind = async {
            let _ = replaced.wait_for(|replaced| *replaced).await;
            sleep(SILENCE_LIMIT).await;
        };
        tokio::select! {
            () = left_behind => Error::new(ErrorKind::Source, "the client of the link was replaced"),
            error = self.unanswered_or_waiting(reached) => {
                self.client.note(Sign::Dead);
                error
            }
        }
    }

    /// Asks from time to time whether there are events. Ready when there are and none came for a while, or when the
    /// connection turns out to be dead.
    async fn unanswered_or_waiting(&self, mut reached: Option<i64>) -> Error {
        loop {
            sleep(self.probe_after).await;
            let properties = match properties(&self.client, self.receiver.partition_id()).await {
                Ok(properties) => properties,
                Err(error) if self.client.is_dead() => return error,
                Err(_) => continue,
            };
            if has_more(&properties, reached) {
                sleep(SILENCE_LIMIT).await;
                let partition = self.receiver.partition_id();
                let message = format!("partition {partition} has events that do not come through its link");
                return Error::new(ErrorKind::Source, message);
            }
            reached = reached.or(Some(properties.last.map_or(-1, |last| last.sequence_number)));
        }
    }

    /// Closing with deliveries in flight can fail in the client; the broker drops the link all the same.
    async fn close(self) {
        let limit = if self.client.is_dead() { DEAD_CLOSE_LIMIT } else { REQUEST_DEADLINE };
        let partition = self.receiver.partition_id().to_owned();
        match timeout(limit, self.receiver.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => telemetry::link_not_closed(&partition, &error),
            Err(_) => telemetry::link_not_closed(&partition, &"it took too long"),
        }
    }
}

/// Whether the partition still has an event behind this one.
fn has_more(properties: &PartitionProperties, reached: Option<i64>) -> bool {
    let last = properties.last.as_ref().map(|last| last.sequence_number);
    let (Some(last), Some(reached)) = (last, reached) else { return false };
    last > reached && last >= properties.first_sequence_number
}

/// Asks what is in a partition.
pub(super) async fn properties(client: &SharedClient, partition: &str) -> Result<PartitionProperties> {
    let request = client.client().get_partition_properties(partition);
    let failed = |error| errors::properties(&format!("partition {partition}"), error);
    let properties = client.answer(request, failed).await?;
    let last =
        Position { sequence_number: properties.last_enqueued_sequence_number, offset: properties.last_enqueued_offset };
    Ok(PartitionProperties {
        first_sequence_number: properties.beginning_sequence_number,
        last: (last.sequence_number >= 0).then_some(last),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_only_behind_what_was_reached_and_only_if_they_have_not_expired() {
        for (first, last, reached, more) in [
            (0, None, Some(-1), false),
            (0, Some(0), Some(-1), true),
            (0, Some(9), Some(8), true),
            (0, Some(9), Some(9), false),
            (0, Some(9), None, false),
            (10, Some(9), Some(5), false),
            (9, Some(9), Some(5), true),
        ] {
            let last = last.map(|sequence_number| Position { sequence_number, offset: String::new() });
            let properties = PartitionProperties { first_sequence_number: first, last };
            assert_eq!(has_more(&properties, reached), more, "{properties:?} from {reached:?}");
        }
    }

    #[test]
    fn only_offsets_and_sequence_numbers_can_be_refused_and_only_before_the_first_event() {
        for (from, position, reached) in [
            (StartPosition::Earliest, None, Some(-1)),
            (StartPosition::Latest, None, None),
            (StartPosition::AfterSequenceNumber(7), Some("sequence number 7"), Some(7)),
            (StartPosition::AfterOffset("12".into()), Some("offset \"12\""), None),
        ] {
            let progress = Progress::new(&from);
            assert_eq!((progress.position.as_deref(), progress.reached), (position, reached), "{from:?}");
        }
        let mut progress = Progress::new(&StartPosition::AfterSequenceNumber(7));
        progress.received(&ReceivedEventData::from(azure_core_amqp::AmqpMessage::default()));
        assert_eq!((progress.position, progress.reached), (None, Some(7)), "an event without a number");
    }
}
