//! Calls the handler. A panic is its failure, and once the partition stops, each call has a time limit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::{Instrument, Span};

use super::control::Control;
use super::handler_call::{Call, CallOutcome};
use super::machine::StepOutcome;
use super::restart_backoff::RestartBackoff;
use super::task::{PartitionSession, PartitionTask};
use crate::error::{Error, cause_of};
use crate::model::CheckpointRecord;
use crate::processor::checkpoints::requests::CheckpointRequester;
use crate::processor::handler::{Handler, OwnPosition, PartitionStart};
use crate::processor::handler_errors::{HANDLER, HandlerError, NotBegun, panic_error, timeout_error};
use crate::processor::shared::SharedResources;
use crate::processor::shutdown::{StopReason, stop_limit, stopping_time};
use crate::source::{CLOSE_LIMIT, EventSource, Positioned};
use crate::telemetry::{self, span_failed};

/// What is recorded of a batch that the handler accepts.
struct AcceptedBatch {
    events: usize,
    /// The number of the last event, and when it was enqueued.
    last: Option<i64>,
    enqueued_at: Option<OffsetDateTime>,
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Calls `start_position`. The call counts as a batch: if it takes too long, the partition is stalled.
    pub(super) async fn call_start_position(&self, checkpoint: CheckpointRecord) -> Result<OwnPosition, StepOutcome> {
        let start = PartitionStart {
            partition: self.control.partition.clone(),
            group: Arc::clone(&self.shared.group),
            epoch: self.control.epoch,
            checkpoint,
        };
        // The call is inside the future because it may panic before it returns one.
        let choosing = async { self.shared.handler.start_position(start).await };
        let chosen = self.control.call_limit.run_call("`start_position`", choosing).await;
        chosen
            .and_then(|chosen| {
                if let Some(start) = chosen.start() {
                    start.check_time("the result of `start_position`")?;
                }
                Ok(chosen)
            })
            .map_err(|error| StepOutcome::HandlerFailed(Arc::new(error)))
    }

    /// Calls `started`, and waits for it without a limit. Once the partition is requested to stop, the call has the
    /// drain timeout.
    pub(super) async fn call_started(&self, session: &mut PartitionSession<S::Event>) -> StepOutcome {
        telemetry::partition_started(&self.control.partition, &session.continuity.delivered.next_position());
        let context = session.context.clone();
        // The call is inside the future because it may panic before it returns one.
        let mut starting = Call::new(async { self.shared.handler.started(context).await });
        let reason = tokio::select! {
            biased;
            outcome = &mut starting => return match outcome.into_result("`started`") {
                Ok(()) => {
                    session.idle_clock.restart();
                    StepOutcome::Done
                }
                Err(error) => StepOutcome::HandlerFailed(Arc::new(error)),
            },
            reason = self.wait_for_stop_or_fence(&mut session.writing) => reason,
        };
        self.report_callback_end("started", timeout(self.shared.drain_timeout, &mut starting).await.ok());
        StepOutcome::Stop(reason)
    }

    /// Calls `handle` once. If the partition is requested to stop meanwhile, the handler has the drain timeout to
    /// finish.
    pub(super) async fn call_handler(
        &self,
        batch: Vec<S::Event>,
        session: &mut PartitionSession<S::Event>,
        span: &Span,
    ) -> StepOutcome {
        let _working = self.control.call_limit.begin_call();
        let context = session.context.clone();
        let accepted = AcceptedBatch {
            events: batch.len(),
            last: batch.last().and_then(S::Event::sequence_number),
            enqueued_at: batch.last().and_then(S::Event::enqueued_at),
        };
        let handling = async { self.handle_batch(batch, context).await };
        let mut handling = Call::new(handling.instrument(span.clone()));
        let reason = tokio::select! {
            biased;
            handled = &mut handling => return self.after_handling(handled, &accepted, session, span).await,
            reason = self.wait_for_stop_or_fence(&mut session.writing) => reason,
            timeout = self.control.call_limit.wait_for_expiry() => {
                return StepOutcome::HandlerFailed(record_failed_call(span, timeout_error(HANDLER, "handler", timeout)));
            }
        };
        self.drain_call(&mut handling, &accepted, session, span).await;
        StepOutcome::Stop(reason)
    }

    /// Waits until the handler has finished its batch although the partition stops. It has the drain timeout.
    async fn drain_call(
        &self,
        handling: &mut Call<impl Future<Output = Result<(), HandlerError>>>,
        accepted: &AcceptedBatch,
        session: &mut PartitionSession<S::Event>,
        span: &Span,
    ) {
        let drain_timeout = self.shared.drain_timeout;
        let drained_by = *session.drained_by.insert(Instant::now() + drain_timeout);
        match timeout_at(drained_by, handling).await.map(|handled| handled.into_result(HANDLER)) {
            Ok(Ok(())) => self.record_handled(accepted, session),
            Ok(Err(error)) if cause_of::<NotBegun>(&error).is_some() => {}
            Ok(Err(error)) => self.report_drain_failure(&record_failed_call(span, error), session),
            Err(_) => {
                let Control { partition, progress, .. } = &*self.control;
                telemetry::drain_timed_out(partition, progress.take_batch(), drain_timeout);
                progress.record_abort();
                self.report_failure(&record_failed_call(span, timeout_error(HANDLER, "drain", drain_timeout)));
            }
        }
    }

    /// Calls the handler's `failed`. A panic of that call changes nothing else.
    pub(super) fn report_failure(&self, error: &Error) {
        let partition = &self.control.partition;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.shared.handler.failed(partition, error))) {
            telemetry::callback_failed(partition, "failed", &panic_error(HANDLER, &*panic));
        }
    }

    /// Handles a failure of a partition that stops anyway.
    fn report_drain_failure(&self, error: &Arc<Error>, session: &PartitionSession<S::Event>) {
        self.control.progress.record_failure(error);
        self.control.progress.record_batch_failure(session.continuity.delivered.last_delivered());
        self.control.metrics.count_handler_failure();
        telemetry::handler_failed_while_draining(&self.control.partition, self.control.progress.take_batch(), error);
        self.report_failure(error);
    }

    /// Handles the result of `handle`. A handler that waits for a checkpoint fails if the checkpoint is rejected: in
    /// that case the partition is lost, with any error.
    async fn after_handling(
        &self,
        handled: CallOutcome<Result<(), HandlerError>>,
        accepted: &AcceptedBatch,
        session: &mut PartitionSession<S::Event>,
        span: &Span,
    ) -> StepOutcome {
        let Err(failure) = handled.into_result(HANDLER) else {
            self.record_handled(accepted, session);
            return StepOutcome::Done;
        };
        // The writing task ends right after it was fenced.
        if session.checkpoints.is_fenced() || cause_of::<NotBegun>(&failure).is_some() {
            return StepOutcome::Stop(self.wait_for_stop_or_fence(&mut session.writing).await);
        }
        StepOutcome::HandlerFailed(record_failed_call(span, failure))
    }

    /// Records that the handler accepted a batch. An empty batch only shows that the handler works again.
    fn record_handled(&self, accepted: &AcceptedBatch, session: &PartitionSession<S::Event>) {
        if accepted.events == 0 {
            self.control.progress.forget_failure();
            return;
        }
        session.checkpoints.end_batch();
        self.control.progress.record_handled(accepted.last, accepted.enqueued_at.map(|time| self.age_of(time)));
        self.control.metrics.count_handled(accepted.events);
    }

    /// Records that the handler failed. What it has processed of the batch counts.
    pub(super) fn record_batch_failure(
        &self,
        session: Option<&PartitionSession<S::Event>>,
        backoff: &mut RestartBackoff,
    ) {
        backoff.record_finished(session.and_then(|session| session.checkpoints.last_reached()));
        self.control
            .progress
            .record_batch_failure(session.and_then(|session| session.continuity.delivered.last_delivered()));
    }

    /// Returns how long ago an event was enqueued.
    pub(super) fn age_of(&self, enqueued_at: OffsetDateTime) -> Duration {
        (self.shared.store.server_time() - enqueued_at).try_into().unwrap_or_default()
    }

    /// Waits for the events in flight, calls `stopped`, and writes the last checkpoint.
    pub(super) async fn stop_session(&self, mut session: PartitionSession<S::Event>, reason: StopReason) {
        let reason = self.final_reason(reason);
        let is_lost = matches!(reason, StopReason::OwnershipLost { .. } | StopReason::Replaced);
        let has_failed = matches!(reason, StopReason::Failed { .. });
        session.over.send_replace(true);
        self.close_link(&mut session).await;
        if !is_lost && !has_failed {
            self.finish_in_flight(&session.checkpoints, session.drained_by).await;
        }
        if !has_failed && let Some(error) = session.checkpoints.wait_for_failure().now_or_never() {
            self.report_drain_failure(&error, &session);
        }
        let context = session.context.clone();
        let reason = self.final_reason(reason);
        // The call is inside the future because it may panic before it returns one.
        let stopping = Call::new(async {
            self.shared.handler.stopped(context, reason).await;
            Ok(())
        });
        self.report_callback_end("stopped", timeout(self.shared.drain_timeout, stopping).await.ok());
        session.checkpoints.close((!is_lost).then(|| self.last_checkpoint_by(has_failed)));
        session.writing.join_all().await;
        let uncheckpointed = !is_lost && session.checkpoints.is_behind();
        let held_back = !is_lost && session.checkpoints.is_held_back();
        self.control.progress.record_stop(uncheckpointed, held_back);
    }

    /// Returns why the partition stops now: while it stops to restart, it may be requested to stop for good.
    fn final_reason(&self, reason: StopReason) -> StopReason {
        match (reason, self.control.stop_request()) {
            (StopReason::Restarting, Some((requested, _))) => requested,
            (reason, _) => reason,
        }
    }

    /// Returns until when attempts at the last checkpoint begin. The last one ends two request timeouts later, which is
    /// one request timeout before the balancer releases the partition without the checkpoint, or before the end of the
    /// shutdown.
    fn last_checkpoint_by(&self, has_failed: bool) -> Instant {
        let SharedResources { store, drain_timeout, .. } = &*self.shared;
        let request = store.request_timeout();
        match self.control.stop_request() {
            Some((StopReason::Released { .. }, requested_at)) => requested_at + stopping_time(*drain_timeout) + request,
            Some((_, requested_at)) if !has_failed => {
                requested_at + stop_limit(*drain_timeout, store).saturating_sub(3 * request)
            }
            // The next start of the partition needs the storage, too.
            _ => Instant::now() + 4 * request,
        }
    }

    pub(super) async fn close_link(&self, session: &mut PartitionSession<S::Event>) {
        if let Some(link) = session.link.take() {
            link.receiver.close(CLOSE_LIMIT).await;
        }
    }

    /// Waits until the events in flight are finished. They have what the last batch has left of the drain timeout.
    async fn finish_in_flight(&self, checkpoints: &CheckpointRequester, drained_by: Option<Instant>) {
        let drained_by = drained_by.unwrap_or_else(|| Instant::now() + self.shared.drain_timeout);
        tokio::select! {
            biased;
            () = checkpoints.wait_for_tokens(|checkpoints| checkpoints.count_unfinished() == 0) => {}
            () = sleep_until(drained_by) => {
                telemetry::events_left_in_flight(&self.control.partition, checkpoints.count_unfinished());
                self.control.progress.record_abort();
            }
        }
    }

    /// Reports a callback of a partition that stops, if it failed, panicked, or did not end within the drain timeout.
    fn report_callback_end(&self, callback: &str, outcome: Option<CallOutcome<Result<(), HandlerError>>>) {
        let partition = &self.control.partition;
        let drain_timeout = self.shared.drain_timeout;
        let error = match outcome.map(|outcome| outcome.into_result(&format!("`{callback}`"))) {
            Some(Ok(())) => return,
            Some(Err(error)) => {
                telemetry::callback_failed(partition, callback, &error);
                error
            }
            None => {
                telemetry::callback_timed_out(partition, callback, drain_timeout);
                timeout_error(&format!("`{callback}`"), "drain", drain_timeout)
            }
        };
        self.report_failure(&error);
    }
}

/// Records in the span of a call that the call failed.
fn record_failed_call(span: &Span, error: Error) -> Arc<Error> {
    span_failed(span, error.kind());
    Arc::new(error)
}
