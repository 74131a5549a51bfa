//! A progress bar on one line of standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

const WIDTH: usize = 40;

/// The minimum time between two updates of the line.
const PACE: Duration = Duration::from_millis(100);

pub struct Progress {
    what: &'static str,
    total: usize,
    done: usize,
    started: Instant,
    /// When the line was last written; `None` if standard error is not a terminal.
    shown: Option<Instant>,
}

impl Progress {
    /// Creates a bar for `total` items of a kind.
    pub fn new(total: usize, what: &'static str) -> Self {
        let now = Instant::now();
        Self { what, total, done: 0, started: now, shown: std::io::stderr().is_terminal().then_some(now) }
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
            "[{}{}] {}/{} {}, {failures} failed, {} s, about {} s left   ",
            "#".repeat(full),
            ".".repeat(WIDTH - full),
            self.done,
            self.total,
            self.what,
            elapsed.as_secs(),
            left.as_secs()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_as_full_as_the_work_is_done() {
        let mut progress = Progress::new(4, "seeds");
        assert!(progress.line(0).starts_with(&format!("[{}] 0/4 seeds, 0 failed", ".".repeat(WIDTH))));
        progress.step(0);
        assert!(progress.line(1).starts_with(&format!("[{}{}] 1/4 seeds, 1 failed", "#".repeat(10), ".".repeat(30))));
        assert!(Progress::new(0, "seeds").line(0).contains("0/0"));
    }
}
