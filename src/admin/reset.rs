//! A reset of checkpoints: where to, how, and its outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;

use super::partition_description::RecordedPosition;
use crate::error::Error;
use crate::model::{OwnerId, PartitionId};
use crate::source::StartPosition;

/// Which checkpoints to set, and where to. See [`Operator::plan`](super::Operator::plan).
#[derive(Clone, Debug)]
#[must_use = "nothing is planned yet"]
pub struct Reset {
    pub(super) target: ResetTarget,
    pub(super) partitions: Option<BTreeSet<PartitionId>>,
    pub(super) keep_existing: bool,
    pub(super) clamped: bool,
    pub(super) recorded_at: Option<OffsetDateTime>,
}

/// Where to set a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetTarget {
    /// The position that this start resolves to.
    Start(StartPosition),
    /// The current position plus this many events, forward or (negative) backward.
    ShiftBy(i64),
    /// The current position; fills in a missing sequence number or offset.
    Current,
    /// One position for each partition. Other partitions stay unchanged.
    Positions(BTreeMap<PartitionId, RecordedPosition>),
    /// The positions that these starts resolve to. Other partitions stay unchanged. Partitions that the event hub does
    /// not have are ignored.
    Starts(BTreeMap<PartitionId, StartPosition>),
}

impl Reset {
    /// Describes a reset of all partitions.
    pub fn to(target: ResetTarget) -> Self {
        Self { target, partitions: None, keep_existing: false, clamped: true, recorded_at: None }
    }

    /// Limits the reset to these partitions. Default: all.
    pub fn with_partitions(mut self, partitions: impl IntoIterator<Item = PartitionId>) -> Self {
        self.partitions = Some(partitions.into_iter().collect());
        self
    }

    /// Sets whether partitions that have a checkpoint stay as they are. Default false.
    pub fn with_keep_existing(mut self, keep_existing: bool) -> Self {
        self.keep_existing = keep_existing;
        self
    }

    /// Sets whether a position outside of the partition's range is moved to its nearest end. Default true. If false,
    /// such a position is written as it is. It must then have both numbers, as in [`ResetTarget::Positions`].
    pub fn with_clamped(mut self, clamped: bool) -> Self {
        self.clamped = clamped;
        self
    }

    /// Sets when the positions of [`ResetTarget::Positions`] were recorded, as [`Export::taken_at`](super::Export)
    /// says. If the event hub was created later, they mean nothing in it, and [`plan`](super::Operator::plan) refuses
    /// them.
    pub fn with_recorded_at(mut self, time: OffsetDateTime) -> Self {
        self.recorded_at = Some(time);
        self
    }

    /// Returns the partitions that it names. They exist for a group without the event hub, even without a record.
    pub(super) fn partitions_with_position(&self) -> BTreeSet<PartitionId> {
        let positions = match &self.target {
            ResetTarget::Positions(positions) => Some(positions),
            _ => None,
        };
        positions.into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}

/// How to reset checkpoints.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResetOptions {
    /// Whether to reset although an owner of another SDK is alive in the group. Default false. Such an owner does not
    /// detect the loss of a partition before its next listing or checkpoint, and its checkpoints are not rejected
    /// before that.
    pub allow_foreign: bool,
    /// Whether to take partitions from live owners of this crate. Default true: they detect the loss, and their late
    /// checkpoints are rejected.
    pub allow_live: bool,
    /// Whether to reset although the application [keeps its own positions](crate::processor::Handler::start_position).
    /// Default false, because such a reset has no effect: the partition starts at the position of the application, and
    /// the checkpoint follows it. Change that position instead. With
    /// [`OnEarlierStart::Fail`](crate::processor::OnEarlierStart::Fail), a reset is needed as well to process events
    /// again.
    pub allow_own_positions: bool,
    /// How long the operator owns each partition before it writes the new position, so that owners of other SDKs detect
    /// that they lost it, and their last handlers end. Default 60 s: twice the longest default interval of the other
    /// SDKs. It does not help against a handler that takes longer.
    pub settle: Duration,
}

impl Default for ResetOptions {
    fn default() -> Self {
        Self { allow_foreign: false, allow_live: true, allow_own_positions: false, settle: Duration::from_secs(60) }
    }
}

impl ResetOptions {
    /// Sets whether to reset although an owner of another SDK is alive. Default false.
    #[must_use]
    pub fn with_allow_foreign(mut self, allow_foreign: bool) -> Self {
        self.allow_foreign = allow_foreign;
        self
    }

    /// Sets whether to take partitions from live owners of this crate. Default true.
    #[must_use]
    pub fn with_allow_live(mut self, allow_live: bool) -> Self {
        self.allow_live = allow_live;
        self
    }

    /// Sets whether to reset although the application keeps its own positions. Default false.
    #[must_use]
    pub fn with_allow_own_positions(mut self, allow_own_positions: bool) -> Self {
        self.allow_own_positions = allow_own_positions;
        self
    }

    /// Sets how long the operator waits for owners of other SDKs. Default 60 s.
    #[must_use]
    pub fn with_settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }
}

/// The outcome of the reset of one partition.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the reset may have failed"]
pub enum ResetOutcome {
    /// The checkpoint is at the new position, and the partition was released: its next owner starts exactly there,
    /// unless the partition is reset again. With owners of other SDKs in the group the guarantee is weaker: none of
    /// them wrote the checkpoint while the operator [waited](ResetOptions::settle), but one whose handler takes longer
    /// may write it later.
    Done,
    /// The position was not written, and will not be. The partition belongs to its owner as before, or was released to
    /// it. If the storage failed, also at the release, the partition may have no owner until the operator's lease
    /// expires.
    NotDone(ResetError),
    /// The outcome of a write is unknown. Check the checkpoint, or reset again.
    Indeterminate {
        /// Whether the new position is known to be written.
        ///
        /// If false, the checkpoint is at the old position or at the new one; which one is settled at the latest when
        /// the next owner adopts it. If true, only the release failed. With an `error`, the partition may have no owner
        /// until the operator's lease expires. Without one, another owner claimed the partition before it was released:
        /// an owner of this crate starts at the new position, an owner of another SDK may have started at the old one.
        written: bool,
        /// The error, if there was one.
        error: Option<Error>,
    },
}

/// Why the checkpoint of a partition was not reset.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResetError {
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
    /// and may undo the reset. Stop those owners first, or see [`ResetOptions::allow_foreign`].
    Foreign {
        /// One of these owners.
        owner: OwnerId,
    },
    /// An owner of this crate has the partition, and the options do not permit to take it over. Stop the owner first,
    /// or see [`ResetOptions::allow_live`].
    Live {
        /// The owner.
        owner: OwnerId,
    },
    /// The application keeps its own position of the partition, so a reset of the checkpoint has no effect. Change that
    /// position, or see [`ResetOptions::allow_own_positions`].
    OwnPosition,
    /// The partition is parked after a failure of its handler, so it cannot be paused. Resume it, or reset it.
    Parked,
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

impl fmt::Display for ResetError {
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
            Self::OwnPosition => f.write_str(
                "the application keeps its own position, so a reset of the checkpoint has no effect: change that position",
            ),
            Self::Parked => f.write_str("the partition is parked after a failure: resume it, or reset its checkpoint"),
            Self::Stopped => f.write_str("stopped before the checkpoint was written: reset the partition again"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ResetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Display already shows the error itself.
            Self::Failed(error) => error.source(),
            _ => None,
        }
    }
}
