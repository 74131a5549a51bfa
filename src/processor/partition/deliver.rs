//! Passes batches to the handler.

use std::sync::Arc;

use tokio::task::consume_budget;
use tokio::time::sleep;

use super::begin::RECHECK_WAITS;
use super::delivery::{Delivered, Gap, Restarted};
use super::machine::Happened;
use super::restart_backoff::RestartBackoff;
use super::stall_detector::{LinkState, StallDetector};
use super::task::{PartitionTask, Session};
use super::unvalidated::Unvalidated;
use crate::error::{Error, ErrorKind, Result};
use crate::processor::checkpoints::requests::CheckpointWriter;
use crate::processor::handler::Handler;
use crate::processor::monitoring::status::Phase;
use crate::source::EventSource;
use crate::source::Positioned;
use crate::source::batch::BatchLimits;
use crate::source::properties::{PartitionProperties, Undelivered};
use crate::source::receiver::EventReceiver;
use crate::telemetry;

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Delivers batches until the link fails, the handler fails, or the partition is requested to stop. Then closes the
    /// link.
    pub(super) async fn deliver(&self, session: &mut Session<S::Event>, backoff: &mut RestartBackoff) -> Happened {
        let Some(mut link) = session.link.take() else {
            return Happened::Failed(Arc::new(Error::new(
                ErrorKind::Internal,
                "internal error: the partition has no link",
            )));
        };
        let mut accepted = false;
        let happened = loop {
            let batch = match self.next_batch(&mut link.receiver, session).await {
                Ok(Ok(Some(batch))) => batch,
                Ok(Ok(None)) => break Happened::Reopen,
                Ok(Err(error)) if error.kind() == ErrorKind::Undecodable => {
                    break self.undecodable(error, session).await;
                }
                Ok(Err(error)) => break self.link_failed(error, session).await,
                Err(stop) => break stop,
            };
            match self.hand_out(batch, &mut link.receiver, session, backoff).await {
                // A source and a handler that are always ready must not keep other tasks from running.
                Happened::Done => {
                    accepted = true;
                    consume_budget().await;
                }
                other => break other,
            }
        };
        match &happened {
            Happened::HandlerFailed(error) => {
                self.batch_failed(Some(session), backoff);
                self.control.attempts.failed(error);
            }
            Happened::Failed(_) if accepted => backoff.link_delivered(),
            _ => {}
        }
        backoff.link_held(link.opened_at.elapsed());
        session.link = Some(link);
        self.close_link(session).await;
        happened
    }

    async fn hand_out(
        &self,
        batch: Vec<S::Event>,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut Session<S::Event>,
        backoff: &mut RestartBackoff,
    ) -> Happened {
        let Some(last) = batch.last().map(S::Event::sequence_number) else { return Happened::Done };
        let (first, events) = (batch.first().and_then(S::Event::sequence_number), batch.len());
        let enqueued_at = batch.first().and_then(S::Event::enqueued_at);
        self.control.progress.handling(first.zip(last), enqueued_at.map(|time| self.age_of(time)));
        if let Some(reached) = session.writer.reached() {
            self.control.attempts.passed(Some(reached));
        }
        self.control.attempts.calling(first, events);
        let (span, contexts) = self.shared.spans.batch(&self.control.partition, &batch);
        session.writer.delivered(batch.iter().filter_map(S::Event::sequence_number), contexts);
        let handling = self.control.metrics.handling();
        let happened = tokio::select! {
            biased;
            happened = self.handle(batch, session, &span) => happened,
            never = receiver.read_ahead(self.shared.config.max_batch_size) => match never {},
        };
        handling.end();
        if let Happened::Done = happened {
            // Tokens may fail again, so only events that are not open count.
            let is_open = |event: i64| session.writer.waits_for(event).is_some();
            if !backoff.furthest().is_some_and(is_open) {
                backoff.handled(last);
            }
            let failing = self.control.attempts.failing().and_then(|failing| failing.place.first());
            if !failing.is_some_and(is_open) {
                self.control.attempts.passed(last);
            }
        }
        happened
    }

    /// Returns the next new events, or `None` if the link must be opened again although it has not failed. The outer error
    /// ends the wait: a stop or a failed token.
    async fn next_batch(
        &self,
        receiver: &mut EventReceiver<S::Event>,
        session: &mut Session<S::Event>,
    ) -> Result<Result<Option<Vec<S::Event>>>, Happened> {
        let Session { writer, writing, stall_detector, unvalidated, delivered, hub_created_at, .. } = session;
        let waiting = async {
            loop {
                if let Some(restart) = delivered.restarted() {
                    return Err(link_restarted(restart));
                }
                self.read_ahead_until_open(receiver, writer).await;
                stall_detector.waiting_started();
                self.shared.loads.add(&self.control.partition, receiver.take_received());
                if let Some(last) = receiver.last_gathered()
                    && stall_detector.gathered(last.sequence_number())
                {
                    self.control.progress.link_stalled(false);
                }
                let limits = self.limits(writer.in_flight());
                let mut lag_checks = self.control.properties();
                tokio::select! {
                    biased;
                    () = self.control.until_paused(true) => {
                        stall_detector.waiting_stopped();
                        self.control.progress.link_stalled(false);
                    }
                    batch = receiver.gather(&limits) => {
                        let Some(mut batch) = batch? else { continue };
                        if let Some(gap) = delivered.gap(&batch) {
                            self.check_gap(delivered, gap, unvalidated).await?;
                            // The partition may have been paused meanwhile.
                            self.read_ahead_until_open(receiver, writer).await;
                        }
                        let last = batch.last().and_then(S::Event::sequence_number);
                        self.control.metrics.events_repeated(delivered.keep_new(&mut batch));
                        // Old events that arrive through a link whose numbers increase show that the link works: they
                        // come to an end.
                        stall_detector.received(last);
                        if !batch.is_empty() {
                            unvalidated.continued();
                            return Ok(Some(batch));
                        }
                    }
                    Ok(()) = lag_checks.changed() => {
                        let checked = lag_checks.borrow().as_ref().map(|properties| {
                            unvalidated.compare(properties)?;
                            self.check_stall(stall_detector, properties)
                        });
                        match checked {
                            Some(Ok(true)) => return Ok(None),
                            Some(Err(error)) => receiver.fail(error),
                            Some(Ok(false)) | None => {}
                        }
                    }
                }
            }
        };
        tokio::select! {
            biased;
            reason = self.stopping_or_fenced(writing) => Err(Happened::Stop(reason)),
            error = writer.failed() => Err(Happened::HandlerFailed(error)),
            error = self.shared.hub_creation.recreated(*hub_created_at) => Err(error.into()),
            batch = waiting => Ok(batch),
        }
    }

    /// Checks a gap. A link may continue where an earlier one ended, and not where it was opened. The events in the gap
    /// would be lost. A start that was not validated may have a gap because its events have expired.
    async fn check_gap(&self, delivered: &mut Delivered, gap: Gap, unvalidated: &mut Unvalidated) -> Result<()> {
        let mut properties = self.properties().await?;
        unvalidated.compare(&properties)?;
        let waits = if delivered.rejected_another(gap) { &RECHECK_WAITS[..] } else { &[] };
        for wait in waits {
            if gap.is_expired(&properties) {
                break;
            }
            sleep(*wait).await;
            properties = self.properties().await?;
        }
        if !delivered.rejects(gap, &properties) {
            return Ok(());
        }
        self.shared.source.connection_suspect(&self.control.partition);
        let Gap { due, received } = gap;
        Err(Error::new(ErrorKind::EventSource, format!("the link started at event {received} instead of event {due}")))
    }

    /// Returns whether to open another link, to see whether it delivers what two links did not.
    fn check_stall(&self, stall_detector: &mut StallDetector, properties: &PartitionProperties) -> Result<bool> {
        let state = stall_detector.checked(self.control.age(), properties);
        self.control.progress.link_stalled(!matches!(state, LinkState::Healthy | LinkState::Probe));
        let undelivered = stall_detector.undelivered();
        if self.control.progress.set_undelivered(undelivered)
            && let Some(Undelivered { after, up_to }) = undelivered
        {
            telemetry::end_not_delivered(&self.control.partition, after, up_to);
        }
        let (kind, message) = match state {
            LinkState::Healthy | LinkState::Behind => return Ok(false),
            LinkState::Probe => return Ok(true),
            LinkState::Reopen => {
                self.control.metrics.link_stalled();
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

    async fn read_ahead_until_open(&self, receiver: &mut EventReceiver<S::Event>, writer: &CheckpointWriter) {
        tokio::select! {
            biased;
            () = self.until_open(writer) => {}
            never = receiver.read_ahead(self.shared.config.max_batch_size) => match never {},
        }
    }

    /// Waits until the partition is not paused and fewer than the maximum of events are in flight.
    async fn until_open(&self, writer: &CheckpointWriter) {
        let most = self.shared.config.max_in_flight;
        while self.control.is_paused() {
            self.control.progress.enter(Phase::Paused);
            self.control.until_paused(false).await;
        }
        if writer.in_flight() >= most {
            self.control.progress.enter(Phase::Full);
            writer.until_fewer_in_flight(most).await;
        }
        self.control.progress.enter(Phase::Idle);
    }

    fn limits(&self, in_flight: usize) -> BatchLimits {
        let config = &self.shared.config;
        BatchLimits {
            events: config.max_batch_size.min(config.max_in_flight.saturating_sub(in_flight)).max(1),
            wait: config.max_batch_wait,
        }
    }
}

fn link_restarted(restart: Restarted) -> Error {
    let Restarted { received, after } = restart;
    Error::new(ErrorKind::EventSource, format!("the link restarted: event {received} arrived after event {after}"))
}
