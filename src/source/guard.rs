//! Protects the processor from its event source: a request that does not end, and a panic, are errors of the source.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::util::panic_message;

/// How long the event hub may take to respond to a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the outcome of a request to the event source. A panic and a timeout are errors.
pub(crate) async fn guard_request<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(REQUEST_TIMEOUT, catch_panic(request)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::EventSource, format!("the event hub did not respond within {REQUEST_TIMEOUT:?}")))
    })
}

/// Returns the outcome of a request to the event source. A panic is an error.
pub(super) async fn catch_panic<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(request).catch_unwind().await.unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

/// Does the same for one poll. Results that the poll wrote before the panic remain.
pub(super) fn catch_panic_in<T>(poll: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(poll)).map_err(|panic| panic_error(&*panic))
}

fn panic_error(panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::EventSource, format!("the event source panicked: {}", panic_message(panic)))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// It is not the storage, whose failures have waits of their own.
    #[tokio::test(start_paused = true)]
    async fn a_silent_event_hub_is_a_failure_of_the_source() {
        let error = guard_request(pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EventSource);
    }
}
