//! The records of a group, and the ranges of events of its event hub, each read at about the same time.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use time::OffsetDateTime;

use crate::error::Result;
use crate::model::{Heartbeat, Moment, Ownership, PartitionId};
use crate::planner::{Observer, View, observe};
use crate::source::{EventSource, PartitionProperties, guard_request, whole_seconds};
use crate::store::{Checkpoint, GroupStore, Listing, MalformedRecord, Records};

/// The ownerships and heartbeats of a group.
#[derive(Debug, Default)]
pub(super) struct OwnerRecords {
    pub(super) ownerships: Listing<Ownership>,
    pub(super) heartbeats: Listing<Heartbeat>,
}

impl OwnerRecords {
    pub(super) async fn read(store: &GroupStore) -> Result<Self> {
        Ok(Self { ownerships: store.list_ownerships().await?, heartbeats: store.list_heartbeats().await? })
    }

    /// Returns the group as an operator sees it at this moment.
    pub(super) fn operator_view(&self, store: &GroupStore, partitions: &[PartitionId], now: Moment) -> View<'_> {
        let observer = Observer {
            this: store.identity(),
            lease_durations: store.lease_durations(),
            running: &BTreeSet::new(),
            heartbeats: &self.heartbeats.records,
            outage_ended: None,
        };
        observe(&self.ownerships.records, partitions, &observer, now)
    }
}

/// All records of a group, read at about the same time by [`Operator::read`](super::Operator::read).
#[derive(Debug)]
pub struct GroupRecords {
    pub(super) store: GroupStore,
    pub(super) survey: OwnerRecords,
    pub(super) checkpoints: Listing<Checkpoint>,
    /// The records in the other blob-name casing.
    pub(super) other: Records,
    /// When they were read.
    pub(super) read_at: Moment,
    pub(super) taken_at: OffsetDateTime,
}

impl GroupRecords {
    pub(super) async fn read(store: &GroupStore) -> Result<Self> {
        let other = store.list_other_records().await?;
        let Records { ownerships, checkpoints, heartbeats } = store.list_records().await?;
        Ok(Self {
            store: store.clone(),
            survey: OwnerRecords { ownerships, heartbeats },
            checkpoints,
            other,
            read_at: store.lease_clock_now(),
            taken_at: store.server_time(),
        })
    }

    /// Returns whether there is any record of the group under names in this blob-name casing.
    #[must_use]
    pub fn has_records(&self) -> bool {
        self.malformed_records().next().is_some()
            || !self.survey.heartbeats.records.is_empty()
            || !self.partitions_with_records().is_empty()
    }

    /// Returns the partitions that have a record in this blob-name casing.
    pub(super) fn partitions_with_records(&self) -> BTreeSet<PartitionId> {
        let ownerships = self.survey.ownerships.records.iter();
        let checkpoints = self.checkpoints.records.iter();
        ownerships.map(|seen| &seen.partition).chain(checkpoints.map(|seen| &seen.partition)).cloned().collect()
    }

    pub(super) fn malformed_records(&self) -> impl Iterator<Item = &MalformedRecord> {
        let Self { survey, checkpoints, .. } = self;
        [&survey.ownerships.malformed, &survey.heartbeats.malformed, &checkpoints.malformed].into_iter().flatten()
    }
}

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
        let hub = guard_request(source.event_hub_properties()).await?;
        let reads = hub.partitions.into_iter().map(|partition| async move {
            let properties = guard_request(source.partition_properties(&partition)).await?;
            Ok((partition, properties))
        });
        try_join_all(reads)
            .await
            .map(|ranges| Self { created_at: hub.created_at.map(whole_seconds), ranges: ranges.into_iter().collect() })
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
    pub fn get(&self, partition: &PartitionId) -> Option<&PartitionProperties> {
        self.ranges.get(partition)
    }
}

impl FromIterator<(PartitionId, PartitionProperties)> for HubRanges {
    fn from_iter<T: IntoIterator<Item = (PartitionId, PartitionProperties)>>(ranges: T) -> Self {
        Self { created_at: None, ranges: ranges.into_iter().collect() }
    }
}

/// Groups as if they had just been read, for tests.
#[cfg(test)]
pub(super) mod samples {
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::{
        CheckpointRecord, ConsumerGroup, ETag, HeartbeatRecord, Incarnation, OwnerId, OwnershipRecord, Position,
    };

    /// When they were read.
    const READ_AT: Moment = Duration::from_secs(1_000_000);
    pub(in crate::admin) const NOW: OffsetDateTime = datetime!(2026-01-01 12:00 UTC);

    pub(in crate::admin) fn owner(id: &str) -> OwnerId {
        OwnerId::new(id).unwrap()
    }

    fn incarnation() -> Incarnation {
        Incarnation::new(datetime!(2026-01-01 00:00 UTC), 1)
    }

    /// A record of an owner of this crate.
    pub(in crate::admin) fn owned(id: &str) -> OwnershipRecord {
        OwnershipRecord {
            epoch: Some(7),
            lease_duration: Some(Duration::from_secs(60)),
            ..OwnershipRecord::owned_by(owner(id), Some(incarnation()))
        }
    }

    /// A record of an owner of another SDK.
    pub(in crate::admin) fn foreign(id: &str) -> OwnershipRecord {
        OwnershipRecord::owned_by(owner(id), None)
    }

    /// A record of an operator that will return the partition.
    pub(in crate::admin) fn operated(operator: &str, to: &str) -> OwnershipRecord {
        OwnershipRecord { operator: Some(owner(operator)), handoff_to: Some(owner(to)), ..owned(operator) }
    }

    /// Returns the event hub's partitions, numbered from 0, with their first and last events. Offsets are ten times the
    /// numbers.
    pub(in crate::admin) fn hub(ranges: &[(i64, i64)]) -> HubRanges {
        let properties = ranges.iter().map(|&(first, last)| {
            let last = Position::new(last, last.saturating_mul(10).to_string());
            PartitionProperties::new(first, Some(last), false)
        });
        (0u32..).map(PartitionId::from).zip(properties).collect()
    }

    impl GroupRecords {
        /// Returns a group without any record.
        pub(in crate::admin) fn empty() -> Self {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let group = ConsumerGroup::new("ns", "hub", "$Default").unwrap();
            let builder = GroupStore::builder(MemoryContainer::new(), group, owner("any")).for_operator(Some(5));
            let store = runtime.block_on(builder.connect()).unwrap();
            Self {
                store,
                survey: OwnerRecords::default(),
                checkpoints: Listing::default(),
                other: Records::default(),
                read_at: READ_AT,
                taken_at: NOW,
            }
        }

        /// Adds an ownership that was renewed this many seconds ago.
        pub(in crate::admin) fn with(mut self, partition: u32, record: OwnershipRecord, age: u64) -> Self {
            self.survey.ownerships.records.push(new_ownership(partition, record, age));
            self
        }

        /// Adds an ownership in the other blob-name casing.
        pub(in crate::admin) fn with_other_name_case(
            mut self,
            partition: u32,
            record: OwnershipRecord,
            age: u64,
        ) -> Self {
            self.other.ownerships.records.push(new_ownership(partition, record, age));
            self
        }

        pub(in crate::admin) fn with_heartbeat(mut self, id: &str, age: u64) -> Self {
            let record = HeartbeatRecord::new(owner(id), incarnation(), Duration::from_secs(60));
            let age = Duration::from_secs(age);
            self.survey.heartbeats.records.push(Heartbeat::new(record, ETag::new("h"), age, READ_AT));
            self
        }

        /// Adds a checkpoint that was written this many minutes ago.
        pub(in crate::admin) fn with_checkpoint(
            mut self,
            partition: u32,
            number: impl Into<Option<i64>>,
            offset: impl Into<Option<&'static str>>,
            minutes: i64,
        ) -> Self {
            let record = CheckpointRecord {
                sequence_number: number.into(),
                offset: offset.into().map(str::to_owned),
                ..CheckpointRecord::default()
            };
            self.checkpoints.records.push(Checkpoint {
                partition: partition.into(),
                written_number: record.sequence_number,
                record,
                etag: ETag::new("c"),
                last_modified: NOW - time::Duration::minutes(minutes),
            });
            self
        }

        pub(in crate::admin) fn id(&self) -> &OwnerId {
            &self.store.identity().owner
        }
    }

    fn new_ownership(partition: u32, record: OwnershipRecord, age: u64) -> Ownership {
        Ownership::new(partition.into(), record, ETag::new("o"), Duration::from_secs(age), (NOW, READ_AT))
    }
}
