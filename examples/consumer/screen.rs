//! Prints lines with the time since the start.

use tokio::time::Instant;

pub struct Screen {
    started: Instant,
    to_stderr: bool,
}

impl Screen {
    /// With `json`, standard output is reserved for the result.
    pub fn new(json: bool) -> Self {
        Self { started: Instant::now(), to_stderr: json }
    }

    pub fn say(&self, text: &str) {
        let line = format!("{:>6.1} s  {text}", self.started.elapsed().as_secs_f64());
        if self.to_stderr {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }
}
