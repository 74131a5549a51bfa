//! The arithmetic of KEDA's scaler for Event Hubs, with `checkpointStrategy: blobMetadata`: pure.
//!
//! It follows `GetUnprocessedEventCountInPartition`, `calculateUnprocessedEvents`, `GetMetricsAndActivity` and
//! `getTotalLagRelatedToPartitionAmount` of kedacore/keda `pkg/scalers/azure_eventhub_scaler.go`, of version 2.14 and
//! later, with the default `stalePartitionInfoThreshold`.

use std::fmt;

use serde::Serialize;

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
                Some("the event hub was created again: `ehcp reset --to-earliest`, or `ehcp delete --checkpoints`")
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
            Self::Expired => "counts expired events, too, because the checkpoint is before the first event",
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
            KedaRecord::Number(number) => after_checkpoint(first, last, number),
        };
        Self { events: Some(events), why }
    }
}

/// Counts as the scaler does, whose numbers wrap around on overflow.
fn after_checkpoint(first: i64, last: i64, number: i64) -> (i64, KedaReason) {
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
pub(super) fn sum(counts: impl IntoIterator<Item = Option<i64>>) -> Option<i64> {
    let sum = counts.into_iter().try_fold(0_i64, |sum, events| Some(sum.wrapping_add(events?)))?;
    Some(if sum < 0 { i64::MAX } else { sum })
}

/// How KEDA scales by the sum of its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KedaScale {
    /// The sum, limited to `threshold` events in each partition.
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
        let (threshold, partitions) = (threshold.max(1), i64::try_from(partitions).unwrap_or(i64::MAX));
        let is_limited = sum / threshold > partitions;
        let metric = if is_limited { partitions.saturating_mul(threshold) } else { sum };
        let active = sum > 0;
        let wanted = metric.unsigned_abs().div_ceil(threshold.unsigned_abs());
        let replicas = if active { wanted.clamp(1, max_replicas.max(1)) } else { 0 };
        Self { metric, active, replicas }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(sum([events, Some(3)]), Some(i64::MAX));
        assert_eq!(sum([Some(1), None, Some(3)]), None);
        assert_eq!(sum([]), Some(0));
    }

    #[test]
    fn replicas_are_those_of_the_autoscaler() {
        let replicas = |sum| KedaScale::of(sum, 4, 1000, 4).replicas;
        assert_eq!([0, 1, 1000, 1001, 4000, 4999, i64::MAX].map(replicas), [0, 1, 1, 2, 4, 4, 4]);
        assert_eq!(KedaScale::of(4999, 4, 1000, 9).replicas, 5, "the limit of the partitions is rounded");
        assert!(KedaScale::of(1, 4, 1000, 4).active && !KedaScale::of(0, 4, 1000, 4).active);
        assert_eq!(KedaScale::of(i64::MAX, 4, i64::MAX, 0).replicas, 1);
    }
}
