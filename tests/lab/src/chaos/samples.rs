//! The resource usage of a process from `/proc`. On systems other than Linux there is none.

use std::fs;

use crate::chaos::clock::Moment;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub at: Moment,
    pub memory_kib: u64,
    pub files: u64,
    pub threads: u64,
}

/// Returns `None` if the process is gone.
pub fn sample(at: Moment, process: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count();
    Some(Sample {
        at,
        memory_kib: field(&status, "VmRSS:")?,
        files: files as u64,
        threads: field(&status, "Threads:")?,
    })
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_status_are_found() {
        let status = "Name:\tchaos\nVmRSS:\t   20480 kB\nThreads:\t4\n";
        assert_eq!((field(status, "VmRSS:"), field(status, "Threads:")), (Some(20480), Some(4)));
        assert_eq!(field(status, "VmSwap:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_resources() {
        let sample = sample(Moment::ZERO, std::process::id()).unwrap();
        assert!(sample.memory_kib > 0 && sample.files > 2 && sample.threads > 0);
    }
}
