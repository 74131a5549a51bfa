//! One call of the handler: its result, its panics, and its time limit.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::balancer::LivenessTracker;
use crate::balancer::reports::BatchGuard;
use crate::clock::wait_until;
use crate::error::Error;
use crate::model::PartitionId;
use crate::processor::handler_errors::{HandlerError, handler_error, panic_error, timeout_error};

/// How long a new link has to deliver the events that wait, before the handler is called without events.
const FIRST_EVENTS: Duration = Duration::from_secs(5);

/// When the handler is called although there are no events.
#[derive(Debug)]
pub(super) struct IdleClock {
    interval: Option<Duration>,
    at: Option<Instant>,
}

impl IdleClock {
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self { interval, at: interval.map(|interval| Instant::now() + interval) }
    }

    /// Records that the handler has been called, or that it could not be.
    pub(super) fn restart(&mut self) {
        *self = Self::new(self.interval);
    }

    /// Records that a link was opened: events that wait come before the call.
    pub(super) fn record_opening(&mut self) {
        self.at = self.at.max(self.interval.map(|interval| Instant::now() + interval.min(FIRST_EVENTS)));
    }

    /// Waits until the call is due.
    pub(super) async fn wait_until_due(&self) {
        wait_until(self.at).await;
    }
}

/// How a call of the application's code ended.
pub(crate) enum CallOutcome<T> {
    Returned(T),
    Panicked(Box<dyn Any + Send>),
}

impl<T> CallOutcome<Result<T, HandlerError>> {
    /// Returns the result of a call with this name. A panic is an error.
    pub(crate) fn into_result(self, call: &str) -> Result<T, Error> {
        match self {
            Self::Returned(Ok(value)) => Ok(value),
            Self::Returned(Err(error)) => Err(handler_error(call, error)),
            Self::Panicked(panic) => Err(panic_error(call, &*panic)),
        }
    }
}

/// A call of the application's code, which may panic: also when it is dropped, at its end or before. Such a panic ends
/// the call, and nothing else.
pub(crate) struct Call<F>(Option<Pin<Box<F>>>);

impl<F> Call<F> {
    pub(crate) fn new(call: F) -> Self {
        Self(Some(Box::pin(call)))
    }

    /// Drops the future. Returns the panic of the drop, if there is one.
    fn drop_future(&mut self) -> std::thread::Result<()> {
        catch_unwind(AssertUnwindSafe(|| drop(self.0.take())))
    }
}

impl<F: Future> Future for Call<F> {
    type Output = CallOutcome<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = &mut self.0 else { return Poll::Pending };
        match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(match self.drop_future() {
                Ok(()) => CallOutcome::Returned(output),
                Err(panic) => CallOutcome::Panicked(panic),
            }),
            Err(panic) => {
                // The first panic counts.
                let _ = self.drop_future();
                Poll::Ready(CallOutcome::Panicked(panic))
            }
        }
    }
}

impl<F> Drop for Call<F> {
    fn drop(&mut self) {
        // A call that is dropped early has failed already, for another reason.
        let _ = self.drop_future();
    }
}

/// Limits the calls of one partition's handler to the handler timeout, and reports calls that take too long. The
/// processing of one batch may consist of several calls, each of which has the full time.
#[derive(Debug)]
pub(crate) struct CallLimit {
    partition: PartitionId,
    liveness: LivenessTracker,
    timeout: Option<Duration>,
}

impl CallLimit {
    pub(crate) fn new(partition: PartitionId, liveness: LivenessTracker, timeout: Option<Duration>) -> Self {
        Self { partition, liveness, timeout }
    }

    /// Begins a call, which ends when the guard is dropped.
    pub(crate) fn begin_call(&self) -> BatchGuard {
        self.liveness.batch_started(&self.partition)
    }

    /// Returns how long one call may take, if that is limited.
    pub(crate) fn call_timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Waits until the last call has taken as long as it may. Returns that time. Never returns without a call.
    pub(crate) async fn wait_for_expiry(&self) -> Duration {
        let Some(timeout) = self.timeout else { return std::future::pending().await };
        while let Some(since) = self.liveness.batch_since(&self.partition) {
            let due = since + timeout;
            if due <= Instant::now() {
                return timeout;
            }
            sleep_until(due).await;
        }
        std::future::pending().await
    }

    /// Runs one call. A panic is an error, and so is a call that takes too long. The name of the call is for the error.
    pub(crate) async fn run_call<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, Error> {
        let _working = self.begin_call();
        tokio::select! {
            biased;
            outcome = Call::new(call) => outcome.into_result(name),
            timeout = self.wait_for_expiry() => Err(timeout_error(name, "handler", timeout)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::timeout;

    use super::*;
    use crate::util::panic_message;

    /// Panics when it is dropped.
    struct Grenade;

    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    fn call<T>(ends: impl Future<Output = T>) -> Call<impl Future<Output = T>> {
        let grenade = Grenade;
        Call::new(async move {
            let ended = ends.await;
            drop(grenade);
            ended
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_at_the_end_of_a_call_is_its_result() {
        let CallOutcome::Panicked(panic) = call(ready(())).await else { panic!("it returned") };
        assert_eq!(panic_message(&*panic), "dropped");
        let canceled = timeout(Duration::from_secs(1), call(pending::<()>())).await;
        assert!(canceled.is_err(), "the panic ends nothing else");
    }
}
