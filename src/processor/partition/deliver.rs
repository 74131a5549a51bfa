//! Passes batches to the handler. At an event that the source cannot decode, the partition fails or skips it.

use std::sync::Arc;

use tokio::task::consume_budget;
use tokio::time::sleep;

use super::continuity::{DeliveryProgress, Gap, LinkRestart, Unvalidated};
use super::machine::StepOutcome;
use super::restart_backoff::RestartBackoff;
use super::stall_detector::{LinkState, StallDetector};
use super::takeover::RECHECK_WAITS;
use super::task::{PartitionSession, PartitionTask};
use crate::error::{Error, ErrorKind, Result};
use crate::processor::checkpoints::requests::CheckpointRequester;
use crate::processor::config::OnUndecodable;
use crate::processor::handler::{Handler, UndecodableEvent};
use crate::processor::monitoring::status::PartitionPhase;
use crate::processor::shutdown::stop::{explain_undecodable, skip_refusal};
use crate::source::Positioned;
use crate::source::batch::BatchLimits;
use crate::source::properties::{PartitionProperties, Undelivered};
use crate::source::receiver::EventReceiver;
use crate::source::undecodable_number;
use crate::source::{EventSource, StartPosition};
use crate::telemetry;

/// What has come of the wait for the next batch.
enum NextBatch<E> {
    /// New events, at least one.
    Events(Vec<E>),
    /// The link has not failed, but must be opened again.
    Reopen,
    LinkFailed(Error),
    /// The partition stops or starts again: as requested, because a tracked event failed, or because the event hub was
    /// recreated.
    Interrupted(StepOutcome),
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Delivers batches until the link fails, the handler fails, or the partition is requested to stop. Then closes the
    /// link.
    pub(super) async fn deliver_batches(
        &self,
        session: &mut PartitionSession<S::Event>,
        backoff: &mut RestartBackoff,
    ) -> StepOutcome {
        let Some(mut link) = session.link.take() else {
            return StepOutcome::Failed(Arc::new(Error::new(
                ErrorKind::Internal,
                "internal error: the partition has no link",
            )));
        };
        let mut accepted = false;
        let outcome = loop {
            let batch = match self.next_batch(&mut link.receiver, session).await {
                NextBatch::Events(batch) => batch,
                NextBatch::Reopen => break StepOutcome::Reopen,
                NextBatch::LinkFailed(error) if error.kind() == ErrorKind::Undecodable => {
                    break self.handle_undecodable(error, session).await;
                }
                NextBatch::LinkFailed(error) => break self.link_failed(error, session).await,
                NextBatch::Interrupted(outcome) => break outcome,
            };
            match self.deliver_batch(batch, &mut link.receiver, session, backoff).await {
                // A source and a handler that are always ready must not keep other tasks from running.
                StepOutcome::Done => {
                    accepted = true;
                    consume_budget().await;
                }
                other => break other,
            }
        };
        match &outcome {
            StepOutcome::HandlerFailed(error) => {
                self.record_batch_failure(Some(session), backoff);
                self.control.failures.record_failure(error);
            }
            StepOutcome::Failed(_) if accepted => backoff.record_link_delivery(),
            _ => {}
        }
        backoff.record_link_time(link.opened_at.elapsed());
        session.link = Some(link);
        self.close_link(session).await;
        outcome
    }

    async fn deliver_batch(
        &self,
        batch: Vec<S::Event>,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut PartitionSession<S::Event>,
        backoff: &mut RestartBackoff,
    ) -> StepOutcome {
        let Some(last) = batch.last().map(S::Event::sequence_number) else { return StepOutcome::Done };
        let first = batch.first().and_then(S::Event::sequence_number);
        let enqueued_at = batch.first().and_then(S::Event::enqueued_at);
        self.control.progress.record_batch(first.zip(last), enqueued_at.map(|time| self.age_of(time)));
        if let Some(reached) = session.writer.last_reached() {
            self.control.failures.forget_up_to(Some(reached));
        }
        self.control.failures.record_call(first, batch.len());
        let (span, contexts) = self.shared.spans.batch_span(&self.control.partition, &batch);
        session.writer.begin_batch(batch.iter().filter_map(S::Event::sequence_number), contexts);
        let handling = self.control.metrics.time_handler();
        let outcome = tokio::select! {
            biased;
            outcome = self.call_handler(batch, session, &span) => outcome,
            never = receiver.read_ahead(self.shared.config.max_batch_size) => match never {},
        };
        handling.end();
        if let StepOutcome::Done = outcome {
            // Tokens may fail again, so only events that are not open count.
            if backoff.last_handled().and_then(|event| session.writer.waits_for(event)).is_none() {
                backoff.record_handled(last);
            }
            let failing = self.control.failures.current_failure().and_then(|failing| failing.place.first_event());
            if failing.and_then(|event| session.writer.waits_for(event)).is_none() {
                self.control.failures.forget_up_to(last);
            }
        }
        outcome
    }

    /// Waits for new events, unless the partition stops or fails meanwhile.
    async fn next_batch(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut PartitionSession<S::Event>,
    ) -> NextBatch<S::Event> {
        let PartitionSession { writer, writing, stall_detector, unvalidated, delivered, hub_created_at, .. } = session;
        tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(writing) => NextBatch::Interrupted(StepOutcome::Stop(reason)),
            error = writer.wait_for_failure() => NextBatch::Interrupted(StepOutcome::HandlerFailed(error)),
            error = self.shared.hub_creation.wait_for_recreation(*hub_created_at) => NextBatch::Interrupted(error.into()),
            batch = self.gather_new_events(receiver, writer, delivered, stall_detector, unvalidated) => {
                batch.unwrap_or_else(NextBatch::LinkFailed)
            }
        }
    }

    /// Waits for new events, while it checks that the link delivers all events.
    async fn gather_new_events(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        writer: &CheckpointRequester,
        delivered: &mut DeliveryProgress,
        stall_detector: &mut StallDetector,
        unvalidated: &mut Unvalidated,
    ) -> Result<NextBatch<S::Event>> {
        loop {
            if let Some(LinkRestart { received, after }) = delivered.link_restart() {
                let message = format!("the link restarted: event {received} arrived after event {after}");
                return Err(Error::new(ErrorKind::EventSource, message));
            }
            self.read_ahead_until_open(receiver, writer).await;
            stall_detector.start_waiting();
            self.shared.loads.add(&self.control.partition, std::mem::take(&mut receiver.gathered.received));
            if let Some(last) = receiver.gathered.events.last()
                && stall_detector.record_gathered(last.sequence_number())
            {
                self.control.progress.set_link_stalled(false);
            }
            let limits = self.batch_limits(writer.in_flight());
            let mut lag_checks = self.control.properties.subscribe();
            tokio::select! {
                biased;
                () = self.control.wait_for_pause(true) => {
                    stall_detector.stop_waiting();
                    self.control.progress.set_link_stalled(false);
                }
                batch = receiver.gather_batch(&limits) => {
                    let Some(mut batch) = batch? else { continue };
                    if let Some(gap) = delivered.find_gap(&batch) {
                        self.check_gap(delivered, gap, unvalidated).await?;
                        // The partition may have been paused meanwhile.
                        self.read_ahead_until_open(receiver, writer).await;
                    }
                    let last = batch.last().and_then(S::Event::sequence_number);
                    self.control.metrics.count_repeated(delivered.keep_new(&mut batch));
                    // Old events that arrive through a link whose numbers increase show that the link works: they
                    // come to an end.
                    stall_detector.record_received(last);
                    if !batch.is_empty() {
                        unvalidated.confirm_start();
                        return Ok(NextBatch::Events(batch));
                    }
                }
                Ok(()) = lag_checks.changed() => {
                    let checked = lag_checks.borrow().as_ref().map(|properties| {
                        unvalidated.compare_with_hub(properties)?;
                        self.check_stall(stall_detector, properties)
                    });
                    match checked {
                        Some(Ok(true)) => return Ok(NextBatch::Reopen),
                        Some(Err(error)) => receiver.fail_after_gathered(error),
                        Some(Ok(false)) | None => {}
                    }
                }
            }
        }
    }

    /// Checks a gap. A link may continue where an earlier one ended, and not where it was opened. The events in the gap
    /// would be lost. A start that was not validated may have a gap because its events have expired.
    async fn check_gap(&self, delivered: &mut DeliveryProgress, gap: Gap, unvalidated: &mut Unvalidated) -> Result<()> {
        let mut properties = self.read_properties().await?;
        unvalidated.compare_with_hub(&properties)?;
        let waits = if delivered.has_rejected_another(gap) { &RECHECK_WAITS[..] } else { &[] };
        for wait in waits {
            if gap.is_expired(&properties) {
                break;
            }
            sleep(*wait).await;
            properties = self.read_properties().await?;
        }
        if !delivered.reject_gap(gap, &properties) {
            return Ok(());
        }
        self.shared.source.connection_suspect(&self.control.partition);
        let Gap { due, received } = gap;
        Err(Error::new(ErrorKind::EventSource, format!("the link started at event {received} instead of event {due}")))
    }

    /// Returns whether to open another link, to see whether it delivers what two links did not.
    fn check_stall(&self, stall_detector: &mut StallDetector, properties: &PartitionProperties) -> Result<bool> {
        let state = stall_detector.check_link(self.control.won_at.elapsed(), properties);
        self.control.progress.set_link_stalled(!matches!(state, LinkState::Healthy | LinkState::Probe));
        let undelivered = stall_detector.find_undelivered();
        if self.control.progress.set_undelivered(undelivered)
            && let Some(Undelivered { after, up_to }) = undelivered
        {
            telemetry::end_not_delivered(&self.control.partition, after, up_to);
        }
        let (kind, message) = match state {
            LinkState::Healthy | LinkState::Behind => return Ok(false),
            LinkState::Probe => return Ok(true),
            LinkState::Reopen => {
                self.control.metrics.count_stalled_link();
                self.shared.source.connection_suspect(&self.control.partition);
                (ErrorKind::EventSource, "the link delivers nothing, although the event hub has newer events")
            }
            LinkState::BeyondEnd => (
                ErrorKind::InvalidPosition,
                "the last event of the event hub is before the last delivered event: the event hub has lost its last \
                 events, or was recreated",
            ),
        };
        Err(Error::new(kind, message))
    }

    async fn read_ahead_until_open(&self, receiver: &mut EventReceiver<S::Event>, writer: &CheckpointRequester) {
        tokio::select! {
            biased;
            () = self.wait_until_open(writer) => {}
            never = receiver.read_ahead(self.shared.config.max_batch_size) => match never {},
        }
    }

    /// Waits until the partition is not paused and fewer than the maximum of events are in flight.
    async fn wait_until_open(&self, writer: &CheckpointRequester) {
        let most = self.shared.config.max_in_flight;
        while self.control.is_paused() {
            self.control.progress.enter_phase(PartitionPhase::Paused);
            self.control.wait_for_pause(false).await;
        }
        if writer.in_flight() >= most {
            self.control.progress.enter_phase(PartitionPhase::Full);
            writer.wait_for_tokens(|writer| writer.in_flight() < most).await;
        }
        self.control.progress.enter_phase(PartitionPhase::Idle);
    }

    fn batch_limits(&self, in_flight: usize) -> BatchLimits {
        let config = &self.shared.config;
        BatchLimits {
            events: config.max_batch_size.min(config.max_in_flight.saturating_sub(in_flight)).max(1),
            wait: config.max_batch_wait,
        }
    }
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Does what the policy says about the event at which reading has ended. All events before it were delivered, but
    /// some of them may be in flight.
    ///
    /// A link may have started too late, and the event may have expired since, so which one it is counts only if the
    /// next link ends at the same one.
    pub(super) async fn handle_undecodable(
        &self,
        error: Error,
        session: &mut PartitionSession<S::Event>,
    ) -> StepOutcome {
        let from = session.delivered.next_position();
        let located = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(&mut session.writing) => return StepOutcome::Stop(reason),
            located = self.locate_undecodable(&error, &from) => located,
        };
        let number = match located {
            Ok(Some(number)) => number,
            Ok(None) => return self.fail_at_undecodable(None, error),
            Err(error) => return error.into(),
        };
        let place = Some((from, number));
        if session.undecodable != place {
            session.undecodable = place;
            return StepOutcome::Reopen;
        }
        match self.shared.config.on_undecodable {
            OnUndecodable::Skip => self.skip_undecodable(number, error, session).await,
            OnUndecodable::Fail => self.fail_at_undecodable(Some(number), error),
        }
    }

    fn fail_at_undecodable(&self, number: Option<i64>, error: Error) -> StepOutcome {
        self.control.metrics.count_undecodable("failed");
        explain_undecodable(&self.control.partition, number, error).into()
    }

    /// Returns the sequence number of the event: the reported one, or the first one that exists from this position on.
    /// `None` if the position has no sequence number.
    async fn locate_undecodable(&self, error: &Error, from: &StartPosition) -> Result<Option<i64>> {
        let reported = undecodable_number(error);
        let due = match from {
            StartPosition::AfterSequenceNumber(last) => last.saturating_add(1),
            StartPosition::Earliest => 0,
            StartPosition::Latest | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => {
                return Ok(reported);
            }
        };
        match reported {
            Some(number) if number < due => Err(Error::new(
                ErrorKind::EventSource,
                format!("the source cannot decode event {number}, but event {due} is the next one"),
            )),
            Some(number) => Ok(Some(number)),
            None => Ok(Some(due.max(self.read_properties().await?.beginning_sequence_number()))),
        }
    }

    /// Skips the event once the handler allows it.
    async fn skip_undecodable(
        &self,
        sequence_number: i64,
        error: Error,
        session: &mut PartitionSession<S::Event>,
    ) -> StepOutcome {
        let error = Arc::new(error);
        let event = UndecodableEvent {
            group: Arc::clone(&self.shared.group),
            partition_id: self.control.partition.clone(),
            epoch: self.control.epoch,
            sequence_number,
            error: Arc::clone(&error),
        };
        let context = session.context.clone();
        self.control.progress.enter_phase(PartitionPhase::Handling);
        // The call is inside the future because it may panic before it returns one.
        let asking = async { self.shared.handler.undecodable(event, context).await };
        let allowed = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(&mut session.writing) => return StepOutcome::Stop(reason),
            allowed = self.control.call_limit.run_call("`undecodable`", asking) => allowed,
        };
        if let Err(error) = allowed {
            self.control.metrics.count_undecodable("failed");
            return StepOutcome::HandlerFailed(Arc::new(skip_refusal(sequence_number, error)));
        }
        session.writer.skip_event(sequence_number);
        session.delivered.skip_event(sequence_number);
        self.control.progress.count_undecodable();
        self.control.metrics.count_undecodable("skipped");
        telemetry::undecodable_skipped(&self.control.partition, sequence_number, &error);
        StepOutcome::Reopen
    }
}
