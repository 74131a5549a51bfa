//! Why an emulator is not started.

use std::io;

use thiserror::Error;

/// A setting of an emulator is invalid, or its address cannot be used. The message names the setting or the address,
/// and what to do.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct StartError {
    message: String,
    source: Option<io::Error>,
}

impl StartError {
    pub(crate) fn setting(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    pub(crate) fn address(message: impl Into<String>, source: io::Error) -> Self {
        Self { message: message.into(), source: Some(source) }
    }
}
