//! Every span, log event and counter of this crate, named in one place.
//!
//! Fields: `partition`, `owner` (another's), `reason`, `error` (with its causes), `blob`. Levels: `warn` asks for a look,
//! `info` tells what changed, `debug` is for tracing one decision.

use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tracing::{debug, info, warn};

use crate::codec::Malformed;
use crate::error::Error;
use crate::model::{OwnerId, PartitionId};

/// What a request to the storage was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    List,
    Read,
    Claim,
    Renew,
    Release,
    Adopt,
    Checkpoint,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Claim => "claim",
            Self::Renew => "renewal",
            Self::Release => "release",
            Self::Adopt => "adoption",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// Counts the requests that one store has sent.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters([AtomicU64; 7]);

impl RequestCounters {
    pub(crate) fn count(&self, operation: Operation) {
        self.0[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> RequestCounts {
        let count = |operation: Operation| self.0[operation as usize].load(Ordering::Relaxed);
        RequestCounts {
            list: count(Operation::List),
            read: count(Operation::Read),
            claim: count(Operation::Claim),
            renew: count(Operation::Renew),
            release: count(Operation::Release),
            adopt: count(Operation::Adopt),
            checkpoint: count(Operation::Checkpoint),
        }
    }
}

/// How many requests a store has sent to the storage since it was connected, by purpose. A listing counts once, however
/// many pages it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Listings of ownerships or checkpoints.
    pub list: u64,
    /// Reads of one record, after an ambiguous answer or while adopting.
    pub read: u64,
    /// Writes that claim a partition.
    pub claim: u64,
    /// Writes that renew an ownership.
    pub renew: u64,
    /// Writes that release a partition.
    pub release: u64,
    /// Writes that adopt a checkpoint for a new owner.
    pub adopt: u64,
    /// Writes that advance a checkpoint.
    pub checkpoint: u64,
}

impl std::ops::Add for RequestCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            list: self.list + other.list,
            read: self.read + other.read,
            claim: self.claim + other.claim,
            renew: self.renew + other.renew,
            release: self.release + other.release,
            adopt: self.adopt + other.adopt,
            checkpoint: self.checkpoint + other.checkpoint,
        }
    }
}

/// An error with its causes, on one line; without those whose text the one above them repeats.
struct Causes<'a>(&'a Error);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !told.contains(&text) {
                write!(f, ": {text}")?;
            }
            told = text;
            cause = error.source();
        }
        Ok(())
    }
}

pub(crate) fn malformed_record(malformed: &Malformed) {
    warn!(blob = malformed.blob, problem = malformed.problem, "a record cannot be used and is ignored");
}

pub(crate) fn claim_won(partition: &PartitionId, reason: &dyn fmt::Debug) {
    info!(%partition, ?reason, "partition claimed");
}

pub(crate) fn claim_lost(partition: &PartitionId, owner: Option<&OwnerId>) {
    debug!(%partition, owner = owner.map(OwnerId::as_str), "another instance was faster to claim the partition");
}

pub(crate) fn ownership_lost(partition: &PartitionId, owner: Option<&OwnerId>) {
    info!(%partition, owner = owner.map(OwnerId::as_str), "partition lost to another owner");
}

pub(crate) fn ownership_undecided(operation: Operation, partition: &PartitionId, error: &Error) {
    warn!(%partition, operation = operation.name(), error = %Causes(error), "the outcome is not known, trying again");
}

pub(crate) fn released(partition: &PartitionId) {
    info!(%partition, "partition released");
}

pub(crate) fn cycle_failed(error: &Error, next: Duration) {
    warn!(error = %Causes(error), next_in = ?next, "the balancing cycle failed and will be repeated");
}

pub(crate) fn partition_started(partition: &PartitionId, from: &dyn fmt::Debug) {
    info!(%partition, ?from, "processing started");
}

pub(crate) fn partition_stopped(partition: &PartitionId, reason: &dyn fmt::Debug) {
    info!(%partition, ?reason, "processing stopped");
}

pub(crate) fn partition_failed(partition: &PartitionId, error: &Error, next: Duration) {
    warn!(%partition, error = %Causes(error), next_in = ?next, "processing failed and will be restarted");
}

pub(crate) fn drain_timed_out(partition: &PartitionId, after: Duration) {
    warn!(%partition, ?after, "the handler did not finish in time; its batch will be delivered again");
}

pub(crate) fn checkpoint_failed(partition: &PartitionId, error: &Error) {
    warn!(%partition, error = %Causes(error), "the checkpoint was not written and stays pending");
}

pub(crate) fn unpositioned_event(partition: &PartitionId) {
    warn!(%partition, "the event carries no sequence number or no offset, so it cannot be checkpointed");
}

pub(crate) fn partition_list_failed(error: &Error) {
    warn!(error = %Causes(error), "the hub's partitions could not be read; going on with those known");
}

pub(crate) fn handler_failed_while_draining(partition: &PartitionId, error: &Error) {
    warn!(%partition, error = %Causes(error), "the handler failed while draining; its batch will be delivered again");
}

pub(crate) fn partition_task_panicked(partition: &PartitionId) {
    warn!(%partition, "the partition's task panicked; the partition is released");
}

pub(crate) fn shutdown_cut_short(after: Duration) {
    warn!(?after, "some partitions did not stop in time and were cut short");
}

pub(crate) fn source_not_closed(error: &Error) {
    debug!(error = %Causes(error), "the event source was not closed in good order");
}

#[cfg(feature = "eventhubs")]
pub(crate) fn link_not_closed(partition: &str, error: &dyn fmt::Display) {
    debug!(partition, %error, "the link was not closed in good order; the broker drops it");
}
