//! The ranges of events in the partitions of an event hub.

use std::collections::BTreeMap;

use futures::future::try_join_all;

use crate::error::Result;
use crate::model::PartitionId;
use crate::processor::source::{EventSource, PartitionProperties, caught_request};

/// The partitions of an event hub and the range of events in each, as read at about the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubRanges(BTreeMap<PartitionId, PartitionProperties>);

impl HubRanges {
    /// Reads the partitions of the event hub and their properties: one request, and one per partition.
    ///
    /// The ranges do not depend on the consumer group, so the source may read for any group of the event hub.
    ///
    /// # Errors
    ///
    /// The first error of the source.
    pub async fn read(source: &impl EventSource) -> Result<Self> {
        let partitions = caught_request(source.event_hub_properties()).await?.partitions;
        let read = partitions.into_iter().map(|partition| async move {
            let properties = caught_request(source.partition_properties(&partition)).await?;
            Ok((partition, properties))
        });
        try_join_all(read).await.map(|read| Self(read.into_iter().collect()))
    }

    /// Returns the partitions, in order.
    pub fn partitions(&self) -> impl Iterator<Item = &PartitionId> {
        self.0.keys()
    }

    /// Returns the range of events in a partition, if the event hub has the partition.
    #[must_use]
    pub fn of(&self, partition: &PartitionId) -> Option<&PartitionProperties> {
        self.0.get(partition)
    }
}

impl FromIterator<(PartitionId, PartitionProperties)> for HubRanges {
    fn from_iter<T: IntoIterator<Item = (PartitionId, PartitionProperties)>>(ranges: T) -> Self {
        Self(ranges.into_iter().collect())
    }
}
