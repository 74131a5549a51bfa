//! Helpers for AMQP messages and errors.

use fe2o3_amqp_types::definitions::{AmqpError, Error, ErrorCondition, Fields};
use fe2o3_amqp_types::messaging::{Body, Message};
use fe2o3_amqp_types::primitives::{SimpleValue, Symbol, Timestamp, Value};
use time::OffsetDateTime;

use super::address::path;
use super::token_check::BadToken;

/// A message with any body.
pub(super) type AnyMessage = Message<Body<Value>>;

/// The maximum size of an accepted message, 1 MiB as in the service's standard tier. Clients limit their batches to it.
pub(super) const MAX_MESSAGE_SIZE: u64 = 1024 * 1024;

/// The condition for a partition that does not exist, as in live tests of Azure/azure-sdk-for-js.
pub(super) const ARGUMENT_OUT_OF_RANGE: &str = "com.microsoft:argument-out-of-range";

/// Returns properties for the last field of open, begin and attach. fe2o3-amqp omits trailing nulls of a performative,
/// and a client that reads the fields by position, such as the Python client, fails on a performative that is too
/// short.
pub(super) fn product() -> Fields {
    let mut fields = Fields::default();
    fields.insert(Symbol::from("product"), Value::String("event-hub-emulator".to_owned()));
    fields
}

pub(super) fn error(condition: impl Into<ErrorCondition>, description: impl Into<String>) -> Error {
    Error::new(condition, description.into(), None)
}

/// Returns the service's error for a link without a valid authorization (Azure/azure-event-hubs-node#174).
pub(super) fn unauthorized(address: &str) -> Error {
    let path = path(address);
    let claim = if path.iter().any(|segment| segment == "consumergroups") { "Listen" } else { "Send" };
    let text = format!(
        "Unauthorized access. '{claim}' claim(s) are required to perform this operation. Resource: \
         'sb://localhost/{}'.",
        path.join("/")
    );
    error(AmqpError::UnauthorizedAccess, text)
}

pub(super) fn not_found(what: &str) -> Error {
    error(AmqpError::NotFound, missing(what))
}

/// Returns the service's own text, by which clients distinguish a missing entity from other errors of the same kind:
/// see microsoft/AzureMonitorAddonForSplunk#8 and MicrosoftDocs/azure-docs#52223.
pub(super) fn missing(what: &str) -> String {
    format!(
        "The messaging entity '{what}' could not be found. To know more visit https://aka.ms/sbResourceMgrExceptions."
    )
}

/// Returns the condition with this name: one of the service, such as `com.microsoft:argument-error`, or any other.
pub(super) fn condition(name: &str) -> ErrorCondition {
    ErrorCondition::Custom(Symbol::from(name))
}

pub(super) fn application_property<'a>(message: &'a AnyMessage, name: &str) -> Option<&'a str> {
    match message.application_properties.as_ref()?.get(name)? {
        SimpleValue::String(text) => Some(text),
        SimpleValue::Symbol(symbol) => Some(symbol.as_str()),
        _ => None,
    }
}

/// Returns milliseconds since 1970, AMQP's unit of time.
pub(super) fn milliseconds(time: OffsetDateTime) -> i64 {
    time.unix_timestamp() * 1000 + i64::from(time.millisecond())
}

pub(super) fn timestamp(time: OffsetDateTime) -> Value {
    Value::Timestamp(Timestamp::from_milliseconds(milliseconds(time)))
}

/// The response to a request: a status as in HTTP, and a body.
#[derive(Debug, PartialEq)]
pub(super) struct Response {
    pub(super) code: i32,
    pub(super) description: String,
    /// The condition of an error, which clients read in addition to the status.
    pub(super) condition: Option<&'static str>,
    pub(super) body: Value,
}

impl Response {
    pub(super) fn found(body: Value) -> Self {
        Self { code: 200, description: "OK".to_owned(), condition: None, body }
    }

    pub(super) fn accepted() -> Self {
        Self { code: 202, description: "Accepted".to_owned(), condition: None, body: Value::Null }
    }

    pub(super) fn error(code: i32, condition: &'static str, description: impl Into<String>) -> Self {
        Self { code, description: description.into(), condition: Some(condition), body: Value::Null }
    }

    pub(super) fn not_found(what: &str) -> Self {
        Self::error(404, "amqp:not-found", missing(what))
    }

    pub(super) fn bad_token(bad: BadToken) -> Self {
        Self::error(401, "amqp:unauthorized-access", bad.to_string())
    }

    pub(super) fn not_supported(description: impl Into<String>) -> Self {
        Self::error(400, "com.microsoft:argument-error", description)
    }
}
