//! Counts of the requests to the storage, by what they were for and what became of them.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::GroupMetrics;
use crate::error::{ErrorKind, Result};

/// What a request to the storage was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Listing ownerships or checkpoints.
    List,
    /// Reading one record, after an ambiguous answer or while adopting.
    Read,
    /// Claiming a partition.
    Claim,
    /// Renewing an ownership.
    Renew,
    /// Releasing a partition.
    Release,
    /// Taking a checkpoint over from the owner before.
    Adopt,
    /// Advancing a checkpoint.
    Checkpoint,
    /// Asking an owner for a partition.
    Mark,
    /// Announcing this owner, or clearing what others announced.
    Presence,
}

impl Operation {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::List,
        Self::Read,
        Self::Claim,
        Self::Renew,
        Self::Release,
        Self::Adopt,
        Self::Checkpoint,
        Self::Mark,
        Self::Presence,
    ];

    /// The name in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Adopt => "adopt",
            Self::Checkpoint => "checkpoint",
            Self::Mark => "mark",
            Self::Presence => "presence",
        }
    }
}

/// What became of a request to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It was done.
    Done,
    /// Somebody else had written first. Normal while partitions move.
    Conflict,
    /// There was no such blob. Normal before the first checkpoint.
    NotFound,
    /// The server asked for fewer requests.
    Throttled,
    /// No usable answer came.
    Unknown,
    /// The server could not be reached.
    Unavailable,
    /// The server refused it: see the log.
    Refused,
}

impl Outcome {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 7] =
        [Self::Done, Self::Conflict, Self::NotFound, Self::Throttled, Self::Unknown, Self::Unavailable, Self::Refused];

    /// The name in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Throttled => "throttled",
            Self::Unknown => "unknown",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
        }
    }

    pub(crate) fn of<T>(answer: &Result<T>) -> Self {
        let Err(error) = answer else { return Self::Done };
        match error.kind() {
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Throttled { .. } => Self::Throttled,
            ErrorKind::Indeterminate => Self::Unknown,
            ErrorKind::Unavailable => Self::Unavailable,
            _ => Self::Refused,
        }
    }
}

type Table<T> = [[T; Outcome::ALL.len()]; Operation::ALL.len()];

/// Counts the requests that one store sends.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    table: Table<AtomicU64>,
    metrics: GroupMetrics,
}

impl RequestCounters {
    pub(crate) fn new(metrics: GroupMetrics) -> Self {
        Self { table: Table::default(), metrics }
    }

    /// A request that is about to be sent. Dropped without an answer it counts as [`Outcome::Indeterminate`].
    pub(crate) fn start(&self, operation: Operation) -> Request<'_> {
        Request { counters: self, operation, outcome: Outcome::Unknown }
    }

    pub(crate) fn read(&self) -> RequestCounts {
        RequestCounts(self.table.each_ref().map(|row| row.each_ref().map(|count| count.load(Ordering::Relaxed))))
    }
}

/// Counts itself when dropped.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    counters: &'a RequestCounters,
    operation: Operation,
    outcome: Outcome,
}

impl Request<'_> {
    pub(crate) fn answered<T>(mut self, answer: &Result<T>) -> Outcome {
        self.outcome = Outcome::of(answer);
        self.outcome
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let Self { counters, operation, outcome } = *self;
        counters.table[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        counters.metrics.request(operation.name(), outcome.name());
    }
}

/// How many requests a store has sent to the storage since it was connected, by purpose and outcome. A listing counts
/// once; it is one request for up to 5000 partitions. Reads that the backend repeated by itself count once, too.
///
/// Serialized, it is a map of the totals per purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts(Table<u64>);

impl RequestCounts {
    /// The requests for this purpose with this outcome.
    #[must_use]
    pub fn of(&self, operation: Operation, outcome: Outcome) -> u64 {
        self.0[operation as usize][outcome as usize]
    }

    /// All requests for this purpose.
    #[must_use]
    pub fn total(&self, operation: Operation) -> u64 {
        self.0[operation as usize].iter().sum()
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
        let mut totals = serializer.serialize_map(Some(Operation::ALL.len()))?;
        for operation in Operation::ALL {
            totals.serialize_entry(operation.name(), &self.total(operation))?;
        }
        totals.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn requests_are_counted_by_purpose_and_outcome_and_can_be_summed_up() {
        let counters = RequestCounters::default();
        let refusal = |kind| Err::<(), _>(Error::new(kind, "x"));
        counters.start(Operation::Claim).answered(&Ok(()));
        counters.start(Operation::Claim).answered(&refusal(ErrorKind::Conflict));
        counters.start(Operation::Read).answered(&refusal(ErrorKind::Unauthorized));
        drop(counters.start(Operation::Release));
        let mut counts = counters.read();
        counts += counters.read();
        assert_eq!((counts.total(Operation::Claim), counts.total(Operation::Renew)), (4, 0));
        assert_eq!(counts.of(Operation::Claim, Outcome::Conflict), 2);
        assert_eq!(counts.of(Operation::Read, Outcome::Refused), 2);
        assert_eq!(counts.of(Operation::Release, Outcome::Unknown), 2);
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(
            json,
            r#"{"list":0,"read":2,"claim":4,"renew":0,"release":2,"adopt":0,"checkpoint":0,"mark":0,"presence":0}"#
        );
    }

    #[test]
    fn every_operation_and_outcome_stands_at_its_own_place() {
        assert!(Operation::ALL.iter().enumerate().all(|(index, operation)| *operation as usize == index));
        assert!(Outcome::ALL.iter().enumerate().all(|(index, outcome)| *outcome as usize == index));
    }
}
