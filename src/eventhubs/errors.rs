//! What the official client's errors mean for the caller's next step.

use std::error::Error as StdError;

use azure_core_amqp::error::{AmqpErrorCondition, AmqpErrorKind};
use azure_core_amqp::{AmqpDescribedError, AmqpError};
use azure_messaging_eventhubs::EventHubsError;
use azure_messaging_eventhubs::error::ErrorKind as ClientErrorKind;

use crate::error::{Error, ErrorKind};

/// Why a request to the hub failed, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    NotFound,
    Unauthorized,
    Displaced,
    Other,
}

/// An error while reading the properties of the hub or of a partition.
pub(super) fn properties(what: &str, error: EventHubsError) -> Error {
    let (kind, hint) = match cause_of(&error) {
        Cause::NotFound => (ErrorKind::Config, ": it does not exist in this namespace"),
        Cause::Unauthorized => (ErrorKind::Unauthorized, ": check the key or the role, which must allow to listen"),
        Cause::Displaced | Cause::Other => (ErrorKind::Source, ""),
    };
    Error::new(kind, format!("the properties of {what} could not be read{hint}")).with_source(error)
}

/// An error while reading events.
pub(super) fn receiving(partition: &str, error: EventHubsError) -> Error {
    let (kind, hint) = match cause_of(&error) {
        Cause::NotFound => (ErrorKind::Config, ": the consumer group or the partition does not exist"),
        Cause::Unauthorized => (ErrorKind::Unauthorized, ": check the key or the role, which must allow to listen"),
        Cause::Displaced => (ErrorKind::Fenced, ": another reader took it"),
        Cause::Other => (ErrorKind::Source, ""),
    };
    Error::new(kind, format!("partition {partition} could not be read{hint}")).with_source(error)
}

/// Looks through all causes, for the client wraps the broker's answer several times.
fn cause_of(error: &EventHubsError) -> Cause {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        let cause = if let Some(error) = error.downcast_ref::<EventHubsError>() {
            cause_of_client(error)
        } else if let Some(error) = error.downcast_ref::<AmqpError>() {
            cause_of_amqp(error)
        } else {
            Cause::Other
        };
        if cause != Cause::Other {
            return cause;
        }
        next = error.source();
    }
    Cause::Other
}

fn cause_of_client(error: &EventHubsError) -> Cause {
    match &error.kind {
        ClientErrorKind::ConsumerDisconnected(_) => Cause::Displaced,
        ClientErrorKind::AmqpError(error) => cause_of_amqp(error),
        _ => Cause::Other,
    }
}

fn cause_of_amqp(error: &AmqpError) -> Cause {
    match error.kind() {
        AmqpErrorKind::AmqpDescribedError(AmqpDescribedError { condition, .. }) => match condition {
            AmqpErrorCondition::NotFound => Cause::NotFound,
            AmqpErrorCondition::UnauthorizedAccess => Cause::Unauthorized,
            AmqpErrorCondition::LinkStolen => Cause::Displaced,
            _ => Cause::Other,
        },
        AmqpErrorKind::ManagementStatusCode(status, _) => match u16::from(*status) {
            404 => Cause::NotFound,
            401 | 403 => Cause::Unauthorized,
            _ => Cause::Other,
        },
        _ => Cause::Other,
    }
}
