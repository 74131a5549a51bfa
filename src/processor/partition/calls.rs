//! Calls the handler. A panic is its failure, and once the partition stops, each call has a time limit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::{Instrument, Span};

use super::handler_call::{Call, HANDLER, Panic, out_of_time, panicked, result_of};
use super::machine::Happened;
use super::restart_backoff::RestartBackoff;
use super::task::{PartitionTask, Session};
use crate::error::Error;
use crate::error::cause_of;
use crate::model::CheckpointRecord;
use crate::processor::checkpoints::requests::CheckpointWriter;
use crate::processor::context::PartitionContext;
use crate::processor::handler::Handler;
use crate::processor::shared::Shared;
use crate::processor::shutdown::limits::{stop_limit, stopping_time};
use crate::processor::shutdown::stop::{HandlerError, NotTaken, StopReason};
use crate::processor::start::partition_start::PartitionStart;
use crate::source::CLOSE_LIMIT;
use crate::source::Positioned;
use crate::source::{EventSource, StartPosition};
use crate::telemetry::{self, span_failed};

/// What is recorded of a batch that the handler accepts.
struct Accepted {
    events: usize,
    /// The number of the last event, and when it was enqueued.
    last: Option<i64>,
    enqueued_at: Option<OffsetDateTime>,
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Calls `start_position`. The call counts as a batch: if it takes too long, the partition is stalled.
    pub(super) async fn chosen_start(&self, checkpoint: CheckpointRecord) -> Result<Option<StartPosition>, Happened> {
        let (partition, epoch) = (self.control.partition.clone(), self.control.epoch);
        let start = PartitionStart { partition, group: Arc::clone(&self.shared.group), epoch, checkpoint };
        // The call is inside the future because it may panic before it returns one.
        let choosing = async { self.shared.handler.start_position(start).await };
        let chosen = self.control.call_limit.call("`start_position`", choosing).await.and_then(|chosen| {
            chosen.as_ref().map_or(Ok(()), |start| start.check("the result of `start_position`"))?;
            Ok(chosen)
        });
        chosen.map_err(|error| Happened::HandlerFailed(Arc::new(error)))
    }

    /// Calls `started`, and waits for it without a limit. Once the partition is requested to stop, the call has the
    /// drain timeout.
    pub(super) async fn start(&self, session: &mut Session<S::Event>) -> Happened {
        telemetry::partition_started(&self.control.partition, &session.delivered.next());
        let context = session.context.clone();
        // The call is inside the future because it may panic before it returns one.
        let mut starting = Call::new(async { self.shared.handler.started(context).await });
        let (started, reason) = tokio::select! {
            biased;
            started = &mut starting => (Some(started), None),
            reason = self.stopping_or_fenced(&mut session.writing) => {
                (timeout(self.shared.drain_timeout, &mut starting).await.ok(), Some(reason))
            }
        };
        match (started, reason) {
            (Some(Err(panic)), None) => Happened::HandlerFailed(Arc::new(panicked(HANDLER, &*panic))),
            (Some(Ok(())), None) => Happened::Done,
            (started, reason) => {
                self.callback_ended("started", started);
                Happened::Stop(reason.unwrap_or(StopReason::Shutdown))
            }
        }
    }

    /// Calls `handle` once. If the partition is requested to stop meanwhile, the handler has the drain timeout to
    /// finish.
    pub(super) async fn handle(&self, batch: Vec<S::Event>, session: &mut Session<S::Event>, span: &Span) -> Happened {
        let _working = self.control.call_limit.begin();
        let (context, last) = (session.context.clone(), batch.last());
        let accepted = Accepted {
            events: batch.len(),
            last: last.and_then(S::Event::sequence_number),
            enqueued_at: last.and_then(S::Event::enqueued_at),
        };
        let handling = async { self.shared.handler.handle(batch, context).await };
        let mut handling = Call::new(handling.instrument(span.clone()));
        let reason = tokio::select! {
            biased;
            handled = &mut handling => return self.after_handling(handled, &accepted, session, span).await,
            reason = self.stopping_or_fenced(&mut session.writing) => reason,
            timeout = self.control.call_limit.expired() => {
                return Happened::HandlerFailed(failed_in(span, out_of_time(HANDLER, "handler", timeout)));
            }
        };
        let drained_by = Instant::now() + self.shared.drain_timeout;
        session.drained_by = Some(drained_by);
        match timeout_at(drained_by, &mut handling).await.map(|result| result_of(HANDLER, result)) {
            Ok(Ok(())) => self.handled(&accepted, session),
            Ok(Err(error)) if cause_of::<NotTaken>(&error).is_some() => {}
            Ok(Err(error)) => self.failed_while_draining(&failed_in(span, error), session),
            Err(_) => {
                let batch = self.control.progress.take_batch();
                telemetry::drain_timed_out(&self.control.partition, batch, self.shared.drain_timeout);
                self.control.progress.aborted();
                self.report_failure(&failed_in(span, out_of_time(HANDLER, "drain", self.shared.drain_timeout)));
            }
        }
        Happened::Stop(reason)
    }

    /// Calls the handler's `failed`. A panic of that call changes nothing else.
    pub(super) fn report_failure(&self, error: &Error) {
        let reporting = AssertUnwindSafe(|| self.shared.handler.failed(&self.control.partition, error));
        if let Err(panic) = catch_unwind(reporting) {
            telemetry::callback_panicked(&self.control.partition, "failed", &panicked(HANDLER, &*panic));
        }
    }

    /// Handles a failure of a partition that stops anyway.
    fn failed_while_draining(&self, error: &Arc<Error>, session: &Session<S::Event>) {
        self.control.progress.failed(error);
        self.control.progress.batch_failed(session.delivered.last());
        self.control.metrics.handler_failed();
        let batch = self.control.progress.take_batch();
        telemetry::handler_failed_while_draining(&self.control.partition, batch, error);
        self.report_failure(error);
    }

    /// Handles the result of `handle`. A handler that waits for a checkpoint fails if the checkpoint is rejected: in
    /// that case the partition is lost, with any error.
    async fn after_handling(
        &self,
        handled: Result<Result<(), HandlerError>, Panic>,
        accepted: &Accepted,
        session: &mut Session<S::Event>,
        span: &Span,
    ) -> Happened {
        let failure = match result_of(HANDLER, handled) {
            Ok(()) => {
                self.handled(accepted, session);
                return Happened::Done;
            }
            Err(failure) => failure,
        };
        // The writing task ends right after it has set this.
        let is_lost = session.writer.is_fenced();
        if is_lost || cause_of::<NotTaken>(&failure).is_some() {
            return Happened::Stop(self.stopping_or_fenced(&mut session.writing).await);
        }
        Happened::HandlerFailed(failed_in(span, failure))
    }

    fn handled(&self, accepted: &Accepted, session: &Session<S::Event>) {
        session.writer.handled();
        self.control.progress.handled(accepted.last, accepted.enqueued_at.map(|time| self.age_of(time)));
        self.control.metrics.handled(accepted.events);
    }

    /// Records that the handler failed. What it has processed of the batch counts.
    pub(super) fn batch_failed(&self, session: Option<&Session<S::Event>>, backoff: &mut RestartBackoff) {
        backoff.finished(session.and_then(|session| session.writer.reached()));
        self.control.progress.batch_failed(session.and_then(|session| session.delivered.last()));
    }

    /// Returns how long ago an event was enqueued.
    pub(super) fn age_of(&self, enqueued_at: OffsetDateTime) -> Duration {
        (self.shared.store.server_time() - enqueued_at).try_into().unwrap_or_default()
    }

    /// Waits for the events in flight, calls `stopped`, and writes the last checkpoint.
    pub(super) async fn stop(&self, mut session: Session<S::Event>, reason: StopReason) {
        let checkpoints_count = !matches!(reason, StopReason::OwnershipLost { .. } | StopReason::Replaced);
        session.over.send_replace(true);
        self.close_link(&mut session).await;
        let failed = matches!(reason, StopReason::Failed { .. });
        if checkpoints_count && !failed {
            self.finish_in_flight(&session.writer, session.drained_by).await;
        }
        if !failed && let Some(error) = session.writer.failed().now_or_never() {
            self.failed_while_draining(&error, &session);
        }
        self.call_stopped(session.context.clone(), reason).await;
        session.writer.close(checkpoints_count.then(|| self.last_checkpoint_by(failed)));
        session.writing.join_all().await;
        self.control.progress.uncheckpointed(checkpoints_count && session.writer.is_behind());
        self.control.progress.held_back(checkpoints_count && session.writer.is_held_back());
    }

    /// Returns until when attempts at the last checkpoint begin. The last one ends two request timeouts later, which is
    /// one request timeout before the balancer releases the partition without the checkpoint, or before the end of the
    /// shutdown.
    fn last_checkpoint_by(&self, failed: bool) -> Instant {
        let Shared { store, drain_timeout, .. } = &*self.shared;
        let request = store.request_timeout();
        match self.control.stop_requested() {
            Some((StopReason::Released { .. }, requested_at)) => requested_at + stopping_time(*drain_timeout) + request,
            Some((_, requested_at)) if !failed => {
                requested_at + stop_limit(*drain_timeout, store).saturating_sub(3 * request)
            }
            // The next start of the partition needs the storage, too.
            _ => Instant::now() + 4 * request,
        }
    }

    pub(super) async fn close_link(&self, session: &mut Session<S::Event>) {
        if let Some(link) = session.link.take() {
            link.receiver.close(CLOSE_LIMIT).await;
        }
    }

    async fn finish_in_flight(&self, writer: &CheckpointWriter, drained_by: Option<Instant>) {
        let drained_by = drained_by.unwrap_or_else(|| Instant::now() + self.shared.drain_timeout);
        tokio::select! {
            biased;
            () = writer.until_all_finished() => {}
            () = sleep_until(drained_by) => {
                telemetry::left_in_flight(&self.control.partition, writer.unfinished());
                self.control.progress.aborted();
            }
        }
    }

    /// Calls `stopped`. A panic changes nothing: the partition has stopped.
    async fn call_stopped(&self, context: PartitionContext, reason: StopReason) {
        let stopping = Call::new(async { self.shared.handler.stopped(context, reason).await });
        self.callback_ended("stopped", timeout(self.shared.drain_timeout, stopping).await.ok());
    }

    /// Reports a callback that panicked, or that did not end within the drain timeout.
    fn callback_ended(&self, callback: &str, ended: Option<Result<(), Panic>>) {
        let (partition, timeout) = (&self.control.partition, self.shared.drain_timeout);
        let error = match ended {
            Some(Ok(())) => return,
            Some(Err(panic)) => {
                let error = panicked(HANDLER, &*panic);
                telemetry::callback_panicked(partition, callback, &error);
                error
            }
            None => {
                telemetry::callback_timed_out(partition, callback, timeout);
                out_of_time(&format!("`{callback}`"), "drain", timeout)
            }
        };
        self.report_failure(&error);
    }
}

/// Records in the span of a call that the call failed.
fn failed_in(span: &Span, error: Error) -> Arc<Error> {
    span_failed(span, error.kind());
    Arc::new(error)
}
