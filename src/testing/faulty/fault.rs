//! The faults, and the requests that they affect.

use std::fmt;
use std::time::Duration;

use crate::blob::Metadata;

/// A method of [`BlobContainer`](crate::blob::BlobContainer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BlobOperation {
    /// [`list`](crate::blob::BlobContainer::list); the name is the prefix.
    List,
    /// [`get`](crate::blob::BlobContainer::get).
    Get,
    /// [`write`](crate::blob::BlobContainer::write).
    Write,
    /// [`delete`](crate::blob::BlobContainer::delete).
    Delete,
    /// [`create_container`](crate::blob::BlobContainer::create_container); the name is empty.
    CreateContainer,
}

impl fmt::Display for BlobOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "listing",
            Self::Get => "reading",
            Self::Write => "writing",
            Self::Delete => "deleting",
            Self::CreateContainer => "creating the container",
        })
    }
}

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request arrives later by this duration. Nothing else changes.
    Latency(Duration),
    /// There is no connection. The request is not applied, and fails with
    /// [`Unavailable`](crate::ErrorKind::Unavailable) at once.
    Unreachable,
    /// The request is lost: it is not applied, but the caller does not know that. It fails with
    /// [`Indeterminate`](crate::ErrorKind::Indeterminate).
    RequestLost,
    /// The response to a write, a deletion or the creation of the container is lost. The request was applied if its
    /// condition held, but the caller does not know that. It fails with
    /// [`Indeterminate`](crate::ErrorKind::Indeterminate).
    ResponseLost,
    /// A write or a deletion fails with [`Indeterminate`](crate::ErrorKind::Indeterminate) now, and is applied later by
    /// this duration if its condition then holds. It is not applied if the runtime has ended by then.
    AppliedLate(Duration),
    /// The request is not applied, and never gets a response. Only the caller's own timeout ends it.
    Hang,
    /// A conditional write or deletion fails with [`Conflict`](crate::ErrorKind::Conflict), although there is no other
    /// writer.
    Conflict,
    /// Another writer writes this metadata unconditionally, immediately before a write arrives.
    ConcurrentWrite(Metadata),
    /// The service limits the request rate (429, or 503 `ServerBusy`). The request is not applied, and fails with
    /// [`Throttled`](crate::ErrorKind::Throttled).
    Throttled {
        /// How long the service asks to wait.
        retry_after: Option<Duration>,
    },
    /// The credentials do not permit the request. It is not applied, and fails with
    /// [`Unauthorized`](crate::ErrorKind::Unauthorized).
    Unauthorized,
    /// A listing shows the state of an earlier listing, older by this duration, with the ETags and times of that
    /// listing, but with the server's time of now. It uses the latest recorded listing of this prefix that is old
    /// enough, or the oldest one. A prefix that has not been listed before is not affected.
    StaleListing(Duration),
    /// A listing ends early. Backends never return a part of a listing, so this is an error. It is
    /// [`Indeterminate`](crate::ErrorKind::Indeterminate), as with Azure, because the response that arrived is
    /// unusable.
    TruncatedListing,
}

/// A [`Fault`] without its details, for counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is documented at the variant of `Fault` with the same name")]
pub enum FaultKind {
    Latency,
    Unreachable,
    RequestLost,
    ResponseLost,
    AppliedLate,
    Hang,
    Conflict,
    ConcurrentWrite,
    Throttled,
    Unauthorized,
    StaleListing,
    TruncatedListing,
}

impl Fault {
    /// Returns the fault without its details.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Latency(_) => FaultKind::Latency,
            Self::Unreachable => FaultKind::Unreachable,
            Self::RequestLost => FaultKind::RequestLost,
            Self::ResponseLost => FaultKind::ResponseLost,
            Self::AppliedLate(_) => FaultKind::AppliedLate,
            Self::Hang => FaultKind::Hang,
            Self::Conflict => FaultKind::Conflict,
            Self::ConcurrentWrite(_) => FaultKind::ConcurrentWrite,
            Self::Throttled { .. } => FaultKind::Throttled,
            Self::Unauthorized => FaultKind::Unauthorized,
            Self::StaleListing(_) => FaultKind::StaleListing,
            Self::TruncatedListing => FaultKind::TruncatedListing,
        }
    }

    /// Returns whether this fault can affect such a request.
    pub(super) fn applies_to(&self, call: &Call<'_>) -> bool {
        match self {
            Self::Latency(_)
            | Self::Unreachable
            | Self::RequestLost
            | Self::Hang
            | Self::Throttled { .. }
            | Self::Unauthorized => true,
            Self::ResponseLost => !matches!(call.operation, BlobOperation::List | BlobOperation::Get),
            Self::AppliedLate(_) => matches!(call.operation, BlobOperation::Write | BlobOperation::Delete),
            Self::ConcurrentWrite(_) => call.operation == BlobOperation::Write,
            Self::Conflict => matches!(call.operation, BlobOperation::Write | BlobOperation::Delete),
            Self::StaleListing(_) => call.was_listed_before,
            Self::TruncatedListing => call.operation == BlobOperation::List,
        }
    }

    /// Returns the fault with this share of its duration.
    pub(super) fn scaled(&self, share: f64) -> Self {
        match self {
            Self::Latency(longest) => Self::Latency(longest.mul_f64(share)),
            Self::AppliedLate(longest) => Self::AppliedLate(longest.mul_f64(share)),
            Self::StaleListing(longest) => Self::StaleListing(longest.mul_f64(share)),
            other => other.clone(),
        }
    }
}

/// The requests that a fault is intended for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    operation: Option<BlobOperation>,
    name_part: Option<String>,
    name_end: Option<String>,
}

impl Target {
    /// Returns a target that matches all requests that the fault can affect.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Limits the target to blobs (for listings: prefixes) whose names contain this text.
    #[must_use]
    pub fn named(mut self, part: impl Into<String>) -> Self {
        self.name_part = Some(part.into());
        self
    }

    /// Limits the target to blobs (for listings: prefixes) whose names end with this text.
    #[must_use]
    pub fn ending(mut self, end: impl Into<String>) -> Self {
        self.name_end = Some(end.into());
        self
    }

    pub(super) fn matches(&self, call: &Call<'_>) -> bool {
        self.operation.is_none_or(|operation| operation == call.operation)
            && self.name_part.as_ref().is_none_or(|part| call.name.contains(part))
            && self.name_end.as_ref().is_none_or(|end| call.name.ends_with(end))
    }
}

impl From<BlobOperation> for Target {
    fn from(operation: BlobOperation) -> Self {
        Self { operation: Some(operation), ..Self::default() }
    }
}

/// The properties of a request that decide which faults can affect it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: BlobOperation,
    pub(super) name: &'a str,
    pub(super) was_listed_before: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(operation: BlobOperation, name: &'a str) -> Self {
        Self { operation, name, was_listed_before: false }
    }
}
