//! Ends a program in good order when it is asked to, and at once when it is asked again.

use std::future::{self, Future};
use std::io;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Ready when the process is asked to end: at Ctrl-C and, on Unix, at SIGTERM. Counts from this call on, not from the
/// first poll. Another such signal, at least a second later, ends the process at once, with the exit status that shells
/// give to the signal: 130 for Ctrl-C, 143 for SIGTERM.
pub(crate) fn asked_to_end() -> impl Future<Output = ()> {
    let (ask, asked) = oneshot::channel();
    let (ready, listening) = mpsc::channel();
    // On a thread of its own: a program that hangs while it ends must hear the second signal.
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let heard = runtime.and_then(|runtime| runtime.block_on(hear(ready, ask)));
        // Without a handler a signal ends the process at once, which is safe.
        heard.unwrap_or_else(|error| eprintln!("signals are not handled: {error}"));
    });
    // An error means that it cannot listen, which it has said.
    let _ = listening.recv();
    async {
        if asked.await.is_err() {
            future::pending::<()>().await;
        }
    }
}

async fn hear(ready: mpsc::Sender<()>, ask: oneshot::Sender<()>) -> io::Result<()> {
    let mut signals = Signals::new()?;
    // Nobody but the caller that waits for this can have gone.
    let _ = ready.send(());
    let name = signals.next().await?.name;
    eprintln!("{name}: ends in good order; once more, and it ends at once");
    // An error means that the program ends already.
    let _ = ask.send(());
    let first = Instant::now();
    let Signal { name, status } = loop {
        let signal = signals.next().await?;
        // Some send a signal twice, to the process and to its group.
        if first.elapsed() >= Duration::from_secs(1) {
            break signal;
        }
    };
    eprintln!("{name} again: ends at once");
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
