//! Counts of the requests to the storage, by operation and outcome, and by the type that Azure bills.

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
    /// Reading or writing the beacon of the group, which shows when a listing is worth its price, and looking at the
    /// owners that this instance watches.
    Beacon,
    /// Creating the container and verifying the storage, while a store connects.
    Connect,
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
        Self::Connect,
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
            Self::Connect => "connect",
        }
    }
}

/// What Azure Blob Storage bills for a request. A failed request is billed like any other.
///
/// The types apply to general-purpose v2 accounts and to premium block blobs, by the page [Map each REST operation
/// to a price](https://learn.microsoft.com/azure/storage/blobs/map-rest-apis-transaction-categories) of 14 May 2025.
/// Their prices differ by more than ten times: see [`cost`](crate::cost).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BillingType {
    /// *List Blobs* and *Create Container*, which are list and create container operations.
    List,
    /// *Put Blob*, a write operation: the creation of a record.
    Write,
    /// *Set Blob Metadata* and *Get Blob Properties*, which are other operations: the change of a record, and a read.
    Other,
    /// *Delete Blob*, which is free.
    Free,
}

impl BillingType {
    /// All types, in the order of their declaration.
    pub const ALL: &'static [Self] = &[Self::List, Self::Write, Self::Other, Self::Free];

    /// Returns the name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Write => "write",
            Self::Other => "other",
            Self::Free => "free",
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
    by_billing: [AtomicU64; BillingType::ALL.len()],
    metrics: GroupMetrics,
}

impl RequestCounters {
    pub(crate) fn new(metrics: GroupMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// Starts to count a request that is about to be sent. If it is dropped without a response, its outcome is
    /// [`StorageOutcome::Indeterminate`].
    pub(crate) fn start(&self, operation: StorageOperation, billing: BillingType) -> CountedRequest<'_> {
        CountedRequest { counters: self, operation, billing, outcome: StorageOutcome::Indeterminate }
    }

    /// Sends a request, and counts it.
    pub(crate) async fn count<T>(
        &self,
        operation: StorageOperation,
        billing: BillingType,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let counted = self.start(operation, billing);
        let response = request.await;
        counted.finish(&response);
        response
    }

    pub(crate) fn current_counts(&self) -> RequestCounts {
        RequestCounts {
            table: self.table.each_ref().map(|row| row.each_ref().map(|count| count.load(Ordering::Relaxed))),
            by_billing: self.by_billing.each_ref().map(|count| count.load(Ordering::Relaxed)),
        }
    }
}

/// Counts the request when dropped.
#[derive(Debug)]
pub(crate) struct CountedRequest<'a> {
    counters: &'a RequestCounters,
    operation: StorageOperation,
    billing: BillingType,
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
        let Self { counters, operation, billing, outcome } = *self;
        counters.table[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        counters.by_billing[billing as usize].fetch_add(1, Ordering::Relaxed);
        counters.metrics.count_request(operation.as_str(), outcome.as_str(), billing.as_str());
    }
}

/// The number of requests that a store has sent since it began to connect, by operation and outcome, and by the type
/// that Azure bills.
///
/// A listing counts once; it is one request for up to 5000 blobs. A read that the backend repeats counts once. A
/// request that did not reach the storage counts, although it is not billed. Serialized, this is a map from each
/// operation to its total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    table: Table<u64>,
    by_billing: [u64; BillingType::ALL.len()],
}

impl RequestCounts {
    /// Returns the number of requests of this operation with this outcome.
    #[must_use]
    pub fn of(&self, operation: StorageOperation, outcome: StorageOutcome) -> u64 {
        self.table[operation as usize][outcome as usize]
    }

    /// Returns the number of requests of this operation.
    #[must_use]
    pub fn total(&self, operation: StorageOperation) -> u64 {
        self.table[operation as usize].iter().sum()
    }

    /// Returns the number of requests that Azure bills as this type.
    #[must_use]
    pub fn billed_as(&self, billing: BillingType) -> u64 {
        self.by_billing[billing as usize]
    }

    /// Returns the number of all requests.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.by_billing.iter().sum()
    }
}

impl AddAssign for RequestCounts {
    fn add_assign(&mut self, other: Self) {
        for (sum, count) in self.table.as_flattened_mut().iter_mut().zip(other.table.as_flattened()) {
            *sum += count;
        }
        for (sum, count) in self.by_billing.iter_mut().zip(other.by_billing) {
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
    fn requests_are_counted_by_operation_outcome_and_type() {
        let counters = RequestCounters::default();
        let error = |kind| Err::<(), _>(Error::new(kind, "x"));
        counters.start(StorageOperation::Claim, BillingType::Write).finish(&Ok(()));
        counters.start(StorageOperation::Claim, BillingType::Other).finish(&error(ErrorKind::Conflict));
        counters.start(StorageOperation::Read, BillingType::Other).finish(&error(ErrorKind::Unauthorized));
        drop(counters.start(StorageOperation::Release, BillingType::Other));
        let mut counts = counters.current_counts();
        counts += counters.current_counts();
        assert_eq!((counts.total(StorageOperation::Claim), counts.total(StorageOperation::Renew)), (4, 0));
        assert_eq!(counts.of(StorageOperation::Claim, StorageOutcome::Conflict), 2);
        assert_eq!(counts.of(StorageOperation::Read, StorageOutcome::Rejected), 2);
        assert_eq!(counts.of(StorageOperation::Release, StorageOutcome::Indeterminate), 2);
        assert_eq!(BillingType::ALL.iter().map(|it| counts.billed_as(*it)).collect::<Vec<_>>(), [0, 2, 6, 0]);
        assert_eq!(counts.sum(), 8);
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(
            json,
            r#"{"list":0,"read":2,"claim":4,"renew":0,"release":2,"adopt":0,"checkpoint":0,"request_handoff":0,"heartbeat":0,"delete":0,"beacon":0,"connect":0}"#
        );
    }

    #[test]
    fn all_values_index_the_counts() {
        assert!(StorageOperation::ALL.iter().enumerate().all(|(index, operation)| *operation as usize == index));
        assert!(StorageOutcome::ALL.iter().enumerate().all(|(index, outcome)| *outcome as usize == index));
        assert!(BillingType::ALL.iter().enumerate().all(|(index, billing)| *billing as usize == index));
    }
}
