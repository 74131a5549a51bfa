//! Determines which partitions were added to the event hub after the group had started.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::model::PartitionId;
use crate::processor::config::ProcessorConfig;
use crate::source::StartPosition;

/// The partitions that belonged to the event hub when the group started.
///
/// They matter only for a start at the latest event: a new partition that starts there loses the events that were sent
/// before the group noticed it.
///
/// When a group starts, it records the starts of all its partitions, the last partition first. A new partition gets no
/// checkpoint before all partitions before it have theirs. So every partition after the last one with a checkpoint was
/// added later.
#[derive(Debug, Default)]
pub(crate) struct NewPartitions(OnceLock<BTreeSet<PartitionId>>);

impl NewPartitions {
    /// Records the partitions with which the group started.
    pub(crate) fn started_with(&self, initial: impl IntoIterator<Item = PartitionId>) {
        // Set once, at the start.
        let _ = self.0.set(initial.into_iter().collect());
    }

    /// Returns where a partition without a checkpoint starts.
    pub(crate) fn start_of<'a>(&self, partition: &PartitionId, config: &'a ProcessorConfig) -> &'a StartPosition {
        if self.contains(partition, config) {
            config.start_position_of_new(partition)
        } else {
            config.start_position_of(partition)
        }
    }

    /// Returns whether the partition was added after the group had started and the configured start depends on that.
    pub(crate) fn contains(&self, partition: &PartitionId, config: &ProcessorConfig) -> bool {
        let is_initial = self.0.get().is_none_or(|initial| initial.contains(partition));
        config.start_position == StartPosition::Latest && !is_initial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_partitions_start_at_the_earliest_event() {
        let latest = ProcessorConfig::default().with_start_position(StartPosition::Latest);
        let new = NewPartitions::default();
        new.started_with([0.into()]);
        assert_eq!(new.start_of(&0.into(), &latest), &StartPosition::Latest);
        assert_eq!(new.start_of(&1.into(), &latest), &StartPosition::Earliest);
        let fixed = ProcessorConfig::default().with_start_position(StartPosition::AfterSequenceNumber(7));
        assert_eq!(new.start_of(&1.into(), &fixed), &fixed.start_position);
    }
}
