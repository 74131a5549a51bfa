//! Whether the application is healthy: its runtime ticks, and no handler keeps a batch too long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::model::PartitionId;
use crate::util::lock;

/// How long a runtime may not run. Even a busy one runs a task within milliseconds, so this is no matter of the
/// handler: it is long enough for a pause of the process, and short enough that an instance which cannot work says so.
const RUNTIME_LIMIT: Duration = Duration::from_secs(10);

/// The stalled components of the application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stalled {
    /// Whether the application's runtime has not run for longer than 10 s, because all its workers are blocked.
    pub runtime: bool,
    /// Partitions whose handler has had one batch for longer than `stall_timeout`.
    pub partitions: BTreeSet<PartitionId>,
}

impl Stalled {
    /// Returns whether anything is stalled.
    #[must_use]
    pub fn any(&self) -> bool {
        self.runtime || !self.partitions.is_empty()
    }
}

/// Receives the liveness reports of the application. Cheap to clone; all clones share one state. Only this type defines
/// what counts as stalled, for the loop and for the processor.
#[derive(Clone, Debug)]
pub struct LivenessTracker {
    state: Arc<Mutex<LivenessState>>,
    stall_timeout: Duration,
}

impl LivenessTracker {
    /// How often to call [`tick`](Self::tick): 1 s. Some ticks may come late before the runtime counts as stalled.
    pub const TICK: Duration = Duration::from_secs(1);

    pub(crate) fn new(stall_timeout: Duration) -> Self {
        Self { state: Arc::default(), stall_timeout }
    }

    fn lock_state(&self) -> MutexGuard<'_, LivenessState> {
        lock(&self.state)
    }

    /// Reports that the application's runtime runs. Call it every [`TICK`](Self::TICK): after the first call, the
    /// runtime counts as stalled if no further call comes within 10 s. A stalled instance claims nothing.
    pub fn tick(&self) {
        self.lock_state().last_tick = Some(Instant::now());
    }

    /// Reports that a handler has got a batch of this partition. It has the batch until the guard is dropped. Guards of
    /// one partition may be nested: the handler has the batch until the last one is dropped, and since the last call of
    /// this method.
    #[must_use = "the batch ends when the guard is dropped"]
    pub fn batch_started(&self, partition: &PartitionId) -> BatchGuard {
        let now = Instant::now();
        let mut state = self.lock_state();
        let batch = state.batches.entry(partition.clone()).or_insert(Batch { since: now, guards: 0 });
        batch.since = now;
        batch.guards += 1;
        drop(state);
        BatchGuard { tracker: self.clone(), partition: partition.clone() }
    }

    /// Returns whether something that has taken this long is stalled.
    pub(crate) fn is_too_long(&self, elapsed: Duration) -> bool {
        elapsed > self.stall_timeout
    }

    /// Returns since when the handler has had its batch of this partition, if it has one.
    pub(crate) fn batch_since(&self, partition: &PartitionId) -> Option<Instant> {
        self.lock_state().batches.get(partition).map(|batch| batch.since)
    }

    pub(super) fn current_stalls(&self) -> Stalled {
        let state = self.lock_state();
        let partitions = state.batches.iter().filter(|(_, batch)| self.is_too_long(batch.since.elapsed()));
        Stalled {
            runtime: state.last_tick.is_some_and(|last| last.elapsed() > RUNTIME_LIMIT),
            partitions: partitions.map(|(partition, _)| partition.clone()).collect(),
        }
    }
}

#[derive(Debug, Default)]
struct LivenessState {
    /// The last tick. An application that has never ticked need not do so.
    last_tick: Option<Instant>,
    /// The partitions whose handler has a batch.
    batches: BTreeMap<PartitionId, Batch>,
}

/// A batch that a handler is processing. A handler that wraps another one holds a guard for each of the two calls.
#[derive(Debug)]
struct Batch {
    /// When the last call began.
    since: Instant,
    guards: usize,
}

/// Represents a batch that a handler is processing. The batch ends when its last guard is dropped.
#[derive(Debug)]
pub struct BatchGuard {
    tracker: LivenessTracker,
    partition: PartitionId,
}

impl Drop for BatchGuard {
    fn drop(&mut self) {
        let mut state = self.tracker.lock_state();
        let Some(batch) = state.batches.get_mut(&self.partition) else { return };
        batch.guards -= 1;
        if batch.guards == 0 {
            state.batches.remove(&self.partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn a_runtime_without_ticks_is_stalled() {
        let tracker = LivenessTracker::new(LONG);
        tokio::time::advance(2 * LONG).await;
        assert!(!tracker.current_stalls().any(), "ticks are not required before the first one");
        tracker.tick();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!tracker.current_stalls().any());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(tracker.current_stalls().runtime);
        tracker.tick();
        assert!(!tracker.current_stalls().any());
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_with_a_long_batch_is_stalled() {
        let tracker = LivenessTracker::new(LONG);
        let (slow, quick) = (PartitionId::from(1), PartitionId::from(2));
        let batch = tracker.batch_started(&slow);
        drop(tracker.batch_started(&quick));
        tokio::time::advance(LONG + Duration::from_secs(1)).await;
        assert_eq!(tracker.current_stalls().partitions, [slow.clone()].into());
        assert!(tracker.batch_since(&slow).is_some() && tracker.batch_since(&quick).is_none());
        drop(batch);
        assert!(!tracker.current_stalls().any());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_lasts_until_its_last_guard_is_dropped() {
        let tracker = LivenessTracker::new(LONG);
        let partition = PartitionId::from(1);
        let outer = tracker.batch_started(&partition);
        tokio::time::advance(LONG).await;
        let inner = tracker.batch_started(&partition);
        tokio::time::advance(LONG).await;
        assert!(!tracker.current_stalls().any(), "each call has the full time");
        drop(inner);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(tracker.current_stalls().partitions, [partition.clone()].into());
        drop(outer);
        assert!(!tracker.current_stalls().any() && tracker.batch_since(&partition).is_none());
    }
}
