//! Why a partition stops, and the errors of handlers.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::balancer::ReleaseReason;
use crate::error::{Error, ErrorKind, cause_of};
use crate::model::{OwnerId, PartitionId};
use crate::source::Positioned;

/// The error that a handler returns.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// An error that names the event which cannot be processed. It may be the error that the handler returns, or one of its
/// causes. A tracked event that [fails](crate::processor::TrackedEvent::fail) is named, too. See
/// [`DeadLetters`](crate::processor::DeadLetters).
///
/// Name an event only if the event itself is the reason. If a database is down, return the error as it is: otherwise
/// events are moved to the dead letters one after the other.
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

    /// Creates an error that names the event, and says that no further attempt can succeed, for example because the event
    /// has an unknown format. With dead letters, the event is moved at its next delivery.
    pub fn permanent(event: &impl Positioned, error: impl Into<HandlerError>) -> Self {
        Self { permanent: true, ..Self::new(event, error) }
    }

    /// Names an event that failed as a tracked event.
    pub(crate) fn for_tracked_event(sequence_number: Option<i64>, error: impl Into<HandlerError>) -> Self {
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

/// The partition stopped before its stream took the batch: no code has processed it, and none has failed.
#[derive(Debug, thiserror::Error)]
#[error("the partition stopped before its stream took the batch")]
pub(crate) struct NotTaken;

fn name_event(event: Option<i64>) -> String {
    event.map_or("an event".to_owned(), |number| format!("event {number}"))
}

/// Adds to the error of the source which event it is, and what helps.
pub(crate) fn explain_undecodable(partition: &PartitionId, number: Option<i64>, error: Error) -> Error {
    let message = match number {
        Some(number) => format!(
            "cannot decode event {number} of partition {partition}: `OnUndecodable::Skip` skips such events, and \
             `ehcp reset -p {partition} --to-sequence {number} --live --execute` skips this one"
        ),
        None => format!(
            "cannot decode the next event of partition {partition}, whose sequence number is not known: reset the \
             partition to a sequence number"
        ),
    };
    Error::new(ErrorKind::Undecodable, message).with_source(error)
}

/// Why an event was not skipped. It says nothing about the events that the handler got.
#[derive(Debug, thiserror::Error)]
#[error("event {sequence_number} cannot be decoded, and was not skipped")]
pub(crate) struct NotSkipped {
    sequence_number: i64,
    source: Error,
}

/// The error of a handler that did not allow an event to be skipped.
pub(crate) fn skip_refusal(sequence_number: i64, source: Error) -> Error {
    let message = format!("the handler did not allow event {sequence_number} to be skipped");
    Error::new(ErrorKind::Handler, message).with_source(NotSkipped { sequence_number, source })
}

/// Why a partition stops. [`Handler::stopped`](crate::processor::Handler::stopped) receives it.
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
    /// This instance releases the partition. Checkpoints are still accepted.
    Released {
        /// Why. After [`HandedOver`](ReleaseReason::HandedOver), [`NotAssigned`](ReleaseReason::NotAssigned) and
        /// [`OverLimit`](ReleaseReason::OverLimit) another instance goes on with the partition, so state that a handler
        /// keeps for it is of no use anymore. After [`Requested`](ReleaseReason::Requested) the partition may come back
        /// once the cooldown is over. After [`PartitionRemoved`](ReleaseReason::PartitionRemoved) no instance processes it.
        reason: ReleaseReason,
    },
    /// The processor is shutting down. Checkpoints are still accepted.
    Shutdown,
    /// The handler failed, and [`OnFailure`](crate::processor::OnFailure) determines what follows; or the event source failed so
    /// that reopening the receiver does not help, and the partition restarts from its checkpoint. Checkpoints are still
    /// accepted.
    Failed {
        /// The error with its sources.
        error: Arc<Error>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{undecodable, undecodable_number};

    #[test]
    fn the_error_names_the_event_and_the_remedy() {
        let error = undecodable(Some(42), "a list");
        let named = explain_undecodable(&3.into(), Some(42), error);
        assert_eq!((named.kind(), undecodable_number(&named)), (ErrorKind::Undecodable, Some(42)));
        let message = named.to_string();
        for part in
            ["event 42", "partition 3", "OnUndecodable::Skip", "ehcp reset -p 3 --to-sequence 42 --live --execute"]
        {
            assert!(message.contains(part), "{part} is missing: {message}");
        }
    }
}
