//! How much work each partition is, for
//! [`LoadBalancingStrategy::Weighted`](crate::planner::LoadBalancingStrategy::Weighted). Every owner writes the load
//! that it measures into its records, so that all instances decide by the same numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::PartitionId;
use crate::util::lock;

/// The shortest time over which work is measured.
const SAMPLE_PERIOD: Duration = Duration::from_secs(10);

/// The time over which work is averaged. Work comes in bursts: events are received only when the handler has finished
/// its batch, which may take minutes. If the mean covered one or two bursts, the loads of equal partitions would differ
/// by more than the threshold of [`LoadBalancingStrategy::Weighted`](crate::planner::LoadBalancingStrategy::Weighted),
/// and the partitions would move forever.
const AVERAGED: Duration = Duration::from_secs(10 * 60);

/// What this instance measures of its partitions. Cheap to clone; all clones share one state.
#[derive(Clone, Debug, Default)]
pub struct LoadTracker(Arc<Mutex<BTreeMap<PartitionId, MeasuredLoad>>>);

impl LoadTracker {
    fn lock_measured(&self) -> MutexGuard<'_, BTreeMap<PartitionId, MeasuredLoad>> {
        lock(&self.0)
    }

    /// Sets how much work a partition is, in a unit that all instances share, if the application knows better than the
    /// number of its events. The value holds until the next call.
    pub fn set(&self, partition: &PartitionId, load: u64) {
        self.lock_measured().entry(partition.clone()).or_insert_with(MeasuredLoad::new).reported = Some(load);
    }

    /// Adds work that was done. The processor counts events when it receives them, because waiting events are handled
    /// in bursts.
    pub fn add(&self, partition: &PartitionId, work: u64) {
        let mut measured = self.lock_measured();
        let measured = measured.entry(partition.clone()).or_insert_with(MeasuredLoad::new);
        measured.counted = measured.counted.saturating_add(work);
    }

    /// Returns the load that the application set, or else the mean work per minute over the last [`AVERAGED`], in which
    /// older work weighs less. `None` until something is known.
    pub(super) fn current_load(&self, partition: &PartitionId) -> Option<u64> {
        let mut measured = self.lock_measured();
        let measured = measured.get_mut(partition)?;
        if measured.reported.is_some() {
            return measured.reported;
        }
        let elapsed = measured.since.elapsed();
        if elapsed >= SAMPLE_PERIOD {
            measured.add_sample(elapsed);
        }
        measured.per_minute
    }

    /// Begins to measure a partition that was won, whose record contains the load that the previous owner measured.
    /// That load weighs as much as half of [`AVERAGED`]: the first events are often those that waited while the
    /// partition moved, and are not typical of its load. From now on, no work means a load of zero.
    pub(super) fn start_measuring(&self, partition: &PartitionId, recorded: Option<u64>) {
        let mut measured = self.lock_measured();
        let reported = measured.get(partition).and_then(|measured| measured.reported);
        let averaged_over = recorded.map_or(Duration::ZERO, |_| AVERAGED / 2);
        measured.insert(
            partition.clone(),
            MeasuredLoad { reported, per_minute: recorded, averaged_over, ..MeasuredLoad::new() },
        );
    }
}

#[derive(Debug)]
struct MeasuredLoad {
    reported: Option<u64>,
    counted: u64,
    since: Instant,
    per_minute: Option<u64>,
    /// The time over which `per_minute` is averaged.
    averaged_over: Duration,
}

impl MeasuredLoad {
    fn new() -> Self {
        Self { reported: None, counted: 0, since: Instant::now(), per_minute: None, averaged_over: Duration::ZERO }
    }

    /// Adds the work since the last sample to the mean. Earlier samples weigh at most as much as [`AVERAGED`].
    fn add_sample(&mut self, elapsed: Duration) {
        let kept = whole_millis(self.averaged_over.min(AVERAGED));
        let known = self.per_minute.unwrap_or_default().saturating_mul(kept);
        let sum = known.saturating_add(self.counted.saturating_mul(60_000));
        let time = kept.saturating_add(whole_millis(elapsed)).max(1);
        self.per_minute = Some(sum.saturating_add(time / 2) / time);
        self.counted = 0;
        self.since = Instant::now();
        self.averaged_over = self.averaged_over.saturating_add(elapsed);
    }
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn work_is_measured_per_minute_and_smoothed() {
        let (loads, partition) = (LoadTracker::default(), PartitionId::from(3));
        assert_eq!(loads.current_load(&partition), None);
        loads.add(&partition, 50);
        assert_eq!(loads.current_load(&partition), None, "too early to say");
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.current_load(&partition), Some(100));
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.current_load(&partition), Some(50));
        loads.start_measuring(&partition, None);
        assert_eq!(loads.current_load(&partition), None);
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.current_load(&partition), Some(0), "an idle partition is known to be idle");
        loads.start_measuring(&partition, Some(100));
        loads.add(&partition, 100);
        advance(Duration::from_secs(30)).await;
        assert_eq!(
            loads.current_load(&partition),
            Some(109),
            "what the owner before recorded counts as much as five minutes"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn bursts_are_averaged_and_old_work_is_forgotten() {
        let (loads, partition) = (LoadTracker::default(), PartitionId::from(3));
        loads.start_measuring(&partition, None);
        let mut measured = Vec::new();
        for second in (30..=3600).step_by(30) {
            advance(Duration::from_secs(30)).await;
            // A batch of a minute and a half.
            loads.add(&partition, if second % 90 == 0 { 90 } else { 0 });
            measured.push(loads.current_load(&partition).unwrap());
        }
        assert!(measured[20..].iter().all(|load| (54..=66).contains(load)), "{measured:?}");
        for _ in 0..120 {
            advance(Duration::from_secs(30)).await;
            loads.current_load(&partition);
        }
        assert!(loads.current_load(&partition).is_some_and(|load| load <= 10), "{:?}", loads.current_load(&partition));
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_set_by_the_application_counts() {
        let (loads, partition) = (LoadTracker::default(), PartitionId::from(3));
        loads.add(&partition, 50);
        loads.set(&partition, 7);
        advance(Duration::from_secs(30)).await;
        assert_eq!(loads.current_load(&partition), Some(7));
        loads.start_measuring(&partition, Some(50));
        assert_eq!(loads.current_load(&partition), Some(7));
    }
}
