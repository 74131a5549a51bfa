//! Runs one partition in one task, from its win to its loss. The [`Machine`] decides what to do next; this module does
//! it.

pub(in crate::processor) mod attempts;
mod begin;
mod calls;
pub(in crate::processor) mod control;
mod deliver;
pub(in crate::processor) mod delivery;
pub(in crate::processor) mod handler_call;
mod machine;
pub(in crate::processor) mod orders;
pub(in crate::processor) mod registry;
pub(in crate::processor) mod restart_backoff;
pub(in crate::processor) mod stall_detector;
mod task;
mod undecodable;
mod unvalidated;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep};

use self::machine::{Happened, Machine, Next};
use super::config::OnFailure;
use super::handler::Handler;
use super::jitter::jittered;
use super::monitoring::status::Phase;
use super::partition::handler_call::{HANDLER, panicked};
use super::partition::restart_backoff::RestartBackoff;
use super::start::hub_creation::recreated;
use super::start::invalid::ResumeFailure;
use crate::error::{Error, ErrorKind};
use crate::source::{EventSource, caught_request};
use crate::telemetry;

pub(in crate::processor) use self::machine::Ended;
pub(in crate::processor) use self::task::PartitionTask;
use self::task::{Link, Session};

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Runs until the partition stops. Restarts it after failures as the policy says.
    pub(super) async fn run(self) -> Ended {
        let (mut machine, mut next) =
            Machine::new(self.shared.config.on_failure, self.shared.config.balancer.load_balancing_interval);
        let mut session = None;
        let mut resume_failure = None;
        loop {
            self.control.progress.enter(phase(&next));
            if let Next::End(ended) = next {
                return self.ended(ended);
            }
            let performing = self.perform(next, &mut session, &mut resume_failure, &mut machine.backoff);
            let happened = match AssertUnwindSafe(performing).catch_unwind().await {
                Ok(happened) => happened,
                Err(panic) => self.panicked(&*panic, session.as_ref(), &mut machine.backoff),
            };
            if let (Happened::Failed(error), Some(session)) = (&happened, &session)
                && error.kind() == ErrorKind::InvalidPosition
            {
                resume_failure = session.resume_failure(&self.shared.hub_creation);
            }
            next = self.step(&mut machine, happened);
        }
    }

    /// Performs a step, except the end.
    async fn perform(
        &self,
        next: Next,
        session: &mut Option<Session<S::Event>>,
        resume_failure: &mut Option<ResumeFailure>,
        backoff: &mut RestartBackoff,
    ) -> Happened {
        match (next, session.as_mut()) {
            (Next::Adopt, _) => match self.begin(resume_failure.as_ref()).await {
                Ok(adopted) => {
                    backoff.starts(adopted.writer.reached(), adopted.context.started_elsewhere.is_some());
                    *session = Some(adopted);
                    *resume_failure = None;
                    Happened::Done
                }
                Err(happened) => happened,
            },
            (Next::Wait(wait), session) => self.wait(wait, session).await,
            (Next::Park, _) => self.park().await,
            (Next::Start, Some(session)) => self.start(session).await,
            (Next::Open, Some(session)) => self.open(session).await,
            (Next::Run, Some(session)) => self.deliver(session, backoff).await,
            (Next::Stop(reason), _) => {
                if let Some(session) = session.take() {
                    self.stop(session, reason).await;
                }
                Happened::Done
            }
            (Next::Start | Next::Open | Next::Run | Next::End(_), _) => {
                let message = "internal error: unexpected partition state";
                Error::new(ErrorKind::Internal, message).into()
            }
        }
    }

    /// A panic outside of the calls of the handler comes from what the application gave to this crate, such as the
    /// [`Positioned`](crate::source::Positioned) of an event. It is a failure of the handler, so that `stopped` is called. It is not
    /// counted as a failed attempt, because the last call may have handled an earlier batch.
    fn panicked(
        &self,
        panic: &(dyn Any + Send),
        session: Option<&Session<S::Event>>,
        backoff: &mut RestartBackoff,
    ) -> Happened {
        self.batch_failed(session, backoff);
        Happened::HandlerFailed(Arc::new(panicked(HANDLER, panic)))
    }

    /// Reports failures, and returns what follows.
    fn step(&self, machine: &mut Machine, happened: Happened) -> Next {
        let (partition, progress) = (&self.control.partition, &self.control.progress);
        match happened {
            Happened::Failed(error) => {
                progress.failed(&error);
                let next = machine.step(Happened::Failed(Arc::clone(&error)));
                self.shared.store.telemetry().partition_failed(partition, &error, next.wait());
                self.report_failure(&error);
                next
            }
            Happened::HandlerFailed(error) => {
                progress.failed(&error);
                self.control.expects_resume();
                self.control.metrics.handler_failed();
                let policy = &self.shared.config.on_failure;
                let batch = progress.take_batch();
                telemetry::handler_failed(partition, batch, &error, policy, matches!(policy, OnFailure::Park));
                self.report_failure(&error);
                machine.step(Happened::HandlerFailed(error))
            }
            other => machine.step(other),
        }
    }

    fn ended(&self, ended: Ended) -> Ended {
        match &ended {
            Ended::Stopped(reason) => telemetry::partition_stopped(&self.control.partition, reason),
            Ended::Release { cooldown } => telemetry::releasing_after_failure(&self.control.partition, *cooldown),
            Ended::Failed(_) => {}
        }
        ended
    }

    async fn open(&self, session: &mut Session<S::Event>) -> Happened {
        if session.displaced
            && let Err(happened) = self.confirm_owner(session).await
        {
            return happened;
        }
        if self.shared.hub_creation.is_other_than(session.hub_created_at) {
            return Happened::Failed(Arc::new(recreated()));
        }
        if session.shows_former_hub {
            let recorded = tokio::select! {
                biased;
                reason = self.stopping_or_fenced(&mut session.writing) => return Happened::Stop(reason),
                recorded = session.writer.record_hub(session.hub_created_at) => recorded,
            };
            match recorded {
                Ok(()) => session.shows_former_hub = false,
                Err(error) => return Happened::Failed(Arc::new(error)),
            }
        }
        // The call is inside the future because it may panic before it returns one.
        let opening = async {
            let (partition, from) = (&self.control.partition, session.delivered.next());
            self.shared.source.open_receiver(partition, from, self.shared.config.prefetch, self.control.epoch).await
        };
        let opened = tokio::select! {
            biased;
            reason = self.stopping_or_fenced(&mut session.writing) => return Happened::Stop(reason),
            opened = caught_request(opening) => opened,
        };
        match opened {
            Ok(receiver) => {
                let opened_at = Instant::now();
                session.link = Some(Link { receiver, opened_at });
                session.stall_detector.opened(&session.delivered.next());
                session.delivered.opened();
                Happened::Done
            }
            Err(error) => self.link_failed(error, session).await,
        }
    }

    /// Waits before the next attempt, unless the partition is requested to stop.
    async fn wait(&self, duration: Duration, session: Option<&mut Session<S::Event>>) -> Happened {
        let stopping = async {
            match session {
                Some(session) => self.stopping_or_fenced(&mut session.writing).await,
                None => self.control.stopping().await,
            }
        };
        tokio::select! {
            biased;
            reason = stopping => Happened::Stop(reason),
            () = sleep(jittered(duration, self.shared.store.random())) => Happened::Done,
        }
    }

    async fn park(&self) -> Happened {
        tokio::select! {
            biased;
            reason = self.control.stopping() => Happened::Stop(reason),
            () = self.control.resumed() => Happened::Done,
        }
    }
}

fn phase(next: &Next) -> Phase {
    match next {
        Next::Adopt => Phase::Adopting,
        Next::Start => Phase::Starting,
        Next::Open => Phase::Opening,
        Next::Run => Phase::Idle,
        Next::Stop(_) | Next::End(_) => Phase::Stopping,
        Next::Wait(_) => Phase::Failing,
        Next::Park => Phase::Parked,
    }
}
