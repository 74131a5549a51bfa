//! Administration of a consumer group from outside, for processors of any SDK.
//!
//! An [`Operator`] is not a member of the group: it processes nothing, and the members do not count it.
//!
//! | call | does |
//! |---|---|
//! | [`list_groups`] | lists the groups in a container |
//! | [`read`](Operator::read), [`describe`](GroupRecords::describe) | shows owners, checkpoints and lag |
//! | [`plan`](Operator::plan), [`Plan::execute`] | resets checkpoints, after a look at what would change |
//! | [`Plan::init`] | writes initial checkpoints, where there are none |
//! | [`release`](Operator::release) | frees a partition of an owner that is stuck |
//! | [`plan_deletion`](Operator::plan_deletion), [`delete`](Operator::delete) | deletes records |
//! | [`Export`] | keeps checkpoints in a file, and brings them back or to another group |
//! | [`diagnose`](GroupRecords::diagnose) | finds what is wrong with a group, and the remedies |
//!
//! To [reset](Operator::reset) a checkpoint, the operator takes the partition over like any owner, writes another
//! position, and returns the partition to its previous owner, which continues at the new position. For the steps, see
//! `docs/protocol.md`. The tool `ehcp` (feature `cli`) does all of this from the command line.

mod deletion;
mod describe;
mod description;
mod doctor;
mod execution;
mod export;
mod groups;
mod hub;
mod operator;
mod outcome;
mod plan;
mod planning;
mod retries;
mod session;
mod survey;
mod takeover;

/// How an operator takes a partition over.
#[cfg(feature = "testing")]
pub(crate) mod internal {
    pub use super::takeover::{Allowed, Takeover, takeover};
}

pub use crate::store::RecordName;
pub use deletion::{DeletableRecord, Deletion};
pub use description::{
    CheckpointDescription, GroupDescription, GroupState, GroupSummary, Member, OwnerDescription, OwnershipState,
    PartitionDescription, PartitionRange, RecordedPosition, Sdk,
};
pub use doctor::{Check, Finding, Severity};
pub use export::{Export, ExportedPartition};
pub use groups::list_groups;
pub use hub::HubRanges;
pub use operator::{Operator, ResetOptions};
pub use outcome::{NotDone, ResetOutcome};
pub use plan::{Plan, PlannedChange, PlannedEffect, Reset, ResetTarget};
pub use survey::GroupRecords;
