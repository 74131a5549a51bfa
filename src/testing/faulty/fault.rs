//! What can go wrong, and where.

use std::fmt;
use std::time::Duration;

use crate::blob::{Condition, Metadata};

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
    /// [`with_create_container`](crate::blob::BlobContainer::create_container); the name is empty.
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

/// Something that goes wrong with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request arrives this much later, and all is well otherwise.
    Latency(Duration),
    /// There is no connection: not applied, and [`Unavailable`](crate::ErrorKind::Unavailable) at once.
    Unreachable,
    /// The request is lost on its way: not applied, but nobody knows:
    /// [`Unknown`](crate::ErrorKind::Indeterminate).
    RequestLost,
    /// The answer to a write, a deletion or the creation of the container is lost. It was applied if its condition
    /// held, but nobody knows: [`Unknown`](crate::ErrorKind::Indeterminate).
    ResponseLost,
    /// A write or a deletion is [`Unknown`](crate::ErrorKind::Indeterminate) now and takes effect this much later, unless its
    /// condition fails by then. It does not, if the runtime is gone by then.
    AppliedLate(Duration),
    /// The request is not applied, and no answer ever comes. Only the caller's own deadline ends it.
    Hang,
    /// A conditional write or deletion is refused as [`Conflict`](crate::ErrorKind::Conflict), although nobody else
    /// wrote.
    Conflict,
    /// Somebody else writes this, under no condition, just before a write arrives.
    ConcurrentWrite(Metadata),
    /// The service asks for fewer requests (429, or 503 `ServerBusy`): not applied, and
    /// [`Throttled`](crate::ErrorKind::Throttled).
    Throttled {
        /// How long the service asks to wait.
        retry_after: Option<Duration>,
    },
    /// A listing shows what it showed this much earlier, with the ETags and times of then, but with the server's time
    /// of now. Of the listings of this prefix that went through here, it is the latest that is old enough, or the
    /// oldest. Befalls no listing of a prefix that has not been listed before.
    StaleListing(Duration),
    /// A listing ends early. Backends never give a part for the whole, so this is an error; and it is
    /// [`Unknown`](crate::ErrorKind::Indeterminate), as with Azure, for an answer did come, but not a usable one.
    TruncatedListing,
}

/// A [`Fault`] without its details, to count it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is described at the variant of `Fault` with its name")]
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
    StaleListing,
    TruncatedListing,
}

impl Fault {
    /// The fault without its details.
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
            Self::StaleListing(_) => FaultKind::StaleListing,
            Self::TruncatedListing => FaultKind::TruncatedListing,
        }
    }

    /// Whether this can happen to such a request at all.
    pub(super) fn can_befall(&self, call: &Call<'_>) -> bool {
        match self {
            Self::Latency(_) | Self::Unreachable | Self::RequestLost | Self::Hang | Self::Throttled { .. } => true,
            Self::ResponseLost => !matches!(call.operation, BlobOperation::List | BlobOperation::Get),
            Self::AppliedLate(_) => matches!(call.operation, BlobOperation::Write | BlobOperation::Delete),
            Self::ConcurrentWrite(_) => call.operation == BlobOperation::Write,
            Self::Conflict => call.is_conditional,
            Self::StaleListing(_) => call.was_listed_before,
            Self::TruncatedListing => call.operation == BlobOperation::List,
        }
    }

    /// The same with this share of its time.
    pub(super) fn scaled(&self, share: f64) -> Self {
        match self {
            Self::Latency(longest) => Self::Latency(longest.mul_f64(share)),
            Self::AppliedLate(longest) => Self::AppliedLate(longest.mul_f64(share)),
            Self::StaleListing(longest) => Self::StaleListing(longest.mul_f64(share)),
            other => other.clone(),
        }
    }
}

/// Which requests a fault is meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    operation: Option<BlobOperation>,
    name_part: Option<String>,
}

impl Target {
    /// All requests that the fault can befall.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Only those to blobs (listings: with prefixes) whose names contain this.
    #[must_use]
    pub fn named(mut self, part: impl Into<String>) -> Self {
        self.name_part = Some(part.into());
        self
    }

    pub(super) fn matches(&self, call: &Call<'_>) -> bool {
        self.operation.is_none_or(|operation| operation == call.operation)
            && self.name_part.as_ref().is_none_or(|part| call.name.contains(part))
    }
}

impl From<BlobOperation> for Target {
    fn from(operation: BlobOperation) -> Self {
        Self { operation: Some(operation), name_part: None }
    }
}

/// A request, as far as it decides which faults can befall it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: BlobOperation,
    pub(super) name: &'a str,
    pub(super) is_conditional: bool,
    pub(super) was_listed_before: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(operation: BlobOperation, name: &'a str) -> Self {
        Self { operation, name, is_conditional: false, was_listed_before: false }
    }

    pub(super) fn under(self, condition: &Condition) -> Self {
        Self { is_conditional: *condition != Condition::Unconditional, ..self }
    }
}
