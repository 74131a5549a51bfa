//! The throughput of a partition whose handler fails at some events.

use std::time::Duration;

use eventhubs_checkpoint::Result;

use super::factors::Disturbance;
use super::quiet_group;
use crate::sim::{BadEvents, processed_after};

/// How many events the partition has.
pub const EVENTS: usize = 2000;

/// The time that a handler takes for a hundred events, at most; half of it on average.
const WORK: Duration = Duration::from_secs(2);

/// The time after which a measurement ends.
pub const LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// Returns how long one instance takes for all events of a partition, from its start on; `None`: longer than [`LIMIT`].
///
/// # Errors
///
/// As for [`run`](crate::sim::run).
pub async fn measure(disturbance: Disturbance, seed: u64) -> Result<Option<Duration>> {
    let mut plan = quiet_group(seed, 1, 1, 2 * LIMIT);
    plan.members[0].work = WORK;
    plan.members[0].bad_events = match disturbance {
        Disturbance::FailsOnce(every) => Some(BadEvents { every, always: false }),
        Disturbance::FailsAlways(every) => Some(BadEvents { every, always: true }),
        // No event has such a number.
        _ => Some(BadEvents { every: u32::MAX, always: false }),
    };
    processed_after(&plan, EVENTS, LIMIT).await
}
