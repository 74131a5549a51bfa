//! Panics of an event source, which the processor handles as errors of the source, and the messages of all panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::FutureExt;

use crate::error::{Error, ErrorKind, Result};

/// Returns the outcome of a request. A panic is an error.
pub(crate) async fn caught<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(request).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Does the same for one poll. Results that the poll wrote before the panic remain.
pub(crate) fn caught_in<T>(poll: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(poll)).map_err(|panic| panicked(&*panic))
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::EventSource, format!("the event source panicked: {}", message_of(panic)))
}

/// Returns the message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("no message")
}
