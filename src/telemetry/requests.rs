//! Counts of the requests to the storage, by operation and outcome.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::GroupMetrics;
use crate::error::{ErrorKind, Result};

/// The purpose of a request to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageOperation {
    /// Listing ownerships or checkpoints.
    List,
    /// Reading one record, after an ambiguous response or while adopting.
    Read,
    /// Claiming a partition.
    Claim,
    /// Renewing an ownership.
    Renew,
    /// Releasing a partition.
    Release,
    /// Adopting a checkpoint from the previous owner.
    Adopt,
    /// Advancing a checkpoint.
    Checkpoint,
    /// Requesting a handoff from an owner.
    RequestHandoff,
    /// Writing the heartbeat of this instance, or deleting stale heartbeats.
    Heartbeat,
    /// Deleting a record on behalf of an [operator](crate::admin::Operator).
    Delete,
    /// Reading or writing the beacon of the group, which shows when a listing is worth its price.
    Beacon,
}

impl StorageOperation {
    /// All operations, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::List,
        Self::Read,
        Self::Claim,
        Self::Renew,
        Self::Release,
        Self::Adopt,
        Self::Checkpoint,
        Self::RequestHandoff,
        Self::Heartbeat,
        Self::Delete,
        Self::Beacon,
    ];

    /// Returns the name in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Adopt => "adopt",
            Self::Checkpoint => "checkpoint",
            Self::RequestHandoff => "request_handoff",
            Self::Heartbeat => "heartbeat",
            Self::Delete => "delete",
            Self::Beacon => "beacon",
        }
    }
}

/// The outcome of a request to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageOutcome {
    /// The request succeeded.
    Ok,
    /// Another writer was first. Normal while partitions move.
    Conflict,
    /// The blob does not exist. Normal before the first checkpoint.
    NotFound,
    /// The server limits the request rate.
    Throttled,
    /// No usable response arrived, so the request may have been applied.
    Indeterminate,
    /// The server could not be reached.
    Unavailable,
    /// The server rejected the request: see the log.
    Rejected,
}

impl StorageOutcome {
    /// All outcomes, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::Ok,
        Self::Conflict,
        Self::NotFound,
        Self::Throttled,
        Self::Indeterminate,
        Self::Unavailable,
        Self::Rejected,
    ];

    /// Returns the name in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Throttled => "throttled",
            Self::Indeterminate => "indeterminate",
            Self::Unavailable => "unavailable",
            Self::Rejected => "rejected",
        }
    }

    pub(crate) fn from_response<T>(response: &Result<T>) -> Self {
        let Err(error) = response else { return Self::Ok };
        match error.kind() {
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Throttled { .. } => Self::Throttled,
            ErrorKind::Indeterminate => Self::Indeterminate,
            ErrorKind::Unavailable => Self::Unavailable,
            _ => Self::Rejected,
        }
    }
}

type Table<T> = [[T; StorageOutcome::ALL.len()]; StorageOperation::ALL.len()];

/// Counts the requests of one store.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    table: Table<AtomicU64>,
    metrics: GroupMetrics,
}

impl RequestCounters {
    pub(crate) fn new(metrics: GroupMetrics) -> Self {
        Self { table: Table::default(), metrics }
    }

    /// Starts to count a request that is about to be sent. If it is dropped without a response, its outcome is
    /// [`StorageOutcome::Indeterminate`].
    pub(crate) fn start(&self, operation: StorageOperation) -> CountedRequest<'_> {
        CountedRequest { counters: self, operation, outcome: StorageOutcome::Indeterminate }
    }

    pub(crate) fn current_counts(&self) -> RequestCounts {
        RequestCounts(self.table.each_ref().map(|row| row.each_ref().map(|count| count.load(Ordering::Relaxed))))
    }
}

/// Counts the request when dropped.
#[derive(Debug)]
pub(crate) struct CountedRequest<'a> {
    counters: &'a RequestCounters,
    operation: StorageOperation,
    outcome: StorageOutcome,
}

impl CountedRequest<'_> {
    pub(crate) fn finish<T>(mut self, response: &Result<T>) -> StorageOutcome {
        self.outcome = StorageOutcome::from_response(response);
        self.outcome
    }
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        let Self { counters, operation, outcome } = *self;
        counters.table[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        counters.metrics.count_request(operation.as_str(), outcome.as_str());
    }
}

/// The number of requests that a store has sent since it was connected, by operation and outcome.
///
/// A listing counts once; it is one request for up to 5000 partitions. A read that the backend repeats counts once.
/// Serialized, this is a map from each operation to its total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts(Table<u64>);

impl RequestCounts {
    /// Returns the number of requests of this operation with this outcome.
    #[must_use]
    pub fn of(&self, operation: StorageOperation, outcome: StorageOutcome) -> u64 {
        self.0[operation as usize][outcome as usize]
    }

    /// Returns the number of requests of this operation.
    #[must_use]
    pub fn total(&self, operation: StorageOperation) -> u64 {
        self.0[operation as usize].iter().sum()
    }

    /// Returns the number of all requests.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.as_flattened().iter().sum()
    }
}

impl AddAssign for RequestCounts {
    fn add_assign(&mut self, other: Self) {
        for (sum, count) in self.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened()) {
            *sum += count;
        }
    }
}

impl Serialize for RequestCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut totals = serializer.serialize_map(Some(StorageOperation::ALL.len()))?;
        for operation in StorageOperation::ALL {
            totals.serialize_entry(operation.as_str(), &self.total(*operation))?;
        }
        totals.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn requests_are_counted_by_operation_and_outcome() {
        let counters = RequestCounters::default();
        let error = |kind| Err::<(), _>(Error::new(kind, "x"));
        counters.start(StorageOperation::Claim).finish(&Ok(()));
        counters.start(StorageOperation::Claim).finish(&error(ErrorKind::Conflict));
        counters.start(StorageOperation::Read).finish(&error(ErrorKind::Unauthorized));
        drop(counters.start(StorageOperation::Release));
        let mut counts = counters.current_counts();
        counts += counters.current_counts();
        assert_eq!((counts.total(StorageOperation::Claim), counts.total(StorageOperation::Renew)), (4, 0));
        assert_eq!(counts.of(StorageOperation::Claim, StorageOutcome::Conflict), 2);
        assert_eq!(counts.of(StorageOperation::Read, StorageOutcome::Rejected), 2);
        assert_eq!(counts.of(StorageOperation::Release, StorageOutcome::Indeterminate), 2);
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(
            json,
            r#"{"list":0,"read":2,"claim":4,"renew":0,"release":2,"adopt":0,"checkpoint":0,"request_handoff":0,"heartbeat":0,"delete":0,"beacon":0}"#
        );
    }

    #[test]
    fn operations_and_outcomes_index_the_table() {
        assert!(StorageOperation::ALL.iter().enumerate().all(|(index, operation)| *operation as usize == index));
        assert!(StorageOutcome::ALL.iter().enumerate().all(|(index, outcome)| *outcome as usize == index));
    }
}
