//! What KEDA's scaler for Event Hubs counts for a group, with `checkpointStrategy: blobMetadata`: pure.
//!
//! The arithmetic follows `GetUnprocessedEventCountInPartition`, `calculateUnprocessedEvents`, `GetMetricsAndActivity`
//! and `getTotalLagRelatedToPartitionAmount` of kedacore/keda `pkg/scalers/azure_eventhub_scaler.go`, of version 2.14
//! and later, with the default `stalePartitionInfoThreshold`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::records::{GroupRecords, HubRanges};
use crate::model::{PartitionId, Pause};
use crate::source::Lag;
use crate::store::{Checkpoint, NameCase};

/// The default of `stalePartitionInfoThreshold`.
const STALE_PARTITION_INFO: i64 = 10_000;

/// What KEDA finds under the name of a checkpoint. It does not read the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KedaRecord {
    /// There is no such blob.
    Missing,
    /// A checkpoint with this sequence number.
    Number(i64),
    /// A checkpoint without a sequence number, or with a text that is no number.
    Unreadable,
}

/// Why KEDA counts what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KedaReason {
    /// The partition never had an event. KEDA does not look for a checkpoint.
    NeverUsed,
    /// There is no checkpoint. All available events count.
    NoCheckpoint,
    /// There is no checkpoint, and the first event is the last one. KEDA takes the partition for an emptied one.
    OneEventOrNone,
    /// The events after the checkpoint count.
    AfterCheckpoint,
    /// The checkpoint is before the first available event. The expired events between them count, too.
    Expired,
    /// The checkpoint is after the last event by more than the stale threshold: KEDA assumes that the numbers started
    /// again after the greatest one.
    WrapAround,
    /// The result is nearly the greatest number: KEDA assumes that the properties of the partition are older than the
    /// checkpoint, and counts nothing.
    Stale,
    /// The checkpoint has no number. The poll of all partitions fails.
    Unreadable,
}

impl KedaReason {
    /// Returns what to do, if KEDA's number may differ from the lag for this reason.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::NeverUsed | Self::NoCheckpoint | Self::AfterCheckpoint => None,
            Self::OneEventOrNone => Some("`ehcp init --to-earliest` writes a checkpoint, as a processor does"),
            Self::Expired => {
                Some("start a processor of this crate, which moves the checkpoint, or `ehcp reset --to-earliest`")
            }
            Self::WrapAround | Self::Stale => {
                Some("the event hub was recreated: `ehcp reset --to-earliest`, or `ehcp delete --checkpoints`")
            }
            Self::Unreadable => Some("`ehcp reset --to-current` adds the missing number"),
        }
    }
}

/// Writes the reason in a few words.
impl fmt::Display for KedaReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NeverUsed => "never had an event",
            Self::NoCheckpoint => "no checkpoint: counts the available events",
            Self::OneEventOrNone => "no checkpoint: counts no event, because the first one is the last one",
            Self::AfterCheckpoint => "counts the events after the checkpoint",
            Self::Expired => "also counts expired events, because the checkpoint is before the first event",
            Self::WrapAround => "counts a wrap-around, because the checkpoint is after the last event",
            Self::Stale => "counts no event, because the checkpoint is after the last event",
            Self::Unreadable => "fails, because the checkpoint has no sequence number",
        })
    }
}

/// What KEDA counts in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KedaLag {
    /// The number of events. `None` if the poll fails. Negative if a number overflows.
    pub events: Option<i64>,
    /// Why.
    pub why: KedaReason,
}

impl KedaLag {
    /// Counts the events of a partition with these first and last sequence numbers. `last` is -1 if it never had an
    /// event.
    ///
    /// An emptied partition may report its last number as the first one, too. Then KEDA counts one event if that is
    /// number 0 and there is no checkpoint.
    #[must_use]
    pub fn count(first: i64, last: i64, record: KedaRecord) -> Self {
        let (events, why) = match record {
            _ if last == -1 => (0, KedaReason::NeverUsed),
            KedaRecord::Unreadable => return Self { events: None, why: KedaReason::Unreadable },
            KedaRecord::Missing if first == last && last != 0 => (0, KedaReason::OneEventOrNone),
            KedaRecord::Missing => (last.wrapping_sub(first).wrapping_add(1), KedaReason::NoCheckpoint),
            KedaRecord::Number(number) => count_after_checkpoint(first, last, number),
        };
        Self { events: Some(events), why }
    }
}

/// Counts as the scaler does, whose numbers wrap around on overflow.
fn count_after_checkpoint(first: i64, last: i64, number: i64) -> (i64, KedaReason) {
    let (events, why) = if last < number {
        (i64::MAX.wrapping_sub(number).wrapping_add(last), KedaReason::WrapAround)
    } else if number.saturating_add(1) < first {
        (last.wrapping_sub(number), KedaReason::Expired)
    } else {
        (last.wrapping_sub(number), KedaReason::AfterCheckpoint)
    };
    if events > i64::MAX - STALE_PARTITION_INFO { (0, KedaReason::Stale) } else { (events, why) }
}

/// Returns the sum of all partitions, or `None` if one of them fails the poll.
pub(super) fn sum_counts(counts: impl IntoIterator<Item = Option<i64>>) -> Option<i64> {
    let sum = counts.into_iter().try_fold(0_i64, |sum, events| Some(sum.wrapping_add(events?)))?;
    Some(if sum < 0 { i64::MAX } else { sum })
}

/// How KEDA scales by the sum of its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KedaScale {
    /// The sum of all partitions, limited to `threshold` times the number of partitions.
    pub metric: i64,
    /// Whether KEDA starts the application if it has no replica: the sum is above 0.
    pub active: bool,
    /// How many replicas the autoscaler wants. It keeps the current ones if the metric per replica is within 10% of the
    /// threshold.
    pub replicas: u64,
}

impl KedaScale {
    /// Calculates the scale for a sum of events in a number of partitions. `threshold` is `unprocessedEventThreshold`;
    /// KEDA rejects one below 1, which counts as 1 here. `activationUnprocessedEventThreshold` is 0, the default.
    #[must_use]
    pub fn of(sum: i64, partitions: usize, threshold: i64, max_replicas: u64) -> Self {
        let threshold = threshold.max(1);
        let partitions = i64::try_from(partitions).unwrap_or(i64::MAX);
        let metric = if sum / threshold > partitions { partitions.saturating_mul(threshold) } else { sum };
        let active = sum > 0;
        let wanted = metric.unsigned_abs().div_ceil(threshold.unsigned_abs());
        Self { metric, active, replicas: if active { wanted.clamp(1, max_replicas.max(1)) } else { 0 } }
    }
}

/// What KEDA's scaler for Event Hubs counts for a group, with `checkpointStrategy: blobMetadata`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KedaPoll {
    /// The names with which KEDA must be configured.
    pub names: KedaNames,
    /// All partitions of the event hub, in order.
    pub partitions: Vec<KedaPartition>,
    /// The sum of all partitions. `None` if the poll fails: then KEDA leaves the replicas as they are, and starts none
    /// if there is none.
    pub total: Option<i64>,
}

/// The names with which KEDA finds the checkpoints of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KedaNames {
    /// The fully qualified namespace. KEDA is configured with its first part, and with the cloud that has the rest.
    pub namespace: String,
    /// The event hub.
    pub event_hub: String,
    /// The consumer group. KEDA converts it to lower case in the names of blobs.
    pub consumer_group: String,
    /// Whether KEDA looks for the checkpoints where they are. It does not if their names have capital letters in the
    /// consumer group.
    pub finds_checkpoints: bool,
}

/// What KEDA counts in one partition.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KedaPartition {
    /// The partition.
    pub id: PartitionId,
    /// The sequence number that KEDA finds in the checkpoint.
    pub sequence_number: Option<i64>,
    /// The sequence number of the first available event, or of the next one if none is available.
    pub first: i64,
    /// The sequence number of the last event ever enqueued, if there was one.
    pub last: Option<i64>,
    /// What KEDA counts.
    #[serde(flatten)]
    pub count: KedaLag,
    /// How many events wait.
    pub lag: Lag,
    /// The pause, if the partition is paused. KEDA still counts its events.
    pub paused: Option<Pause>,
}

impl GroupRecords {
    /// Calculates what KEDA counts, if it is configured with the [names](KedaPoll::names) of the group. Read the event
    /// hub after the records, as for [`describe`](Self::describe).
    #[must_use]
    pub fn keda(&self, hub: &HubRanges) -> KedaPoll {
        let names = KedaNames::new(self);
        let found = self.checkpoints_that_keda_finds(&names);
        let partitions: Vec<_> = self
            .describe(Some(hub))
            .partitions
            .into_iter()
            .filter_map(|partition| {
                let range = partition.hub?;
                let number = found.get(&partition.id).map(|checkpoint| checkpoint.written_number);
                let record = match number {
                    None => KedaRecord::Missing,
                    Some(number) => number.map_or(KedaRecord::Unreadable, KedaRecord::Number),
                };
                Some(KedaPartition {
                    paused: partition.checkpoint.and_then(|checkpoint| checkpoint.paused),
                    id: partition.id,
                    sequence_number: number.flatten(),
                    first: range.first,
                    last: range.last,
                    count: KedaLag::count(range.first, range.last.unwrap_or(-1), record),
                    lag: partition.lag,
                })
            })
            .collect();
        KedaPoll { total: sum_counts(partitions.iter().map(|partition| partition.count.events)), names, partitions }
    }

    /// Returns the checkpoints whose names KEDA reads. KEDA may read the checkpoints of a group with capital letters
    /// instead, if their program writes lower-case names.
    fn checkpoints_that_keda_finds(&self, names: &KedaNames) -> BTreeMap<&PartitionId, &Checkpoint> {
        let found: &[Checkpoint] = if names.finds_checkpoints {
            &self.checkpoints.records
        } else if [&names.namespace, &names.event_hub].into_iter().all(|name| *name == name.to_lowercase()) {
            &self.other.checkpoints.records
        } else {
            &[]
        };
        found.iter().map(|checkpoint| (&checkpoint.partition, checkpoint)).collect()
    }
}

impl KedaNames {
    fn new(records: &GroupRecords) -> Self {
        let group = records.store.group();
        let mut names = Self {
            namespace: group.namespace().to_owned(),
            event_hub: group.event_hub().to_owned(),
            consumer_group: group.name().to_owned(),
            finds_checkpoints: group.name() == group.name().to_lowercase(),
        };
        if records.store.name_case() == NameCase::Lower {
            names.namespace = names.namespace.to_lowercase();
            names.event_hub = names.event_hub.to_lowercase();
            names.finds_checkpoints = true;
        }
        names
    }
}

impl KedaPoll {
    /// Calculates the scale. Without `max_replicas` there is at most one replica per partition. `None` if the poll
    /// fails.
    #[must_use]
    pub fn scale(&self, threshold: i64, max_replicas: Option<u64>) -> Option<KedaScale> {
        let partitions = self.partitions.len();
        let max_replicas = max_replicas.or_else(|| u64::try_from(partitions).ok()).unwrap_or(u64::MAX);
        Some(KedaScale::of(self.total?, partitions, threshold, max_replicas))
    }

    /// Returns the partitions that KEDA counts wrongly, or at which it fails.
    pub fn wrong(&self) -> impl Iterator<Item = &KedaPartition> {
        self.partitions.iter().filter(|partition| partition.is_wrong())
    }
}

impl KedaPartition {
    /// Returns whether KEDA fails at this partition, counts something other than its lag, or counts from a checkpoint
    /// after the last event, whose lag is not known.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        let counted = self.count.events.and_then(|events| u64::try_from(events).ok());
        counted.is_none()
            || counted != self.lag.events
            || matches!(self.count.why, KedaReason::Stale | KedaReason::WrapAround)
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::samples::hub;
    use super::KedaReason as Why;
    use super::KedaRecord::{Missing, Number, Unreadable};
    use super::*;

    fn counted(first: i64, last: i64, record: KedaRecord) -> (Option<i64>, KedaReason) {
        let KedaLag { events, why } = KedaLag::count(first, last, record);
        (events, why)
    }

    /// The data of KEDA's own tests, `azure_eventhub_scaler_test.go`.
    #[test]
    fn partitions_count_as_in_the_tests_of_keda() {
        for (case, first, last, record, events, why) in [
            ("K1", 0, 10, Number(5), 5, Why::AfterCheckpoint),
            ("K2", 0, 2, Number(0), 2, Why::AfterCheckpoint),
            ("K3", 0, 10, Number(15), 0, Why::Stale),
            ("K4", 0, 5, Number(9_223_372_036_854_775_797), 15, Why::WrapAround),
            (
                "K5",
                0,
                4_000_000_000_000_000_000,
                Number(4_000_000_000_000_200_000),
                9_223_372_036_854_575_807,
                Why::WrapAround,
            ),
            ("K6", 0, 9_223_372_036_854_775_797, Number(5), 0, Why::Stale),
            ("K7", 0, 0, Missing, 1, Why::NoCheckpoint),
            ("K8", 255, 255, Missing, 0, Why::OneEventOrNone),
            ("K9", 0, 1, Missing, 2, Why::NoCheckpoint),
        ] {
            assert_eq!(counted(first, last, record), (Some(events), why), "{case}");
        }
    }

    #[test]
    fn the_metric_is_limited_by_the_partitions() {
        let metric = |partitions| KedaScale::of(100, partitions, 10, 64).metric;
        assert_eq!((metric(2), metric(20)), (20, 100), "K10, K11");
    }

    #[test]
    fn the_reason_shows_what_differs_from_the_lag() {
        assert_eq!(counted(0, -1, Unreadable), (Some(0), Why::NeverUsed), "not even read");
        assert_eq!(counted(0, 0, Unreadable), (None, Why::Unreadable));
        assert_eq!(counted(1000, 1999, Number(998)), (Some(1001), Why::Expired));
        assert_eq!(counted(1000, 1999, Number(999)), (Some(1000), Why::AfterCheckpoint));
        assert_eq!(counted(0, 9, Number(-1)), (Some(10), Why::AfterCheckpoint));
        assert_eq!(counted(256, 255, Missing), (Some(0), Why::NoCheckpoint), "emptied");
    }

    #[test]
    fn numbers_wrap_around_as_in_go() {
        // .NET writes it for a checkpoint without a number.
        let (events, _) = counted(0, 10, Number(i64::MIN));
        assert_eq!(events, Some(i64::MIN + 10));
        assert_eq!(sum_counts([events, Some(3)]), Some(i64::MAX));
        assert_eq!(sum_counts([Some(1), None, Some(3)]), None);
        assert_eq!(sum_counts([]), Some(0));
    }

    #[test]
    fn replicas_are_those_of_the_autoscaler() {
        let replicas = |sum| KedaScale::of(sum, 4, 1000, 4).replicas;
        assert_eq!([0, 1, 1000, 1001, 4000, 4999, i64::MAX].map(replicas), [0, 1, 1, 2, 4, 4, 4]);
        assert_eq!(KedaScale::of(4999, 4, 1000, 9).replicas, 5, "the limit of the partitions is rounded");
        assert!(KedaScale::of(1, 4, 1000, 4).active && !KedaScale::of(0, 4, 1000, 4).active);
        assert_eq!(KedaScale::of(i64::MAX, 4, i64::MAX, 0).replicas, 1);
    }

    fn counts(records: &GroupRecords, ranges: &[(i64, i64)]) -> (Vec<Option<i64>>, Vec<String>, Option<i64>) {
        let poll = records.keda(&hub(ranges));
        let wrong = poll.wrong().map(|partition| partition.id.to_string()).collect();
        (poll.partitions.iter().map(|partition| partition.count.events).collect(), wrong, poll.total)
    }

    #[test]
    fn one_record_without_a_number_fails_the_poll() {
        let records = GroupRecords::empty().with_checkpoint(0, 4, "40", 1).with_checkpoint(1, None, "20", 1);
        let found = counts(&records, &[(0, 9), (0, 9), (0, 9)]);
        assert_eq!(found, (vec![Some(5), None, Some(10)], vec!["1".to_owned()], None));
        assert_eq!(records.keda(&hub(&[(0, 9), (0, 9)])).scale(1, None), None);
    }

    #[test]
    fn wrong_counts_are_those_that_are_not_the_lag() {
        for (name, number, range, count, wrong) in [
            ("right", Some(149), (100, 199), 50, false),
            ("one event", None, (255, 255), 0, true),
            ("expired", Some(9), (100, 199), 190, true),
            ("emptied, expired", Some(9), (200, 199), 190, true),
            ("emptied, all processed", Some(199), (200, 199), 0, false),
            ("recreated, a few events", Some(5000), (0, 10), 0, true),
        ] {
            let records = GroupRecords::empty();
            let records = if number.is_some() { records.with_checkpoint(0, number, "x", 1) } else { records };
            let found = counts(&records, &[range]);
            assert_eq!((found.0, !found.1.is_empty()), (vec![Some(count)], wrong), "{name}");
        }
    }

    #[test]
    fn each_partition_has_a_replica_at_most() {
        let poll = GroupRecords::empty().keda(&hub(&[(0, 4999), (0, 4999)]));
        let replicas = |max| poll.scale(1000, max).map(|scale| scale.replicas);
        assert_eq!((poll.total, replicas(None), replicas(Some(1))), (Some(10_000), Some(2), Some(1)));
    }
}
