//! How much work each partition is, for [`Strategy::Weighted`](crate::balance::Strategy::Weighted). Every owner writes what it
//! measures into its records, so that all decide by the same numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::PartitionId;

/// What this instance measures of its partitions. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Loads(Arc<Mutex<BTreeMap<PartitionId, Measured>>>);

#[derive(Debug)]
struct Measured {
    told: Option<u64>,
    counted: u64,
    since: Instant,
    per_minute: Option<u64>,
}

impl Measured {
    fn new() -> Self {
        Self { told: None, counted: 0, since: Instant::now(), per_minute: None }
    }
}

/// The shortest time over which work is measured.
const SAMPLE: Duration = Duration::from_secs(10);

impl Loads {
    fn measured(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Measured>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how much work a partition is, in a unit that all instances share, if the application knows better than the
    /// number of its events. It holds until the next call.
    pub fn tell(&self, partition: &PartitionId, load: u64) {
        self.measured().entry(partition.clone()).or_insert_with(Measured::new).told = Some(load);
    }

    /// Counts work that was done. The processor counts events.
    pub fn count(&self, partition: &PartitionId, work: u64) {
        let mut measured = self.measured();
        let measured = measured.entry(partition.clone()).or_insert_with(Measured::new);
        measured.counted = measured.counted.saturating_add(work);
    }

    /// What was told, or else the work per minute, of which the last sample makes up one half. Nothing as long as nothing is
    /// known.
    pub(super) fn of(&self, partition: &PartitionId) -> Option<u64> {
        let mut measured = self.measured();
        let measured = measured.get_mut(partition)?;
        if measured.told.is_some() {
            return measured.told;
        }
        let elapsed = measured.since.elapsed();
        if elapsed >= SAMPLE {
            let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            let sample = measured.counted.saturating_mul(60_000) / millis;
            measured.per_minute = Some(measured.per_minute.map_or(sample, |before| before.midpoint(sample)));
            (measured.counted, measured.since) = (0, Instant::now());
        }
        measured.per_minute
    }

    /// The partition was won: what was counted before says nothing about now. From here on no work is measured as none.
    pub(super) fn begin(&self, partition: &PartitionId) {
        let mut measured = self.measured();
        let told = measured.get(partition).and_then(|measured| measured.told);
        measured.insert(partition.clone(), Measured { told, ..Measured::new() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn work_is_measured_per_minute_and_smoothed() {
        let (loads, partition) = (Loads::default(), PartitionId::from(3));
        assert_eq!(loads.of(&partition), None);
        loads.count(&partition, 50);
        assert_eq!(loads.of(&partition), None, "too early to say");
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.of(&partition), Some(100));
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.of(&partition), Some(50));
        loads.begin(&partition);
        assert_eq!(loads.of(&partition), None);
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.of(&partition), Some(0), "an idle partition is known to be idle");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_application_says_counts() {
        let (loads, partition) = (Loads::default(), PartitionId::from(3));
        loads.count(&partition, 50);
        loads.tell(&partition, 7);
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.of(&partition), Some(7));
        loads.begin(&partition);
        assert_eq!(loads.of(&partition), Some(7));
    }
}
