//! An error in a serializable status.

use serde::Serialize;

use crate::error::{Error, ErrorKind};
use crate::telemetry::Causes;

/// An error in a status: its kind, for grouping and alerts, and its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErrorSummary {
    /// What went wrong, in terms of what to do.
    pub kind: ErrorKind,
    /// The message of the error and of its sources. It contains no secrets, unless an error of the handler does.
    pub message: String,
}

impl ErrorSummary {
    pub(crate) fn of(error: &Error) -> Self {
        Self { kind: error.kind(), message: Causes(error).to_string() }
    }
}
