//! Which partitions were added to the hub after the group had begun.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::config::ProcessorConfig;
use super::source::StartPosition;
use crate::model::PartitionId;

/// Matters only for a start at the latest event: an added partition that starts there loses what came before it was
/// noticed.
///
/// A group that begins pins all its partitions at once, the last one first. Of the added ones none gets a checkpoint
/// before all before it have theirs. So whichever is behind all that have a checkpoint was added.
#[derive(Debug, Default)]
pub(super) struct NewPartitions(OnceLock<BTreeSet<PartitionId>>);

impl NewPartitions {
    /// The group began with these.
    pub(super) fn started_with(&self, founders: impl IntoIterator<Item = PartitionId>) {
        // Set once, at the start.
        let _ = self.0.set(founders.into_iter().collect());
    }

    /// Where a partition without a checkpoint starts.
    pub(super) fn start_of<'a>(&self, partition: &PartitionId, config: &'a ProcessorConfig) -> &'a StartPosition {
        if self.contains(partition, config) {
            config.start_position_of_new(partition)
        } else {
            config.start_position_of(partition)
        }
    }

    /// Whether it was added, if that matters.
    pub(super) fn contains(&self, partition: &PartitionId, config: &ProcessorConfig) -> bool {
        let is_founder = self.0.get().is_none_or(|founders| founders.contains(partition));
        config.start_position == StartPosition::Latest && !is_founder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_added_partition_of_a_group_that_starts_at_the_latest_starts_elsewhere() {
        let latest = ProcessorConfig::default().with_start_position(StartPosition::Latest);
        let begun = NewPartitions::default();
        begun.started_with([0.into()]);
        assert_eq!(begun.start_of(&0.into(), &latest), &StartPosition::Latest);
        assert_eq!(begun.start_of(&1.into(), &latest), &StartPosition::Earliest);
        let fixed = ProcessorConfig::default().with_start_position(StartPosition::AfterSequenceNumber(7));
        assert_eq!(begun.start_of(&1.into(), &fixed), &fixed.start_position);
    }
}
