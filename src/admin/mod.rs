//! Steering a consumer group from outside, whatever SDK its processors use.
//!
//! An [`Operator`] is no member of the group: it processes nothing, and the members do not count it. It
//! [resets](Operator::reset) checkpoints: takes a partition over like any owner, writes another position, and returns the
//! partition to its former owner, which goes on at the new position. The page `docs/protocol.md` has the steps.

mod operator;
mod outcome;
mod retries;
mod session;
mod takeover;

/// How an operator takes a partition over.
#[cfg(feature = "testing")]
pub(crate) mod internal {
    pub use super::takeover::{Takeover, takeover};
}

pub use operator::{Operator, ResetOptions};
pub use outcome::{NotDone, ResetOutcome};
