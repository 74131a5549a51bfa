//! The outcome of a reset.

use std::fmt;

use crate::error::Error;
use crate::model::OwnerId;

/// The outcome of the reset of one partition.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the reset may have failed"]
pub enum ResetOutcome {
    /// The checkpoint is at the new position, and the partition was released: its next owner starts exactly there,
    /// unless the partition is reset again. With owners of other SDKs in the group the guarantee is weaker: none of
    /// them wrote the checkpoint while the operator [waited](super::ResetOptions::settle), but one whose handler takes
    /// longer may write it later.
    Done,
    /// The position was not written, and will not be. The partition belongs to its owner as before, or was released to
    /// it. If the storage failed, also at the release, the partition may have no owner until the operator's lease
    /// expires.
    NotDone(NotDone),
    /// The outcome of a write is unknown. Check the checkpoint, or reset again.
    Indeterminate {
        /// Whether the new position was written. If false, that is unknown: the checkpoint is at the old position or at
        /// the new one, at the latest when the next owner adopts it. If true, only the release failed. Without an
        /// `error`, another owner claimed the partition before it was released: an owner of this crate starts at the
        /// new position, an owner of another SDK may have started at the old one. With an `error`, the partition has no
        /// owner, at most until the operator's lease expires.
        written: bool,
        /// The error, if there was one.
        error: Option<Error>,
    },
}

/// Why the checkpoint of a partition was not reset.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotDone {
    /// Another owner claimed the partition at the same time. Reset again.
    Lost {
        /// The current owner, if there is one.
        by: Option<OwnerId>,
    },
    /// Another operator works on it. Wait until that operator has finished, at most for the lease duration.
    Busy {
        /// The other operator.
        operator: OwnerId,
    },
    /// An owner of another SDK is alive in the group. Such an owner does not detect in time that it lost its partition,
    /// and may undo the reset. Stop those owners first, or see [`ResetOptions::allow_foreign`](super::ResetOptions).
    Foreign {
        /// One of these owners.
        owner: OwnerId,
    },
    /// An owner of this crate has the partition, and the options do not permit to take it over. Stop the owner first, or
    /// see [`ResetOptions::allow_live`](super::ResetOptions).
    Live {
        /// The owner.
        owner: OwnerId,
    },
    /// The checkpoint is not as it was when the reset was planned. Plan again.
    Changed {
        /// The sequence number of the checkpoint as it is, if it has one.
        sequence_number: Option<i64>,
    },
    /// The caller stopped the operator before it wrote the position.
    Stopped,
    /// The storage failed. Correct what the error names, and reset again.
    Failed(Error),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { by: Some(owner) } => {
                write!(f, "{owner} claimed the partition at the same time: try again")
            }
            Self::Lost { by: None } => f.write_str("the partition was released at the same time: try again"),
            Self::Busy { operator } => write!(f, "{operator} is resetting the partition: wait until it has finished"),
            Self::Foreign { owner } => {
                write!(
                    f,
                    "{owner}, an owner of another SDK, is active in the group and may undo the reset: stop it first"
                )
            }
            Self::Live { owner } => write!(f, "{owner} is processing the partition: stop it first"),
            Self::Changed { sequence_number: Some(number) } => {
                write!(f, "the checkpoint is at {number} now, which is not what the plan is for: plan again")
            }
            Self::Changed { sequence_number: None } => {
                f.write_str("the checkpoint has changed since it was planned: plan again")
            }
            Self::Stopped => f.write_str("stopped before the checkpoint was written"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}
