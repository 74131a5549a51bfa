//! Maps errors of the official client to error kinds.

use std::error::Error as StdError;
use std::time::Duration;

use azure_core_amqp::error::{AmqpErrorCondition, AmqpErrorKind};
use azure_core_amqp::{AmqpDescribedError, AmqpError};
use azure_messaging_eventhubs::EventHubsError;
use azure_messaging_eventhubs::error::ErrorKind as ClientErrorKind;

use super::source::connection_health::ConnectionOutcome;
use crate::error::{Error, ErrorKind};
use crate::source::undecodable;

/// The cause of a failed request to the event hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The event hub, the consumer group or the partition does not exist.
    NotFound,
    /// The service did not find something and does not report what. It also responds so if its internal communication
    /// is interrupted.
    NotFoundNow,
    Unauthorized,
    Displaced,
    InvalidPosition,
    /// The client cannot decode an event.
    Undecodable,
    /// The service rejects the request because there are too many.
    Busy,
    Other,
}

/// The response of a namespace with geo-replication to an offset from before it was enabled. The official Go client
/// handles it, too: `ErrCondGeoReplicationOffset` of `azeventhubs`.
const GEO_REPLICATION_OFFSET: &str = "com.microsoft:georeplication:invalid-offset";

const MISSING: &str = ": the consumer group or the partition does not exist";

const NOT_FOUND_NOW: &str = ": the service returned \"not found\" without saying what is missing";

const MAY_NOT_LISTEN: &str =
    ": check that the key or role grants Listen, that the key was not replaced, and that the token has not expired";

const MAY_NOT_SEND: &str =
    ": check that the key or role grants Send, that the key was not replaced, and that the token has not expired";

/// How long to wait for a busy service: its responses ask for this in their text.
const BUSY_WAIT: Duration = Duration::from_secs(4);

/// The error of a connection string that cannot be parsed. It shows no part of it, because that may be the key.
pub(super) const INVALID_CONNECTION_STRING: &str = "invalid connection string of the event hub: it must look like \
     Endpoint=sb://NAMESPACE/;SharedAccessKeyName=NAME;SharedAccessKey=KEY, optionally followed by ;EntityPath=HUB";

/// Returns the error for a failed read of the properties of the event hub or of a partition.
pub(super) fn properties_error(what: &str, error: EventHubsError) -> Error {
    let (kind, hint) = match service_cause(&error) {
        Cause::Busy => (
            ErrorKind::Throttled { retry_after: Some(BUSY_WAIT) },
            ": the service is busy; it admits 50 such requests per second",
        ),
        Cause::NotFound => (ErrorKind::Config, ": it does not exist in this namespace"),
        Cause::NotFoundNow => (ErrorKind::EventSource, NOT_FOUND_NOW),
        Cause::Unauthorized => (ErrorKind::Unauthorized, MAY_NOT_LISTEN),
        Cause::Displaced | Cause::InvalidPosition | Cause::Undecodable | Cause::Other => (ErrorKind::EventSource, ""),
    };
    Error::new(kind, format!("cannot read the properties of {what}{hint}")).with_source(error)
}

/// Returns the error for a failed read of events. `position` is the offset or sequence number at which the link was
/// opened, as long as no event has arrived through it; after that the broker cannot mean that position.
pub(super) fn receive_error(partition: &str, position: Option<&str>, error: EventHubsError) -> Error {
    let (kind, hint) = match (service_cause(&error), position) {
        (Cause::InvalidPosition, Some(position)) => {
            return Error::new(
                ErrorKind::InvalidPosition,
                format!("cannot read partition {partition} after {position}: the broker rejects the position"),
            )
            .with_source(error);
        }
        // The event is the next one, but the client does not report its number.
        (Cause::Undecodable, _) => return undecodable(None, error),
        (Cause::NotFound, _) => (ErrorKind::Config, MISSING),
        (Cause::NotFoundNow, _) => (ErrorKind::EventSource, NOT_FOUND_NOW),
        (Cause::Unauthorized, _) => (ErrorKind::Unauthorized, MAY_NOT_LISTEN),
        (Cause::Displaced, _) => (ErrorKind::Fenced, ": another reader took it or has a higher owner level"),
        (Cause::InvalidPosition | Cause::Busy | Cause::Other, _) => (ErrorKind::EventSource, ""),
    };
    Error::new(kind, format!("cannot read partition {partition}{hint}")).with_source(error)
}

/// Returns the error that ends the start of a processor, if `error` does. If the service does not find something before
/// anything was read, a setting is probably wrong, so the text does not matter here.
pub(super) fn missing_partition_error(partition: &str, error: EventHubsError) -> Option<Error> {
    if !matches!(service_cause(&error), Cause::NotFound | Cause::NotFoundNow) {
        return None;
    }
    Some(Error::config(format!("cannot read partition {partition}{MISSING}")).with_source(error))
}

/// Returns the error for a failed send.
pub(super) fn send_error(what: &str, error: EventHubsError) -> Error {
    let (kind, hint) = match service_cause(&error) {
        Cause::NotFound => (ErrorKind::Config, ": it does not exist in this namespace"),
        Cause::NotFoundNow => (ErrorKind::EventSource, NOT_FOUND_NOW),
        Cause::Unauthorized => (ErrorKind::Unauthorized, MAY_NOT_SEND),
        Cause::Displaced | Cause::InvalidPosition | Cause::Undecodable | Cause::Busy | Cause::Other => {
            (ErrorKind::EventSource, "")
        }
    };
    Error::new(kind, format!("cannot send to {what}{hint}")).with_source(error)
}

/// Returns what a failure shows about the connection.
pub(super) fn connection_outcome(error: &EventHubsError) -> ConnectionOutcome {
    match service_cause(error) {
        Cause::NotFound | Cause::Displaced | Cause::InvalidPosition | Cause::Undecodable | Cause::Busy => {
            ConnectionOutcome::Responded
        }
        Cause::Unauthorized => ConnectionOutcome::Unauthorized,
        // Possibly because the service's own connection is interrupted.
        Cause::NotFoundNow => ConnectionOutcome::Failed,
        // The response to another request, which the next request would get, too.
        Cause::Other if matches!(error.kind, ClientErrorKind::InvalidManagementResponse) => ConnectionOutcome::Broken,
        Cause::Other => amqp_errors(error).find_map(outcome_of_amqp).unwrap_or(ConnectionOutcome::Failed),
    }
}

fn service_cause(error: &EventHubsError) -> Cause {
    if matches!(error.kind, ClientErrorKind::ConsumerDisconnected(_)) {
        return Cause::Displaced;
    }
    amqp_errors(error).map(cause_of_amqp).find(|cause| *cause != Cause::Other).unwrap_or(Cause::Other)
}

/// Returns all AMQP errors of the chain, because the client wraps the broker's response several times.
fn amqp_errors(error: &EventHubsError) -> impl Iterator<Item = &AmqpError> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |error| (*error).source())
        .filter_map(|error| error.downcast_ref())
}

/// Returns what an error without a known cause shows, or `None` if it only wraps another one.
fn outcome_of_amqp(error: &AmqpError) -> Option<ConnectionOutcome> {
    use AmqpErrorKind as K;
    match error.kind() {
        K::AzureCore(_) => None,
        K::AmqpDescribedError(response) => match response.condition {
            AmqpErrorCondition::ConnectionForced | AmqpErrorCondition::ConnectionFramingError => {
                Some(ConnectionOutcome::Broken)
            }
            _ => Some(ConnectionOutcome::Responded),
        },
        K::ManagementStatusCode(..) | K::SendRejected => Some(ConnectionOutcome::Responded),
        K::ConnectionClosedByRemote(_)
        | K::ConnectionDetachedByRemote(_)
        | K::ConnectionDropped(_)
        | K::FramingError(_)
        | K::IdleTimeoutElapsed(_)
        | K::SessionClosedByRemote(_)
        | K::SessionDetachedByRemote(_) => Some(ConnectionOutcome::Broken),
        // An error of the client after links that failed immediately. Its type is not public.
        K::TransportImplementationError(error) if error.to_string().contains("Link name is not unique") => {
            Some(ConnectionOutcome::Broken)
        }
        _ => Some(ConnectionOutcome::Failed),
    }
}

fn cause_of_amqp(error: &AmqpError) -> Cause {
    match error.kind() {
        AmqpErrorKind::AmqpDescribedError(response) => cause_of_response(response),
        AmqpErrorKind::ManagementStatusCode(status, text) => match u16::from(*status) {
            404 => cause_of_not_found(text.as_deref()),
            401 | 403 => Cause::Unauthorized,
            429 | 503 => Cause::Busy,
            _ => Cause::Other,
        },
        // An error of the client's AMQP library, `RecvError::MessageDecode`. Its type is not public.
        AmqpErrorKind::TransportImplementationError(error) if error.to_string().contains("Decoding Message failed") => {
            Cause::Undecodable
        }
        _ => Cause::Other,
    }
}

fn cause_of_response(response: &AmqpDescribedError) -> Cause {
    match &response.condition {
        AmqpErrorCondition::NotFound => cause_of_not_found(response.description.as_deref()),
        AmqpErrorCondition::UnauthorizedAccess => Cause::Unauthorized,
        AmqpErrorCondition::LinkStolen => Cause::Displaced,
        AmqpErrorCondition::ServerBusyError => Cause::Busy,
        AmqpErrorCondition::ArgumentError | AmqpErrorCondition::ArgumentOutOfRangeError
            if names_a_position(response.description.as_deref()) =>
        {
            Cause::InvalidPosition
        }
        AmqpErrorCondition::UnknownValue(condition) if condition == GEO_REPLICATION_OFFSET => Cause::InvalidPosition,
        _ => Cause::Other,
    }
}

/// Returns the cause of a response that something was not found: a missing entity, if the text names one. The official
/// clients use the same text: `NotFoundExpression` in `AmqpError.cs` of .NET, `distinguishNotFound` in
/// `ExceptionUtil.java`, `translate` in `errors.ts` of `@azure/core-amqp`. The name in the text has several forms: `The
/// messaging entity 'sb://NAMESPACE/HUB/consumergroups/GROUP/partitions/0' could not be found`
/// (microsoft/AzureMonitorAddonForSplunk#8), or `'NAMESPACE:eventhub:HUB~32766|GROUP'`
/// (logstash-plugins/logstash-input-azure_event_hubs#32).
fn cause_of_not_found(text: Option<&str>) -> Cause {
    match text.unwrap_or_default().to_ascii_lowercase().split_once("the messaging entity ") {
        Some((_, rest)) if rest.contains(" could not be found") => Cause::NotFound,
        _ => Cause::NotFoundNow,
    }
}

/// Returns whether a description is about a position. The service rejects other arguments, such as a partition, with
/// the same conditions. For a position it responds `The supplied offset '51541496928' is invalid. The last offset in
/// the system is '12916091040'`, or the same with `sequence number` (Azure/azure-event-hubs-python#13,
/// Azure/azure-event-hubs-spark#315).
fn names_a_position(description: Option<&str>) -> bool {
    let text = description.unwrap_or_default();
    text.contains("supplied offset") || text.contains("supplied sequence number")
}

#[cfg(test)]
mod tests {
    use azure_core_amqp::AmqpOrderedMap;

    use super::*;

    const OFFSET: &str = "The supplied offset '336' is invalid. The last offset in the system is '-1' TrackingId:8c2c";
    const SEQUENCE_NUMBER: &str =
        "The supplied sequence number '488' is invalid. The last sequence number in the system is '482'";
    const MISSING_GROUP: &str = "The messaging entity 'sb://ns.servicebus.windows.net/hub/consumergroups/third/partitions/0' \
         could not be found. To know more visit https://aka.ms/sbResourceMgrExceptions.  TrackingId:41ba789e_G21";
    const PARTITION: &str = "The specified partition is invalid for an EventHub partition sender or receiver.";

    fn response(condition: &str, text: &str) -> AmqpError {
        let Ok(condition) = condition.parse();
        AmqpErrorKind::AmqpDescribedError(AmqpDescribedError::new(
            condition,
            Some(text.to_owned()),
            AmqpOrderedMap::default(),
        ))
        .into()
    }

    #[test]
    fn an_error_shows_the_state_of_the_connection() {
        let kind = |kind: AmqpErrorKind| AmqpError::from(kind);
        let source = |text: &str| Box::<dyn StdError + Send + Sync>::from(text);
        for (error, expected) in [
            (kind(AmqpErrorKind::ConnectionDropped(source("Illegal session state"))), ConnectionOutcome::Broken),
            (kind(AmqpErrorKind::SessionClosedByRemote(source(""))), ConnectionOutcome::Broken),
            (
                kind(AmqpErrorKind::TransportImplementationError(source("Link name is not unique."))),
                ConnectionOutcome::Broken,
            ),
            (kind(AmqpErrorKind::TransportImplementationError(source("something else"))), ConnectionOutcome::Failed),
            (
                kind(AmqpErrorKind::TransportImplementationError(source("Decoding Message failed"))),
                ConnectionOutcome::Responded,
            ),
            (kind(AmqpErrorKind::LinkStateError(source(""))), ConnectionOutcome::Failed),
            (AmqpError::with_message("anything"), ConnectionOutcome::Failed),
            (response("amqp:connection:forced", ""), ConnectionOutcome::Broken),
            (response("amqp:unauthorized-access", ""), ConnectionOutcome::Unauthorized),
            (kind(AmqpErrorKind::ManagementStatusCode(401.into(), None)), ConnectionOutcome::Unauthorized),
            (kind(AmqpErrorKind::ManagementStatusCode(503.into(), None)), ConnectionOutcome::Responded),
            (kind(AmqpErrorKind::SendRejected), ConnectionOutcome::Responded),
            (response("amqp:link:detach-forced", ""), ConnectionOutcome::Responded),
            (response("amqp:link:stolen", ""), ConnectionOutcome::Responded),
            (response("com.microsoft:argument-error", OFFSET), ConnectionOutcome::Responded),
        ] {
            let shown = format!("{error:?}");
            let error = wrapped(error);
            assert_eq!(connection_outcome(&EventHubsError::from(error)), expected, "{shown}");
        }
        assert_eq!(
            connection_outcome(&EventHubsError::from(ClientErrorKind::ConsumerDisconnected(None))),
            ConnectionOutcome::Responded
        );
        assert_eq!(
            connection_outcome(&EventHubsError::from(ClientErrorKind::InvalidManagementResponse)),
            ConnectionOutcome::Broken
        );
    }

    /// Wraps an error as the client does.
    fn wrapped(error: AmqpError) -> AmqpError {
        azure_core::Error::with_error(azure_core::error::ErrorKind::Other, error, "failed to ensure receiver").into()
    }

    fn receiving_kind(position: Option<&str>, error: AmqpError) -> ErrorKind {
        receive_error("0", position, EventHubsError::from(error)).kind()
    }

    #[test]
    fn a_response_determines_the_error_kind() {
        for (condition, text, kind) in [
            ("amqp:not-found", MISSING_GROUP, ErrorKind::Config),
            ("amqp:unauthorized-access", "", ErrorKind::Unauthorized),
            ("amqp:link:stolen", "", ErrorKind::Fenced),
            ("com.microsoft:argument-error", OFFSET, ErrorKind::InvalidPosition),
            ("com.microsoft:argument-error", SEQUENCE_NUMBER, ErrorKind::InvalidPosition),
            ("com.microsoft:argument-out-of-range", OFFSET, ErrorKind::InvalidPosition),
            ("com.microsoft:georeplication:invalid-offset", "", ErrorKind::InvalidPosition),
            ("com.microsoft:argument-out-of-range", PARTITION, ErrorKind::EventSource),
            ("com.microsoft:argument-error", "", ErrorKind::EventSource),
            ("com.microsoft:server-busy", OFFSET, ErrorKind::EventSource),
            ("com.microsoft:something-new", OFFSET, ErrorKind::EventSource),
        ] {
            assert_eq!(receiving_kind(Some("offset 336"), response(condition, text)), kind, "{condition}: {text}");
        }
    }

    #[test]
    fn a_busy_service_throttles_requests_for_properties() {
        let status = |code: u16| AmqpError::from(AmqpErrorKind::ManagementStatusCode(code.into(), None));
        for error in [response("com.microsoft:server-busy", ""), status(503), status(429)] {
            let error = EventHubsError::from(wrapped(error));
            assert_eq!(connection_outcome(&error), ConnectionOutcome::Responded);
            let error = properties_error("partition 0", error);
            assert_eq!(error.retry_after(), Some(BUSY_WAIT), "{error}");
        }
        let error = properties_error("partition 0", EventHubsError::from(wrapped(status(500))));
        assert_eq!(error.kind(), ErrorKind::EventSource);
    }

    #[test]
    fn an_undecodable_event_is_no_connection_failure() {
        let error = || AmqpErrorKind::TransportImplementationError("Decoding Message failed".into()).into();
        assert_eq!(receiving_kind(None, error()), ErrorKind::Undecodable);
        assert_eq!(receiving_kind(Some("offset 336"), wrapped(error())), ErrorKind::Undecodable);
        assert_eq!(connection_outcome(&EventHubsError::from(wrapped(error()))), ConnectionOutcome::Responded);
        assert!(
            missing_partition_error("0", EventHubsError::from(error())).is_none(),
            "it ends no start of a processor"
        );
    }

    /// The error may be wrapped.
    #[test]
    fn only_a_given_position_can_be_invalid() {
        let rejection = || response("com.microsoft:argument-error", OFFSET);
        assert_eq!(receiving_kind(Some("offset 336"), wrapped(rejection())), ErrorKind::InvalidPosition);
        assert_eq!(receiving_kind(None, rejection()), ErrorKind::EventSource);
        assert_eq!(properties_error("it", EventHubsError::from(rejection())).kind(), ErrorKind::EventSource);
    }

    mod defects {
        use super::*;

        fn status(code: u16, text: impl Into<Option<&'static str>>) -> AmqpError {
            AmqpErrorKind::ManagementStatusCode(code.into(), text.into().map(str::to_owned)).into()
        }

        #[test]
        fn only_a_named_entity_counts_as_missing() {
            use ErrorKind::{Config, EventSource};
            for (text, kind) in [
                (MISSING_GROUP, Config),
                ("the messaging entity 'ns:eventhub:hub~32766|group' could not be found", Config),
                ("status-code: 404, status-description: The messaging entity 'hub' could not be found.", Config),
                ("", EventSource),
                ("The link is detached on demand.", EventSource),
                ("could not be found: The messaging entity 'hub'", EventSource),
                ("The messaging entity 'hub' is being moved", EventSource),
            ] {
                let of_link = || EventHubsError::from(wrapped(response("amqp:not-found", text)));
                let of_management = || EventHubsError::from(wrapped(status(404, text)));
                assert_eq!(receive_error("0", None, of_link()).kind(), kind, "{text}");
                assert_eq!(properties_error("it", of_management()).kind(), kind, "{text}");
                let expected = if kind == Config { ConnectionOutcome::Responded } else { ConnectionOutcome::Failed };
                assert_eq!(
                    (connection_outcome(&of_link()), connection_outcome(&of_management())),
                    (expected, expected),
                    "{text}"
                );
                assert_eq!(
                    missing_partition_error("0", of_link()).map(|error| error.kind()),
                    Some(Config),
                    "at the start: {text}"
                );
            }
            assert_eq!(properties_error("it", EventHubsError::from(status(404, None))).kind(), EventSource);
            assert!(
                missing_partition_error("0", EventHubsError::from(response("com.microsoft:server-busy", ""))).is_none()
            );
        }
    }
}
