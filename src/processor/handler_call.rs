//! One call of the handler: its result, and its time limit.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::panics::message_of;
use super::stop::HandlerError;
use crate::balancer::{BatchGuard, LivenessTracker};
use crate::error::{Error, ErrorKind};
use crate::lock::lock;
use crate::model::PartitionId;

/// The name of `handle` in errors.
pub(super) const HANDLER: &str = "the handler";

pub(super) type Panic = Box<dyn Any + Send>;

/// Limits the calls of one partition's handler to the handler timeout, and reports calls that take too long. The
/// processing of one batch may consist of several calls, each of which has the full time.
#[derive(Debug)]
pub(super) struct CallLimit {
    partition: PartitionId,
    liveness: LivenessTracker,
    timeout: Option<Duration>,
    /// The beginning of the last call.
    began: Mutex<Instant>,
}

impl CallLimit {
    pub(super) fn new(partition: PartitionId, liveness: LivenessTracker, timeout: Option<Duration>) -> Self {
        Self { partition, liveness, timeout, began: Mutex::new(Instant::now()) }
    }

    /// Begins a call, which ends when the guard is dropped.
    pub(super) fn begin(&self) -> BatchGuard {
        *lock(&self.began) = Instant::now();
        self.liveness.batch_started(&self.partition)
    }

    /// Waits until the last call has taken as long as it may. Returns that time.
    pub(super) async fn expired(&self) -> Duration {
        let Some(timeout) = self.timeout else { return std::future::pending().await };
        loop {
            let due = *lock(&self.began) + timeout;
            if due <= Instant::now() {
                return timeout;
            }
            sleep_until(due).await;
        }
    }

    /// Runs one call. A panic is an error, and so is a call that takes too long. The name of the call is for the error.
    pub(super) async fn call<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, Error> {
        let _working = self.begin();
        tokio::select! {
            biased;
            result = AssertUnwindSafe(call).catch_unwind() => result_of(name, result),
            timeout = self.expired() => Err(out_of_time(name, "handler", timeout)),
        }
    }
}

pub(super) fn result_of<T>(call: &str, result: Result<Result<T, HandlerError>, Panic>) -> Result<T, Error> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::new(ErrorKind::Handler, format!("{call} failed")).with_source(error)),
        Err(panic) => Err(panicked(call, &*panic)),
    }
}

pub(super) fn out_of_time(call: &str, limit: &str, timeout: Duration) -> Error {
    Error::new(ErrorKind::Handler, format!("{call} did not finish within the {limit} timeout of {timeout:?}"))
}

pub(super) fn panicked(call: &str, panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Handler, format!("{call} panicked: {}", message_of(panic)))
}
