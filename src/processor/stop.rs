//! Why a partition stops, and the error type of handlers.

use std::error::Error as StdError;
use std::sync::Arc;

use super::positioned::Positioned;
use crate::error::Error;
use crate::model::OwnerId;

/// The error that a handler returns.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// An error that names the event which cannot be processed. It may be the error that the handler returns, or one of its
/// causes. A tracked event that [fails](super::TrackedEvent::fail) is named, too. See
/// [`DeadLetters`](super::DeadLetters).
///
/// Name an event only if the event itself is the reason. If a database is down, return the error as it is: otherwise
/// events are moved to the dead letters one after the other.
///
/// ```
/// use eventhubs_checkpoint::processor::{EventError, HandlerError, Positioned};
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
#[error("{} could not be processed", named(*sequence_number))]
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

    /// Creates an error that names the event, and says that no further attempt can succeed, for example because the event
    /// has an unknown format. With dead letters, the event is moved at its next delivery.
    pub fn permanent(event: &impl Positioned, error: impl Into<HandlerError>) -> Self {
        Self { permanent: true, ..Self::new(event, error) }
    }

    /// Names an event that failed as a tracked event.
    pub(super) fn of_tracked(sequence_number: Option<i64>, error: impl Into<HandlerError>) -> Self {
        let source = error.into();
        let permanent = source.downcast_ref().or_else(|| cause_of(&*source)).is_some_and(Self::is_permanent);
        Self { sequence_number, permanent, source }
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
#[error("{} was not moved to the dead letters", named(*sequence_number))]
pub(super) struct DeadLetterError {
    sequence_number: Option<i64>,
    source: Error,
}

impl DeadLetterError {
    pub(super) fn new(sequence_number: Option<i64>, source: Error) -> Self {
        Self { sequence_number, source }
    }
}

/// Finds an error of this type among the causes.
pub(super) fn cause_of<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

fn named(event: Option<i64>) -> String {
    event.map_or("an event".to_owned(), |number| format!("event {number}"))
}

/// Why a partition stops. [`Handler::stopped`](super::Handler::stopped) receives it.
#[doc(alias = "CloseReason")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// Another instance owns the partition now, or none does. Checkpoints are no longer accepted.
    OwnershipLost {
        /// The new owner, if it is known.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is running. Checkpoints are no longer accepted.
    Replaced,
    /// The lease could not be renewed in time, and the processor is configured to stop then:
    /// [`OnLeaseExpiry::Stop`](crate::balancer::OnLeaseExpiry::Stop).
    LeaseExpired,
    /// This instance releases the partition: another instance requested it, this instance owns too many, the partition
    /// is not assigned to it, or was removed from the event hub, or the application requested the release.
    /// Checkpoints are still accepted.
    Released,
    /// The processor is shutting down. Checkpoints are still accepted.
    Shutdown,
    /// The handler failed, and [`OnFailure`](super::OnFailure) determines what follows; or the event source failed so
    /// that reopening the receiver does not help, and the partition restarts from its checkpoint. Checkpoints are still
    /// accepted.
    Failed {
        /// The error with its sources.
        error: Arc<Error>,
    },
}
