//! The cores of measurements.

use std::error::Error;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Returns the first and the last core that this process may use.
#[cfg(target_os = "linux")]
pub(crate) fn first_and_last() -> Result<(usize, usize)> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let first = cores.next().ok_or("this process may not use any core")?;
    Ok((first, cores.next_back().unwrap_or(first)))
}

/// Keeps this process on one core.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(core: usize) -> Result<()> {
    let mut only = rustix::thread::CpuSet::new();
    only.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}

/// Other systems choose the cores themselves.
#[cfg(not(target_os = "linux"))]
pub(crate) fn first_and_last() -> Result<(usize, usize)> {
    Ok((0, 0))
}

/// Other systems choose the cores themselves.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_: usize) -> Result<()> {
    Ok(())
}
