//! Whether the application is well: its runtime has a heartbeat, and no batch stays in a handler for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::lock::lock;
use crate::model::PartitionId;

/// What is not well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stalled {
    /// The application's runtime has not run for longer than `stall_timeout`: something blocks all its workers.
    pub runtime: bool,
    /// Partitions with a batch in the handler for longer than that.
    pub partitions: BTreeSet<PartitionId>,
}

impl Stalled {
    /// Whether anything is.
    #[must_use]
    pub fn any(&self) -> bool {
        self.runtime || !self.partitions.is_empty()
    }

    /// Whether this partition is affected.
    #[must_use]
    pub fn affects(&self, partition: &PartitionId) -> bool {
        self.runtime || self.partitions.contains(partition)
    }
}

/// Signs of life that the application gives to its balancing loop. Cheap to clone; all clones are one. What counts as
/// stalled is defined here alone, for the loop and for the processor.
#[derive(Clone, Debug)]
pub struct LivenessTracker {
    signs: Arc<Mutex<Signs>>,
    stall_after: Duration,
}

#[derive(Debug, Default)]
struct Signs {
    /// The last heartbeat. Nothing is expected of an application that has never given one.
    beat: Option<Instant>,
    /// Since when each partition has had its batch.
    working: BTreeMap<PartitionId, Instant>,
}

impl LivenessTracker {
    pub(super) fn new(stall_after: Duration) -> Self {
        Self { signs: Arc::default(), stall_after }
    }

    fn signs(&self) -> MutexGuard<'_, Signs> {
        lock(&self.signs)
    }

    /// The application's runtime runs. From the first call on, this is expected again and again.
    pub fn tick(&self) {
        self.signs().beat = Some(Instant::now());
    }

    /// A handler has got a batch of this partition. It has it until the guard is dropped.
    #[must_use = "the work ends when the guard is dropped"]
    pub fn batch_started(&self, partition: &PartitionId) -> BatchGuard {
        self.signs().working.insert(partition.clone(), Instant::now());
        BatchGuard { vitals: self.clone(), partition: partition.clone() }
    }

    /// Whether something that has taken this long is stalled.
    pub(crate) fn is_too_long(&self, elapsed: Duration) -> bool {
        elapsed > self.stall_after
    }

    /// Whether the handler has had its batch of this partition for too long.
    pub(crate) fn has_stalled(&self, partition: &PartitionId) -> bool {
        self.signs().working.get(partition).is_some_and(|since| self.is_too_long(since.elapsed()))
    }

    pub(super) fn stalled(&self) -> Stalled {
        let signs = self.signs();
        let long_ago = |since: &Instant| self.is_too_long(since.elapsed());
        let partitions = signs.working.iter().filter(|(_, since)| long_ago(since));
        Stalled {
            runtime: signs.beat.as_ref().is_some_and(long_ago),
            partitions: partitions.map(|(partition, _)| partition.clone()).collect(),
        }
    }
}

/// A handler is at work on a partition.
#[derive(Debug)]
pub struct BatchGuard {
    vitals: LivenessTracker,
    partition: PartitionId,
}

impl Drop for BatchGuard {
    fn drop(&mut self) {
        self.vitals.signs().working.remove(&self.partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn a_runtime_is_stalled_when_its_heartbeat_stays_away() {
        let vitals = LivenessTracker::new(LONG);
        tokio::time::advance(2 * LONG).await;
        assert!(!vitals.stalled().any(), "nothing was promised yet");
        vitals.tick();
        tokio::time::advance(LONG).await;
        assert!(!vitals.stalled().any());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(vitals.stalled().runtime);
        vitals.tick();
        assert!(!vitals.stalled().any());
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_is_stalled_while_its_batch_takes_too_long() {
        let vitals = LivenessTracker::new(LONG);
        let (slow, quick) = (PartitionId::from(1), PartitionId::from(2));
        let working = vitals.batch_started(&slow);
        drop(vitals.batch_started(&quick));
        tokio::time::advance(LONG + Duration::from_secs(1)).await;
        let stalled = vitals.stalled();
        assert_eq!(stalled.partitions, [slow.clone()].into());
        assert!(stalled.affects(&slow) && !stalled.affects(&quick));
        assert!(vitals.has_stalled(&slow) && !vitals.has_stalled(&quick));
        drop(working);
        assert!(!vitals.stalled().any());
    }
}
