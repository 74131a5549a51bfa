//! A poll of KEDA's scaler as the records of a group let it end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::hub::HubRanges;
use super::keda::{KedaLag, KedaReason, KedaRecord, KedaScale, sum};
use super::survey::GroupRecords;
use crate::model::PartitionId;
use crate::source::Lag;
use crate::store::{Checkpoint, Listing, NameCase};

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
}

impl GroupRecords {
    /// Calculates what KEDA counts, if it is configured with the [names](KedaPoll::names) of the group. Read the event
    /// hub after the records, as for [`describe`](Self::describe).
    #[must_use]
    pub fn keda(&self, hub: &HubRanges) -> KedaPoll {
        let names = KedaNames::new(self);
        let found = self.found_by_keda(&names);
        let described = self.describe(Some(hub)).partitions.into_iter();
        let partitions: Vec<_> = described
            .filter_map(|partition| {
                let range = partition.hub?;
                let number = found.get(&partition.id).map(|checkpoint| checkpoint.written_number);
                let record = match number {
                    None => KedaRecord::Missing,
                    Some(number) => number.map_or(KedaRecord::Unreadable, KedaRecord::Number),
                };
                Some(KedaPartition {
                    id: partition.id,
                    sequence_number: number.flatten(),
                    first: range.first,
                    last: range.last,
                    count: KedaLag::count(range.first, range.last.unwrap_or(-1), record),
                    lag: partition.lag,
                })
            })
            .collect();
        let total = sum(partitions.iter().map(|partition| partition.count.events));
        KedaPoll { names, partitions, total }
    }

    /// Returns the checkpoints whose names KEDA reads. Those of a group with capital letters may be read in its place,
    /// if they are of a program that writes lower-case names.
    fn found_by_keda(&self, names: &KedaNames) -> BTreeMap<&PartitionId, &Checkpoint> {
        let is_lower = |name: &str| name == name.to_lowercase();
        let listing: Option<&Listing<Checkpoint>> = if names.finds_checkpoints {
            Some(&self.checkpoints)
        } else {
            Some(&self.other.checkpoints).filter(|_| is_lower(&names.namespace) && is_lower(&names.event_hub))
        };
        let found = listing.into_iter().flat_map(|listing| &listing.records);
        found.map(|checkpoint| (&checkpoint.partition, checkpoint)).collect()
    }
}

impl KedaNames {
    fn new(records: &GroupRecords) -> Self {
        let (group, case) = (records.store.group(), records.store.name_case());
        let cased = |name: &str| if case == NameCase::Lower { name.to_lowercase() } else { name.to_owned() };
        Self {
            namespace: cased(group.namespace()),
            event_hub: cased(group.event_hub()),
            consumer_group: group.name().to_owned(),
            finds_checkpoints: case == NameCase::Lower || group.name() == group.name().to_lowercase(),
        }
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
    use super::super::survey::samples::hub;
    use super::*;

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
            ("created again, a few events", Some(5000), (0, 10), 0, true),
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
