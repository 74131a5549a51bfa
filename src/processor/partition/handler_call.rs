//! One call of the handler: its result, its panics, and its time limit.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::balancer::{BatchGuard, LivenessTracker};
use crate::error::{Error, ErrorKind};
use crate::model::PartitionId;
use crate::panics::message_of;
use crate::processor::shutdown::stop::HandlerError;
use crate::telemetry::Causes;

/// The name of `handle` in errors.
pub(crate) const HANDLER: &str = "the handler";

pub(crate) type Panic = Box<dyn Any + Send>;

/// A call of the application's code, which may panic: also when it is dropped, at its end or before. Such a panic ends the
/// call, and nothing else.
pub(crate) struct Call<F>(Option<Pin<Box<F>>>);

impl<F> Call<F> {
    pub(crate) fn new(call: F) -> Self {
        Self(Some(Box::pin(call)))
    }

    fn end(&mut self) -> Result<(), Panic> {
        catch_unwind(AssertUnwindSafe(|| drop(self.0.take())))
    }
}

impl<F: Future> Future for Call<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = &mut self.0 else { return Poll::Pending };
        match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(self.end().map(|()| output)),
            Err(panic) => {
                // The first panic counts.
                let _ = self.end();
                Poll::Ready(Err(panic))
            }
        }
    }
}

impl<F> Drop for Call<F> {
    fn drop(&mut self) {
        // A call that is dropped early has failed already, for another reason.
        let _ = self.end();
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
    pub(crate) fn begin(&self) -> BatchGuard {
        self.liveness.batch_started(&self.partition)
    }

    /// Waits until the last call has taken as long as it may. Returns that time. Never returns without a call.
    pub(crate) async fn expired(&self) -> Duration {
        let Some(timeout) = self.timeout else { return std::future::pending().await };
        while let Some(since) = self.liveness.since(&self.partition) {
            let due = since + timeout;
            if due <= Instant::now() {
                return timeout;
            }
            sleep_until(due).await;
        }
        std::future::pending().await
    }

    /// Runs one call. A panic is an error, and so is a call that takes too long. The name of the call is for the error.
    pub(crate) async fn call<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, Error> {
        let _working = self.begin();
        tokio::select! {
            biased;
            result = Call::new(call) => result_of(name, result),
            timeout = self.expired() => Err(out_of_time(name, "handler", timeout)),
        }
    }
}

pub(crate) fn result_of<T>(call: &str, result: Result<Result<T, HandlerError>, Panic>) -> Result<T, Error> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failed(call, error)),
        Err(panic) => Err(panicked(call, &*panic)),
    }
}

/// Returns the error of a call. The application's error is formatted once, because it will be where a panic of its
/// `Display` would do harm.
pub(crate) fn failed(call: &str, error: HandlerError) -> Error {
    match catch_unwind(AssertUnwindSafe(|| Causes(&*error).to_string())) {
        Ok(_) => Error::new(ErrorKind::Handler, format!("{call} failed")).with_source(error),
        Err(panic) => panicked(&format!("the error of {call}"), &*panic),
    }
}

pub(crate) fn out_of_time(call: &str, limit: &str, timeout: Duration) -> Error {
    Error::new(ErrorKind::Handler, format!("{call} did not finish within the {limit} timeout of {timeout:?}"))
}

pub(crate) fn panicked(call: &str, panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Handler, format!("{call} panicked: {}", message_of(panic)))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::timeout;

    use super::*;

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
        assert_eq!(message_of(&*call(ready(())).await.unwrap_err()), "dropped");
        let canceled = timeout(Duration::from_secs(1), call(pending::<()>())).await;
        assert!(canceled.is_err(), "the panic ends nothing else");
    }
}
