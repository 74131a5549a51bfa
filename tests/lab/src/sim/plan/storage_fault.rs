//! Faults of the storage.

use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};

/// What goes wrong with the storage for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StorageFault {
    /// The storage is unreachable.
    Outage,
    /// Every request hangs.
    Hang,
    /// Some requests are throttled.
    Throttling,
    /// Requests take seconds.
    Slow,
    /// The responses of some writes are lost.
    ResponsesLost,
    /// Some writes take effect late.
    LateWrites,
    /// Some conditions fail although there was no other writer.
    Conflicts,
    /// Listings show an old state.
    StaleListings,
    /// A little of everything.
    Mixed,
    /// Only checkpoints cannot be written.
    Checkpoints,
    /// Most checkpoint writes get a conflict although there was no other writer, and the read that follows is slow:
    /// meanwhile another instance has time to take the partition.
    CheckpointConflicts,
}

impl StorageFault {
    /// All storage faults.
    pub const ALL: [Self; 11] = [
        Self::Outage,
        Self::Hang,
        Self::Throttling,
        Self::Slow,
        Self::ResponsesLost,
        Self::LateWrites,
        Self::Conflicts,
        Self::StaleListings,
        Self::Mixed,
        Self::Checkpoints,
        Self::CheckpointConflicts,
    ];

    /// Returns the name under which it is counted.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Outage => "storage outage",
            Self::Hang => "storage hangs",
            Self::Throttling => "storage throttles",
            Self::Slow => "slow storage",
            Self::ResponsesLost => "responses lost",
            Self::LateWrites => "late writes",
            Self::Conflicts => "conflicts",
            Self::StaleListings => "stale listings",
            Self::Mixed => "mixed faults",
            Self::Checkpoints => "checkpoints fail",
            Self::CheckpointConflicts => "checkpoint conflicts",
        }
    }

    /// Returns the faults of requests that take up to `latency` otherwise.
    pub(crate) fn faults(self, latency: Duration) -> FaultPlan {
        let usual = FaultPlan::always(Fault::Latency(latency));
        let throttled = Fault::Throttled { retry_after: Some(Duration::from_secs(3)) };
        let late = Fault::AppliedLate(Duration::from_secs(40));
        match self {
            Self::Outage => usual.with(1.0, Fault::Unreachable),
            Self::Hang => usual.with(1.0, Fault::Hang),
            Self::Throttling => usual.with(0.6, throttled),
            Self::Slow => usual.with(0.5, Fault::Latency(Duration::from_secs(8))),
            Self::ResponsesLost => usual.with(0.4, Fault::ResponseLost),
            Self::LateWrites => usual.with(0.4, late),
            Self::Conflicts => usual.with(0.4, Fault::Conflict),
            Self::StaleListings => usual.with(0.7, Fault::StaleListing(Duration::from_secs(120))),
            Self::Mixed => mixed(usual, throttled, late),
            Self::Checkpoints => {
                usual.with_on(1.0, Target::from(BlobOperation::Write).named("/checkpoint/"), throttled)
            }
            Self::CheckpointConflicts => usual
                .with_on(0.6, Target::from(BlobOperation::Write).named("/checkpoint/"), Fault::Conflict)
                .with_on(1.0, BlobOperation::Get, Fault::Latency(Duration::from_millis(4500))),
        }
    }

    /// Returns whether requests are rejected: instances should then send fewer of them.
    pub(crate) fn refuses(self) -> bool {
        matches!(self, Self::Outage | Self::Throttling | Self::Checkpoints)
    }

    /// Returns whether listings may show an old state: the view of an instance may then be wrong.
    pub(crate) fn shows_the_past(self) -> bool {
        matches!(self, Self::StaleListings | Self::Mixed)
    }
}

fn mixed(usual: FaultPlan, throttled: Fault, late: Fault) -> FaultPlan {
    usual
        .with(0.05, Fault::Unreachable)
        .with(0.05, Fault::RequestLost)
        .with(0.08, Fault::ResponseLost)
        .with(0.05, late)
        .with(0.05, Fault::Hang)
        .with(0.08, Fault::Conflict)
        .with(0.05, throttled)
        .with(0.1, Fault::StaleListing(Duration::from_secs(60)))
        .with(0.05, Fault::TruncatedListing)
        .with(0.2, Fault::Latency(Duration::from_secs(6)))
}
