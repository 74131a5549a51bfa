//! How long it takes until all partitions are read, and until all events are processed.

use std::collections::BTreeSet;
use std::time::Duration;

use eventhubs_checkpoint::Result;

use super::World;
use crate::sim::factory::BuiltIn;
use crate::sim::plan::Plan;

/// How often the group is checked.
const STEP: Duration = Duration::from_secs(1);

/// Executes a plan up to the time `from`, and from there until every partition is read by a running instance, except
/// for those in `except`. Returns how long that took from `from` on, or `None` if it took longer than `limit`.
///
/// Call it as [`run`](super::run).
///
/// # Errors
///
/// As for [`run`](super::run).
pub async fn read_after(
    plan: &Plan,
    from: Duration,
    limit: Duration,
    except: &BTreeSet<usize>,
) -> Result<Option<Duration>> {
    let mut world = World::new(plan, &BuiltIn, false)?;
    world.run_for(from).await;
    Ok(world.time_until(limit, |world| world.observer.lock().unread().is_subset(except)).await)
}

/// Publishes this many events to each partition at once, executes a plan, and returns how long it took until all of
/// them were processed, or `None` if it took longer than `limit`.
///
/// Call it as [`run`](super::run).
///
/// # Errors
///
/// As for [`run`](super::run).
pub async fn processed_after(plan: &Plan, events: usize, limit: Duration) -> Result<Option<Duration>> {
    let mut world = World::new(plan, &BuiltIn, false)?;
    for partition in 0..plan.partitions {
        world.publish_events(partition, events);
    }
    Ok(world.time_until(limit, |world| world.observer.lock().is_processed()).await)
}

impl World<'_> {
    async fn time_until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Option<Duration> {
        let mut took = Duration::ZERO;
        while !holds(self) {
            if took >= limit {
                return None;
            }
            self.run_for(STEP).await;
            took += STEP;
        }
        Some(took)
    }
}
