//! Describes a partition by what was read: plain values, which serialize to the JSON of the tool `ehcp`. Pure.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::records::{GroupRecords, HubRanges};
use crate::model::{
    CheckpointRecord, ETag, LeaseDurations, OwnerId, Ownership, OwnershipRecord, PartitionId, Pause, Position,
};
use crate::planner::{PartitionOwner, PartitionView, View};
use crate::source::{BEFORE_EVERYTHING, Lag, LagState, PartitionProperties, is_of_former_hub};
use crate::store::Checkpoint;

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
    /// When the last owner released the partition, by the server's clock. `None` unless it is
    /// [released](OwnershipState::Released).
    #[serde(with = "time::serde::rfc3339::option")]
    pub released_at: Option<OffsetDateTime>,
}

impl PartitionDescription {
    /// Returns the pause, if the partition is paused, or parked after a failure.
    #[must_use]
    pub fn active_pause(&self) -> Option<&Pause> {
        self.checkpoint.as_ref()?.paused.as_ref()
    }

    /// Returns for how long the owner has made no progress although events wait: since its checkpoint was written,
    /// since a pause ended by itself and, if one event waits, since that event was enqueued. Without a checkpoint,
    /// since its claim. `now` is by the server's clock.
    ///
    /// `None` if the partition has no live owner or is paused, if no event waits, or if the event hub was not read. A
    /// partition that is parked after a failure makes no progress, nor does a handler that takes long for one batch.
    ///
    /// One look cannot tell since when events wait: they may have arrived just now, after a long time without any, and
    /// an operator may have just resumed the partition. A second look at the same checkpoint can, after more than the
    /// interval of checkpoints and the time that the handler needs for one batch.
    #[must_use]
    pub fn time_without_progress(&self, now: OffsetDateTime) -> Option<Duration> {
        let waiting = self.lag.events.filter(|events| *events > 0)?;
        if self.state != OwnershipState::Owned || self.active_pause().is_some_and(|pause| !pause.parked) {
            return None;
        }
        let written = match &self.checkpoint {
            Some(checkpoint) => checkpoint.updated,
            None => self.owner.as_ref()?.since?,
        };
        let resumed = self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.resumed);
        let last_enqueued = self.hub.as_ref().and_then(|hub| hub.last_enqueued_at).filter(|_| waiting == 1);
        let since = [Some(written), resumed, last_enqueued].into_iter().flatten().max()?;
        Some((now - since).try_into().unwrap_or_default())
    }
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
    /// The pause, if the partition is paused.
    pub paused: Option<Pause>,
    /// Whether the application keeps its own position, which takes precedence: a reset of the checkpoint has no effect.
    pub own_position: bool,
    /// The last owner that adopted or wrote it, if it is of this crate. An owner that starts from a checkpoint adopts
    /// it, so the position may have been written by an earlier one.
    pub owner: Option<OwnerId>,
    /// When its position was written, by the server's clock. An owner that starts from it, or a pause, changes the blob
    /// but not this time. For other SDKs, whose records have no time, the time of the blob.
    #[serde(with = "time::serde::rfc3339")]
    pub updated: OffsetDateTime,
    /// When the last pause ended, if it ended by itself.
    #[serde(skip)]
    pub(super) resumed: Option<OffsetDateTime>,
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

/// The SDK that wrote a record.
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
    /// The SDK that it uses.
    pub sdk: Sdk,
    /// When it claimed the partition, by the server's clock. Unknown for owners of other SDKs.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// When it last renewed its lease, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub renewed: OffsetDateTime,
    /// How long its lease is valid after each renewal: as its record says, or as configured for other SDKs.
    #[serde(rename = "lease_duration_s", serialize_with = "crate::util::serialize_seconds")]
    pub lease_duration: Duration,
    /// How long its lease is still valid. Zero if it has expired.
    #[serde(rename = "expires_in_s", serialize_with = "crate::util::serialize_seconds")]
    pub expires_in: Duration,
    /// The epoch of its ownership. Unknown for owners of other SDKs.
    pub epoch: Option<i64>,
    /// How much work the partition is, as measured by its owner.
    pub load: Option<u64>,
    /// The owner that requested the partition.
    pub handoff_to: Option<OwnerId>,
}

/// What a description is made of.
pub(super) struct Describer<'a> {
    pub(super) records: &'a GroupRecords,
    /// All partitions, as the operator sees them.
    pub(super) view: &'a View<'a>,
    pub(super) hub: Option<&'a HubRanges>,
}

impl Describer<'_> {
    pub(super) fn describe_partition(
        &self,
        entry: &PartitionView,
        checkpoint: Option<&Checkpoint>,
    ) -> PartitionDescription {
        let id = &entry.partition;
        let properties = self.hub.and_then(|hub| hub.get(id));
        let valid = checkpoint.filter(|checkpoint| !self.is_of_former_hub(checkpoint));
        let record = self.view.record_of(id);
        PartitionDescription {
            id: id.clone(),
            checkpoint: checkpoint.map(|checkpoint| self.describe_checkpoint(checkpoint)),
            hub: properties.map(Into::into),
            lag: lag_of(valid.map(|checkpoint| &checkpoint.record), properties),
            state: ownership_state(entry),
            owner: record.and_then(|seen| self.describe_owner(seen)),
            released_at: record
                .filter(|seen| seen.record.owner.is_none())
                .map(|seen| self.records.taken_at - self.time_since_renewal(seen)),
        }
    }

    fn describe_checkpoint(&self, checkpoint: &Checkpoint) -> CheckpointDescription {
        let record = &checkpoint.record;
        CheckpointDescription {
            position: record.into(),
            initial: record.initial,
            of_former_hub: self.is_of_former_hub(checkpoint),
            paused: record.paused.clone().filter(|pause| !pause.has_ended(self.records.taken_at)),
            own_position: record.own_position,
            owner: record.owner.clone(),
            updated: record.updated_at.unwrap_or(checkpoint.last_modified),
            resumed: record.paused.as_ref().and_then(|pause| pause.until).filter(|end| *end <= self.records.taken_at),
            etag: checkpoint.etag.clone(),
        }
    }

    fn is_of_former_hub(&self, checkpoint: &Checkpoint) -> bool {
        is_of_former_hub(&checkpoint.record_with_time(), self.hub.and_then(HubRanges::created_at))
    }

    fn describe_owner(&self, seen: &Ownership) -> Option<OwnerDescription> {
        let record = &seen.record;
        let age = self.time_since_renewal(seen);
        Some(OwnerDescription {
            id: record.owner.clone()?,
            sdk: sdk_of(record),
            since: record.claimed_at,
            renewed: self.records.taken_at - age,
            lease_duration: self.lease_durations().of(record),
            expires_in: self.lease_durations().lifetime(record).saturating_sub(age),
            epoch: record.epoch,
            load: record.load,
            handoff_to: record.handoff_to.clone(),
        })
    }

    pub(super) fn lease_durations(&self) -> LeaseDurations {
        self.records.store.lease_durations()
    }

    pub(super) fn time_since_renewal(&self, seen: &Ownership) -> Duration {
        seen.time_since_renewal(&self.records.survey.heartbeats.records, self.records.read_at)
    }
}

fn ownership_state(entry: &PartitionView) -> OwnershipState {
    match &entry.owner {
        _ if entry.is_owned_by_operator() => OwnershipState::Operator,
        // The observer is an operator itself.
        PartitionOwner::This | PartitionOwner::Reclaimable => OwnershipState::Operator,
        PartitionOwner::Unowned => OwnershipState::Unowned,
        PartitionOwner::Released => OwnershipState::Released,
        PartitionOwner::Expired(_) => OwnershipState::Expired,
        _ if entry.away => OwnershipState::Away,
        _ if entry.handoff_to.is_some() => OwnershipState::HandingOver,
        PartitionOwner::Other(_) => OwnershipState::Owned,
    }
}

/// Returns the lag of a checkpoint. It is unknown if the record has only an offset, unless that is one whose number the
/// range shows.
fn lag_of(record: Option<&CheckpointRecord>, properties: Option<&PartitionProperties>) -> Lag {
    let number = record.and_then(|record| record.sequence_number);
    let offset = record.filter(|_| number.is_none()).and_then(|record| record.offset.as_deref());
    let number = match (offset, properties.filter(|properties| !properties.is_empty())) {
        (Some(offset), Some(properties)) => match properties.last_enqueued() {
            Some(last) if last.offset == offset => Some(last.sequence_number),
            _ if offset == BEFORE_EVERYTHING => Some(properties.beginning_sequence_number().saturating_sub(1)),
            _ => return Lag { events: None, state: LagState::Unknown },
        },
        _ => number,
    };
    Lag::between(number, properties, Duration::ZERO, Duration::MAX)
}

pub(super) fn sdk_of(record: &OwnershipRecord) -> Sdk {
    if record.incarnation.is_some() { Sdk::ThisCrate } else { Sdk::Other }
}

fn as_text<S: serde::Serializer>(etag: &ETag, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(etag.as_str())
}
