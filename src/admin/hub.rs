//! The ranges of events in the partitions of an event hub.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use time::OffsetDateTime;

use crate::error::Result;
use crate::model::PartitionId;
use crate::source::whole_seconds;
use crate::source::{EventSource, PartitionProperties, caught_request};

/// The partitions of an event hub and the range of events in each, as read at about the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubRanges {
    created_at: Option<OffsetDateTime>,
    ranges: BTreeMap<PartitionId, PartitionProperties>,
}

impl HubRanges {
    /// Reads the partitions of the event hub and their properties: one request, and one per partition.
    ///
    /// The ranges do not depend on the consumer group, so the source may read for any group of the event hub.
    ///
    /// # Errors
    ///
    /// The first error of the source.
    pub async fn read(source: &impl EventSource) -> Result<Self> {
        let hub = caught_request(source.event_hub_properties()).await?;
        let read = hub.partitions.into_iter().map(|partition| async move {
            let properties = caught_request(source.partition_properties(&partition)).await?;
            Ok((partition, properties))
        });
        let created_at = hub.created_at.map(whole_seconds);
        try_join_all(read).await.map(|read| Self { created_at, ranges: read.into_iter().collect() })
    }

    /// Sets when the event hub was created; see
    /// [`EventHubProperties::with_created_at`](crate::source::EventHubProperties::with_created_at).
    #[must_use]
    pub fn with_created_at(self, time: OffsetDateTime) -> Self {
        Self { created_at: Some(whole_seconds(time)), ..self }
    }

    /// Returns when the event hub was created. `None` if the source does not report it.
    #[must_use]
    pub fn created_at(&self) -> Option<OffsetDateTime> {
        self.created_at
    }

    /// Returns the partitions, in order.
    pub fn partitions(&self) -> impl Iterator<Item = &PartitionId> {
        self.ranges.keys()
    }

    /// Returns the range of events in a partition, if the event hub has the partition.
    #[must_use]
    pub fn of(&self, partition: &PartitionId) -> Option<&PartitionProperties> {
        self.ranges.get(partition)
    }
}

impl FromIterator<(PartitionId, PartitionProperties)> for HubRanges {
    fn from_iter<T: IntoIterator<Item = (PartitionId, PartitionProperties)>>(ranges: T) -> Self {
        Self { created_at: None, ranges: ranges.into_iter().collect() }
    }
}
