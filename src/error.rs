//! The one error type of this crate, whose kind says what the caller should do.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;

use crate::model::InvalidName;

/// A convenience alias for results whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync>;

/// What went wrong, as far as the caller's next step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else wrote the blob first: it exists already (409) or its ETag has changed (412). Read it again.
    Conflict,
    /// The blob does not exist.
    NotFound,
    /// The container does not exist, or is being deleted. Create it, or correct its name.
    ContainerNotFound,
    /// The request left and no usable answer came: it may or may not have been applied. Read before writing again.
    Indeterminate,
    /// The request was certainly not applied, and may succeed later: the server could not be reached.
    Unavailable,
    /// The server asks for fewer requests. Wait at least `retry_after`, if it named a time.
    Throttled {
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The credentials are wrong, expired, or lack a permission. Retrying does not help.
    Unauthorized,
    /// The server refuses the request as such. Retrying does not help.
    Rejected,
    /// A setting is wrong. The message names the value and the remedy.
    Config,
    /// The partition belongs to somebody else now. Stop working on it.
    Fenced,
    /// A newer incarnation of this owner is running. Stop.
    Replaced,
    /// Another writer keeps getting in between. Nothing is lost; try again later.
    Contended,
    /// The application's handler failed or panicked. The processor restarts the partition by itself.
    Handler,
    /// The broker refuses the position to start reading from. Choose another: see
    /// [`OnInvalidCheckpoint`](crate::processor::OnInvalidCheckpoint).
    InvalidPosition,
    /// Events before it are tracked and not finished. It becomes durable when they are.
    EventsInFlight,
    /// The event source failed. The processor reopens the partition by itself.
    EventSource,
    /// The component is no longer running.
    Closed,
}

/// An error, with its [`ErrorKind`], a message fit for a log, and the underlying cause.
///
/// Neither the message nor the sources hold secrets.
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Source>,
    server_time: Option<OffsetDateTime>,
}

impl Error {
    /// Makes an error of this kind. The message starts in lower case and has no full stop.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, server_time: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds the server's `Date`, where the failure was an answer of the server.
    #[must_use]
    pub fn with_server_time(mut self, server_time: Option<OffsetDateTime>) -> Self {
        self.server_time = server_time;
        self
    }

    pub(crate) fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// What went wrong, as far as the caller's next step depends on it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The server's `Date`, if the failure was an answer of the server.
    #[must_use]
    pub fn server_time(&self) -> Option<OffsetDateTime> {
        self.server_time
    }

    /// How long the server asks to wait, if it does.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            ErrorKind::Throttled { retry_after } => retry_after,
            _ => None,
        }
    }

    /// Whether the same request may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        use ErrorKind as K;
        matches!(self.kind, K::Indeterminate | K::Unavailable | K::Throttled { .. } | K::Contended | K::EventSource)
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
