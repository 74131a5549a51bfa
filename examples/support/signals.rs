//! Shuts a program down gracefully at the first signal, and ends it immediately at the second.

use std::future::{self, Future};
use std::io;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Returns a future that is ready when the process receives Ctrl-C or, on Unix, SIGTERM. Signals are handled from this
/// call on, not from the first poll. A second signal, at least a second later, ends the process immediately, with the
/// exit status of shells: 130 for Ctrl-C, 143 for SIGTERM.
pub(crate) fn asked_to_end() -> impl Future<Output = ()> {
    let (request, requested) = oneshot::channel();
    let (ready, listening) = mpsc::channel();
    // A dedicated thread, so that the second signal also ends a program that hangs while it shuts down.
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let handled = runtime.and_then(|runtime| runtime.block_on(handle_signals(ready, request)));
        // Without a handler a signal ends the process immediately, which is safe.
        handled.unwrap_or_else(|error| eprintln!("signals are not handled: {error}"));
    });
    // An error means that no handler is installed, which was printed.
    let _ = listening.recv();
    async {
        if requested.await.is_err() {
            future::pending::<()>().await;
        }
    }
}

async fn handle_signals(ready: mpsc::Sender<()>, request: oneshot::Sender<()>) -> io::Result<()> {
    let mut signals = Signals::new()?;
    // An error means that the caller has ended.
    let _ = ready.send(());
    let name = signals.next().await?.name;
    eprintln!("{name}: shutting down; send it again to stop immediately");
    // An error means that the program is already ending.
    let _ = request.send(());
    let first = Instant::now();
    let Signal { name, status } = loop {
        let signal = signals.next().await?;
        // Some tools send a signal twice, to the process and to its group.
        if first.elapsed() >= Duration::from_secs(1) {
            break signal;
        }
    };
    eprintln!("{name} again: stopping immediately");
    process::exit(status)
}

struct Signal {
    name: &'static str,
    status: i32,
}

const CTRL_C: Signal = Signal { name: "Ctrl-C", status: 130 };

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> io::Result<Signal> {
        tokio::select! {
            _ = self.interrupt.recv() => Ok(CTRL_C),
            _ = self.terminate.recv() => Ok(Signal { name: "SIGTERM", status: 143 }),
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    #[expect(clippy::unnecessary_wraps, reason = "on Unix it can fail")]
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> io::Result<Signal> {
        tokio::signal::ctrl_c().await?;
        Ok(CTRL_C)
    }
}
