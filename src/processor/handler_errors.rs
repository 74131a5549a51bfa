//! The errors of handlers: which event they name, and what a call that failed, hung or panicked is reported as.

use std::any::Any;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error::{Error, ErrorKind, cause_of};
use crate::source::Positioned;
use crate::telemetry::Causes;
use crate::util::panic_message;

/// The error that a handler returns.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// An error that names the event which cannot be processed. It may be the error that the handler returns, or one of its
/// causes. A tracked event that [fails](crate::processor::TrackedEvent::fail) is named, too. See
/// [`ProcessorBuilder::with_dead_letters`](crate::processor::ProcessorBuilder::with_dead_letters).
///
/// Name an event only if the event itself is the reason. If a database is down, return the error as it is: otherwise
/// an outage moves event after event to the dead letters.
///
/// ```
/// use eventhubs_checkpoint::processor::{EventError, HandlerError};
/// use eventhubs_checkpoint::source::Positioned;
///
/// # fn parse<E>(_: &E) -> Result<i32, std::num::ParseIntError> { Ok(1) }
/// # fn store(_: i32) -> Result<(), std::io::Error> { Ok(()) }
/// fn process<E: Positioned>(event: &E) -> Result<(), HandlerError> {
///     let order = parse(event).map_err(|error| EventError::permanent(event, error))?;
///     store(order)?;
///     Ok(())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{} could not be processed", name_event(*sequence_number))]
pub struct EventError {
    sequence_number: Option<i64>,
    permanent: bool,
    source: HandlerError,
}

impl EventError {
    /// Creates an error that names the event. The event is attempted again.
    pub fn new(event: &impl Positioned, error: impl Into<HandlerError>) -> Self {
        Self { sequence_number: event.sequence_number(), permanent: false, source: error.into() }
    }

    /// Creates an error that names the event, and says that no further attempt can succeed, for example because the
    /// event has an unknown format. With dead letters, [`each_event`](crate::processor::each_event) moves the event at
    /// once; for a handler of batches, the partition restarts first. Such a handler should instead call
    /// [`PartitionContext::dead_letter`](crate::processor::PartitionContext::dead_letter), which restarts nothing.
    pub fn permanent(event: &impl Positioned, error: impl Into<HandlerError>) -> Self {
        Self { permanent: true, ..Self::new(event, error) }
    }

    /// Names an event that failed as a tracked event.
    pub(crate) fn for_tracked_event(sequence_number: Option<i64>, error: impl Into<HandlerError>) -> Self {
        let source = error.into();
        Self {
            sequence_number,
            permanent: source.downcast_ref().or_else(|| cause_of(&*source)).is_some_and(Self::is_permanent),
            source,
        }
    }

    /// Returns the sequence number of the event, if it has one.
    #[must_use]
    pub fn sequence_number(&self) -> Option<i64> {
        self.sequence_number
    }

    /// Returns whether no further attempt can succeed.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }
}

/// An event was not moved to the dead letters.
#[derive(Debug, thiserror::Error)]
#[error("{} was not moved to the dead letters", name_event(*sequence_number))]
pub(crate) struct DeadLetterError {
    sequence_number: Option<i64>,
    source: Error,
}

impl DeadLetterError {
    pub(crate) fn new(sequence_number: Option<i64>, source: Error) -> Self {
        Self { sequence_number, source }
    }
}

fn name_event(event: Option<i64>) -> String {
    event.map_or("an event".to_owned(), |number| format!("event {number}"))
}

/// The partition stopped before the batch, or the rest of it, was begun: no code has processed it, and none has failed.
#[derive(Debug, thiserror::Error)]
#[error("the partition stopped before the batch was begun")]
pub(crate) struct NotBegun;

/// Why an event was not skipped. It says nothing about the events that the handler got.
#[derive(Debug, thiserror::Error)]
#[error("event {sequence_number} cannot be decoded, and was not skipped")]
pub(crate) struct NotSkipped {
    sequence_number: i64,
    source: Error,
}

/// Returns the error of a handler that did not allow an event to be skipped.
pub(crate) fn skip_refusal(sequence_number: i64, source: Error) -> Error {
    Error::new(ErrorKind::Handler, format!("the handler did not allow event {sequence_number} to be skipped"))
        .with_source(NotSkipped { sequence_number, source })
}

/// The name of `handle` in errors.
pub(crate) const HANDLER: &str = "the handler";
pub(crate) const DEAD_LETTER_SINK: &str = "the dead-letter sink";

/// Returns the error of a call that returned one. Formats it once here, where a panic of its `Display` does no harm.
pub(crate) fn handler_error(call: &str, error: HandlerError) -> Error {
    match catch_unwind(AssertUnwindSafe(|| Causes(&*error).to_string())) {
        Ok(_) => Error::new(ErrorKind::Handler, format!("{call} failed")).with_source(error),
        Err(panic) => panic_error(&format!("the error of {call}"), &*panic),
    }
}

pub(crate) fn timeout_error(call: &str, limit: &str, timeout: Duration) -> Error {
    Error::new(ErrorKind::Handler, format!("{call} did not finish within the {limit} timeout of {timeout:?}"))
}

pub(crate) fn panic_error(call: &str, panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Handler, format!("{call} panicked: {}", panic_message(panic)))
}
