//! Partitions that stay with this instance and are not delivered: paused by an operator, or parked after a failure.
//! Both are recorded in the checkpoint, so that a restart or a move to another instance does not end them.

use tokio::time::sleep;

use super::machine::StepOutcome;
use super::restart_backoff::LONGEST_WAIT;
use super::task::PartitionTask;
use crate::backoff::CountingBackoff;
use crate::error::{Error, ErrorKind, Result};
use crate::model::Pause;
use crate::processor::handler::Handler;
use crate::source::EventSource;
use crate::store::{AdoptOutcome, Adoption};
use crate::telemetry::{self, Causes};

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Returns the pause that an adopted checkpoint shows, unless it has ended. If the application has resumed a parked
    /// partition, removes the pause. Only an operator can end a pause that an operator set.
    pub(super) async fn check_pause(&self, adoption: &mut Adoption) -> Result<Option<Pause>> {
        let store = &self.shared.store;
        let pause = adoption.record().paused.clone();
        let Some(pause) = pause.filter(|pause| !pause.has_ended(store.server_time())) else { return Ok(None) };
        if !(pause.parked && self.control.is_resumed()) {
            self.control.progress.record_adopted(adoption.record().sequence_number);
            return Ok(Some(pause));
        }
        store.set_pause(adoption, None).await?;
        telemetry::partition_resumed(&self.control.partition);
        Ok(None)
    }

    /// Waits until the pause has ended, the application resumes the partition, or the partition stops.
    pub(super) async fn stay_paused(&self, pause: Pause) -> StepOutcome {
        let Self { shared, control } = self;
        telemetry::partition_paused(&control.partition, &pause);
        let Pause { until, parked, .. } = pause;
        control.progress.set_pause(Some(pause));
        let outcome = tokio::select! {
            biased;
            reason = control.wait_for_final_stop() => StepOutcome::Stop(reason),
            () = control.wait_for_resume(), if parked => StepOutcome::Done,
            () = async {
                match until {
                    Some(until) => sleep((until - shared.store.server_time()).try_into().unwrap_or_default()).await,
                    None => std::future::pending().await,
                }
            } => StepOutcome::Done,
        };
        control.progress.set_pause(None);
        outcome
    }

    /// Records that the partition is paused because the handler failed, and waits. If the storage fails, the partition
    /// still stays parked, as long as this instance owns it. A stop that was requested meanwhile waits for one
    /// attempt, because otherwise the next owner fails at the same event.
    pub(super) async fn park(&self, error: &Error) -> StepOutcome {
        let Self { shared, control } = self;
        let now = shared.store.server_time();
        let pause = Pause::after_failure(now.replace_nanosecond(0).unwrap_or(now), &Causes(error).to_string());
        tokio::select! {
            biased;
            () = control.wait_for_resume() => return StepOutcome::Done,
            recorded = self.record_pause(&pause) => {
                if let Err(lost) = recorded {
                    return lost;
                }
            }
            reason = async {
                sleep(2 * shared.store.request_timeout()).await;
                control.wait_for_final_stop().await
            } => return StepOutcome::Stop(reason),
        }
        self.stay_paused(pause).await
    }

    /// Writes the pause into the checkpoint, until it is written or cannot be. Fails if the partition is lost.
    async fn record_pause(&self, pause: &Pause) -> Result<(), StepOutcome> {
        let Self { shared, control } = self;
        let mut backoff = CountingBackoff::new(shared.config.balancer.load_balancing_interval / 8, LONGEST_WAIT);
        loop {
            let error = match shared.store.adopt(&control.partition, control.epoch, None).await {
                Ok(AdoptOutcome::Lost { by }) => return Err(StepOutcome::Stop(self.read_loss_reason(by).await)),
                Ok(AdoptOutcome::Adopted(mut adoption)) => {
                    match shared.store.set_pause(&mut adoption, Some(pause.clone())).await {
                        Ok(()) => return Ok(()),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            telemetry::pause_not_recorded(&control.partition, &error);
            if !error.may_pass() && error.kind() != ErrorKind::Conflict {
                return Ok(());
            }
            sleep(shared.store.wait_after_error(&error, &mut backoff)).await;
        }
    }
}
