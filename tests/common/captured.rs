//! Captures the log of this thread.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

/// A second dispatcher in addition to the thread's. If there is only one in the process, the thread that first reaches
/// a callsite decides whether it is enabled, and that may be the thread of another test without a dispatcher.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().finish()));

/// From now on each thread's dispatcher decides what is enabled there.
pub fn let_threads_decide() {
    LazyLock::force(&ANOTHER);
}

#[derive(Clone, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Captures until the guard is dropped.
    pub fn begin() -> (Self, DefaultGuard) {
        Self::begin_with("info")
    }

    /// Captures what the filter permits, until the guard is dropped.
    pub fn begin_with(filter: &str) -> (Self, DefaultGuard) {
        let_threads_decide();
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber.with_env_filter(filter).finish()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
