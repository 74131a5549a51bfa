//! Partitions that stay with this instance and are not delivered: paused by an operator, or parked after a failure. Both
//! are recorded in the checkpoint, so that a restart or a move to another instance does not end them.

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
    /// Returns the pause that an adopted checkpoint shows, unless it has ended. If the application has resumed the
    /// partition, removes the pause.
    pub(super) async fn check_pause(&self, adoption: &mut Adoption) -> Result<Option<Pause>> {
        let store = &self.shared.store;
        let pause = adoption.record().paused.clone();
        let Some(pause) = pause.filter(|pause| !pause.has_ended(store.server_time())) else { return Ok(None) };
        if !self.control.is_resumed() {
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
        let until = pause.until;
        control.progress.set_pause(Some(pause));
        let ended = async {
            match until {
                Some(until) => sleep((until - shared.store.server_time()).try_into().unwrap_or_default()).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            reason = control.wait_for_stop() => StepOutcome::Stop(reason),
            () = control.wait_for_resume() => StepOutcome::Done,
            () = ended => StepOutcome::Done,
        };
        control.progress.set_pause(None);
        outcome
    }

    /// Records that the partition is paused because the handler failed, and waits. If the storage fails, the partition
    /// stays parked all the same, as long as this instance owns it.
    pub(super) async fn park(&self, error: &Error) -> StepOutcome {
        let Self { shared, control } = self;
        let now = shared.store.server_time();
        let pause = Pause::after_failure(now.replace_nanosecond(0).unwrap_or(now), &Causes(error).to_string());
        let recorded = tokio::select! {
            biased;
            reason = control.wait_for_stop() => return StepOutcome::Stop(reason),
            () = control.wait_for_resume() => return StepOutcome::Done,
            recorded = self.record_pause(&pause) => recorded,
        };
        match recorded {
            Ok(()) => self.stay_paused(pause).await,
            Err(lost) => lost,
        }
    }

    /// Writes the pause into the checkpoint, until it is written or cannot be. Fails if the partition is lost.
    async fn record_pause(&self, pause: &Pause) -> Result<(), StepOutcome> {
        let Self { shared, control } = self;
        let mut backoff = CountingBackoff::new(shared.config.balancer.load_balancing_interval / 8, LONGEST_WAIT);
        loop {
            let adopted = shared.store.adopt(&control.partition, control.epoch, None).await;
            let error = match adopted {
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
            if error.kind() == ErrorKind::NotFound {
                return Ok(());
            }
            sleep(shared.store.wait_after_error(&error, &mut backoff)).await;
        }
    }
}
