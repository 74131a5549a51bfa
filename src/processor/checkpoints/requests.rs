//! The requests for checkpoints of one partition, which are many and cheap: a task writes few of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use time::OffsetDateTime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::pending::{CheckpointState, CheckpointView};
use super::tracker::Tracker;
use crate::error::{Error, ErrorKind, Result};
use crate::processor::handler_errors::{EventError, HandlerError, handler_error};
use crate::source::TraceContext;
use crate::telemetry;

/// What the task that writes checkpoints is asked to do.
#[derive(Debug)]
pub(crate) enum WriterCommand {
    Flush(oneshot::Sender<Result<()>>),
    ConfirmOwner(oneshot::Sender<Result<()>>),
    RecordHub { created_at: Option<OffsetDateTime>, reply: oneshot::Sender<Result<()>> },
    Close { last_by: Option<Instant> },
}

/// Requests checkpoints, for all clones of a partition's context.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointRequester {
    pub(super) shared: Arc<CheckpointState>,
    pub(super) commands: mpsc::UnboundedSender<WriterCommand>,
}

impl CheckpointRequester {
    pub(crate) fn request_position(&self, sequence_number: i64, offset: &str) {
        self.shared.advance_position(|tracker| tracker.request_position(sequence_number, offset));
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
        self.shared.advance_position(Tracker::end_batch);
    }

    /// Records a token of an event of this size. Returns whether the checkpoint waits for the event: false if it has
    /// passed the event already.
    pub(crate) fn track_event(&self, sequence_number: i64, byte_size: usize) -> bool {
        self.shared.bytes_in_flight.fetch_add(byte_size, Ordering::Relaxed);
        self.shared.with_pending(|pending| pending.tracker.track_event(sequence_number))
    }

    pub(crate) fn finish_token(&self, sequence_number: i64, offset: &str, byte_size: usize) {
        self.shared.bytes_in_flight.fetch_sub(byte_size, Ordering::Relaxed);
        self.shared.advance_position(|tracker| tracker.finish_token(sequence_number, offset));
        self.shared.finished.send_replace(());
    }

    /// Records a token that was dropped unfinished. Reports it, unless the partition is stopping: the application may
    /// then give up work.
    pub(crate) fn abandon_token(&self, sequence_number: i64, byte_size: usize) {
        self.shared.bytes_in_flight.fetch_sub(byte_size, Ordering::Relaxed);
        let start = &self.shared.start;
        let is_running = !start.is_stopping();
        let reported = self.shared.with_pending(|pending| {
            if !pending.tracker.is_open(sequence_number) {
                // The checkpoint has passed the event, so nothing waits for the token.
                pending.tracker.finish_token(sequence_number, "");
                return None;
            }
            let is_first = pending.dropped.add_token(is_running.then_some(sequence_number));
            is_running.then_some((pending.written, is_first))
        });
        self.shared.finished.send_replace(());
        if let Some((checkpoint, is_first)) = reported {
            telemetry::event_dropped_unfinished(&start.span, &start.partition, sequence_number, checkpoint, is_first);
        }
    }

    /// Records that the event of a token cannot be processed. The first such error counts.
    pub(crate) fn fail_token(&self, error: EventError) {
        let has_number = error.sequence_number().is_some();
        if has_number {
            self.shared.with_pending(|pending| pending.dropped.add_token(None));
        }
        self.fail_start("a tracked event", error.into());
        // Tasks that wait until no token is unfinished must find the failure.
        if has_number {
            self.shared.finished.send_replace(());
        }
    }

    /// Lets this start of the partition fail. The first error counts.
    pub(crate) fn fail_start(&self, what: &'static str, error: HandlerError) {
        let error = handler_error(what, error);
        self.shared.failed.send_if_modified(|failed| failed.is_none() && failed.replace(Arc::new(error)).is_none());
    }

    /// Lets the checkpoint advance over an event that the handler does not process, once it covers all events before.
    pub(crate) fn pass_over(&self, sequence_number: i64, offset: &str) {
        self.shared.advance_position(|tracker| {
            tracker.pass_over(sequence_number, offset);
            None
        });
    }

    /// Lets the checkpoint advance over the event after the last delivered one, once it covers all events before.
    pub(crate) fn skip_event(&self, sequence_number: i64) {
        self.shared.advance_position(|tracker| {
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
    /// The errors of [`GroupStore::replace_checkpoint`](crate::store::GroupStore::replace_checkpoint).
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

    /// Returns whether fewer events than these are in flight, and fewer bytes of events.
    pub(crate) fn has_room(&self, events: usize, bytes: usize) -> bool {
        self.in_flight() < events && self.shared.bytes_in_flight.load(Ordering::Relaxed) < bytes
    }

    /// Returns how many tokens may still be finished: neither dropped nor failed.
    pub(crate) fn count_unfinished(&self) -> usize {
        self.shared.with_pending(|pending| pending.tracker.in_flight().saturating_sub(pending.dropped.count))
    }

    pub(crate) fn checkpoint_view(&self) -> CheckpointView {
        self.shared.with_pending(|pending| pending.view())
    }

    /// Returns whether finished events will be redelivered because of a dropped token, or a token was dropped while the
    /// partition was running.
    pub(crate) fn is_held_back(&self) -> bool {
        self.shared.with_pending(|pending| pending.is_held_back())
    }

    /// Waits until the tokens fulfill this condition, which is checked whenever one of them ends.
    pub(crate) async fn wait_for_tokens(&self, fulfilled: impl Fn(&Self) -> bool) {
        let mut finished = self.shared.finished.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = finished.wait_for(|()| fulfilled(self)).await;
    }

    /// Returns the first open event, if the checkpoint at this event waits for it.
    pub(crate) fn waits_for(&self, sequence_number: i64) -> Option<i64> {
        self.shared.with_pending(|pending| pending.tracker.oldest_open()).filter(|open| *open <= sequence_number)
    }

    /// Returns whether another instance owns the partition, or none does. The writing task then ends.
    pub(crate) fn is_fenced(&self) -> bool {
        self.shared.with_pending(|pending| pending.fenced)
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
        use tokio::sync::watch;

        use super::pending::Start;
        use crate::processor::partition::orders::{Orders, SessionEnd, StopView};

        let start = Start {
            partition: 0.into(),
            stopping: StopView::new(watch::channel(Orders::default()).1),
            over: SessionEnd::new(watch::channel(false).1),
            span: tracing::Span::none(),
        };
        Self { shared: Arc::new(CheckpointState::new(None, None, start)), commands: mpsc::unbounded_channel().0 }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::thread;
    use std::time::Duration;

    use futures::FutureExt;

    use super::super::pending::{HeldCheckpoint, TestStart};
    use super::*;

    /// Returns the requests of a start that runs, without a task that writes.
    fn running() -> (CheckpointRequester, TestStart) {
        let (running, start) = TestStart::new();
        let commands = mpsc::unbounded_channel().0;
        (CheckpointRequester { shared: Arc::new(CheckpointState::new(None, None, start)), commands }, running)
    }

    #[test]
    fn there_is_room_below_both_limits() {
        let requester = running().0;
        assert!(requester.track_event(0, 10) && requester.track_event(1, 10));
        assert_eq!(requester.in_flight(), 2);
        for (events, bytes, has_room) in [(3, 21, true), (2, 21, false), (1, 21, false), (3, 20, false), (3, 19, false)]
        {
            assert_eq!(requester.has_room(events, bytes), has_room, "{events} events, {bytes} bytes");
        }
        requester.finish_token(0, "0", 10);
        assert!(requester.has_room(2, 11));
        requester.abandon_token(1, 10);
        assert!(requester.has_room(2, 1), "its bytes are free, but it is not finished");
        assert_eq!(requester.in_flight(), 1);
    }

    #[test]
    fn a_checkpoint_waits_for_open_events_up_to_its_own() {
        let requester = running().0;
        assert!(requester.track_event(5, 0) && requester.track_event(7, 0));
        assert_eq!([4, 5, 6].map(|number| requester.waits_for(number)), [None, Some(5), Some(5)]);
        requester.finish_token(5, "50", 0);
        assert_eq!([6, 7].map(|number| requester.waits_for(number)), [None, Some(7)]);
    }

    #[test]
    fn an_event_waits_until_its_batch_is_tracked() {
        let requester = running().0;
        requester.begin_batch(0..=2, Vec::new());
        assert!(requester.track_event(1, 0));
        requester.finish_token(1, "10", 0);
        assert_eq!((requester.last_reached(), requester.is_behind()), (None, false), "0 may still be tracked");
        requester.end_batch();
        assert_eq!((requester.last_reached(), requester.is_behind()), (Some(1), true));
        assert!(!requester.track_event(1, 0), "the checkpoint has passed it");
    }

    #[test]
    fn an_event_without_a_handler_is_passed_at_once() {
        let requester = running().0;
        requester.begin_batch(0..=1, Vec::new());
        requester.request_position(0, "0");
        requester.pass_over(1, "10");
        assert_eq!(requester.last_reached(), Some(1));
        requester.end_batch();
        requester.skip_event(2);
        assert_eq!(requester.last_reached(), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_token_holds_the_checkpoint_back() {
        let (requester, _running) = running();
        (2..6).for_each(|number| assert!(requester.track_event(number, 0)));
        requester.finish_token(5, "50", 0);
        assert!(!requester.is_held_back(), "5 waits for events that run");
        requester.abandon_token(4, 0);
        requester.abandon_token(2, 0);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(requester.is_held_back());
        assert_eq!((requester.in_flight(), requester.count_unfinished()), (3, 1), "only 3 may still be finished");
        let expected =
            HeldCheckpoint { event: 2, held_for: Duration::from_secs(3), checkpoint: None, finished_after: 3 };
        let view = requester.checkpoint_view();
        assert_eq!((view.held, view.in_flight, view.reached), (Some(expected), 3, None));
    }

    #[test]
    fn a_token_that_holds_nothing_back_may_be_dropped() {
        let (requester, _running) = running();
        requester.request_position(5, "50");
        assert!(!requester.track_event(1, 0));
        requester.abandon_token(1, 0);
        assert_eq!((requester.in_flight(), requester.is_held_back()), (0, false));
    }

    /// The next owner processes the event.
    #[test]
    fn a_stopping_partition_may_give_up_events() {
        let (requester, running) = running();
        (0..3).for_each(|number| assert!(requester.track_event(number, 0)));
        running.request_stop();
        requester.abandon_token(0, 0);
        assert!(!requester.is_held_back() && requester.checkpoint_view().held.is_none());
        requester.finish_token(2, "20", 0);
        assert!(requester.is_held_back(), "it will be redelivered with an event that is finished");
        assert_eq!(requester.count_unfinished(), 1);
    }

    #[test]
    fn the_first_failure_of_a_start_counts() {
        let requester = running().0;
        assert!(requester.track_event(3, 0));
        assert!(requester.wait_for_failure().now_or_never().is_none());
        requester.fail_token(EventError::for_tracked_event(Some(3), "first"));
        requester.fail_start("the handler", "second".into());
        let error = requester.wait_for_failure().now_or_never().unwrap();
        assert!(telemetry::Causes(&*error).to_string().contains("first"), "{error:?}");
        assert_eq!(requester.count_unfinished(), 0, "nothing can finish the event");
    }

    #[test]
    fn whoever_waits_for_tokens_learns_of_each_end() {
        for end in [
            |requester: &CheckpointRequester| requester.finish_token(0, "0", 0),
            |requester: &CheckpointRequester| requester.abandon_token(0, 0),
            |requester: &CheckpointRequester| requester.fail_token(EventError::for_tracked_event(Some(0), "broken")),
        ] {
            let (requester, _running) = running();
            assert!(requester.track_event(0, 0));
            let mut waiting = pin!(requester.wait_for_tokens(|requester| requester.count_unfinished() == 0));
            assert!(waiting.as_mut().now_or_never().is_none());
            end(&requester);
            assert!(waiting.as_mut().now_or_never().is_some());
        }
    }

    #[tokio::test]
    async fn requests_to_a_stopped_partition_fail() {
        let requester = running().0;
        let outcomes = [requester.flush().await, requester.confirm_owner().await, requester.record_hub(None).await];
        for outcome in outcomes {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Closed);
        }
    }

    /// Tokens are taken and dropped on another thread while they are counted.
    #[test]
    fn counting_tokens_is_consistent() {
        let writer = CheckpointRequester::new_detached();
        let other = writer.clone();
        let dropping = thread::spawn(move || {
            for number in 0..100_000 {
                other.track_event(number, 0);
                other.abandon_token(number, 0);
            }
        });
        while !dropping.is_finished() {
            assert!(writer.count_unfinished() <= 1);
        }
        dropping.join().unwrap();
    }
}
