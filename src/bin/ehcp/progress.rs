//! Progress on the standard error, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows what is being done until it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Shows that something of unknown length is being done.
    pub fn spinner(what: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows how many of several partitions are done.
    pub fn of(what: &str, count: usize) -> Self {
        let bar = ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX)).with_message(what.to_owned());
        // The template is correct, so the default is never used.
        bar.set_style(
            ProgressStyle::with_template("{msg} {pos}/{len} {wide_bar} {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Self(bar)
    }

    pub fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
