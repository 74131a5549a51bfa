//! Why a partition stops, and the error type of handlers.

use std::error::Error as StdError;
use std::sync::Arc;

use super::positioned::Positioned;
use crate::error::Error;
use crate::model::OwnerId;

/// The error that a handler returns.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// An error that names the event which cannot be processed. A handler that returns it needs no isolation of the event;
/// see [`DeadLetters`](super::DeadLetters). A tracked event that [fails](super::TrackedEvent::fail) is named, too.
///
/// ```
/// use eventhubs_checkpoint::processor::{EventError, HandlerError, Positioned};
///
/// fn process<E: Positioned>(event: &E) -> Result<(), HandlerError> {
///     # fn parse<E>(_: &E) -> Result<(), std::num::ParseIntError> { Ok(()) }
///     parse(event).map_err(|error| EventError::new(event, error))?;
///     Ok(())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{} could not be processed", named(*sequence_number))]
pub struct EventError {
    sequence_number: Option<i64>,
    tracked: bool,
    source: HandlerError,
}

fn named(event: Option<i64>) -> String {
    event.map_or("an event".to_owned(), |number| format!("event {number}"))
}

impl EventError {
    /// Creates an error that names the event.
    pub fn new(event: &impl Positioned, error: impl Into<HandlerError>) -> Self {
        Self { sequence_number: event.sequence_number(), tracked: false, source: error.into() }
    }

    /// Names an event that failed as a tracked event.
    pub(super) fn of_tracked(sequence_number: Option<i64>, error: impl Into<HandlerError>) -> Self {
        Self { sequence_number, tracked: true, source: error.into() }
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// Returns the sequence number of the event, if it has one.
    #[must_use]
    pub fn sequence_number(&self) -> Option<i64> {
        self.sequence_number
    }
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
    /// is not assigned to it, was removed from the event hub, or is stalled, or the application requested the release.
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
