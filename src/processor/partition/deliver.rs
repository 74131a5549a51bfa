//! Passes the new events of a link to the handler, batch by batch.

use std::ops::ControlFlow;
use std::sync::Arc;

use time::OffsetDateTime;
use tokio::task::{JoinSet, consume_budget};
use tokio::time::sleep;
use tracing::Span;

use super::continuity::{Continuity, Gap};
use super::control::Control;
use super::handler_call::IdleClock;
use super::machine::StepOutcome;
use super::restart_backoff::RestartBackoff;
use super::stall_detector::LinkState;
use super::takeover::RECHECK_WAITS;
use super::task::{PartitionSession, PartitionTask};
use crate::error::{Error, ErrorKind, Result};
use crate::processor::checkpoints::requests::CheckpointRequester;
use crate::processor::checkpoints::writer::WritingEnd;
use crate::processor::config::ProcessorConfig;
use crate::processor::handler::Handler;
use crate::processor::monitoring::progress::PartitionPhase;
use crate::processor::shutdown::StopReason;
use crate::source::batch::BatchLimits;
use crate::source::properties::{PartitionProperties, Undelivered};
use crate::source::receiver::EventReceiver;
use crate::source::{EventSource, Positioned};
use crate::telemetry;

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Delivers batches until the link fails, the handler fails, or the partition is requested to stop. Then closes the
    /// link.
    pub(super) async fn deliver_batches(
        &self,
        session: &mut PartitionSession<S::Event>,
        backoff: &mut RestartBackoff,
    ) -> StepOutcome {
        let Some(mut link) = session.link.take() else {
            return Error::new(ErrorKind::Internal, "internal error: the partition has no link").into();
        };
        let mut has_accepted = false;
        let outcome = loop {
            let batch = match self.next_batch(&mut link.receiver, session).await {
                Ok(batch) => batch,
                Err(outcome) => break outcome,
            };
            if batch.is_empty()
                && session.continuity.is_at_end()
                && let Some(outcome) = self.finish_at_end(session).await
            {
                break outcome;
            }
            let has_events = !batch.is_empty();
            match self.deliver_batch(batch, &mut link.receiver, session, backoff).await {
                // A source and a handler that are always ready must not keep other tasks from running.
                StepOutcome::Done => {
                    has_accepted |= has_events;
                    session.idle_clock.restart();
                    consume_budget().await;
                }
                other => break other,
            }
        };
        match &outcome {
            StepOutcome::HandlerFailed(error) => {
                self.record_batch_failure(Some(session), backoff);
                self.control.failures.record_failure(error);
                if let Some(dead_letters) = &self.shared.dead_letters {
                    backoff.limit_restart(self.control.failures.begin_restart(
                        &dead_letters.policy,
                        session.checkpoints.last_reached(),
                        session.continuity.delivered.last_delivered(),
                    ));
                }
            }
            // The link has made progress, also while an earlier event is tracked and not finished.
            StepOutcome::Failed(_) if has_accepted => backoff.record_progress(),
            _ => {}
        }
        backoff.record_link_time(link.opened_at.elapsed());
        session.link = Some(link);
        self.close_link(session).await;
        outcome
    }

    /// Waits at the end position until the events in flight are finished, and the last requested checkpoint is durable.
    /// Returns `None` if an empty batch is due before.
    async fn finish_at_end(&self, session: &mut PartitionSession<S::Event>) -> Option<StepOutcome> {
        let PartitionSession { checkpoints, writing, idle_clock, .. } = session;
        tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(writing) => return Some(StepOutcome::Stop(reason)),
            error = checkpoints.wait_for_failure() => return Some(self.start_failed(error, checkpoints, writing).await),
            () = checkpoints.wait_for_tokens(|tokens| tokens.count_unfinished() == 0) => {}
            () = idle_clock.wait_until_due() => return None,
        }
        if checkpoints.waits_for(i64::MAX).is_some() {
            return Some(StepOutcome::HandlerFailed(Arc::new(Error::new(
                ErrorKind::Handler,
                "a tracked event before the end position was dropped unfinished",
            ))));
        }
        while checkpoints.is_behind() {
            tokio::select! {
                biased;
                reason = self.wait_for_stop_or_fence(writing) => return Some(StepOutcome::Stop(reason)),
                error = checkpoints.wait_for_failure() => return Some(self.start_failed(error, checkpoints, writing).await),
                flushed = checkpoints.flush() => if flushed.is_err() {
                    sleep(self.shared.store.request_timeout()).await;
                }
            }
        }
        Some(StepOutcome::Stop(StopReason::EndReached))
    }

    /// Waits for new events, unless the link or the partition ends before. The batch is empty if no events have come
    /// for the idle interval, or at the end position.
    async fn next_batch(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut PartitionSession<S::Event>,
    ) -> Result<Vec<S::Event>, StepOutcome> {
        let PartitionSession { checkpoints, writing, continuity, idle_clock, hub_created_at, .. } = session;
        let gathered = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(writing) => return Err(StepOutcome::Stop(reason)),
            error = checkpoints.wait_for_failure() => return Err(self.start_failed(error, checkpoints, writing).await),
            error = self.shared.hub_creation.wait_for_recreation(*hub_created_at) => return Err(error.into()),
            gathered = self.gather_new_events(receiver, checkpoints, continuity, idle_clock, *hub_created_at) => gathered,
        };
        match gathered {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => Err(StepOutcome::Reopen),
            Err(error) if error.kind() == ErrorKind::Undecodable => Err(self.handle_undecodable(error, session).await),
            Err(error) => Err(self.link_failed(error, session).await),
        }
    }

    /// Handles a failure of a token, or of the application's own task. The writing task ends right after it was fenced.
    /// Then the partition is lost, with any error.
    async fn start_failed(
        &self,
        error: Arc<Error>,
        checkpoints: &CheckpointRequester,
        writing: &mut JoinSet<WritingEnd>,
    ) -> StepOutcome {
        if checkpoints.is_fenced() {
            StepOutcome::Stop(self.wait_for_stop_or_fence(writing).await)
        } else {
            StepOutcome::HandlerFailed(error)
        }
    }

    /// Waits for new events, while it checks that the link delivers all events. Returns `None` if the link has not
    /// failed, but must be opened again; an empty batch if no events have come for the idle interval, or at the end
    /// position.
    async fn gather_new_events(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        checkpoints: &CheckpointRequester,
        continuity: &mut Continuity,
        idle_clock: &mut IdleClock,
        hub_created_at: Option<OffsetDateTime>,
    ) -> Result<Option<Vec<S::Event>>> {
        loop {
            continuity.check_restart()?;
            if continuity.end.awaits_latest()
                && let Some(properties) = &*self.control.properties.borrow()
            {
                self.learn_latest(&mut continuity.end, properties, hub_created_at);
            }
            if continuity.is_at_end() {
                return Ok(Some(Vec::new()));
            }
            if self.read_ahead_until_open(receiver, checkpoints, idle_clock).await.is_break() {
                return Ok(Some(Vec::new()));
            }
            self.shared.loads.add(&self.control.partition, std::mem::take(&mut receiver.gathered.received));
            if continuity.record_waiting(receiver.gathered.events.last()) {
                self.control.progress.set_link_stalled(false);
            }
            let limits = self.batch_limits(checkpoints.in_flight());
            let mut lag_checks = self.control.properties.subscribe();
            tokio::select! {
                biased;
                () = self.control.wait_for_pause(true) => {
                    continuity.stall_detector.stop_waiting();
                    self.control.progress.set_link_stalled(false);
                }
                batch = receiver.gather_batch(&limits) => {
                    let Some(mut batch) = batch? else { continue };
                    if let Some(gap) = continuity.delivered.find_gap(&batch) {
                        self.check_gap(gap, continuity).await?;
                        // The partition may have been paused meanwhile.
                        let _ = self.read_ahead_until_open(receiver, checkpoints, &mut IdleClock::new(None)).await;
                    }
                    self.control.metrics.count_repeated(continuity.admit(&mut batch));
                    if !batch.is_empty() {
                        return Ok(Some(batch));
                    }
                }
                Ok(()) = lag_checks.changed() => {
                    let Some(properties) = lag_checks.borrow().clone() else { continue };
                    continuity.end.learn_time(&properties, self.shared.store.server_time());
                    match self.check_delivery(continuity, &properties) {
                        Ok(true) => return Ok(None),
                        Ok(false) => {}
                        Err(error) => receiver.fail_after_gathered(error),
                    }
                }
                () = idle_clock.wait_until_due(), if receiver.gathered.events.is_empty() => return Ok(Some(Vec::new())),
            }
        }
    }

    /// Checks a gap. A link may continue where an earlier one ended, and not where it was opened. The events in the gap
    /// would be lost. A start that was not validated may have a gap because its events have expired.
    async fn check_gap(&self, gap: Gap, continuity: &mut Continuity) -> Result<()> {
        let mut properties = self.read_properties().await?;
        continuity.unvalidated.compare_with_hub(&properties)?;
        for wait in RECHECK_WAITS {
            if gap.is_expired(&properties) || !continuity.delivered.has_rejected_another(gap) {
                break;
            }
            sleep(wait).await;
            properties = self.read_properties().await?;
        }
        if !continuity.delivered.reject_gap(gap, &properties) {
            return Ok(());
        }
        self.shared.source.connection_suspect(&self.control.partition);
        let Gap { due, received } = gap;
        Err(Error::new(ErrorKind::EventSource, format!("the link started at event {received} instead of event {due}")))
    }

    /// Checks by the properties of the partition whether the link delivers all events. Returns whether to open another
    /// link, to see whether it delivers what two links did not.
    fn check_delivery(&self, continuity: &mut Continuity, properties: &PartitionProperties) -> Result<bool> {
        let Continuity { stall_detector, unvalidated, end, .. } = continuity;
        unvalidated.compare_with_hub(properties)?;
        let state = stall_detector.check_link(self.control.won_at.elapsed(), properties);
        self.control.progress.set_link_stalled(!matches!(state, LinkState::Healthy | LinkState::Probe));
        let undelivered = stall_detector.find_undelivered();
        end.record_undelivered(undelivered, stall_detector.find_expired(properties));
        if self.control.progress.set_undelivered(undelivered)
            && let Some(Undelivered { after, up_to }) = undelivered
        {
            telemetry::end_not_delivered(&self.control.partition, after, up_to);
        }
        match state {
            LinkState::Healthy | LinkState::Behind => Ok(false),
            LinkState::Probe => Ok(true),
            LinkState::Reopen => {
                self.control.metrics.count_stalled_link();
                self.shared.source.connection_suspect(&self.control.partition);
                Err(Error::new(
                    ErrorKind::EventSource,
                    "the link delivers nothing, although the event hub has newer events",
                ))
            }
            LinkState::BeyondEnd => Err(Error::new(
                ErrorKind::InvalidPosition,
                "the last event of the event hub is before the last delivered event: the event hub has lost its last \
                 events, or was recreated",
            )),
        }
    }

    async fn read_ahead_until_open(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        checkpoints: &CheckpointRequester,
        idle_clock: &mut IdleClock,
    ) -> ControlFlow<()> {
        tokio::select! {
            biased;
            opened = self.wait_until_open(checkpoints, idle_clock) => opened,
            never = receiver.read_ahead(self.shared.config.max_batch_size) => match never {},
        }
    }

    /// Waits until the partition is not paused, and there is room for events in flight. Breaks if an empty batch is due
    /// before there is room.
    async fn wait_until_open(&self, checkpoints: &CheckpointRequester, idle_clock: &mut IdleClock) -> ControlFlow<()> {
        let ProcessorConfig { max_in_flight, max_in_flight_bytes, .. } = self.shared.config;
        loop {
            if self.control.is_paused() {
                self.control.progress.enter_phase(PartitionPhase::Paused);
                self.control.wait_for_pause(false).await;
                idle_clock.restart();
            } else if checkpoints.has_room(max_in_flight, max_in_flight_bytes) {
                self.control.progress.enter_phase(PartitionPhase::Idle);
                return ControlFlow::Continue(());
            } else {
                self.control.progress.enter_phase(PartitionPhase::Full);
                tokio::select! {
                    biased;
                    () = self.control.wait_for_pause(true) => {}
                    () = checkpoints.wait_for_tokens(|tokens| tokens.has_room(max_in_flight, max_in_flight_bytes)) => {}
                    () = idle_clock.wait_until_due() => return ControlFlow::Break(()),
                }
            }
        }
    }

    fn batch_limits(&self, in_flight: usize) -> BatchLimits {
        let config = &self.shared.config;
        BatchLimits {
            events: config.max_batch_size.min(config.max_in_flight.saturating_sub(in_flight)).max(1),
            wait: config.max_batch_wait,
        }
    }

    /// Calls the handler with a batch, and records what it has processed. An empty batch is not recorded.
    async fn deliver_batch(
        &self,
        batch: Vec<S::Event>,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut PartitionSession<S::Event>,
        backoff: &mut RestartBackoff,
    ) -> StepOutcome {
        let Control { progress, failures, metrics, .. } = &*self.control;
        if batch.is_empty() {
            progress.record_empty_batch();
            failures.record_call(None);
            return self.call_handler_reading(batch, receiver, session, &Span::none()).await;
        }
        let first = batch.first().and_then(S::Event::sequence_number);
        let last = batch.last().and_then(S::Event::sequence_number);
        let age = batch.first().and_then(S::Event::enqueued_at).map(|time| self.age_of(time));
        progress.record_batch(first.zip(last), age);
        if let Some(reached) = session.checkpoints.last_reached() {
            failures.forget_up_to(Some(reached));
        }
        failures.record_call(first);
        let (span, contexts) = self.shared.spans.batch_span(&self.control.partition, &batch);
        session.checkpoints.begin_batch(batch.iter().filter_map(S::Event::sequence_number), contexts);
        let timer = metrics.time_handler();
        let outcome = self.call_handler_reading(batch, receiver, session, &span).await;
        timer.end();
        if let StepOutcome::Done = outcome {
            // Tokens may fail again, so only events that are not open count.
            let is_settled =
                |event: Option<i64>| event.and_then(|event| session.checkpoints.waits_for(event)).is_none();
            if is_settled(backoff.last_handled()) {
                backoff.record_handled(last);
            }
            if is_settled(failures.current_failure().and_then(|failing| failing.place.first_event())) {
                failures.forget_up_to(last);
            }
        }
        outcome
    }

    /// Calls the handler, and reads ahead meanwhile.
    async fn call_handler_reading(
        &self,
        batch: Vec<S::Event>,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut PartitionSession<S::Event>,
        span: &Span,
    ) -> StepOutcome {
        tokio::select! {
            biased;
            outcome = self.call_handler(batch, session, span) => outcome,
            never = receiver.read_ahead(self.shared.config.max_batch_size) => match never {},
        }
    }
}
