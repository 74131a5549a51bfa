//! The signals that ask a process to end.

use crate::error::{Error, Result};

/// Ctrl-C, and on Unix SIGTERM. They do not end the process by themselves any more.
#[derive(Debug)]
pub(super) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
    #[cfg(windows)]
    terminate: tokio::signal::windows::CtrlShutdown,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
        let terminate = signal(SignalKind::terminate()).map_err(unheard)?;
        Ok(Self { interrupt, terminate })
    }

    #[cfg(windows)]
    pub(super) fn listen() -> Result<Self> {
        use tokio::signal::windows::{ctrl_c, ctrl_shutdown};

        Ok(Self { interrupt: ctrl_c().map_err(unheard)?, terminate: ctrl_shutdown().map_err(unheard)? })
    }

    /// Ready at the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.terminate.recv() => {}
            else => std::future::pending().await,
        }
    }
}

fn unheard(error: std::io::Error) -> Error {
    Error::config("cannot install signal handlers; use `run` with another shutdown future").with_source(error)
}
