//! Whether the application is well: its runtime has a heartbeat, and no batch stays in a handler for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::model::PartitionId;

/// What is not well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stalled {
    /// The application's runtime has not run for longer than `stall_after`: something blocks all its workers.
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

/// Signs of life that the application gives to its balancing loop. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Vitals(Arc<Mutex<Signs>>);

#[derive(Debug, Default)]
struct Signs {
    /// The last heartbeat. Nothing is expected of an application that has never given one.
    beat: Option<Instant>,
    /// Since when each partition has had its batch.
    working: BTreeMap<PartitionId, Instant>,
}

impl Vitals {
    fn signs(&self) -> MutexGuard<'_, Signs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The application's runtime runs. From the first call on, this is expected again and again.
    pub fn beat(&self) {
        self.signs().beat = Some(Instant::now());
    }

    /// A handler has got a batch of this partition. It has it until the guard is dropped.
    #[must_use = "the work ends when the guard is dropped"]
    pub fn working(&self, partition: &PartitionId) -> Working {
        self.signs().working.insert(partition.clone(), Instant::now());
        Working { vitals: self.clone(), partition: partition.clone() }
    }

    pub(super) fn stalled(&self, after: Duration) -> Stalled {
        let signs = self.signs();
        let long_ago = |since: &Instant| since.elapsed() > after;
        let partitions = signs.working.iter().filter(|(_, since)| long_ago(since));
        Stalled {
            runtime: signs.beat.as_ref().is_some_and(long_ago),
            partitions: partitions.map(|(partition, _)| partition.clone()).collect(),
        }
    }
}

/// A handler is at work on a partition.
#[derive(Debug)]
pub struct Working {
    vitals: Vitals,
    partition: PartitionId,
}

impl Drop for Working {
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
        let vitals = Vitals::default();
        tokio::time::advance(2 * LONG).await;
        assert!(!vitals.stalled(LONG).any(), "nothing was promised yet");
        vitals.beat();
        tokio::time::advance(LONG).await;
        assert!(!vitals.stalled(LONG).any());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(vitals.stalled(LONG).runtime);
        vitals.beat();
        assert!(!vitals.stalled(LONG).any());
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_is_stalled_while_its_batch_takes_too_long() {
        let vitals = Vitals::default();
        let (slow, quick) = (PartitionId::from(1), PartitionId::from(2));
        let working = vitals.working(&slow);
        drop(vitals.working(&quick));
        tokio::time::advance(LONG + Duration::from_secs(1)).await;
        let stalled = vitals.stalled(LONG);
        assert_eq!(stalled.partitions, [slow.clone()].into());
        assert!(stalled.affects(&slow) && !stalled.affects(&quick));
        drop(working);
        assert!(!vitals.stalled(LONG).any());
    }
}
