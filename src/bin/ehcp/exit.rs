//! Exit codes and failures.

use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

use eventhubs_checkpoint::{Error, ErrorKind, InvalidName};

/// How a command ends. `check` alone uses the codes of Nagios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, or nothing to do.
    Done,
    /// The storage or the event hub failed, or a partition was not done.
    Failed,
    /// A dry run would change something, or there are findings, or the lag is above the limit.
    Differences,
    /// Refused for safety.
    Refused,
    /// The command line is wrong.
    Usage,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Differences => 2,
            Self::Refused => 3,
            Self::Usage => 64,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Why a command ended early. The message is one sentence, without secrets.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    kind: Option<ErrorKind>,
    message: String,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, kind: None, message: message.into() }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, kind: None, message: message.into() }
    }

    pub fn refused(message: impl Into<String>) -> Self {
        Self { exit: Exit::Refused, kind: None, message: message.into() }
    }

    /// Adds what was attempted.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Returns the kind of the library's error, if it was one.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.kind
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Errors of the library name its setters.
const SETTERS: &[(&str, &str)] =
    &[("`with_foreign_lease_duration`", "--foreign-lease-duration"), ("`with_request_timeout`", "--timeout")];

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let remedy = match error.kind() {
            ErrorKind::Fenced => {
                "; a processor reads this partition: read through another consumer group with --read-group"
            }
            ErrorKind::ContainerNotFound => "; check --container and --account",
            ErrorKind::Unauthorized => "; `ehcp doctor --help` lists the roles",
            _ => "",
        };
        let message = SETTERS.iter().fold(with_causes(&error), |text, (setter, option)| text.replace(setter, option));
        Self {
            exit: match error.kind() {
                // With a cause, the service rejects it.
                ErrorKind::Config | ErrorKind::InvalidArgument if error.source().is_none() => Exit::Usage,
                _ => Exit::Failed,
            },
            kind: Some(error.kind()),
            message: message + remedy,
        }
    }
}

impl From<InvalidName> for Failure {
    fn from(error: InvalidName) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

/// Returns the messages of an error and of its causes, each one once.
pub fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}
