//! How far a partition was processed.

use std::collections::BTreeMap;

use serde::Serialize;
use time::OffsetDateTime;

use super::owner::OwnerId;

/// A position in a partition: that of an event that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Position {
    /// The sequence number, which grows with every event of the partition.
    pub sequence_number: i64,
    /// The offset. Only the service knows its meaning.
    pub offset: String,
}

impl Position {
    /// Creates the position of the event with this sequence number and offset.
    #[must_use]
    pub fn new(sequence_number: i64, offset: impl Into<String>) -> Self {
        Self { sequence_number, offset: offset.into() }
    }
}

/// The content of a checkpoint blob. Either part of the position may be missing, because other SDKs omit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointRecord {
    /// The sequence number of the last event that was processed.
    pub sequence_number: Option<i64>,
    /// The offset of that event.
    pub offset: Option<String>,
    /// The owner that wrote the checkpoint. For information only: the ETag fences, not the owner id.
    pub owner: Option<OwnerId>,
    /// When the checkpoint was written, by the server's clock.
    pub updated_at: Option<OffsetDateTime>,
    /// Whether the position is an initial checkpoint: a start position that was recorded before any event up to it was
    /// processed. Every reader can start from it, but it does not show progress: any checkpoint of an owner replaces
    /// it, also one at a smaller position.
    pub initial: bool,
    /// When the event hub was created in which the position was read, in whole seconds. The sequence numbers of a
    /// recreated event hub start over, so a position is meaningless in an event hub with another creation time.
    /// `None` if the writer did not know the time, as with processors of other SDKs.
    pub hub_created_at: Option<OffsetDateTime>,
    /// Keys that this version does not know. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl CheckpointRecord {
    /// Returns the position, if the record contains both parts of it.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        Some(Position { sequence_number: self.sequence_number?, offset: self.offset.clone()? })
    }

    /// Returns whether the record contains a position.
    #[must_use]
    pub fn has_position(&self) -> bool {
        self.sequence_number.is_some() || self.offset.is_some()
    }
}
