//! Start positions that are rejected.

use std::fmt;

use fe2o3_amqp_types::definitions::Error;

use super::geo::ReplicatedOffset;
use super::message::{condition, error};
use super::selector::Annotation;

/// Why a start position is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadStart {
    OutOfRange(OutOfRange),
    /// The event hub is geo-replicated, and the offset is a number.
    NotReplicated {
        offset: i64,
    },
    /// The event hub is not geo-replicated, and the offset is one of a replicated one.
    Replicated {
        offset: ReplicatedOffset,
    },
}

impl From<OutOfRange> for BadStart {
    fn from(out_of_range: OutOfRange) -> Self {
        Self::OutOfRange(out_of_range)
    }
}

/// The condition for a number in a geo-replicated event hub is the service's (`TestConsumerClient_GeoDR` of
/// Azure/azure-sdk-for-go); its text is not known.
impl From<BadStart> for Error {
    fn from(bad: BadStart) -> Self {
        match bad {
            BadStart::OutOfRange(out_of_range) => {
                error(condition("com.microsoft:argument-error"), out_of_range.to_string())
            }
            BadStart::NotReplicated { offset } => {
                let text = format!("The supplied offset '{offset}' is invalid: the event hub is geo-replicated.");
                error(condition("com.microsoft:georeplication:invalid-offset"), text)
            }
            BadStart::Replicated { offset } => {
                let text = format!("The supplied offset '{offset}' is invalid: the event hub is not geo-replicated.");
                error(condition("com.microsoft:argument-error"), text)
            }
        }
    }
}

/// A start position outside the range of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfRange {
    pub(super) by: Annotation,
    pub(super) supplied: i64,
    pub(super) bound: Bound,
}

/// The bound that the start position exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    First(i64),
    Last(i64),
}

/// For positions after the last event, the text is the service's own.
impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.by {
            Annotation::Offset => "offset",
            Annotation::SequenceNumber => "sequence number",
            Annotation::EnqueuedTime => "enqueued time",
        };
        let (which, bound) = match self.bound {
            Bound::First(first) => ("first", first),
            Bound::Last(last) => ("last", last),
        };
        let supplied = self.supplied;
        write!(f, "The supplied {what} '{supplied}' is invalid. The {which} {what} in the system is '{bound}'")
    }
}
