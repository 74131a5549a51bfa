//! Requests to shut down, and the signals that make them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use crate::error::{Error, Result};
use crate::telemetry;

/// A request within this time after the first one counts as the same request: a program may listen for a signal in two
/// places, and some senders send it twice.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// The shutdown requests of a processor. All clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownRequests {
    state: Arc<watch::Sender<RequestState>>,
    /// The span of the processor, because requests may come from any task.
    span: Span,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestState {
    first: Option<Instant>,
    again: bool,
    ended: bool,
}

impl ShutdownRequests {
    pub(crate) fn new(span: Span) -> Self {
        Self { state: Arc::default(), span }
    }

    pub(crate) fn request_shutdown(&self) {
        self.state.send_if_modified(|state| match state.first {
            None => {
                state.first = Some(Instant::now());
                telemetry::shutdown_requested(&self.span);
                true
            }
            Some(first) if first.elapsed() >= SAME_REQUEST && !state.again => {
                state.again = true;
                telemetry::shutdown_forced(&self.span);
                true
            }
            Some(_) => false,
        });
    }

    /// Requests a shutdown, unless one was requested already.
    pub(crate) fn request_once(&self) {
        if self.state.borrow().first.is_none() {
            self.request_shutdown();
        }
    }

    /// Returns whether a shutdown was requested, or the processor has ended.
    pub(crate) fn is_ending(&self) -> bool {
        let state = self.state.borrow();
        state.first.is_some() || state.ended
    }

    pub(crate) fn mark_ended(&self) {
        self.state.send_modify(|state| state.ended = true);
    }

    pub(crate) async fn wait_for_request(&self) {
        self.wait_for(|state| state.first.is_some()).await;
    }

    pub(crate) async fn wait_for_second_request(&self) {
        self.wait_for(|state| state.again).await;
    }

    async fn wait_for(&self, condition: impl FnMut(&RequestState) -> bool) {
        let mut state = self.state.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = state.wait_for(condition).await;
    }
}

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

        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(signal_error)?,
            terminate: signal(SignalKind::terminate()).map_err(signal_error)?,
        })
    }

    #[cfg(windows)]
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::windows::{ctrl_c, ctrl_shutdown};

        Ok(Self { interrupt: ctrl_c().map_err(signal_error)?, terminate: ctrl_shutdown().map_err(signal_error)? })
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

fn signal_error(error: std::io::Error) -> Error {
    Error::config("cannot install signal handlers; use `run` with another shutdown future").with_source(error)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_request_counts_after_one_second() {
        let requests = ShutdownRequests::new(Span::none());
        let requested = |requests: &ShutdownRequests| (requests.is_ending(), requests.state.borrow().again);
        assert_eq!(requested(&requests), (false, false));
        requests.request_shutdown();
        requests.request_shutdown();
        advance(SAME_REQUEST.saturating_sub(Duration::from_millis(1))).await;
        requests.request_shutdown();
        assert_eq!(requested(&requests), (true, false));
        advance(Duration::from_millis(1)).await;
        requests.request_once();
        assert_eq!(requested(&requests), (true, false));
        requests.request_shutdown();
        assert_eq!(requested(&requests), (true, true));
    }
}
