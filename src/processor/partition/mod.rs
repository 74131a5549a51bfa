//! Runs one partition in one task, from its win to its loss. The [`Machine`] decides what to do next; this module does
//! it.

mod calls;
pub(in crate::processor) mod continuity;
pub(in crate::processor) mod control;
mod dead_letters;
mod deliver;
pub(in crate::processor) mod handler_call;
pub(in crate::processor) mod handler_failures;
mod machine;
pub(crate) mod orders;
mod pauses;
mod reading_end;
pub(in crate::processor) mod restart_backoff;
pub(in crate::processor) mod stall_detector;
mod takeover;
mod task;
mod undecodable;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep};

use self::control::Control;
use self::machine::{Machine, NextStep, StepOutcome};
use self::restart_backoff::RestartBackoff;
use super::handler::Handler;
use super::handler_errors::{HANDLER, panic_error};
use super::monitoring::progress::PartitionPhase;
use super::policies::OnFailure;
use super::shared::{recreation_error, shorten_randomly};
use super::start::invalid::ResumeFailure;
use crate::error::{Error, ErrorKind};
use crate::source::{EventSource, guard_request};
use crate::telemetry;

pub(in crate::processor) use self::machine::TaskEnd;
pub(in crate::processor) use self::task::PartitionTask;
use self::task::{OpenLink, PartitionSession};

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Runs until the partition stops. Restarts it after failures as the policy says.
    pub(super) async fn run(self) -> TaskEnd {
        let (mut machine, mut next) =
            Machine::new(self.shared.config.on_failure, self.shared.config.balancer.load_balancing_interval);
        let mut session = None;
        let mut resume_failure = None;
        loop {
            self.control.progress.enter_phase(phase_of_step(&next));
            if let NextStep::End(ended) = next {
                return self.log_end(ended);
            }
            let performing = self.perform_step(next, &mut session, &mut resume_failure, &mut machine.backoff);
            let outcome = match AssertUnwindSafe(performing).catch_unwind().await {
                Ok(outcome) => outcome,
                // It comes from what the application gave to this crate, such as the `Positioned` of an event, because
                // calls of the handler catch theirs. It is a failure of the handler, so that `stopped` is called. It is
                // not counted as a failed attempt: the last call may have handled an earlier batch.
                Err(panic) => {
                    self.record_batch_failure(session.as_ref(), &mut machine.backoff);
                    StepOutcome::HandlerFailed(Arc::new(panic_error(HANDLER, &*panic)))
                }
            };
            if let (StepOutcome::Failed(error), Some(session)) = (&outcome, &session)
                && error.kind() == ErrorKind::InvalidPosition
            {
                resume_failure = session.resume_failure(&self.shared.hub_creation);
            }
            next = self.report_and_step(&mut machine, outcome);
        }
    }

    /// Performs a step, except the end.
    async fn perform_step(
        &self,
        next: NextStep,
        session: &mut Option<PartitionSession<S::Event>>,
        resume_failure: &mut Option<ResumeFailure>,
        backoff: &mut RestartBackoff,
    ) -> StepOutcome {
        match (next, session.as_mut()) {
            (NextStep::Adopt, _) => {
                self.control.end_restart();
                match self.begin_session(resume_failure.as_ref()).await {
                    Ok(begun) => {
                        let after = begun.checkpoints.last_reached();
                        backoff.record_start(after, begun.context.started_elsewhere.is_some());
                        *session = Some(begun);
                        *resume_failure = None;
                        StepOutcome::Done
                    }
                    Err(outcome) => outcome,
                }
            }
            (NextStep::Wait(wait), session) => self.wait_for_retry(wait, session).await,
            (NextStep::Park(error), _) => self.park(&error).await,
            (NextStep::Pause(pause), _) => self.stay_paused(pause).await,
            (NextStep::Start, Some(session)) => self.call_started(session).await,
            (NextStep::Open, Some(session)) => self.open_link(session).await,
            (NextStep::Run, Some(session)) => self.deliver_batches(session, backoff).await,
            (NextStep::Stop(reason), _) => {
                if let Some(session) = session.take() {
                    self.stop_session(session, reason).await;
                }
                StepOutcome::Done
            }
            (NextStep::Start | NextStep::Open | NextStep::Run | NextStep::End(_), _) => {
                Error::new(ErrorKind::Internal, "internal error: unexpected partition state").into()
            }
        }
    }

    /// Reports failures, and returns what follows.
    fn report_and_step(&self, machine: &mut Machine, outcome: StepOutcome) -> NextStep {
        let partition = &self.control.partition;
        let progress = &self.control.progress;
        match outcome {
            StepOutcome::Failed(error) => {
                progress.record_failure(&error);
                let next = machine.step(StepOutcome::Failed(Arc::clone(&error)));
                self.shared.store.telemetry().partition_failed(partition, &error, next.wait_time());
                self.report_failure(&error);
                next
            }
            StepOutcome::HandlerFailed(error) => {
                progress.record_failure(&error);
                self.control.expect_resume();
                self.control.metrics.count_handler_failure();
                let restarts_at_once = machine.backoff.restarts_at_once();
                let policy = if restarts_at_once { &OnFailure::Restart } else { &self.shared.config.on_failure };
                let attempt = self.control.failures.current_failure().map(|failing| failing.failures);
                let parks = matches!(policy, OnFailure::Park);
                let restarts = matches!(policy, OnFailure::Restart);
                let retry_in = restarts.then(|| machine.backoff.upcoming_restart_wait());
                let batch = progress.take_batch();
                telemetry::handler_failed(partition, batch, attempt, &error, policy, parks, retry_in);
                self.report_failure(&error);
                machine.step(StepOutcome::HandlerFailed(error))
            }
            other => machine.step(other),
        }
    }

    fn log_end(&self, ended: TaskEnd) -> TaskEnd {
        match &ended {
            TaskEnd::Stopped(reason) => telemetry::partition_stopped(&self.control.partition, reason),
            TaskEnd::Release { cooldown } => telemetry::releasing_after_failure(&self.control.partition, *cooldown),
            TaskEnd::Failed(_) => {}
        }
        ended
    }

    async fn open_link(&self, session: &mut PartitionSession<S::Event>) -> StepOutcome {
        if let Err(outcome) = self.prepare_reading(session).await {
            return outcome;
        }
        // The call is inside the future because it may panic before it returns one.
        let opening = async {
            let Control { partition, epoch, .. } = &*self.control;
            let from = session.continuity.delivered.next_position();
            self.shared.source.open_receiver(partition, from, self.shared.config.prefetch, *epoch).await
        };
        let opened = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(&mut session.writing) => return StepOutcome::Stop(reason),
            opened = guard_request(opening) => opened,
        };
        match opened {
            Ok(receiver) => {
                session.link = Some(OpenLink { receiver, opened_at: Instant::now() });
                session.continuity.record_opening();
                session.idle_clock.record_opening();
                StepOutcome::Done
            }
            Err(error) => self.link_failed(error, session).await,
        }
    }

    /// Checks that this instance may read the partition, and that the positions of the session belong to the event hub.
    /// Once a link is open, the record shows this event hub.
    async fn prepare_reading(&self, session: &mut PartitionSession<S::Event>) -> Result<(), StepOutcome> {
        if session.displaced {
            self.confirm_owner(session).await?;
        }
        if self.shared.hub_creation.was_recreated_since(session.hub_created_at) {
            return Err(recreation_error().into());
        }
        if session.shows_former_hub {
            tokio::select! {
                biased;
                reason = self.wait_for_stop_or_fence(&mut session.writing) => return Err(StepOutcome::Stop(reason)),
                recorded = session.checkpoints.record_hub(session.hub_created_at) => recorded?,
            }
            session.shows_former_hub = false;
        }
        Ok(())
    }

    /// Waits before the next attempt, unless the partition is requested to stop.
    async fn wait_for_retry(
        &self,
        duration: Duration,
        session: Option<&mut PartitionSession<S::Event>>,
    ) -> StepOutcome {
        let stopping = async {
            match session {
                Some(session) => self.wait_for_stop_or_fence(&mut session.writing).await,
                None => self.control.wait_for_stop().await,
            }
        };
        tokio::select! {
            biased;
            reason = stopping => StepOutcome::Stop(reason),
            () = sleep(shorten_randomly(duration, self.shared.store.next_random())) => StepOutcome::Done,
        }
    }
}

fn phase_of_step(next: &NextStep) -> PartitionPhase {
    match next {
        NextStep::Adopt => PartitionPhase::Adopting,
        NextStep::Start => PartitionPhase::Starting,
        NextStep::Open => PartitionPhase::Opening,
        NextStep::Run => PartitionPhase::Idle,
        NextStep::Stop(_) | NextStep::End(_) => PartitionPhase::Stopping,
        NextStep::Wait(_) => PartitionPhase::Failing,
        NextStep::Park(_) => PartitionPhase::Parked,
        NextStep::Pause(pause) if pause.parked => PartitionPhase::Parked,
        NextStep::Pause(_) => PartitionPhase::Paused,
    }
}
