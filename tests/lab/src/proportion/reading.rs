//! The time until all partitions are read while writes to the storage fail: after the crash of one of two instances,
//! and after the start of one instance.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use eventhubs_checkpoint::Result;

use super::factors::Disturbance;
use super::quiet_group;
use crate::sim::{FailureRule, IncidentKind, Plan, read_after};

/// When the crash comes: the group is balanced by then.
const SETTLED: Duration = Duration::from_secs(600);

/// The time after which a measurement ends.
pub const LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// The partition whose ownership record cannot be written, if the disturbance is a bad blob. No instance can own it, so
/// its time does not count.
const BAD: u32 = 0;

/// What happens to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Of two instances, one crashes.
    Crash,
    /// One instance starts alone.
    ColdStart,
}

/// A case, with the number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// What happens.
    pub case: Case,
    /// The number of partitions.
    pub partitions: u32,
}

/// A start without failures counts as this long. An instance that is alone starts in 12 s, however many partitions
/// there are, but the waits after failed claims of one partition add up to minutes.
const LEAST_START: Duration = Duration::from_secs(30);

impl Measurement {
    /// The cases of the table.
    pub const ALL: [Self; 3] = [
        Self { case: Case::Crash, partitions: 64 },
        Self { case: Case::Crash, partitions: 256 },
        Self { case: Case::ColdStart, partitions: 256 },
    ];

    /// Returns how long it takes until all partitions are read; `None`: longer than [`LIMIT`]. Failures begin at the
    /// crash or at the start, and never end.
    ///
    /// # Errors
    ///
    /// As for [`run`](crate::sim::run).
    pub async fn take(self, disturbance: Disturbance, seed: u64) -> Result<Option<Duration>> {
        let (plan, from) = self.plan(disturbance, seed);
        let bad = (disturbance == Disturbance::BadBlob).then_some(BAD as usize);
        let took = read_after(&plan, from, LIMIT, &BTreeSet::from_iter(bad)).await?;
        let is_quick_start = self.case == Case::ColdStart && disturbance == Disturbance::NONE;
        Ok(took.map(|took| if is_quick_start { took.max(LEAST_START) } else { took }))
    }

    fn plan(self, disturbance: Disturbance, seed: u64) -> (Plan, Duration) {
        let (instances, from) = match self.case {
            Case::Crash => (2, SETTLED),
            Case::ColdStart => (1, Duration::ZERO),
        };
        let lasts = from + 2 * LIMIT;
        let mut plan = quiet_group(seed, instances, self.partitions, lasts);
        if self.case == Case::Crash {
            plan = plan.with(from, IncidentKind::Crash { member: 1, down: lasts });
        }
        let rule = match disturbance {
            Disturbance::BadBlob => FailureRule::bad_blob(BAD),
            Disturbance::FailedWrites(percent) => FailureRule::writes(10 * percent),
            Disturbance::FailsOnce(_) | Disturbance::FailsAlways(_) => return (plan, from),
        };
        (plan.with(from, IncidentKind::Failures { rule, lasts }), from)
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = match self.case {
            Case::Crash => "one of two crashes",
            Case::ColdStart => "one starts alone",
        };
        write!(f, "{} partitions, {case}", self.partitions)
    }
}
