//! Which processor core a process runs on.
//!
//! Left to itself the system moves client and stub about. On one core they take turns; on two, each request wakes the
//! other core, which costs more than all else of a small request. So each measurement says which it is.

use crate::Result;
use crate::cores::first_and_last;

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
            Self::Apart => Ok(first_and_last()?.0),
            Self::Together => Self::of_stub(),
        }
    }

    pub(crate) fn of_stub() -> Result<usize> {
        Ok(first_and_last()?.1)
    }
}
