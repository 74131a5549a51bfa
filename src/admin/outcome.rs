//! What became of a reset.

use std::fmt;

use crate::error::Error;
use crate::model::OwnerId;

/// What became of the reset of one partition.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResetOutcome {
    /// The checkpoint is at the new position, and the partition was released: its next owner starts exactly there,
    /// unless the partition is reset again. Beside owners of other SDKs it means less: none of them wrote the checkpoint
    /// while the operator [waited](super::ResetOptions::settle); one whose handler takes longer may write it later.
    Done,
    /// The position was not written, and will not be. The partition is with its owner as before, or was released to it.
    /// If the storage [failed](NotDone::Failed), it may have no owner until the operator's ownership expires.
    NotDone(NotDone),
    /// The storage did not say what became of a write. Look at the checkpoint, or reset again.
    Indeterminate {
        /// Whether the new position was written. If not, that is unknown: the checkpoint is at the old position or at
        /// the new one, at the latest when the next owner adopts it. If so, only the release failed. Without an `error`,
        /// another owner took the partition before it was released: one of this crate starts at the new position, one
        /// of another SDK may have begun at the old one. With an `error`, the partition has no owner, at the longest
        /// until the operator's ownership expires.
        written: bool,
        /// What went wrong, if it was an error.
        error: Option<Error>,
    },
}

/// Why the checkpoint of a partition was not reset.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotDone {
    /// Another owner took the partition at the same time. Reset again.
    Lost {
        /// The owner now, if there is one.
        by: Option<OwnerId>,
    },
    /// Another operator works on it. Wait for its end: at the latest, for the lease duration.
    Busy {
        /// That operator.
        operator: OwnerId,
    },
    /// An owner of another SDK is alive in the group. Such an owner does not notice in time that it lost its partition,
    /// and may undo the reset. Stop those owners first, or see [`ResetOptions::beside_foreign`](super::ResetOptions).
    Foreign {
        /// One of them.
        owner: OwnerId,
    },
    /// The partition is owned under names of another letter case. Use the key case of that application.
    OtherNameCase {
        /// Its owner.
        owner: OwnerId,
    },
    /// The storage failed. Correct what the error names, and reset again.
    Failed(Error),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { by: Some(owner) } => {
                write!(f, "{owner} claimed the partition at the same time: reset it again")
            }
            Self::Lost { by: None } => f.write_str("the partition was released at the same time: reset it again"),
            Self::Busy { operator } => write!(f, "{operator} is resetting the partition: wait until it has finished"),
            Self::Foreign { owner } => {
                write!(
                    f,
                    "{owner}, an owner of another SDK, is active in the group and may undo the reset: stop it first"
                )
            }
            Self::OtherNameCase { owner } => write!(
                f,
                "{owner} owns the partition under a different blob-name case: use the blob-name case of its application"
            ),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}
