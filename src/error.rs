//! The one error type of this crate, whose kind says what the caller should do.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use crate::model::InvalidName;

/// A convenience alias for results whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync>;

/// The category of an error. Each variant says how to react.
///
/// ```
/// use eventhubs_checkpoint::{Error, ErrorKind};
///
/// fn advice(error: &Error) -> &'static str {
///     match error.kind() {
///         ErrorKind::Config => "correct the setting that the message names",
///         ErrorKind::Unauthorized => "assign the role, then start again",
///         ErrorKind::Replaced => "give each instance an owner ID of its own",
///         _ if error.is_retryable() => "try again",
///         _ => "report it",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another writer was faster: the blob already exists (409), or its ETag has changed (412). Read it again.
    Conflict,
    /// The blob does not exist.
    NotFound,
    /// The container does not exist, or is being deleted. Create it, or correct its name.
    ContainerNotFound,
    /// The outcome of the request is unknown: it was sent, but no usable response came. Read the record before you
    /// write again.
    Indeterminate,
    /// The server could not be reached. The request was not applied. Retry later.
    Unavailable,
    /// The server limits the request rate. The request was not applied. Wait at least `retry_after` before you retry.
    Throttled {
        /// How long the server asks to wait, if it does.
        retry_after: Option<Duration>,
    },
    /// The credentials are wrong, expired, or lack a permission. A retry does not help.
    Unauthorized,
    /// The server rejects the request. A retry does not help.
    Rejected,
    /// An argument is invalid, and nothing was sent. The message names the value and the rule. A retry does not help.
    InvalidArgument,
    /// A setting is invalid. The message names the setter, the value and the remedy.
    Config,
    /// Another instance owns the partition. Stop working on it.
    Fenced,
    /// A newer incarnation of this owner is running. Shut down.
    Replaced,
    /// Other writers kept changing the record. Nothing was lost. Retry later.
    Contended,
    /// The application's handler failed, panicked or timed out. [`OnFailure`](crate::processor::OnFailure) determines
    /// what follows.
    Handler,
    /// The broker rejects the start position. Choose another one: see
    /// [`OnInvalidCheckpoint`](crate::processor::OnInvalidCheckpoint).
    InvalidPosition,
    /// Earlier tracked events are not finished. The checkpoint is written when they are.
    EventsInFlight,
    /// The event source cannot decode an event, and delivers none after it. See
    /// [`OnUndecodable`](crate::processor::OnUndecodable).
    Undecodable,
    /// The event source failed. The processor reopens the partition.
    EventSource,
    /// The component has shut down.
    Closed,
    /// A bug in this crate, or a panic in one of its tasks. Please report it.
    Internal,
}

impl ErrorKind {
    /// Returns the name of the kind, for labels and serialized status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::ContainerNotFound => "container_not_found",
            Self::Indeterminate => "indeterminate",
            Self::Unavailable => "unavailable",
            Self::Throttled { .. } => "throttled",
            Self::Unauthorized => "unauthorized",
            Self::Rejected => "rejected",
            Self::InvalidArgument => "invalid_argument",
            Self::Config => "config",
            Self::Fenced => "fenced",
            Self::Replaced => "replaced",
            Self::Contended => "contended",
            Self::Handler => "handler",
            Self::InvalidPosition => "invalid_position",
            Self::EventsInFlight => "events_in_flight",
            Self::Undecodable => "undecodable",
            Self::EventSource => "event_source",
            Self::Closed => "closed",
            Self::Internal => "internal",
        }
    }
}

impl From<ErrorKind> for &'static str {
    fn from(kind: ErrorKind) -> Self {
        kind.as_str()
    }
}

/// An error with its [`ErrorKind`], a message for logs, and its source.
///
/// Neither the message nor the sources contain secrets, unless an error that the application's handler returns does.
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Source>,
    server_time: Option<OffsetDateTime>,
}

impl Error {
    /// Creates an error. The message starts with a lowercase letter and has no period at the end.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, server_time: None }
    }

    /// Sets the source.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the server time of the error response.
    #[must_use]
    pub fn with_server_time(mut self, server_time: Option<OffsetDateTime>) -> Self {
        self.server_time = server_time;
        self
    }

    pub(crate) fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// Returns the category of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the server time, if the error was a response of the server.
    #[must_use]
    pub fn server_time(&self) -> Option<OffsetDateTime> {
        self.server_time
    }

    /// Returns how long the server asks to wait, if it does.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            ErrorKind::Throttled { retry_after } => retry_after,
            _ => None,
        }
    }

    /// Returns whether the operation may succeed if the caller repeats it later without a change. A request to the
    /// storage that failed with such an error was not applied. This includes [`Undecodable`](ErrorKind::Undecodable),
    /// because the event eventually expires.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        use ErrorKind as K;
        matches!(self.kind, K::Unavailable | K::Throttled { .. } | K::Contended | K::Undecodable | K::EventSource)
    }

    /// Returns whether the request may have been applied. Read the record before you write again.
    #[must_use]
    pub fn is_indeterminate(&self) -> bool {
        self.kind == ErrorKind::Indeterminate
    }

    /// Whether the operation may succeed later. For callers that decide by the record before they write again.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_retryable() || self.is_indeterminate()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<InvalidName> for Error {
    fn from(error: InvalidName) -> Self {
        Self::config(error.to_string())
    }
}

/// Finds an error of this type among the causes.
pub(crate) fn cause_of<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}
