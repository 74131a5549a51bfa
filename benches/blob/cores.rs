//! Which processor core a process runs on.
//!
//! Left to itself the system moves client and stub about. On one core they take turns; on two, each request wakes the
//! other core, which costs more than all else of a small request. So each measurement says which it is.

use crate::Result;

/// Where the client runs. The stub always has the last core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// As with a service elsewhere: the client's core sleeps between answers.
    Apart,
    /// The work of the client and nothing else.
    Together,
}

impl Placement {
    pub(crate) fn of_client(self) -> Result<usize> {
        match self {
            Self::Apart => Ok(cores()?.0),
            Self::Together => Self::of_stub(),
        }
    }

    pub(crate) fn of_stub() -> Result<usize> {
        Ok(cores()?.1)
    }
}

/// The first and the last core that this process may use.
#[cfg(target_os = "linux")]
fn cores() -> Result<(usize, usize)> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let first = cores.next().ok_or("this process may use no core")?;
    Ok((first, cores.next_back().unwrap_or(first)))
}

/// Keeps this process on one core.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(core: usize) -> Result<()> {
    let mut only = rustix::thread::CpuSet::new();
    only.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}

/// Elsewhere the system decides.
#[cfg(not(target_os = "linux"))]
fn cores() -> Result<(usize, usize)> {
    Ok((0, 0))
}

/// Elsewhere the system decides.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_: usize) -> Result<()> {
    Ok(())
}
