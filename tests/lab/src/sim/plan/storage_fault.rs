//! What may be wrong with the storage.

use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};

/// What is wrong with the storage for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StorageFault {
    /// It cannot be reached.
    Outage,
    /// Every request hangs.
    Hang,
    /// A part of the requests is throttled.
    Throttling,
    /// Requests take seconds.
    Slow,
    /// Of some writes the answer is lost.
    ResponsesLost,
    /// Some writes take effect late.
    LateWrites,
    /// Some conditions fail although nobody wrote.
    Conflicts,
    /// Listings show what was.
    StaleListings,
    /// A little of everything.
    Mixed,
    /// Checkpoints alone cannot be written.
    Checkpoints,
    /// Most checkpoints meet a conflict although nobody wrote, and what is read then comes late: there is time for
    /// somebody else to take the partition in between.
    CheckpointConflicts,
}

impl StorageFault {
    /// All of them.
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

    /// Its name, to count it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Outage => "storage outage",
            Self::Hang => "storage hangs",
            Self::Throttling => "storage throttles",
            Self::Slow => "slow storage",
            Self::ResponsesLost => "answers lost",
            Self::LateWrites => "late writes",
            Self::Conflicts => "conflicts",
            Self::StaleListings => "stale listings",
            Self::Mixed => "mixed faults",
            Self::Checkpoints => "checkpoints fail",
            Self::CheckpointConflicts => "doubtful checkpoints",
        }
    }

    /// What befalls the requests, which take this long at the most when all is well.
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

    /// Whether requests are refused: then fewer of them should come.
    pub(crate) fn refuses(self) -> bool {
        matches!(self, Self::Outage | Self::Throttling | Self::Checkpoints)
    }

    /// Whether listings may show what was: then an instance may be wrong in good faith.
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
