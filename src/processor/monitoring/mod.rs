//! What can be seen of a processor from outside: status, health, metrics and spans.

#[cfg(feature = "metrics")]
pub(in crate::processor) mod gauges;
pub(in crate::processor) mod health;
pub(in crate::processor) mod progress;
pub(in crate::processor) mod spans;
pub(in crate::processor) mod status;

use serde::Serialize;

use crate::error::{Error, ErrorKind};
use crate::telemetry::Causes;

pub use health::{Health, HealthIssue};
pub use spans::SpanEvents;
pub use status::{EventCounts, PartitionState, PartitionStatus};

/// An error in a status: its kind, for grouping and alerts, and its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErrorSummary {
    /// The category of the error.
    pub kind: ErrorKind,
    /// The message of the error and of its sources. It contains no secrets, unless an error of the handler does.
    pub message: String,
}

impl ErrorSummary {
    pub(crate) fn from_error(error: &Error) -> Self {
        Self { kind: error.kind(), message: Causes(error).to_string() }
    }
}
