//! The signals that request a shutdown.

use crate::error::{Error, Result};

/// Ctrl-C, and SIGTERM on Unix. From then on they no longer end the process by themselves, also after this is dropped.
#[derive(Debug)]
pub(crate) struct Signals {
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
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let interrupt = signal(SignalKind::interrupt()).map_err(not_installed)?;
        let terminate = signal(SignalKind::terminate()).map_err(not_installed)?;
        Ok(Self { interrupt, terminate })
    }

    #[cfg(windows)]
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::windows::{ctrl_c, ctrl_shutdown};

        Ok(Self { interrupt: ctrl_c().map_err(not_installed)?, terminate: ctrl_shutdown().map_err(not_installed)? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.terminate.recv() => {}
            else => std::future::pending().await,
        }
    }
}

fn not_installed(error: std::io::Error) -> Error {
    Error::config("cannot install signal handlers; use `run` with another shutdown future").with_source(error)
}
