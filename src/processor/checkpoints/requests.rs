//! The requests for checkpoints of one partition, which are many and cheap: a task writes few of them.
//! Only the greatest position counts. The [`Tracker`] determines which position
//! may be written.

use std::sync::{Arc, Mutex};

use time::OffsetDateTime;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;

use super::tracker::{Reached, Tracker};
use super::{DroppedTokens, HeldCheckpoint};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{PartitionId, Position};
use crate::processor::monitoring::ErrorSummary;
use crate::processor::monitoring::spans::TracedEvents;
use crate::processor::partition::handler_call;
use crate::processor::partition::orders::{SessionEnd, StopView};
use crate::processor::shutdown::stop::EventError;
use crate::source::TraceContext;
use crate::telemetry;
use crate::util::lock;

/// The state of requested positions.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    tracker: Tracker,
    /// The greatest position that may be written. Kept after the write, so that its text is reused.
    requested: Option<Position>,
    /// The sequence number of the durable checkpoint.
    pub(crate) written: Option<i64>,
    /// Why the last write failed, until a write succeeds.
    pub(crate) failure: Option<ErrorSummary>,
    /// The partition has another owner, or none. Set before any error reports it. The writing task then ends.
    pub(crate) fenced: bool,
    dropped: DroppedTokens,
    /// For the span of the write.
    pub(crate) traced: TracedEvents,
}

impl PendingCheckpoint {
    pub(crate) fn new(written: Option<i64>) -> Self {
        Self {
            tracker: Tracker::new(written),
            requested: None,
            written,
            failure: None,
            fenced: false,
            dropped: DroppedTokens::default(),
            traced: TracedEvents::default(),
        }
    }

    /// Replaces the position. The tracker returns increasing positions only.
    fn replace_position(requested: &mut Option<Position>, reached: &Reached<'_>) {
        if let Some(requested) = requested {
            requested.sequence_number = reached.sequence_number;
            requested.offset.clear();
            requested.offset.push_str(&reached.offset);
        } else {
            let offset = reached.offset.clone().into_owned();
            *requested = Some(Position { sequence_number: reached.sequence_number, offset });
        }
    }

    pub(crate) fn unwritten_position(&self) -> Option<&Position> {
        self.requested
            .as_ref()
            .filter(|requested| self.written.is_none_or(|written| written < requested.sequence_number))
    }

    /// Returns how many events lie between the durable position and the requested one.
    pub(crate) fn distance_to_written(&self) -> i64 {
        self.unwritten_position()
            .map_or(0, |requested| requested.sequence_number.saturating_sub(self.written.unwrap_or(-1)))
    }
}

#[derive(Debug)]
pub(crate) struct CheckpointState {
    pub(crate) pending: Mutex<PendingCheckpoint>,
    /// Wakes the writing task if it has something new to write, or enough for a write.
    pub(crate) advanced: Notify,
    /// Changes when a token is finished, dropped or failed. A token is one
    /// [`TrackedEvent`](crate::processor::TrackedEvent).
    pub(crate) finished: watch::Sender<()>,
    /// The error of the first token that failed.
    pub(crate) failed: watch::Sender<Option<Arc<Error>>>,
    pub(crate) max_events: Option<i64>,
    pub(crate) start: Start,
}

/// The start of the partition that the checkpoints belong to.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) partition: PartitionId,
    pub(crate) stopping: StopView,
    pub(crate) over: SessionEnd,
    /// Tokens may be dropped outside of the partition's task.
    pub(crate) span: Span,
}

impl Start {
    fn is_stopping(&self) -> bool {
        self.over.has_ended() || self.stopping.is_requested()
    }
}

impl CheckpointState {
    pub(crate) fn with_pending<T>(&self, access: impl FnOnce(&mut PendingCheckpoint) -> T) -> T {
        access(&mut lock(&self.pending))
    }

    pub(crate) fn has_enough(&self, pending: &PendingCheckpoint) -> bool {
        self.max_events.is_some_and(|events| pending.distance_to_written() >= events)
    }

    /// Advances the position that may be written, and wakes the writing task if that changes what the task has to do.
    fn advance_tracker<'a>(&self, step: impl FnOnce(&mut Tracker) -> Option<Reached<'a>>) {
        let wake = self.with_pending(|pending| {
            let idle = pending.unwritten_position().is_none();
            let PendingCheckpoint { tracker, requested, .. } = pending;
            let reached = step(tracker);
            let mut advanced = reached.is_some();
            if let Some(reached) = &reached {
                PendingCheckpoint::replace_position(requested, reached);
            }
            while let Some(passed) = tracker.next_passed() {
                PendingCheckpoint::replace_position(requested, &passed);
                advanced = true;
            }
            advanced && (idle || self.has_enough(pending))
        });
        if wake {
            self.advanced.notify_one();
        }
    }
}

#[derive(Debug)]
pub(crate) enum WriterCommand {
    Flush(oneshot::Sender<Result<()>>),
    ConfirmOwner(oneshot::Sender<Result<()>>),
    RecordHub { created_at: Option<OffsetDateTime>, reply: oneshot::Sender<Result<()>> },
    Close { last_by: Option<Instant> },
}

/// The checkpoints of one start at one time.
#[derive(Debug, Default)]
pub(crate) struct CheckpointView {
    /// The last event up to which all events are finished.
    pub(crate) reached: Option<i64>,
    /// The sequence number of the durable checkpoint.
    pub(crate) written: Option<i64>,
    /// How many tokens are not finished.
    pub(crate) in_flight: usize,
    /// Why the last write failed, if none has succeeded since.
    pub(crate) failure: Option<ErrorSummary>,
    /// Why the checkpoint cannot advance, if a dropped token holds it back.
    pub(crate) held: Option<HeldCheckpoint>,
}

/// Requests checkpoints, for all clones of a partition's context.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointRequester {
    pub(crate) shared: Arc<CheckpointState>,
    pub(crate) commands: mpsc::UnboundedSender<WriterCommand>,
}

impl CheckpointRequester {
    pub(crate) fn request_position(&self, sequence_number: i64, offset: &str) {
        self.shared.advance_tracker(|tracker| tracker.request_position(sequence_number, offset));
    }

    /// Records a batch that goes to the handler.
    pub(crate) fn begin_batch(&self, numbers: impl Iterator<Item = i64>, contexts: Vec<(i64, TraceContext)>) {
        self.shared.with_pending(|pending| {
            pending.tracker.begin_batch(numbers);
            for (sequence_number, context) in contexts {
                pending.traced.add_event(sequence_number, context);
            }
        });
    }

    /// Records that the handler returned.
    pub(crate) fn end_batch(&self) {
        self.shared.advance_tracker(Tracker::end_batch);
    }

    /// Returns whether the checkpoint waits for the event: false if it has passed the event already.
    pub(crate) fn track_event(&self, sequence_number: i64) -> bool {
        self.shared.with_pending(|pending| pending.tracker.track_event(sequence_number))
    }

    pub(crate) fn finish_token(&self, sequence_number: i64, offset: &str) {
        self.shared.advance_tracker(|tracker| tracker.finish_token(sequence_number, offset));
        self.shared.finished.send_replace(());
    }

    /// Records a token that was dropped unfinished. Reports it, unless the partition is stopping: the application may
    /// then give up work.
    pub(crate) fn abandon_token(&self, sequence_number: i64) {
        let running = !self.shared.start.is_stopping();
        let (holds, is_first, checkpoint) = self.shared.with_pending(|pending| {
            if !pending.tracker.is_open(sequence_number) {
                // The checkpoint has passed the event, so nothing waits for the token.
                pending.tracker.finish_token(sequence_number, "");
                return (false, false, pending.written);
            }
            (running, pending.dropped.add_token(running.then_some(sequence_number)), pending.written)
        });
        self.shared.finished.send_replace(());
        if holds {
            let start = &self.shared.start;
            telemetry::event_dropped_unfinished(&start.span, &start.partition, sequence_number, checkpoint, is_first);
        }
    }

    /// Records that the event of a token cannot be processed. The first such error counts.
    pub(crate) fn fail_token(&self, error: EventError) {
        if error.sequence_number().is_some() {
            self.shared.with_pending(|pending| pending.dropped.add_token(None));
            self.shared.finished.send_replace(());
        }
        let error = handler_call::handler_error("a tracked event", error.into());
        self.shared.failed.send_if_modified(|failed| failed.is_none() && failed.replace(Arc::new(error)).is_none());
    }

    /// Lets the checkpoint advance over an event that the handler does not process, once it covers all events before.
    pub(crate) fn pass_over(&self, sequence_number: i64, offset: &str) {
        self.shared.advance_tracker(|tracker| {
            tracker.pass_over(sequence_number, offset);
            None
        });
    }

    /// Lets the checkpoint advance over the event after the last delivered one, once it covers all events before.
    pub(crate) fn skip_event(&self, sequence_number: i64) {
        self.shared.advance_tracker(|tracker| {
            tracker.skip_event(sequence_number);
            None
        });
    }

    /// Returns the last event up to which all events are finished.
    pub(crate) fn last_reached(&self) -> Option<i64> {
        self.shared.with_pending(|pending| pending.tracker.last_reached())
    }

    /// Checks by the ownership record that this instance still owns the partition.
    pub(crate) async fn confirm_owner(&self) -> Result<()> {
        self.send_command("the partition has stopped", WriterCommand::ConfirmOwner).await
    }

    /// Records that the position of the checkpoint is one of the event hub that was created at this time.
    ///
    /// # Errors
    ///
    /// Those of [`GroupStore::replace_checkpoint`](crate::store::GroupStore::replace_checkpoint).
    pub(crate) async fn record_hub(&self, created_at: Option<OffsetDateTime>) -> Result<()> {
        self.send_command("the partition has stopped", |reply| WriterCommand::RecordHub { created_at, reply }).await
    }

    /// Waits until a token has failed.
    pub(crate) async fn wait_for_failure(&self) -> Arc<Error> {
        let mut failed = self.shared.failed.subscribe();
        let error = failed.wait_for(Option::is_some).await.ok().and_then(|failed| failed.clone());
        match error {
            Some(error) => error,
            // The sender belongs to `self`, so it is not dropped.
            None => std::future::pending().await,
        }
    }

    /// Returns how many tokens are not finished.
    pub(crate) fn in_flight(&self) -> usize {
        self.shared.with_pending(|pending| pending.tracker.in_flight())
    }

    /// Returns how many tokens may still be finished: neither dropped nor failed.
    pub(crate) fn count_unfinished(&self) -> usize {
        self.shared.with_pending(|pending| pending.tracker.in_flight().saturating_sub(pending.dropped.count()))
    }

    pub(crate) fn checkpoint_view(&self) -> CheckpointView {
        self.shared.with_pending(|pending| CheckpointView {
            reached: pending.tracker.last_reached(),
            written: pending.written,
            in_flight: pending.tracker.in_flight(),
            failure: pending.failure.clone(),
            held: pending.dropped.first_holding_event().map(|(event, since)| {
                let last = pending.tracker.last_waiting().unwrap_or(event);
                let finished_after = last.saturating_sub(event).max(0).unsigned_abs();
                HeldCheckpoint { event, held_for: since.elapsed(), checkpoint: pending.written, finished_after }
            }),
        })
    }

    /// Returns whether finished events will be redelivered because of a dropped token, or a token was dropped while the
    /// partition was running.
    pub(crate) fn is_held_back(&self) -> bool {
        self.shared.with_pending(|pending| {
            let has_dropped = pending.dropped.count() > 0;
            (has_dropped && pending.tracker.last_waiting().is_some()) || pending.dropped.first_holding_event().is_some()
        })
    }

    /// Waits until the tokens fulfill this condition, which is checked whenever one of them ends.
    pub(crate) async fn wait_for_tokens(&self, fulfilled: impl Fn(&Self) -> bool) {
        let mut finished = self.shared.finished.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = finished.wait_for(|()| fulfilled(self)).await;
    }

    /// Returns the first open event, if the checkpoint at this event waits for it.
    pub(crate) fn waits_for(&self, sequence_number: i64) -> Option<i64> {
        let open = self.shared.with_pending(|pending| pending.tracker.oldest_open());
        open.filter(|open| *open <= sequence_number)
    }

    /// Returns whether a requested position is not durable.
    pub(crate) fn is_behind(&self) -> bool {
        self.shared.with_pending(|pending| pending.unwritten_position().is_some())
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        self.send_command("the partition has stopped; nothing was written", WriterCommand::Flush).await
    }

    /// Sends a command to the writing task, and waits for the reply. `closed` is the error if the task has ended.
    async fn send_command(
        &self,
        closed: &'static str,
        command: impl FnOnce(oneshot::Sender<Result<()>>) -> WriterCommand,
    ) -> Result<()> {
        let (reply, response) = oneshot::channel();
        // A command that cannot be sent is dropped with its reply, so that the response is an error, too.
        let _ = self.commands.send(command(reply));
        response.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, closed)))
    }

    /// Ends the writing task. With `last_by`, the task first writes the requested position; it begins attempts until
    /// that time.
    pub(crate) fn close(&self, last_by: Option<Instant>) {
        // An error means that the task has already ended.
        let _ = self.commands.send(WriterCommand::Close { last_by });
    }
}

#[cfg(test)]
impl CheckpointRequester {
    /// Returns a writer without a task that writes.
    pub(crate) fn new_detached() -> Self {
        let start = Start {
            partition: PartitionId::from(0),
            stopping: StopView::new(watch::channel(crate::processor::partition::orders::Orders::default()).1),
            over: SessionEnd::new(watch::channel(false).1),
            span: Span::none(),
        };
        let shared = CheckpointState {
            pending: Mutex::new(PendingCheckpoint::new(None)),
            advanced: Notify::new(),
            finished: watch::Sender::default(),
            failed: watch::Sender::default(),
            max_events: None,
            start,
        };
        Self { shared: Arc::new(shared), commands: mpsc::unbounded_channel().0 }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Tokens are taken and dropped on another thread while they are counted.
    #[test]
    fn counting_tokens_is_consistent() {
        let writer = CheckpointRequester::new_detached();
        let other = writer.clone();
        let dropping = thread::spawn(move || {
            for number in 0..100_000 {
                other.track_event(number);
                other.abandon_token(number);
            }
        });
        while !dropping.is_finished() {
            assert!(writer.count_unfinished() <= 1);
        }
        dropping.join().unwrap();
    }

    #[test]
    fn the_greatest_requested_position_counts() {
        let mut pending = PendingCheckpoint::new(Some(3));
        assert_eq!(pending.unwritten_position(), None);
        for (number, offset) in [(5, "five"), (9, "nine"), (7, "seven")] {
            let PendingCheckpoint { tracker, requested, .. } = &mut pending;
            if let Some(reached) = tracker.request_position(number, offset) {
                PendingCheckpoint::replace_position(requested, &reached);
            }
        }
        assert_eq!(pending.unwritten_position(), Some(&Position { sequence_number: 9, offset: "nine".into() }));
        assert_eq!(pending.distance_to_written(), 6);
        pending.written = Some(i64::MIN + 1);
        assert_eq!(pending.distance_to_written(), i64::MAX);
        pending.written = Some(9);
        assert_eq!(pending.unwritten_position(), None);
        assert_eq!(pending.distance_to_written(), 0);
    }
}
