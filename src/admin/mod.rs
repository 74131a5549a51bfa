//! Administration of a consumer group from outside, for processors of any SDK.
//!
//! An [`Operator`] is not a member of the group: it processes nothing, and the members do not count it. It
//! [resets](Operator::reset) checkpoints: it takes a partition over like any owner, writes another position, and
//! returns the partition to its previous owner, which continues at the new position. For the steps, see
//! `docs/protocol.md`.

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
