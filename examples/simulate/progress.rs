//! A bar on one line of standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

const WIDTH: usize = 40;

/// How often the line is written at the most.
const PACE: Duration = Duration::from_millis(100);

pub struct Progress {
    total: usize,
    done: usize,
    started: Instant,
    /// When the line was written last; nothing: it never is, for nobody watches.
    shown: Option<Instant>,
}

impl Progress {
    pub fn new(total: usize) -> Self {
        let now = Instant::now();
        Self { total, done: 0, started: now, shown: std::io::stderr().is_terminal().then_some(now) }
    }

    pub fn step(&mut self, failures: usize) {
        self.done += 1;
        let due = self.done == self.total || self.shown.is_some_and(|shown| shown.elapsed() >= PACE);
        if self.shown.is_some() && due {
            self.shown = Some(Instant::now());
            eprint!("\r{}", self.line(failures));
            // A bar that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
        }
    }

    pub fn finish(&self) {
        if self.shown.is_some() {
            eprintln!();
        }
    }

    fn line(&self, failures: usize) -> String {
        let full = WIDTH * self.done / self.total.max(1);
        let elapsed = self.started.elapsed();
        let left = elapsed.mul_f64((self.total - self.done) as f64 / self.done.max(1) as f64);
        format!(
            "[{}{}] {}/{} seeds, {failures} failed, {} s, about {} s left   ",
            "#".repeat(full),
            ".".repeat(WIDTH - full),
            self.done,
            self.total,
            elapsed.as_secs(),
            left.as_secs()
        )
    }
}
