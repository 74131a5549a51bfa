//! Time, CPU time and memory.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::Result;

/// The cost of all events of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) elapsed: Duration,
    /// CPU time of all threads.
    pub(crate) cpu: Duration,
    /// The memory, if the measurement is about memory.
    pub(crate) bytes: u64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.elapsed.as_nanos(), self.cpu.as_nanos(), self.bytes)
    }
}

impl FromStr for Cost {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [elapsed, cpu, bytes] = *numbers.as_slice() else { return Err(format!("no cost: {text:?}").into()) };
        Ok(Self { elapsed: Duration::from_nanos(elapsed), cpu: Duration::from_nanos(cpu), bytes })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), cpu: cpu_time() }
    }

    pub(crate) fn stop(&self) -> Cost {
        Cost { elapsed: self.started.elapsed(), cpu: cpu_time().saturating_sub(self.cpu), bytes: 0 }
    }
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Returns the resident memory of this process, if the system reports it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
