//! The processor core of each process.
//!
//! By default the system moves client and stub between cores. On one core they alternate; on two cores, each request
//! wakes the other core, which costs more than the rest of a small request. Therefore each measurement sets the cores.

use crate::Result;
use crate::cores::first_and_last;

/// The core of the client. The stub always has the last core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Another core, as with a remote service: the client's core sleeps between responses.
    Apart,
    /// The same core: only the work of the client is measured.
    Together,
}

impl Placement {
    pub(crate) fn of_client(self) -> Result<usize> {
        match self {
            Self::Apart => Ok(first_and_last()?.0),
            Self::Together => Self::of_stub(),
        }
    }

    pub(crate) fn of_stub() -> Result<usize> {
        Ok(first_and_last()?.1)
    }
}
