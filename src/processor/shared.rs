//! What all tasks of a processor share: its resources, what this instance knows of the event hub, and random waits.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{Mutex, Notify, watch};

use super::config::ProcessorConfig;
use super::dead_letters::DeadLetters;
use super::monitoring::spans::BatchSpans;
use crate::backoff::shorten_wait;
use crate::balancer::{LivenessTracker, LoadTracker};
use crate::error::{Error, ErrorKind};
use crate::model::{ConsumerGroup, PartitionId};
use crate::source::offset_format::OffsetFormat;
use crate::source::{StartPosition, whole_seconds};
use crate::store::GroupStore;
use crate::telemetry;

/// The resources and the state that all tasks of a processor share.
#[derive(Debug)]
pub(super) struct SharedResources<S, H> {
    pub(super) source: S,
    pub(super) handler: H,
    pub(super) dead_letters: Option<Arc<DeadLetters>>,
    pub(super) store: GroupStore,
    pub(super) group: Arc<ConsumerGroup>,
    pub(super) config: ProcessorConfig,
    pub(super) drain_timeout: Duration,
    pub(super) liveness: LivenessTracker,
    pub(super) loads: LoadTracker,
    pub(super) initial_partitions: InitialPartitions,
    pub(super) hub_creation: HubCreation,
    pub(super) offset_format: OffsetFormat,
    pub(super) spans: BatchSpans,
}

/// The creation of the event hub, as this instance last read it. `None` if the source does not report it.
#[derive(Debug, Default)]
pub(crate) struct HubCreation {
    known: watch::Sender<Option<OffsetDateTime>>,
    /// Locked while a task reads the properties of the event hub. Otherwise the older of two responses could come last.
    pub(super) reading: Mutex<()>,
    /// Notified when the event hub may have been recreated since its properties were read: a receiver ended, as all do
    /// then, or a checkpoint was taken over, which may be one of another event hub.
    pub(super) doubt: Notify,
}

impl HubCreation {
    /// Records what the source reports. A report without a time changes nothing.
    pub(crate) fn record_report(&self, created_at: Option<OffsetDateTime>) {
        let Some(now) = created_at.map(whole_seconds) else { return };
        let before = self.known.send_replace(Some(now));
        if let Some(before) = before.filter(|before| *before != now) {
            telemetry::hub_recreated(before, now);
        }
    }

    pub(crate) fn creation_time(&self) -> Option<OffsetDateTime> {
        *self.known.borrow()
    }

    /// Returns whether positions from an event hub that was created at `read_in` are no longer valid.
    pub(crate) fn was_recreated_since(&self, read_in: Option<OffsetDateTime>) -> bool {
        is_another(read_in, self.creation_time())
    }

    /// Waits until it is known that the event hub of `read_in` was recreated.
    pub(crate) async fn wait_for_recreation(&self, read_in: Option<OffsetDateTime>) -> Error {
        let mut known = self.known.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = known.wait_for(|known| is_another(read_in, *known)).await;
        recreation_error()
    }
}

fn is_another(one: Option<OffsetDateTime>, other: Option<OffsetDateTime>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// The error because of which a partition determines its start again.
pub(crate) fn recreation_error() -> Error {
    Error::new(ErrorKind::InvalidPosition, "the event hub was recreated")
}

/// The partitions that belonged to the event hub when the group started.
///
/// They matter only for a start at the latest event: a new partition that starts there loses the events that were sent
/// before the group noticed it.
///
/// When a group starts, it records the starts of all its partitions, the last partition first. A new partition gets no
/// checkpoint before all partitions before it have theirs. So every partition after the last one with a checkpoint was
/// added later.
#[derive(Debug, Default)]
pub(crate) struct InitialPartitions(OnceLock<BTreeSet<PartitionId>>);

impl InitialPartitions {
    /// Records the partitions with which the group started.
    pub(crate) fn set_initial(&self, initial: impl IntoIterator<Item = PartitionId>) {
        // Set once, at the start.
        let _ = self.0.set(initial.into_iter().collect());
    }

    /// Returns where a partition without a checkpoint starts.
    pub(crate) fn start_position_of<'a>(
        &self,
        partition: &PartitionId,
        config: &'a ProcessorConfig,
    ) -> &'a StartPosition {
        if self.is_new(partition, config) {
            config.start_position_of_new(partition)
        } else {
            config.start_position_of(partition)
        }
    }

    /// Returns whether the partition was added after the group had started and the configured start depends on that.
    pub(crate) fn is_new(&self, partition: &PartitionId, config: &ProcessorConfig) -> bool {
        config.start_position == StartPosition::Latest
            && self.0.get().is_some_and(|initial| !initial.contains(partition))
    }
}

/// Random numbers are divided into this many steps, which is random enough.
const STEPS: u32 = 100;

/// Returns the wait with jitter, up to a quarter shorter, so that instances that fail together do not send their
/// requests at the same time.
pub(super) fn shorten_randomly(wait: Duration, random: u64) -> Duration {
    shorten_wait(wait, random_part(random))
}

/// Returns the wait before the first of periodic requests: any part of the period, so that instances that start
/// together do not send them at the same time.
pub(super) fn first_wait(period: Duration, random: u64) -> Duration {
    period.mul_f64(random_part(random))
}

/// Returns a number from 0 to 1, excluding 1.
fn random_part(random: u64) -> f64 {
    f64::from(u32::try_from(random % u64::from(STEPS)).unwrap_or_default()) / f64::from(STEPS)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    #[test]
    fn only_another_known_time_shows_a_recreated_hub() {
        let first = OffsetDateTime::UNIX_EPOCH;
        let second = first + time::Duration::SECOND;
        let creation = HubCreation::default();
        assert!(!creation.was_recreated_since(Some(first)), "the source does not report it");
        creation.record_report(Some(first));
        creation.record_report(None);
        assert_eq!(creation.creation_time(), Some(first));
        assert!(!creation.was_recreated_since(None) && !creation.was_recreated_since(Some(first)));
        assert!(creation.wait_for_recreation(Some(first)).now_or_never().is_none());
        creation.record_report(Some(second));
        assert!(creation.was_recreated_since(Some(first)) && !creation.was_recreated_since(None));
        assert!(creation.wait_for_recreation(Some(first)).now_or_never().is_some());
    }

    #[test]
    fn added_partitions_start_at_the_earliest_event() {
        let latest = ProcessorConfig::default().with_start_position(StartPosition::Latest);
        let new = InitialPartitions::default();
        new.set_initial([0.into()]);
        assert_eq!(new.start_position_of(&0.into(), &latest), &StartPosition::Latest);
        assert_eq!(new.start_position_of(&1.into(), &latest), &StartPosition::Earliest);
        let fixed = ProcessorConfig::default().with_start_position(StartPosition::AfterSequenceNumber(7));
        assert_eq!(new.start_position_of(&1.into(), &fixed), &fixed.start_position);
    }

    #[test]
    fn jitter_shortens_a_wait_by_a_quarter_at_most() {
        let waits: BTreeSet<_> = (0..1000).map(|random| shorten_randomly(WAIT, random)).collect();
        assert_eq!(waits.len(), 100);
        assert!(waits.first() > Some(&(WAIT * 3 / 4)) && waits.last() == Some(&WAIT));
        assert_eq!(shorten_randomly(Duration::ZERO, 50), Duration::ZERO);
    }

    #[test]
    fn the_first_wait_is_any_part_of_the_period() {
        let waits: BTreeSet<_> = (0..1000).map(|random| first_wait(WAIT, random)).collect();
        assert_eq!((waits.len(), waits.first()), (100, Some(&Duration::ZERO)));
        assert!(waits.last() > Some(&(WAIT * 9 / 10)) && waits.last() < Some(&WAIT));
    }
}
