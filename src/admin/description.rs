//! A consumer group as its records and its event hub show it at one moment: plain values, which serialize to the JSON
//! of the tool `ehcp`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::model::{CheckpointRecord, ETag, OwnerId, PartitionId, Position};
use crate::source::Lag;
use crate::source::PartitionProperties;
use crate::store::NameCase;

/// A consumer group at one moment, by its records and by the ranges of its partitions.
///
/// Its JSON has a `schema`, whose number changes when a field is removed or changes its meaning. Readers should ignore
/// fields that they do not know.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GroupDescription {
    /// The name and version of the JSON format.
    pub schema: &'static str,
    /// The server time of the listings.
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
    /// The group as a whole.
    pub group: GroupSummary,
    /// All partitions of the event hub, in order. Without the event hub, those that have a record.
    pub partitions: Vec<PartitionDescription>,
    /// The live members, in order of their ids.
    pub members: Vec<Member>,
}

/// A consumer group as a whole.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GroupSummary {
    /// The fully qualified namespace.
    pub namespace: String,
    /// The event hub.
    pub event_hub: String,
    /// The name of the group.
    pub consumer_group: String,
    /// The letter case of the names of its blobs.
    pub blob_name_case: NameCase,
    /// What its members do.
    pub state: GroupState,
    /// The number of live members.
    pub members: usize,
    /// The number of partitions without a live owner.
    pub unowned: usize,
    /// How many events wait in all partitions together.
    pub lag: Lag,
    /// Whether records of the group exist under names in the other letter case, too.
    pub other_name_case: bool,
}

/// What the members of a group do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupState {
    /// There is no record of the group.
    Absent,
    /// There is no live member. The last one shut down, or there never was one.
    Empty,
    /// There is no live member, and some did not release their partitions: they crashed, or cannot reach the storage.
    Dead,
    /// Every partition has a live owner, and none is being handed over.
    Stable,
    /// Some partitions have no live owner, or are being handed over.
    Moving,
    /// Live members use several SDKs, or blob names in both letter cases. Those of other SDKs are not fenced.
    Mixed,
}

impl GroupState {
    /// Returns the name, as it is serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Empty => "empty",
            Self::Dead => "dead",
            Self::Stable => "stable",
            Self::Moving => "moving",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One partition.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PartitionDescription {
    /// The partition.
    pub id: PartitionId,
    /// Its checkpoint, if it has one.
    pub checkpoint: Option<CheckpointDescription>,
    /// Its range of events, if the event hub was read and has this partition.
    pub hub: Option<PartitionRange>,
    /// How many events wait.
    pub lag: Lag,
    /// Whether and how it is owned.
    pub state: OwnershipState,
    /// The owner in its record, alive or not. `None` if the partition was released, or never owned.
    pub owner: Option<OwnerDescription>,
}

/// A checkpoint.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckpointDescription {
    /// Its position.
    #[serde(flatten)]
    pub position: RecordedPosition,
    /// Whether it is a start position that was recorded before any event was processed.
    pub initial: bool,
    /// Whether it was written before the event hub was recreated under the same name. A processor of this crate then
    /// starts elsewhere, see [`InvalidReason::Recreated`](crate::processor::InvalidReason); a processor of another SDK
    /// skips or repeats events. False if the event hub was not read.
    pub of_former_hub: bool,
    /// The owner that wrote it, if it is of this crate.
    pub owner: Option<OwnerId>,
    /// When it was written last, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub updated: OffsetDateTime,
    /// The version of the blob.
    #[serde(serialize_with = "as_text")]
    pub etag: ETag,
}

/// A position as a record or a file has it: one of the two numbers may be missing, because some SDKs omit it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPosition {
    /// The sequence number of the last processed event.
    pub sequence_number: Option<i64>,
    /// The offset of that event.
    pub offset: Option<String>,
}

impl RecordedPosition {
    /// Returns the position, if both numbers are known.
    #[must_use]
    pub fn complete(&self) -> Option<Position> {
        Some(Position::new(self.sequence_number?, self.offset.clone()?))
    }
}

impl From<&CheckpointRecord> for RecordedPosition {
    fn from(record: &CheckpointRecord) -> Self {
        Self { sequence_number: record.sequence_number, offset: record.offset.clone() }
    }
}

/// The range of events in a partition.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PartitionRange {
    /// The sequence number of the first available event, or of the next one if none is available.
    pub first: i64,
    /// The sequence number of the last event ever enqueued, if there was one.
    pub last: Option<i64>,
    /// The offset of that event.
    pub last_offset: Option<String>,
    /// When it was enqueued, by the clock of the event hub.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_enqueued_at: Option<OffsetDateTime>,
    /// Whether no event is available.
    pub is_empty: bool,
}

impl From<&PartitionProperties> for PartitionRange {
    fn from(properties: &PartitionProperties) -> Self {
        let last = properties.last_enqueued();
        Self {
            first: properties.beginning_sequence_number(),
            last: last.map(|last| last.sequence_number),
            last_offset: last.map(|last| last.offset.clone()),
            last_enqueued_at: properties.last_enqueued_at(),
            is_empty: properties.is_empty(),
        }
    }
}

/// Whether and how a partition is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OwnershipState {
    /// A live owner has it.
    Owned,
    /// Its live owner was asked for it by another one.
    HandingOver,
    /// Its owner has shut down and kept it for its restart.
    Away,
    /// An operator works on it.
    Operator,
    /// Its owner did not renew in time.
    Expired,
    /// Its last owner released it.
    Released,
    /// It never had an owner.
    Unowned,
}

impl OwnershipState {
    /// Returns the name, as it is serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::HandingOver => "handing_over",
            Self::Away => "away",
            Self::Operator => "operator",
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Unowned => "unowned",
        }
    }

    /// Returns whether another instance must not claim the partition now.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Owned | Self::HandingOver | Self::Away | Self::Operator)
    }
}

impl fmt::Display for OwnershipState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whose software wrote a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Sdk {
    /// This crate.
    #[serde(rename = "eventhubs-checkpoint")]
    ThisCrate,
    /// Any other SDK: their records do not show which one.
    #[serde(rename = "other")]
    Other,
}

impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ThisCrate => "eventhubs-checkpoint",
            Self::Other => "other",
        })
    }
}

/// The owner of a partition, by its record.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct OwnerDescription {
    /// The owner.
    pub id: OwnerId,
    /// Whose software it runs.
    pub sdk: Sdk,
    /// When it claimed the partition, by the server's clock. Unknown for owners of other SDKs.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// When it last renewed its lease, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub renewed: OffsetDateTime,
    /// How long its lease is valid after each renewal: as its record says, or as configured for other SDKs.
    #[serde(rename = "lease_duration_s", with = "crate::seconds")]
    pub lease_duration: Duration,
    /// How long its lease is still valid. Zero if it has expired.
    #[serde(rename = "expires_in_s", with = "crate::seconds")]
    pub expires_in: Duration,
    /// The epoch of its ownership. Unknown for owners of other SDKs.
    pub epoch: Option<i64>,
    /// How much work the partition is, as measured by its owner.
    pub load: Option<u64>,
    /// The owner that requested the partition.
    pub handoff_to: Option<OwnerId>,
}

/// A live member of the group.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Its id.
    pub id: OwnerId,
    /// Whose software it runs.
    pub sdk: Sdk,
    /// The partitions that it owns. Empty if only its heartbeat shows that it is alive.
    pub partitions: Vec<PartitionId>,
    /// How much work they are, as measured by the member.
    pub load: Option<u64>,
    /// When it claimed the first of its partitions, by the server's clock.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// When it last renewed a lease or sent a heartbeat, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub renewed: OffsetDateTime,
}

impl GroupDescription {
    pub(super) const SCHEMA: &'static str = "ehcp.group/1";

    /// Returns the partition with this id.
    #[must_use]
    pub fn partition(&self, id: &PartitionId) -> Option<&PartitionDescription> {
        self.partitions.iter().find(|partition| partition.id == *id)
    }
}

fn as_text<S: serde::Serializer>(etag: &ETag, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(etag.as_str())
}
